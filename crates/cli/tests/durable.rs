//! An engine on a disk: what was acknowledged outlives `kill -9`, and clients recover it.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod kit;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;

use kit::{Served, TIMEOUT};
use serde_json::{Value, json};

const CHANNEL: &str = "inbox:7";

/// A server whose namespace `inbox` has its history on a disk.
fn served(state: &Path) -> Served {
    let served = Served::start(state, "");
    let put = |target: &str, value: Value| {
        let (status, answer) = served.call("PUT", target, &value.to_string()).expect("an answer");
        assert!(matches!(status, 200 | 201), "{target}: {answer}");
    };
    put(
        "/config/engines/disk?durable=1",
        json!({ "type": "disk", "segment_bytes_max": 1 << 20, "bytes_max": 64 << 20 }),
    );
    let inbox = json!({
        "engine": "disk", "history_size": 10_000, "history_ttl_ms": 3_600_000,
        "recover": true, "allow_subscribe_for_client": true, "allow_subscribe_for_anonymous": true,
    });
    put("/config/channel/namespaces/inbox?durable=1", inbox);
    // The log of an engine is opened at the start.
    drop(served);
    Served::start(state, "")
}

/// Subscribes to the channel, from a position if one is given. Returns what the subscription says, and the stream of pushes.
fn subscribe(served: &Served, since: Option<(&str, u64)>) -> (Value, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(served.at.client).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let since = match since {
        Some((epoch, offset)) => json!({ "recover": true, "epoch": epoch, "offset": offset }),
        None => json!({}),
    };
    let body = json!({ "subs": { CHANNEL: since } }).to_string();
    write!(
        stream,
        "POST /connection/uni_http_stream HTTP/1.1\r\nHost: d\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut lines = BufReader::new(stream);
    let first = next(&mut lines);
    (first["connect"]["subs"][CHANNEL].clone(), lines)
}

fn next(lines: &mut BufReader<TcpStream>) -> Value {
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the stream has ended");
        match serde_json::from_str::<Value>(&line) {
            Ok(Value::Object(push)) if !push.is_empty() => return Value::Object(push),
            // A ping, the head of the response, or the length of a chunk.
            _ => {}
        }
    }
}

fn publish(served: &Served, number: u64) -> (u64, String) {
    let body = json!({ "channel": CHANNEL, "data": { "number": number } });
    let answer = served.api("", "publish", &body);
    let offset = answer["result"]["offset"].as_u64().unwrap_or_else(|| panic!("{answer}"));
    (offset, answer["result"]["epoch"].as_str().unwrap().to_owned())
}

#[test]
fn client_recovers_from_a_server_that_was_killed_all_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = served(directory.path());
    let (subscribed, mut pushes) = subscribe(&server, None);
    let epoch = subscribed["epoch"].as_str().unwrap_or_else(|| panic!("{subscribed}")).to_owned();
    assert_eq!(publish(&server, 1), (1, epoch.clone()));
    assert_eq!(next(&mut pushes)["pub"]["data"]["number"], 1);
    let mut last = 1;
    for _ in 0..4 {
        for _ in 0..25 {
            last += 1;
            assert_eq!(publish(&server, last), (last, epoch.clone()));
        }
        server.kill();
        server = Served::start(directory.path(), "");
        let since = last - 20;
        let (subscribed, mut pushes) = subscribe(&server, Some((&epoch, since)));
        assert_eq!(subscribed["recovered"], true, "{subscribed}");
        assert_eq!(subscribed["epoch"], *epoch);
        let publications = subscribed["publications"].as_array().expect("what was missed");
        let numbers: Vec<_> =
            publications.iter().map(|of| of["data"]["number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (since + 1..=last).collect::<Vec<_>>());
        // And it goes on.
        last += 1;
        assert_eq!(publish(&server, last), (last, epoch.clone()));
        assert_eq!(next(&mut pushes)["pub"]["offset"], last);
    }
    let body = json!({ "channel": CHANNEL, "limit": 3, "since": { "offset": 10, "epoch": epoch } });
    let answer = server.api("", "history", &body);
    let numbers: Vec<_> = answer["result"]["publications"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"))
        .iter()
        .map(|of| of["offset"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [11, 12, 13]);
    assert_eq!(answer["result"]["offset"], last);
    let removed = server.api("", "history_remove", &json!({ "channel": CHANNEL }));
    assert!(removed["error"].is_null(), "{removed}");
    server.kill();
    let server = Served::start(directory.path(), "");
    let answer = server.api("", "history", &json!({ "channel": CHANNEL, "limit": 3 }));
    assert_eq!(answer["result"]["publications"].as_array().map(Vec::len), Some(0), "{answer}");
    assert_eq!(publish(&server, 7).0, last + 1, "offsets go on");
}

#[test]
fn publish_says_what_it_survives_and_what_is_answered_outlives_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = served(directory.path());
    let put = |server: &Served, target: &str, value: &Value| {
        server.call("PUT", target, &value.to_string()).expect("an answer")
    };
    let fast = json!({
        "engine": "disk", "durability": "written", "history_size": 100, "history_ttl_ms": 3_600_000,
    });
    assert_eq!(put(&server, "/config/channel/namespaces/fast?durable=1", &fast).0, 201);
    let memory = json!({ "history_size": 10, "history_ttl_ms": 60_000 });
    assert_eq!(put(&server, "/config/channel/namespaces/memory?durable=1", &memory).0, 201);
    let (status, answer) =
        put(&server, "/config/channel/namespaces/memory/durability", &json!("synced"));
    assert!(status >= 400 && answer.contains("type \\\"disk\\\""), "{answer}");

    let ask = |server: &Served, channel: &str, asked: Value| {
        let body = json!({ "channel": channel, "data": 1, "durability": asked });
        server.api("", "publish", &body)
    };
    for (channel, asked, least) in [
        (CHANNEL, Value::Null, "synced"),
        (CHANNEL, json!("synced"), "synced"),
        ("fast:1", json!("synced"), "synced"),
    ] {
        let answer = ask(&server, channel, asked);
        assert_eq!(answer["result"]["durability"], least, "{answer}");
    }
    for (channel, asked) in [(CHANNEL, json!("written")), ("fast:1", Value::Null)] {
        let answer = ask(&server, channel, asked);
        let reached = answer["result"]["durability"].as_str();
        assert!(matches!(reached, Some("written" | "synced")), "{answer}");
    }
    let answer = ask(&server, "memory:1", json!("synced"));
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("leave out `durability`"), "{answer}");
    assert_eq!(ask(&server, "memory:1", Value::Null)["result"]["durability"], Value::Null);
    let answer = ask(&server, CHANNEL, json!("forever"));
    assert!(answer["error"]["message"].as_str().unwrap().contains("\"forever\""), "{answer}");
    let body = json!({
        "channels": ["fast:1", "memory:1"], "data": 1, "durability": "synced",
    });
    let answer = server.api("", "broadcast", &body);
    let parts = &answer["result"]["responses"];
    assert_eq!(parts[0]["result"]["durability"], "synced", "{answer}");
    assert!(parts[1]["error"].is_object(), "{answer}");

    server.kill();
    let server = Served::start(directory.path(), "");
    for (channel, all) in [(CHANNEL, 3), ("fast:1", 3), ("memory:1", 0)] {
        let answer = server.api("", "history", &json!({ "channel": channel, "limit": 10 }));
        let publications = answer["result"]["publications"].as_array();
        assert_eq!(publications.map(Vec::len), Some(all), "{answer}");
    }
}

#[test]
fn engine_on_a_disk_without_its_log_refuses_until_the_restart_and_a_cluster_refuses_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = Served::start(directory.path(), "");
    let put = |target: &str, value: Value| {
        server.call("PUT", target, &value.to_string()).expect("an answer")
    };
    assert_eq!(put("/config/engines/disk", json!({ "type": "disk" })).0, 201);
    let inbox = json!({ "engine": "disk", "history_size": 10, "history_ttl_ms": 60_000 });
    assert_eq!(put("/config/channel/namespaces/inbox", inbox).0, 201);
    let answer = server.api("", "publish", &json!({ "channel": CHANNEL, "data": {} }));
    assert!(answer["error"].is_object(), "{answer}");
    let (status, answer) = put("/config/cluster/engine", json!("disk"));
    assert!(status >= 400 && answer.contains("no place to meet"), "{answer}");
    let (_, info) = server.call("GET", "/info", "").unwrap();
    assert!(info.contains("\"history\": \"engines\""), "{info}");
}
