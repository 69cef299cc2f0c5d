//! A proxy with an upstream of two backends, each a process: one dies, hangs, comes back and is taken away, and no client that
//! asks notices.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use std::{env, thread};

use crate::kit::{Served, TIMEOUT};
use serde_json::{Value, json};

/// Where the backend listens, and what it is called.
const BACKEND: &str = "DUNLIN_TEST_BACKEND";

/// Not a test but the backend, in a process that the test beside it starts: it answers connects with its name and checks with 200.
#[test]
fn a_backend() {
    let Ok(backend) = env::var(BACKEND) else { return };
    let (address, name) = backend.split_once(' ').unwrap();
    let listener = TcpListener::bind(address).unwrap();
    let name = name.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let name = name.clone();
            thread::spawn(move || answer(stream, &name));
        }
    });
    // It ends with the process that holds the other end.
    let _ = std::io::stdin().read(&mut [0]);
}

fn answer(mut stream: TcpStream, name: &str) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            lines.read_line(&mut line).ok().filter(|read| *read > 0)?;
            match line.trim_end().split_once(": ") {
                Some(("Content-Length", of)) => length = of.parse().ok()?,
                None if line == "\r\n" => break,
                _ => {}
            }
        }
        lines.read_exact(&mut vec![0; length]).ok()?;
        let body = json!({"result": {"user": "ann", "data": {"by": name}}}).to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).ok()?;
    }
}

struct Backend(Child);

impl Backend {
    fn start(address: SocketAddr, name: &str) -> Backend {
        let child = Command::new(env::current_exe().unwrap())
            .args(["upstreams::a_backend", "--exact"])
            .env(BACKEND, format!("{address} {name}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        until("the backend listens", || TcpStream::connect(address).is_ok());
        Backend(child)
    }

    fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // Killed already, or about to be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::yield_now();
    }
}

/// Who has let a client in.
fn connect(served: &Served) -> String {
    let mut stream = TcpStream::connect(served.at.client).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
        .write_all(
            b"POST /connection/uni_http_stream HTTP/1.1\r\nHost: d\r\nContent-Length: 2\r\n\r\n{}",
        )
        .unwrap();
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it is not let in");
        if line.starts_with('{') {
            let push: Value = serde_json::from_str(&line).unwrap();
            let by = push["connect"]["data"]["by"].as_str();
            return by.unwrap_or_else(|| panic!("it is not let in: {push}")).to_owned();
        }
    }
}

fn set(served: &Served, key: &str, value: &Value) {
    let (status, body) =
        served.call("PUT", &format!("/config/{key}"), &value.to_string()).expect("an answer");
    assert!(matches!(status, 200 | 201), "{key}: {body}");
}

fn status(served: &Served) -> Value {
    let (status, body) = served.call("GET", "/status/upstreams", "").expect("an answer");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// The names of members that are not healthy.
fn unhealthy(served: &Served) -> Vec<String> {
    let status = status(served);
    let members = status["upstreams"]["pool"]["unhealthy"].as_object();
    members.map(|members| members.keys().cloned().collect()).unwrap_or_default()
}

#[test]
fn a_member_dies_hangs_comes_back_and_is_taken_away_and_every_client_is_let_in() {
    let directory = tempfile::tempdir().unwrap();
    let served = &Served::start(directory.path(), "");
    let [a, b] = [8003, 8004].map(|port| SocketAddr::from((served.at.client.ip(), port)));
    let backend_a = Backend::start(a, "a");
    let backend_b = Backend::start(b, "b");
    let check = json!({"path": "/health", "interval_ms": 100, "timeout_ms": 2_000, "fall": 2});
    let members = json!({"a": {"address": a.to_string()}, "b": {"address": b.to_string()}});
    set(served, "webhooks/upstreams/pool", &json!({"health_check": check, "members": members}));
    let proxy = json!({"upstream": "pool", "endpoint": "/connect", "timeout_ms": 4_000});
    set(served, "proxies/app", &proxy);
    set(served, "client/proxy/connect", &json!("app"));
    set(served, "client/anonymous", &json!(false));

    // Clients come all the time, on several connections at once, and each is let in.
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    connect(served);
                }
            });
        }
        let by = |members: &[&str], what: &str| {
            let mut seen = BTreeSet::new();
            until(what, || {
                seen.insert(connect(served));
                seen.iter().map(String::as_str).eq(members.iter().copied())
            });
        };
        by(&["a", "b"], "both are asked");

        drop(backend_a);
        until("a fails its checks", || unhealthy(served) == ["a"]);
        assert!((0..20).all(|_| connect(served) == "b"));
        let backend_a = Backend::start(a, "a");
        by(&["a", "b"], "a is asked again");
        until("a passes its checks", || unhealthy(served).is_empty());

        // One that hangs keeps its connections open, and does not answer.
        backend_b.signal("-STOP");
        until("b fails its checks", || unhealthy(served) == ["b"]);
        assert!((0..20).all(|_| connect(served) == "a"));
        backend_b.signal("-CONT");
        by(&["a", "b"], "b is asked again");

        // And by the config API: who asks next sees it.
        set(served, "webhooks/upstreams/pool/members/b/down", &json!(true));
        assert!((0..20).all(|_| connect(served) == "a"));
        set(served, "webhooks/upstreams/pool/members/b/down", &json!(false));
        let gone = served.call("DELETE", "/config/webhooks/upstreams/pool/members/a", "");
        assert_eq!(gone.expect("an answer").0, 200);
        assert!((0..20).all(|_| connect(served) == "b"));
        drop(backend_a);
    });

    let retried = served.call("GET", "/metrics", "").expect("an answer").1;
    let retried: u64 = retried
        .lines()
        .filter(|line| line.starts_with("dunlin_proxy_calls_retried_total{"))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum();
    assert!(retried > 0, "some had asked who was dead");
    let refused = served.call("DELETE", "/config/webhooks/upstreams/pool", "").expect("an answer");
    assert!(refused.0 == 422 && refused.1.contains("proxies"), "{refused:?}");
}
