//! Every example, run as a person would run it.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use dunlin_testkit::Redis;

use crate::support::Peer;

struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    fn run(name: &str, arguments: &[&str]) -> Example {
        let path = path(name);
        let mut command = Command::new(&path);
        let mut child =
            command.args(arguments).stdout(Stdio::piped()).spawn().unwrap_or_else(|error| {
                panic!("{}: {error}; cargo test builds it unless given --test", path.display())
            });
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Example { child, lines }
    }

    fn says(&mut self) -> String {
        self.lines.next().expect("it has more to say").unwrap()
    }

    fn addr(&mut self) -> String {
        self.says().strip_prefix("listening on ").expect("its address first").to_owned()
    }

    fn ends(&mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

/// Cargo builds the examples of a package with its tests, beside them.
fn path(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.extend(["examples", name]);
    path
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn echo() {
    let mut echo = Example::run("echo", &["127.0.0.1:0"]);
    let mut peer = Peer::connect(echo.addr().parse().unwrap());
    peer.says("hello").hears("hello");
    // More than the socket and the bound on being behind hold: it stops reading, not remembering.
    let mut writer = peer.stream.try_clone().unwrap();
    let block = vec![b'x'; 8 << 20];
    let sent = block.clone();
    let writing =
        std::thread::spawn(move || std::io::Write::write_all(&mut writer, &sent).unwrap());
    let mut heard = vec![0; block.len()];
    std::io::Read::read_exact(&mut peer.stream, &mut heard).unwrap();
    assert!(heard == block);
    writing.join().unwrap();
    peer.finishes().hears_the_end();
}

#[test]
fn hello_http() {
    let mut hello = Example::run("hello_http", &["127.0.0.1:0"]);
    let mut peer = Peer::connect(hello.addr().parse().unwrap());
    for (path, body) in [("/", "hello, world\n"), ("/you", "hello, you\n")] {
        peer.says(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_eq!(peer.hears_response().1, body);
    }
}

#[test]
fn comet() {
    let mut comet = Example::run("comet", &["127.0.0.1:0", "1", "30"]);
    let addr = comet.addr().parse().unwrap();
    let mut peers: Vec<Peer> = (0..100).map(|_| Peer::connect(addr)).collect();
    for round in 0..2 {
        for peer in &mut peers {
            peer.says(format!("GET /{round} HTTP/1.1\r\nHost: x\r\n\r\n"));
        }
        for peer in &mut peers {
            let (head, body) = peer.hears_response();
            assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
            assert_eq!(body, "time is up\n");
        }
    }
}

#[test]
fn timer() {
    let mut timer = Example::run("timer", &[]);
    let mut lines: Vec<String> = (0..4).map(|_| timer.says()).collect();
    lines.sort();
    assert_eq!(lines, ["beat 1", "beat 2", "beat 3", "once"]);
    let pid = rustix::process::Pid::from_child(&timer.child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(timer.says(), "signal 2 after 3 beats");
    timer.ends();
}

#[test]
fn clients_of_websocket() {
    let mut echo = Example::run("websocket", &["127.0.0.1:0"]);
    let mut clients = Example::run("clients", &[&echo.addr()]);
    assert_eq!([clients.says(), clients.says()], ["websocket: hello, yourself", "closed here"]);
    clients.ends();
}

#[test]
fn bus() {
    let mut bus = Example::run("bus", &["127.0.0.1:0"]);
    let addr = bus.addr().parse().unwrap();
    for _ in 0..10 {
        let mut peer = Peer::connect(addr);
        peer.says("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        let (_, body) = peer.hears_response();
        assert!(body.starts_with("it has served "), "{body}");
    }
}

#[test]
fn clients_without_a_server_say_so_and_fail() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(complaint("clients", &nobody.to_string()).contains("refused"));
}

#[test]
fn clients_of_a_server_without_websockets_say_what_it_answered_and_fail() {
    let mut hello = Example::run("hello_http", &["127.0.0.1:0"]);
    let text = complaint("clients", &hello.addr());
    assert!(text.contains("200") && text.contains("start the example"), "{text}");
}

/// What an example prints as its error; it must fail.
fn complaint(name: &str, argument: &str) -> String {
    let output = Command::new(path(name)).arg(argument).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn redis_waits_for_a_server_that_comes_later() {
    let addr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut redis = Example::run("redis", &[&addr.to_string()]);
    let _server = Redis::start_at(addr, &[]).expect("the port is still free");
    let lines: Vec<String> = (0..3).map(|_| redis.says()).collect();
    assert!(lines.contains(&"message".to_owned()), "{lines:?}");
    redis.ends();
}

#[test]
fn redis() {
    let server = Redis::start(&[]);
    let mut redis = Example::run("redis", &[&server.addr.to_string()]);
    let mut lines: Vec<String> = (0..3).map(|_| redis.says()).collect();
    // The message may come before the reply to its publisher, or behind it.
    lines.sort();
    assert_eq!(lines[0], "1: Integer(1)");
    assert!(lines.contains(&"message".to_owned()), "{lines:?}");
    redis.ends();
}

#[test]
fn no_example_is_longer_than_forty_lines() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 40, "{} has {lines} lines", path.display());
    }
}
