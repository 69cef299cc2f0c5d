//! The example with a protocol of its own, and clients that speak it.

#![allow(missing_docs, clippy::unwrap_used)]

#[allow(dead_code, reason = "the example has a main")]
#[path = "../../examples/lines.rs"]
mod lines;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dunlin_server::{Config, Handle, json};
use dunlin_testkit::WebSocket;

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

fn serve(change: impl FnOnce(&mut Config)) -> (SocketAddr, Handle) {
    let mut config = Config::development();
    config.server.client_addr = SocketAddr::from(([127, 0, 0, 1], 0));
    config.server.admin_addr = SocketAddr::from(([127, 0, 0, 1], 0));
    config.server.workers = 2;
    change(&mut config);
    let (ready, serving) = mpsc::channel();
    thread::spawn(move || {
        let server = lines::server(config);
        let handle = server.handle();
        server.run(move |of| ready.send((of.client_addr, handle)).unwrap()).unwrap();
    });
    serving.recv_timeout(TIMEOUT).expect("it serves")
}

/// A WebSocket client (RFC 6455) of `/lines`.
struct Client(WebSocket);

impl Client {
    fn open(address: SocketAddr) -> Client {
        let socket = WebSocket::open(address, "/lines", "Sec-WebSocket-Protocol: lines\r\n");
        assert!(socket.head.contains("lines"), "{}", socket.head);
        Client(socket)
    }

    /// One that the server knows.
    fn hello(address: SocketAddr, key: &str) -> Client {
        let mut client = Client::open(address);
        client.say(&format!("HELLO {key}"));
        assert_eq!(client.next(), "OK 1");
        client
    }

    fn say(&mut self, text: &str) {
        self.0.text(text);
    }

    /// The next text; pings are answered.
    fn next(&mut self) -> String {
        loop {
            match self.0.frame().unwrap() {
                (0x81, text) => return String::from_utf8(text).unwrap(),
                (0x89, payload) => self.0.send(0x8a, &payload),
                (0x88, close) => {
                    let code = u16::from_be_bytes([close[0], close[1]]);
                    return format!("closed {code}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn clients_of_the_programs_protocol_meet_those_of_every_other() {
    let (address, handle) = serve(|_| {});
    let mut ada = Client::hello(address, "key-of-ada");
    let mut bob = Client::hello(address, "key-of-bob");
    for client in [&mut ada, &mut bob] {
        client.say("SUB 2 news");
        assert_eq!(client.next(), "OK 2");
    }
    bob.say("PUB 3 news hello to all");
    // Whichever is first: the answer, or the publication.
    let mut said = [bob.next(), bob.next()];
    said.sort();
    assert_eq!(said, ["MSG news hello to all", "OK 3"]);
    assert_eq!(ada.next(), "MSG news hello to all");
    handle.publish("news", "from a thread").unwrap();
    assert_eq!(ada.next(), "MSG news from a thread");

    // The authorizer decides as for all others.
    assert_eq!(bob.next(), "MSG news from a thread");
    bob.say("SUB 4 private-ada");
    assert_eq!(bob.next(), "ERR 4 103");
    ada.say("SUB 4 private-ada");
    assert_eq!(ada.next(), "OK 4");
    let mut stranger = Client::open(address);
    stranger.say("HELLO nobody");
    assert_eq!(stranger.next(), "closed 4501");
    // A message without a command keeps the connection alive, also where no ping was sent.
    for _ in 0..3 {
        ada.say("");
    }
    ada.say("SUB 5 more");
    assert_eq!(ada.next(), "OK 5");
    // What is no message of the protocol is no command, either.
    bob.say("WHAT");
    assert_eq!(bob.next(), "closed 3501");
    // And by the server API it is a session as any other.
    let (sender, listed) = mpsc::channel();
    let send = move |found: &[u8]| {
        sender.send(String::from_utf8_lossy(found).into_owned()).unwrap();
    };
    handle.call("connections", &json!({"user": "ada"}), send).unwrap();
    let listed = listed.recv_timeout(TIMEOUT).unwrap();
    assert!(listed.contains("\"transport\":\"own\""), "{listed}");
}

#[test]
fn a_client_that_answers_pings_stays_and_one_that_does_not_is_closed() {
    let (address, handle) = serve(|config| {
        config.client.ping_interval_ms = 1_000;
        config.client.pong_timeout_ms = 500;
    });
    let mut silent = Client::hello(address, "key-of-bob");
    let mut ada = Client::hello(address, "key-of-ada");
    ada.say("SUB 2 news");
    assert_eq!(ada.next(), "OK 2");
    // Answers pings until the other has been closed.
    let reader = thread::spawn(move || ada.next());
    let closed = loop {
        match silent.0.frame().unwrap() {
            (0x89, _) => {}
            (first, close) => break (first, u16::from_be_bytes([close[0], close[1]])),
        }
    };
    assert_eq!(closed, (0x88, 3012), "no pong");
    handle.publish("news", "still here").unwrap();
    assert_eq!(reader.join().unwrap(), "MSG news still here");
}

#[test]
fn one_that_does_not_read_is_closed_when_its_outbox_is_full() {
    let (address, handle) = serve(|_| {});
    let mut slow = Client::hello(address, "key-of-ada");
    slow.say("SUB 2 news");
    assert_eq!(slow.next(), "OK 2");
    let mut other = Client::hello(address, "key-of-bob");
    other.say("SUB 2 news");
    assert_eq!(other.next(), "OK 2");
    // More than sockets and outbox hold; the other reads each before the next is sent.
    let text = "x".repeat(60_000);
    for at in 0..400 {
        handle.publish("news", format!("{at} {text}")).unwrap();
        assert!(other.next().starts_with(&format!("MSG news {at} ")));
    }
    let mut read = 0;
    let end = loop {
        match slow.0.frame() {
            Ok((0x81, _)) => read += 1,
            Ok((0x88, close)) => break u16::from_be_bytes([close[0], close[1]]),
            Ok(_) => {}
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
                    "{error}"
                );
                break 3008;
            }
        }
    };
    assert!(read < 400, "it was sent {read}");
    assert_eq!(end, 3008, "slow");
}
