//! Cursors of users on several nodes and a real Redis, or a real NATS.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::kit::client::token;
use crate::kit::cluster::{Cluster, Kind, Node};

crate::kit::cluster::wherever_they_meet! {
    cursors_are_of_all_nodes_and_outlive_each_of_them
}

const CHANNEL: &str = "inbox:ada";

fn with_inboxes(node: &Node) {
    let inbox = json!({
        "inbox": "on", "engine": "main", "ack": "device", "recover": true,
        "history_size": 100, "history_ttl_ms": 600_000, "history_meta_ttl_ms": 600_000,
    });
    let settings = json!({ "channel": { "namespaces": { "inbox": inbox } } });
    let kind = "application/merge-patch+json";
    let answer = node.served.call_as("PATCH", "/config", kind, &settings.to_string()).unwrap();
    assert_eq!(answer.0, 200, "{answer:?}");
}

/// The offsets that a device is given.
fn polled(node: &Node, device: &str) -> Vec<u64> {
    let mut stream = TcpStream::connect(node.served.at.client).unwrap();
    let token = token("ada");
    let query = format!("channel={CHANNEL}&token={token}&device={device}&timeout=0");
    let head = "HTTP/1.1\r\nHost: d\r\nConnection: close";
    write!(stream, "GET /connection/poll?{query} {head}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
    let publications = body["publications"].as_array().unwrap_or_else(|| panic!("{body}"));
    publications.iter().map(|of| of["offset"].as_u64().unwrap()).collect()
}

fn ack(node: &Node, device: &str, offset: u64) -> Value {
    let body = json!({ "user": "ada", "channel": CHANNEL, "device": device, "offset": offset });
    node.api("ack", body)["result"].clone()
}

fn unread(node: &Node, device: &str) -> u64 {
    let body = json!({ "user": "ada", "channel": CHANNEL, "device": device });
    let answer = node.api("unread", body);
    answer["result"]["unread"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

fn cursors_are_of_all_nodes_and_outlive_each_of_them(kind: Kind) {
    let mut cluster = Cluster::start(kind, 2);
    cluster.nodes.iter().for_each(with_inboxes);
    let [a, b] = &cluster.nodes[..] else { panic!("two were started") };
    for n in 1..=5 {
        let put = json!({ "namespace": "inbox", "users": ["ada"], "data": n });
        let answer = a.api("inbox_publish", put);
        assert_eq!(answer["result"]["responses"][0]["result"]["offset"], n, "{answer}");
    }
    assert_eq!(polled(b, "phone"), [1, 2, 3, 4, 5]);
    assert_eq!(ack(a, "phone", 3)["unread"], 2);
    assert_eq!((polled(b, "phone"), polled(b, "laptop")), (vec![4, 5], vec![1, 2, 3, 4, 5]));
    // Both write the record of the same user at once.
    for offset in 1..=5 {
        std::thread::scope(|scope| {
            let both = [(a, "laptop"), (b, "watch")];
            let both = both.map(|(node, device)| scope.spawn(move || ack(node, device, offset)));
            for one in both {
                assert_eq!(one.join().unwrap()["offset"], offset);
            }
        });
    }
    for node in [a, b] {
        assert_eq!(["phone", "laptop", "watch"].map(|device| unread(node, device)), [2, 0, 0]);
    }
    cluster.nodes[1].kill();
    cluster.nodes[1] = cluster.nodes[1].restarted();
    with_inboxes(&cluster.nodes[1]);
    let b = &cluster.nodes[1];
    assert_eq!(["phone", "laptop"].map(|device| polled(b, device)), [vec![4, 5], vec![]]);
    assert_eq!(ack(b, "phone", 5)["unread"], 0);
    assert_eq!(unread(&cluster.nodes[0], "phone"), 0);
}
