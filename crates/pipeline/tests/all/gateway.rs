//! Tests of a client and an HTTP server on one loop: requests wait for the backend's answer.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

#[path = "../../examples/gateway.rs"]
#[allow(dead_code, reason = "its main is not run")]
#[allow(unreachable_pub, reason = "a module of tests has no outside")]
mod example;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::{TIMEOUT, serve_many};
use dunlin_net::{EventLoop, ListenConfig, LoopConfig};
use dunlin_pipeline::{Client, ClientConfig, HostConfig};

/// Starts a gateway to a backend, in a thread that ends with the test.
fn gateway(backend: SocketAddr) -> SocketAddr {
    let (ready, started) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut client = Client::new(ClientConfig::default(), example::Answers);
        let config = HostConfig { connect_attempts: 1, ..HostConfig::default() };
        let backend = client.requests().host(&format!("http://{backend}"), config).unwrap();
        let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
        let cx = event_loop.context();
        let addr = "127.0.0.1:0".parse().unwrap();
        let listener = cx.listen(addr, &ListenConfig::http()).unwrap();
        ready.send(cx.listener_addr(listener).unwrap()).unwrap();
        event_loop.run(&mut example::Gateway { client, backend }).unwrap();
    });
    started.recv().unwrap()
}

fn ask(gateway: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(gateway).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn many_clients_are_answered_by_the_backend() {
    let backend = serve_many(|_, mut conversation| {
        while let Some(head) = conversation.hears() {
            let path = head.split(' ').nth(1).unwrap().to_owned();
            conversation.answers(&format!("backend says {path}"));
        }
    });
    let gateway = gateway(backend);
    let asking: Vec<_> =
        (0..20).map(|n| std::thread::spawn(move || (n, ask(gateway, &format!("/{n}"))))).collect();
    for thread in asking {
        let (n, answer) = thread.join().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.ends_with(&format!("backend says /{n}")), "{answer}");
    }
}

#[test]
fn a_backend_that_does_not_run_is_a_bad_gateway() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let answer = ask(gateway(nobody), "/");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(answer.contains("check that the server runs"), "{answer}");
}

/// What is said end to end goes through in both directions, every line of it; what is said to the next hop does not.
#[test]
fn headers_go_through_except_those_of_one_hop() {
    let backend = serve_many(|_, mut conversation| {
        while let Some(head) = conversation.hears() {
            let length = head.len();
            conversation.says(format!(
                "HTTP/1.1 201 Created\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Type: text/x-head\r\n\
                 Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nKeep-Alive: timeout=5\r\n\
                 Content-Length: {length}\r\n\r\n{head}"
            ));
        }
    });
    let mut stream = TcpStream::connect(gateway(backend)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let ask = "GET / HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer t\r\nX-Forwarded-For: 1.1.1.1\r\n\
               X-Forwarded-For: 2.2.2.2\r\nX-Hop: this hop\r\nTE: trailers\r\nConnection: close, x-hop\r\n\r\n";
    stream.write_all(ask.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, asked) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    for line in ["Set-Cookie: a=1", "Set-Cookie: b=2", "Content-Type: text/x-head"] {
        assert_eq!(head.matches(line).count(), 1, "{line} in {head}");
    }
    assert_eq!(head.matches("Date: ").count(), 1, "{head}");
    assert!(!head.contains("1970") && !head.contains("Keep-Alive"), "{head}");
    for line in ["Authorization: Bearer t", "X-Forwarded-For: 1.1.1.1", "X-Forwarded-For: 2.2.2.2"]
    {
        assert_eq!(asked.matches(line).count(), 1, "{line} in {asked}");
    }
    assert!(!asked.contains("this hop") && !asked.contains("TE:"), "{asked}");
    assert!(!asked.contains("Host: gateway"), "{asked}");
}
