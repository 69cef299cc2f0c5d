//! Two servers of different owners: messages between their users, over links that are cut and with servers that are killed.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::kit::client::token;
use crate::kit::cluster::SECRET;
use crate::kit::{Addresses, Served, TIMEOUT};

/// The keys of a domain, as `dunlin federation key` makes them.
struct Keys {
    private: String,
    public: String,
}

fn keys() -> Keys {
    let made = Command::new(env!("CARGO_BIN_EXE_dunlin")).args(["federation", "key"]).output();
    let text = String::from_utf8(made.unwrap().stdout).unwrap();
    let digits = |of: &str| of.split('"').find(|part| part.len() == 64).unwrap().to_owned();
    let private = text.lines().find(|line| line.starts_with("key = ")).map(digits).unwrap();
    let public = text.lines().find(|line| line.contains(".keys = ")).map(digits).unwrap();
    Keys { private, public }
}

/// A server with its domain.
struct Domain {
    name: &'static str,
    served: Served,
    state: tempfile::TempDir,
    at: Addresses,
    listen: SocketAddr,
}

impl Domain {
    /// Starts a server that listens for its peer, whose address is where it may be dialed.
    fn start(
        name: &'static str,
        keys: &Keys,
        (peer, peer_key, address): (&str, &str, String),
    ) -> Domain {
        let state = tempfile::tempdir().unwrap();
        let at = Addresses::new();
        let served = Served::begin(state.path(), at, "", &[]).expect("it starts");
        let listen = at.extra;
        let mut domain = Domain { name, served, state, at, listen };
        domain.put("/config/client/token/hmac_secret", &json!(SECRET));
        domain.put(
            "/config/engines/disk",
            &json!({ "type": "disk", "segment_bytes_max": 1 << 20, "bytes_max": 64 << 20 }),
        );
        let inbox =
            json!({ "engine": "disk", "history_size": 10_000, "history_ttl_ms": 3_600_000 });
        domain.put("/config/channel/namespaces/inbox", &inbox);
        let personal = json!({ "enabled": true, "personal_channel_namespace": "inbox" });
        domain.put("/config/client/subscribe_to_user_personal_channel", &personal);
        let federation = json!({
            "enabled": true, "domain": name, "key": keys.private, "listen": listen,
            "client_send": "users",
            "peers": { peer: { "address": address, "keys": [peer_key] } },
        });
        domain.put("/config/federation?durable=1", &federation);
        // The log of an engine, and that of messages, are opened at the start.
        domain.restart();
        domain
    }

    fn put(&self, target: &str, value: &Value) {
        let (status, answer) = self.served.call("PUT", target, &value.to_string()).unwrap();
        assert!(matches!(status, 200 | 201), "{target}: {answer}");
    }

    fn restart(&mut self) {
        self.served.kill();
        self.served = Served::begin(self.state.path(), self.at, "", &[]).expect("it starts");
    }

    fn send(&self, from: &str, to: &str, data: &Value) -> Value {
        let body = json!({ "user": to, "from": from, "data": data });
        self.served.api("", "send", &body)["result"].clone()
    }

    /// What is shown of the peer.
    fn peer(&self) -> Value {
        let (_, status) = self.served.call("GET", "/federation", "").unwrap();
        serde_json::from_str::<Value>(&status).unwrap()["peers"][0].clone()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + 3 * TIMEOUT;
        // What is shown is a second old.
        std::thread::sleep(Duration::from_millis(1_100));
        while !is_so(&self.peer()) {
            assert!(Instant::now() < deadline, "{}: {what}: {}", self.name, self.peer());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn wait_up(&self) {
        self.wait("a link", |peer| peer["state"] == "up");
    }

    /// The messages in a user's channel: sender and data.
    fn inbox(&self, user: &str) -> Vec<(String, Value)> {
        let body = json!({ "channel": format!("inbox:#{user}"), "limit": 10_000 });
        let answer = self.served.api("", "history", &body);
        let publications = answer["result"]["publications"].as_array().cloned();
        let publications = publications.unwrap_or_else(|| panic!("{answer}"));
        let sender = |of: &Value| of["info"]["user"].as_str().unwrap_or_default().to_owned();
        publications.iter().map(|of| (sender(of), of["data"].clone())).collect()
    }
}

/// Two domains that dial each other, each through a way of its own.
fn pair(way: impl Fn(SocketAddr) -> SocketAddr) -> (Domain, Domain) {
    let (of_a, of_b) = (keys(), keys());
    // B waits for A.
    let b = Domain::start("b.example", &of_b, ("a.example", &of_a.public, String::new()));
    let to_b = way(b.listen).to_string();
    let a = Domain::start("a.example", &of_a, ("b.example", &of_b.public, to_b));
    a.wait_up();
    b.wait_up();
    (a, b)
}

/// A way to an address on which every connection is cut after some hundred bytes to some ten thousand, while it `cuts`.
fn cut_way(to: SocketAddr, cuts: &Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let cuts = Arc::clone(cuts);
    std::thread::spawn(move || {
        for (count, from) in (1_u64..).zip(listener.incoming()) {
            let from = from.unwrap();
            let Ok(to) = TcpStream::connect(to) else { continue };
            // Some end within the handshake, most in the middle of a frame.
            let mut left = 500 + count * 7_919 % 60_000;
            let cuts = Arc::clone(&cuts);
            let (mut up, mut down) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut down, &mut up);
                let _ = up.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let (mut from, mut to, mut bytes) = (from, to, [0; 900]);
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    let mut count = count;
                    if cuts.load(Ordering::Relaxed) {
                        count = count.min(left as usize);
                        left -= count as u64;
                    }
                    if to.write_all(&bytes[..count]).is_err() || left == 0 {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

/// Checks that each number below `count` has arrived once, from alice.
fn assert_ledger(of: &Domain, count: u64) {
    let mut arrived: BTreeMap<u64, u64> = BTreeMap::new();
    for (sender, data) in of.inbox("bob") {
        assert_eq!(sender, "alice@a.example");
        *arrived.entry(data["number"].as_u64().unwrap()).or_default() += 1;
    }
    let wrong: Vec<_> = (0..count).filter(|number| arrived.get(number) != Some(&1)).collect();
    assert!(wrong.is_empty(), "lost or doubled: {wrong:?} of {count}");
    assert_eq!(arrived.len() as u64, count);
}

/// The data of a message; some take several fragments.
fn numbered(number: u64) -> Value {
    let filling = if number.is_multiple_of(10) { "x".repeat(40_000) } else { String::new() };
    json!({ "number": number, "filling": filling })
}

#[test]
fn message_to_a_user_of_a_peer_arrives_with_its_senders_address_and_the_answer_says_so() {
    let (a, b) = pair(|to| to);
    let sent = a.send("alice", "bob@b.example", &json!({ "text": "hello" }));
    assert_eq!(sent["status"], "delivered", "{sent}");
    assert_eq!(b.inbox("bob"), [("alice@a.example".to_owned(), json!({ "text": "hello" }))]);
    // And back: one link serves both.
    let sent = b.send("bob", "alice@a.example", &json!(1));
    assert_eq!(sent["status"], "delivered", "{sent}");
    assert_eq!(a.inbox("alice"), [("bob@b.example".to_owned(), json!(1))]);
    // A mail address is a local user, as ever.
    let local = a.send("", "carol@mail.example", &json!(1));
    assert_eq!(local, json!({ "num_clients": 0 }));
    // One key, one message.
    for _ in 0..2 {
        let body =
            json!({ "user": "eve@b.example", "from": "alice", "data": 1, "idempotency_key": "k" });
        let answer = a.served.api("", "send", &body);
        assert_eq!(answer["result"]["status"], "delivered", "{answer}");
    }
    assert_eq!(b.inbox("eve").len(), 1);
    // Who may not be reached is as one who is not there.
    b.put("/config/federation/peers/a.example/recipients", &json!(["bob"]));
    let refused = a.send("alice", "eve@b.example", &json!(2));
    assert_eq!(refused, json!({ "status": "failed", "reason": "unreachable" }));
    assert_eq!(a.send("alice", "bob@b.example", &json!(3))["status"], "delivered");
    // A peer that is blocked has no link, and messages fail at once.
    a.put("/config/federation/peers/b.example/blocked", &json!(true));
    let refused = a.send("alice", "bob@b.example", &json!(4));
    assert_eq!(refused, json!({ "status": "failed", "reason": "no_peer" }));
    b.wait("no link", |peer| peer["state"] == "waiting");
}

#[test]
fn messages_over_links_that_are_cut_arrive_once() {
    let cuts = Arc::new(AtomicBool::new(false));
    let (a, b) = pair(|to| cut_way(to, &cuts));
    cuts.store(true, Ordering::Relaxed);
    for number in 0..200 {
        let sent = a.send("alice", "bob@b.example", &numbered(number));
        assert!(matches!(sent["status"].as_str(), Some("delivered" | "queued")), "{sent}");
        if number % 20 == 0 {
            // In place of the wait that grows.
            a.served.call("POST", "/federation/b.example/retry", "{}").unwrap();
        }
    }
    cuts.store(false, Ordering::Relaxed);
    a.served.call("POST", "/federation/b.example/retry", "{}").unwrap();
    a.wait("an empty queue", |peer| peer["queued"] == 0);
    assert_ledger(&b, 200);
}

#[test]
fn messages_between_servers_that_are_killed_arrive_once() {
    let (mut a, mut b) = pair(|to| to);
    let mut number = 0;
    for round in 0..6 {
        for _ in 0..25 {
            let sent = a.send("alice", "bob@b.example", &numbered(number));
            assert!(matches!(sent["status"].as_str(), Some("delivered" | "queued")), "{sent}");
            number += 1;
        }
        match round % 3 {
            0 => b.restart(),
            1 => a.restart(),
            _ => {
                b.served.kill();
                let sent = a.send("alice", "bob@b.example", &numbered(number));
                assert_eq!(sent["status"], "queued", "{sent}");
                number += 1;
                a.restart();
                b.restart();
            }
        }
        a.served.call("POST", "/federation/b.example/retry", "{}").unwrap();
    }
    a.wait("an empty queue", |peer| peer["queued"] == 0);
    assert_ledger(&b, number);
}

#[test]
fn peer_with_another_key_has_no_link_and_both_sides_say_what_to_set() {
    let (of_a, of_b) = (keys(), keys());
    let b = Domain::start("b.example", &of_b, ("a.example", &of_b.public, String::new()));
    let a = Domain::start("a.example", &of_a, ("b.example", &of_b.public, b.listen.to_string()));
    a.wait("an error", |peer| peer["last_error"].as_str().is_some_and(|of| of.contains("keys")));
    let sent = a.send("alice", "bob@b.example", &json!(1));
    assert_eq!(sent["status"], "queued", "{sent}");
    // The right key is set, beside the wrong one as in a rotation, and the message goes.
    b.put("/config/federation/peers/a.example/keys", &json!([of_b.public, of_a.public]));
    a.served.call("POST", "/federation/b.example/retry", "{}").unwrap();
    a.wait("an empty queue", |peer| peer["queued"] == 0);
    assert_eq!(b.inbox("bob").len(), 1);
}

#[test]
fn message_that_expires_is_reported_to_its_sender() {
    let (a, mut b) = pair(|to| to);
    a.put("/config/federation/expiry_ms", &json!(1_500));
    b.served.kill();
    a.wait("no link", |peer| peer["state"] == "down");
    let sent = a.send("alice", "bob@b.example", &json!(1));
    assert_eq!(sent["status"], "queued", "{sent}");
    a.wait("an expiry", |peer| peer["queued"] == 0);
    let deadline = Instant::now() + TIMEOUT;
    while a.inbox("alice").is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let notices = a.inbox("alice");
    let notice = &notices[0].1["federation"];
    assert_eq!(notice["to"], "bob@b.example", "{notices:?}");
    assert_eq!((&notice["id"], &notice["reason"]), (&sent["id"], &json!("expired")));
}

#[test]
fn client_sends_by_rpc_and_receives_in_its_personal_channel() {
    let (a, b) = pair(|to| to);
    let connect = |domain: &Domain, user: &str| {
        let stream = TcpStream::connect(domain.at.client).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let url = format!("ws://{}/connection/websocket", domain.at.client);
        let (mut socket, _) = tungstenite::client(url, stream).unwrap();
        let connect = json!({ "id": 1, "connect": { "token": token(user) } });
        socket.send(Message::text(connect.to_string())).unwrap();
        socket
    };
    let next = |socket: &mut tungstenite::WebSocket<TcpStream>| loop {
        let text = socket.read().unwrap().into_text().unwrap();
        if text.len() > 2 {
            break serde_json::from_str::<Value>(text.lines().next().unwrap()).unwrap();
        }
        socket.send(Message::text("{}")).unwrap();
    };
    let (mut alice, mut bob) = (connect(&a, "alice"), connect(&b, "bob"));
    assert!(next(&mut alice)["connect"].is_object() && next(&mut bob)["connect"].is_object());
    let data = json!({ "to": "bob@b.example", "data": { "text": "hi" } });
    let rpc = json!({ "id": 2, "rpc": { "method": "dunlin.send", "data": data } });
    alice.send(Message::text(rpc.to_string())).unwrap();
    let reply = next(&mut alice);
    assert_eq!(reply["rpc"]["data"]["status"], "delivered", "{reply}");
    let push = next(&mut bob);
    assert_eq!(push["push"]["channel"], "inbox:#bob", "{push}");
    assert_eq!(push["push"]["pub"]["info"]["user"], "alice@a.example", "{push}");
    assert_eq!(push["push"]["pub"]["data"], json!({ "text": "hi" }));
    // Closed unless the settings say so.
    a.put("/config/federation/client_send", &json!("nobody"));
    alice.send(Message::text(rpc.to_string().replace("\"id\":2", "\"id\":3"))).unwrap();
    let reply = next(&mut alice);
    assert_eq!(reply["error"]["code"], 103, "{reply}");
}
