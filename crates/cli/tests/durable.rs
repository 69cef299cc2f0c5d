//! An engine on a disk: what was answered outlives `kill -9`, publications and acknowledgements, and clients recover the rest.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod kit;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;

use kit::client::token;
use kit::cluster::SECRET;
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

/// A server whose namespaces `inbox` and `shared` have acknowledgements: of each device, and of the user.
fn with_acks(state: &Path) -> Served {
    let served = served(state);
    let put = |target: &str, value: Value| {
        let (status, answer) = served.call("PUT", target, &value.to_string()).expect("an answer");
        assert!(matches!(status, 200 | 201), "{target}: {answer}");
    };
    for (name, ack) in [("inbox", "device"), ("shared", "user")] {
        let rules = json!({
            "engine": "disk", "durability": "written", "history_size": 10_000,
            "history_ttl_ms": 3_600_000, "recover": true, "ack": ack,
            "allow_subscribe_for_client": true,
        });
        put(&format!("/config/channel/namespaces/{name}?durable=1"), rules);
    }
    put("/config/client/token/hmac_secret?durable=1", json!(SECRET));
    served
}

/// Polls a channel as a user's device. Returns the response.
fn poll(served: &Served, channel: &str, (user, device): (&str, &str), more: &str) -> Value {
    let mut stream = TcpStream::connect(served.at.client).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let token = token(user);
    write!(
        stream,
        "GET /connection/poll?channel={channel}&token={token}&device={device}&timeout=0{more} HTTP/1.1\r\n\
         Host: d\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"))
}

fn offsets(polled: &Value) -> Vec<u64> {
    let publications = polled["publications"].as_array().unwrap_or_else(|| panic!("{polled}"));
    publications.iter().map(|of| of["offset"].as_u64().unwrap()).collect()
}

#[test]
fn what_was_acknowledged_never_comes_again_and_all_else_does_over_kills_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = with_acks(directory.path());
    let devices = [("ada", "phone"), ("ada", "laptop"), ("bob", "phone")];
    let mut tops = std::collections::BTreeMap::from([("ada", 0u64), ("bob", 0)]);
    let mut acked = [0u64; 3];
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |end: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % end
    };
    for _ in 0..8 {
        for _ in 0..25 {
            let at = below(3) as usize;
            let (user, device) = devices[at];
            let channel = format!("inbox:{user}");
            let top = tops[user];
            match below(4) {
                0 => {
                    let body = json!({ "channel": channel, "data": top });
                    let answer = server.api("", "publish", &body);
                    *tops.get_mut(user).unwrap() = answer["result"]["offset"].as_u64().unwrap();
                }
                1 if top > 0 => {
                    let offset = 1 + below(top);
                    let body = json!({
                        "user": user, "channel": channel, "device": device, "offset": offset,
                    });
                    let answer = server.api("", "ack", &body);
                    acked[at] = acked[at].max(offset);
                    assert_eq!(answer["result"]["offset"], acked[at], "{answer}");
                    assert_eq!(answer["result"]["unread"], top - acked[at], "{answer}");
                }
                _ => {
                    let polled = poll(&server, &channel, (user, device), "");
                    let unread: Vec<_> = (acked[at] + 1..=top).collect();
                    assert_eq!(offsets(&polled), unread, "{user}'s {device}: {polled}");
                    // By lot: it processes all of it and says so, or is lost before that.
                    if !unread.is_empty() && below(2) == 0 {
                        let ack = format!("&ack={}", polled["cursor"].as_str().unwrap());
                        let after = poll(&server, &channel, (user, device), &ack);
                        acked[at] = top;
                        assert_eq!(offsets(&after), [0u64; 0], "{after}");
                    }
                }
            }
        }
        // An acknowledgement is on its way when the server dies: its answer is not known.
        let (user, device) = devices[0];
        let body = json!({
            "user": user, "channel": "inbox:ada", "device": device, "offset": tops["ada"].max(1),
        });
        let body = body.to_string();
        let mut stream = TcpStream::connect(server.at.client).unwrap();
        write!(
            stream,
            "POST /api/ack HTTP/1.1\r\nHost: d\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        server.kill();
        server = Served::start(directory.path(), "");
        let body = json!({ "user": user, "channel": "inbox:ada", "device": device });
        let answer = server.api("", "unread", &body);
        let found = answer["result"]["offset"].as_u64().unwrap_or_else(|| panic!("{answer}"));
        assert!(found == acked[0] || found == tops["ada"], "{answer}, and {} before", acked[0]);
        acked[0] = found;
    }
}

#[test]
fn first_acknowledgement_of_a_user_reaches_the_other_devices() {
    let directory = tempfile::tempdir().unwrap();
    let server = with_acks(directory.path());
    for number in 1..=3 {
        let answer = server.api("", "publish", &json!({ "channel": "shared:ada", "data": number }));
        assert_eq!(answer["result"]["offset"], number, "{answer}");
    }
    let mut stream = TcpStream::connect(server.at.client).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let body = json!({
        "token": token("ada"), "data": { "device": "laptop" }, "subs": { "shared:ada": {} },
    });
    let body = body.to_string();
    write!(
        stream,
        "POST /connection/uni_http_stream HTTP/1.1\r\nHost: d\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut pushes = BufReader::new(stream);
    let first = next(&mut pushes);
    let subscribed = &first["connect"]["subs"]["shared:ada"];
    let ack = &subscribed["data"]["ack"];
    assert_eq!((&ack["unread"], &ack["is_new"]), (&json!(3), &json!(true)), "{first}");
    assert_eq!(offsets(subscribed), [1, 2, 3]);
    let polled = poll(&server, "shared:ada", ("ada", "phone"), "");
    assert_eq!(offsets(&polled), [1, 2, 3]);
    let body = json!({ "user": "ada", "channel": "shared:ada", "offset": 2 });
    let answer = server.api("", "ack", &body);
    assert_eq!(answer["result"]["unread"], 1, "{answer}");
    let pushed = next(&mut pushes);
    let ack = &pushed["message"]["data"]["ack"];
    let expected = (&json!("shared:ada"), &json!(2), &json!(1));
    assert_eq!((&ack["channel"], &ack["offset"], &ack["unread"]), expected, "{pushed}");
    assert_eq!(offsets(&poll(&server, "shared:ada", ("ada", "watch"), "")), [3]);

    for (body, error) in [
        (json!({ "user": "ada", "channel": "shared:ada", "offset": 9 }), "the last 3"),
        (
            json!({ "user": "ada", "channel": "shared:ada", "offset": 1, "epoch": "old" }),
            "position",
        ),
        (json!({ "user": "ada", "channel": "shared:ada", "offset": -1 }), "offset"),
        (json!({ "user": "", "channel": "shared:ada", "offset": 1 }), "user"),
        (json!({ "user": "ada", "channel": "news", "offset": 1 }), ""),
    ] {
        let answer = server.api("", "ack", &body);
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(message.contains(error), "{body}: {message}");
    }
    let long = "d".repeat(1 << 19);
    let body = json!({ "user": "ada", "channel": "inbox:ada", "device": long, "offset": 1 });
    let answer = server.api("", "ack", &body);
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("128 bytes"), "{message}");
}
