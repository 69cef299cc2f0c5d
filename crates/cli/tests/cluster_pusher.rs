//! The HTTP API of the Pusher protocol with several nodes and a real Redis, or a real NATS: it is of all of them.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

mod kit;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::SystemTime;

use kit::TIMEOUT;
use kit::client::{Client, signed};
use kit::cluster::{Cluster, Kind, Node, until};
use serde_json::{Value, json};

const SECRET: &str = "the secret of the app";

kit::cluster::wherever_they_meet! {
    a_backend_counts_and_ends_what_is_at_the_other_node
}

/// A signed call without a body: its status and its answer.
fn call(node: &Node, method: &str, path: &str, query: &str) -> (u16, Value) {
    let path = format!("/apps/shop-id{path}");
    let now_s = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    // In the order of their names.
    let query = format!("auth_key=shop-key&auth_timestamp={now_s}&auth_version=1.0{query}");
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SECRET.as_bytes());
    let tag = ring::hmac::sign(&key, format!("{method}\n{path}\n{query}").as_bytes());
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
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
    let cluster = Cluster::start(kind, 2);
    let settings = json!({
        "channel": { "namespaces": { "shop": {} } },
        "pusher": { "apps": { "shop": {
            "id": "shop-id", "key": "shop-key", "secret": SECRET, "namespace": "shop"
        } } },
    });
    for node in &cluster.nodes {
        let merge = "application/merge-patch+json";
        let set = node.served.call_as("PATCH", "/config", merge, &settings.to_string()).unwrap();
        assert_eq!(set.0, 200, "{set:?}");
    }
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
