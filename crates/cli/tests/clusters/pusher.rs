//! The HTTP API of the Pusher protocol with several nodes and a real Redis, or a real NATS: it is of all of them.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use crate::kit::TIMEOUT;
use crate::kit::client::{Client, signed};
use crate::kit::cluster::{Cluster, Kind, Node, until};
use dunlin_testkit::WebSocket;
use serde_json::{Value, json};

const SECRET: &str = "the secret of the app";

crate::kit::cluster::wherever_they_meet! {
    a_backend_counts_and_ends_what_is_at_the_other_node
    members_of_a_presence_channel_are_those_of_all_nodes
    members_of_a_node_that_dies_leave_and_those_of_one_that_was_cut_off_are_found_again
    a_backend_is_notified_once_of_a_channel_that_several_nodes_have
}

/// A client of the Pusher protocol.
struct Pusher {
    socket: WebSocket,
    id: String,
}

impl Pusher {
    fn connect(node: &Node) -> Pusher {
        let socket = WebSocket::open(node.served.at.client, "/app/shop-key?protocol=7", "");
        let mut client = Pusher { socket, id: String::new() };
        let opened = data(&client.next());
        client.id = opened["socket_id"].as_str().unwrap().to_owned();
        client
    }

    /// Subscribes as a member of a presence channel, and returns the ids of all members.
    fn join(&mut self, channel: &str, member: &Value) -> Value {
        let channel_data = json!({ "user_id": member }).to_string();
        let auth = sign(&format!("{}:{channel}:{channel_data}", self.id));
        self.say(&json!({ "event": "pusher:subscribe", "data": {
            "channel": channel, "channel_data": channel_data, "auth": format!("shop-key:{auth}"),
        }}));
        let answer = self.next();
        assert_eq!(answer["event"], "pusher_internal:subscription_succeeded", "{answer}");
        data(&answer)["presence"]["ids"].clone()
    }

    fn say(&mut self, message: &Value) {
        self.socket.text(&message.to_string());
    }

    /// Returns the next event that is not a ping.
    fn next(&mut self) -> Value {
        loop {
            let (_, payload) = self.socket.frame().unwrap();
            let event: Value = serde_json::from_slice(&payload).unwrap();
            if event["event"] != "pusher:ping" {
                return event;
            }
        }
    }

    /// Returns what the next announcement says: `+7` or `-7`.
    fn announced(&mut self) -> String {
        let event = self.next();
        let sign = match event["event"].as_str().unwrap() {
            "pusher_internal:member_added" => '+',
            "pusher_internal:member_removed" => '-',
            _ => panic!("{event}"),
        };
        format!("{sign}{}", data(&event)["user_id"])
    }
}

fn data(event: &Value) -> Value {
    serde_json::from_str(event["data"].as_str().unwrap()).unwrap()
}

fn sign(text: &str) -> String {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SECRET.as_bytes());
    let tag = ring::hmac::sign(&key, text.as_bytes());
    tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Starts nodes with the app.
fn shop(kind: Kind, nodes: usize) -> Cluster {
    let cluster = Cluster::start(kind, nodes);
    cluster.nodes.iter().for_each(open_shop);
    cluster
}

fn open_shop(node: &Node) {
    let settings = json!({
        "channel": { "namespaces": { "shop": {} } },
        "pusher": { "apps": { "shop": {
            "id": "shop-id", "key": "shop-key", "secret": SECRET, "namespace": "shop"
        } } },
    });
    let merge = "application/merge-patch+json";
    let set = node.served.call_as("PATCH", "/config", merge, &settings.to_string()).unwrap();
    assert_eq!(set.0, 200, "{set:?}");
}

/// Regression test: a client saw the members of its own node alone, and a user with connections to two nodes left when the first
/// of them closed.
fn members_of_a_presence_channel_are_those_of_all_nodes(kind: Kind) {
    let cluster = shop(kind, 3);
    let [a, b, c] = &cluster.nodes[..] else { panic!("three were started") };
    let room = "presence-room";
    let mut ann = Pusher::connect(a);
    assert_eq!(ann.join(room, &json!("ann")), json!(["ann"]));
    let mut ten = Pusher::connect(b);
    assert_eq!(ten.join(room, &json!(10)), json!([10, "ann"]));
    assert_eq!(ann.announced(), "+10");
    let mut eve = Pusher::connect(c);
    assert_eq!(eve.join(room, &json!("eve")), json!([10, "ann", "eve"]));
    assert_eq!((ann.announced(), ten.announced()), ("+\"eve\"".into(), "+\"eve\"".into()));
    // The same user at another node: nobody is notified, neither now nor when one of the connections closes.
    let mut again = Pusher::connect(a);
    assert_eq!(again.join(room, &json!(10)), json!([10, "ann", "eve"]));
    let (_, users) = call(c, "GET", "/channels/presence-room/users", "");
    assert_eq!(users, json!({ "users": [{ "id": 10 }, { "id": "ann" }, { "id": "eve" }] }));
    drop(ten);
    until("the first connection is gone", || {
        let counts = "&info=subscription_count,user_count";
        let (_, answer) = call(c, "GET", "/channels/presence-room", counts);
        answer == json!({ "occupied": true, "subscription_count": 3, "user_count": 3 })
    });
    drop(again);
    assert_eq!((ann.announced(), eve.announced()), ("-10".into(), "-10".into()));
    let mut late = Pusher::connect(b);
    assert_eq!(late.join(room, &json!("late")), json!(["ann", "eve", "late"]));
    assert_eq!((ann.announced(), eve.announced()), ("+\"late\"".into(), "+\"late\"".into()));
}

/// A backend that takes webhooks, and what is posted to it: an event, its channel and its user.
fn backend() -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, events) = mpsc::channel();
    let serve = move |stream: TcpStream| -> Option<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let (mut line, mut length) = (String::new(), 0);
            while line != "\r\n" {
                line.clear();
                (reader.read_line(&mut line).ok()? > 0).then_some(())?;
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().ok()?;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let posted: Value = serde_json::from_slice(&body).ok()?;
            for event in posted["events"].as_array()? {
                let text = |member: &str| event[member].as_str().unwrap_or_default().to_owned();
                let event = format!("{} {} {}", text("name"), text("channel"), text("user_id"));
                sender.send(event.trim_end().to_owned()).ok()?;
            }
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok()?;
        }
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    (address, events)
}

/// Regression test: each node posted its own events, so a backend was notified that a channel was vacated which others still had.
fn a_backend_is_notified_once_of_a_channel_that_several_nodes_have(kind: Kind) {
    let cluster = shop(kind, 3);
    let (address, posted) = backend();
    let hooks = json!({ "webhooks": {
        "upstreams": { "backend": { "members": { "a": { "address": address.to_string() } } } },
        "hooks": { "pusher": { "upstream": "backend", "pusher_app": "shop", "events": [
            "channel_occupied", "channel_vacated", "member_added", "member_removed"
        ] } },
    } });
    for node in &cluster.nodes {
        let merge = "application/merge-patch+json";
        let set = node.served.call_as("PATCH", "/config", merge, &hooks.to_string()).unwrap();
        assert_eq!(set.0, 200, "{set:?}");
    }
    let room = "presence-room";
    let mut clients: Vec<Pusher> = cluster.nodes.iter().map(Pusher::connect).collect();
    for client in &mut clients {
        client.join(room, &json!("ann"));
    }
    let eve = &mut Pusher::connect(&cluster.nodes[2]);
    eve.join(room, &json!("eve"));
    let mut begun: Vec<_> = (0..3).map(|_| posted.recv_timeout(TIMEOUT).unwrap()).collect();
    begun.sort();
    let added = |user: &str| format!("member_added presence-room {user}");
    assert_eq!(begun, ["channel_occupied presence-room".to_owned(), added("ann"), added("eve")]);
    clients.clear();
    assert_eq!(posted.recv_timeout(TIMEOUT).unwrap(), "member_removed presence-room ann");
    eve.socket.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let mut ended: Vec<_> = (0..2).map(|_| posted.recv_timeout(TIMEOUT).unwrap()).collect();
    ended.sort();
    assert_eq!(ended, ["channel_vacated presence-room", "member_removed presence-room eve"]);
    let more = posted.recv_timeout(Duration::from_millis(300));
    assert!(more.is_err(), "{more:?}");
}

fn members_of_a_node_that_dies_leave_and_those_of_one_that_was_cut_off_are_found_again(kind: Kind) {
    let mut cluster = shop(kind, 2);
    let room = "presence-room";
    let mut ann = Pusher::connect(&cluster.nodes[0]);
    assert_eq!(ann.join(room, &json!("ann")), json!(["ann"]));
    let mut bob = Pusher::connect(&cluster.nodes[1]);
    assert_eq!(bob.join(room, &json!("bob")), json!(["ann", "bob"]));
    assert_eq!(ann.announced(), "+\"bob\"");
    // The store loses all it had: the lists are read again, and nothing has changed for anybody.
    cluster.meeting.lose_all();
    for node in &cluster.nodes {
        until("the members are stored again", || node.present("shop:presence-room").len() == 2);
    }
    let mut eve = Pusher::connect(&cluster.nodes[1]);
    assert_eq!(eve.join(room, &json!("eve")), json!(["ann", "bob", "eve"]));
    assert_eq!(ann.announced(), "+\"eve\"");
    cluster.nodes[1].kill();
    let mut left = [ann.announced(), ann.announced()];
    left.sort();
    assert_eq!(left, ["-\"bob\"", "-\"eve\""]);
}

/// A signed call without a body: its status and its answer.
fn call(node: &Node, method: &str, path: &str, query: &str) -> (u16, Value) {
    let path = format!("/apps/shop-id{path}");
    let now_s = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    // In the order of their names.
    let query = format!("auth_key=shop-key&auth_timestamp={now_s}&auth_version=1.0{query}");
    let hex = sign(&format!("{method}\n{path}\n{query}"));
    let mut stream = TcpStream::connect(node.served.at.client).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(
        stream,
        "{method} {path}?{query}&auth_signature={hex} HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|_| json!(body)))
}

fn a_backend_counts_and_ends_what_is_at_the_other_node(kind: Kind) {
    let cluster = shop(kind, 2);
    let [a, b] = &cluster.nodes[..] else { panic!("two were started") };
    // As one who has signed in has it; the namespace opens the channel to a token that names it.
    let of_ann = |channel: &str| {
        let claims = json!({ "sub": "shop-id/ann", "channels": [channel] });
        Client::with_token(b, &signed(&claims), "room").unwrap()
    };
    let mut ann = of_ann("shop:presence-room");
    let second = of_ann("shop:presence-room");
    let counts = "&info=subscription_count,user_count";
    until("both are counted", || {
        let (status, answer) = call(a, "GET", "/channels/presence-room", counts);
        assert_eq!(status, 200, "{answer}");
        answer == json!({ "occupied": true, "subscription_count": 2, "user_count": 1 })
    });
    let (_, users) = call(a, "GET", "/channels/presence-room/users", "");
    assert_eq!(users, json!({ "users": [{ "id": "shop-id/ann" }] }));
    let (_, all) = call(a, "GET", "/channels", "&filter_by_prefix=presence-&info=user_count");
    assert_eq!(all, json!({ "channels": { "presence-room": { "user_count": 1 } } }));

    let (status, answer) = call(a, "POST", "/users/ann/terminate_connections", "");
    assert_eq!((status, answer), (200, json!({})));
    assert_eq!(ann.until_disconnected(), 4009);
    drop(second);
    until("nobody is left", || {
        let (_, answer) = call(a, "GET", "/channels/presence-room", "");
        answer["occupied"] == false
    });
}
