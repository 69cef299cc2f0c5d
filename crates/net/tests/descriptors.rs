//! A process out of descriptors keeps serving those it has, and accepts again when one is free.
//!
//! Alone in its file: the limit is the process's.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

mod support;

use dunlin_net::{ConnId, Context, Handler, ListenConfig, ListenerId, LoopConfig};
use rustix::process::{Resource, getrlimit, setrlimit};
use support::run_with;

#[derive(Default)]
struct Echo {
    failures: Vec<Option<i32>>,
}

impl Handler for Echo {
    type Data = ();

    fn on_accept_failed(&mut self, _: &mut Context<()>, _: ListenerId, error: &std::io::Error) {
        self.failures.push(error.raw_os_error());
    }

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        cx.write(conn, bytes).unwrap();
    }
}

#[test]
fn out_of_descriptors() {
    let config = LoopConfig { accept_retry_ms: 1_000_000, ..LoopConfig::default() };
    let server = run_with(Echo::default(), config, ListenConfig::tcp());
    let mut first = server.connect();
    first.says("x").hears("x");

    // One peer more fits: its own end takes the last descriptor, the server's finds none.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(open + 1), ..before })
        .unwrap();
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
    setrlimit(Resource::Nofile, before).unwrap();
}
