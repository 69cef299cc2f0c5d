//! A process out of descriptors keeps serving those it has, and accepts again when one is free.
//!
//! Alone in its file: the limit is the process's.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

mod support;

use std::fs::File;

use dunlin_net::{ConnId, Context, Handler, ListenConfig, ListenerId, LoopConfig, Tcp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Peer, run_with};

#[derive(Default)]
struct Echo {
    failures: Vec<Option<i32>>,
}

impl Handler for Echo {
    type Data = ();
    type Protocols = Tcp;

    fn on_accept_failed(&mut self, _: &mut Context<()>, _: ListenerId, error: &std::io::Error) {
        self.failures.push(error.raw_os_error());
    }

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        cx.write(conn, bytes).unwrap();
    }
}

#[test]
fn out_of_descriptors() {
    a_free_descriptor_is_used_at_once();
    a_table_that_has_room_again_is_found_by_trying();
}

/// A table with room for one descriptor more, whatever numbers are open. Whoever drops it makes room for many.
struct Full {
    before: Rlimit,
    _taken: Vec<File>,
}

impl Full {
    fn but_for_one() -> Full {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..before }).unwrap();
        let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        taken.pop().expect("fewer than sixty are open");
        Full { before, _taken: taken }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.before).unwrap();
    }
}

fn a_free_descriptor_is_used_at_once() {
    let config = LoopConfig { accept_retry_ms: 1_000_000, ..LoopConfig::default() };
    let server = run_with(Echo::default(), config, ListenConfig::tcp());
    let mut first = server.connect();
    first.says("x").hears("x");

    // One peer more fits: its own end takes the last descriptor, the server's finds none.
    let full = Full::but_for_one();
    let mut second = server.connect();
    second.says("y");
    server.until(|echo, cx| !echo.failures.is_empty() && cx.stats().accept_failed > 0);
    let failures = server.ask(|echo, _| echo.failures.clone());
    assert_eq!(
        failures,
        [Some(rustix::io::Errno::MFILE.raw_os_error())],
        "asked once, not spinning"
    );
    first.says("still served").hears("still served");

    // A connection that ends frees a descriptor: no need to wait for the retry.
    first.finishes().hears_the_end();
    second.hears("y");
    drop(full);
}

/// No connection of the loop ends: it is somebody else who makes room, and of that there is no event.
fn a_table_that_has_room_again_is_found_by_trying() {
    let config = LoopConfig { accept_retry_ms: 1, ..LoopConfig::default() };
    let server = run_with(Echo::default(), config, ListenConfig::tcp());
    let another = server.ask(|_, cx| {
        let id = cx.listen("127.0.0.1:0".parse().unwrap(), &ListenConfig::tcp()).unwrap();
        cx.listener_addr(id).unwrap()
    });
    let full = Full::but_for_one();
    let mut peer = server.connect();
    server.until(|echo, _| echo.failures.len() > 2);
    drop(full);
    peer.says("y").hears("y");
    // The table is as full again, and a second listener is found out of descriptors as well.
    let full = Full::but_for_one();
    let failed = server.ask(|echo, _| echo.failures.len());
    let mut second = Peer::connect(another);
    server.until(move |echo, _| echo.failures.len() > failed + 2);
    drop(full);
    second.says("z").hears("z");
    server.connect().says("a").hears("a");
}
