//! A Redis that is far away: publishes do not wait for each other, and channels in memory notice nothing.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::kit::redis;
use crate::kit::{Served, TIMEOUT};
use serde_json::{Value, json};

/// Each answer of Redis comes this late.
const LATE: Duration = Duration::from_millis(200);
const PUBLISHES: usize = 100;

fn post(node: SocketAddr, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(node).unwrap();
    stream.set_read_timeout(Some(2 * TIMEOUT)).unwrap();
    let body = body.to_string();
    write!(
        stream,
        "POST /api/publish HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    stream
}

fn answer(mut stream: TcpStream) -> Value {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"))
}

#[test]
fn a_redis_that_answers_late_holds_up_no_publish_behind_another_and_no_other_namespace() {
    let redis = redis::start();
    let far = dunlin_load::delay::delay_line(redis.addr, LATE).unwrap();
    let state = tempfile::tempdir().unwrap();
    let node = Served::start(state.path(), "");
    let settings = json!({
        "limits": { "bus_request_timeout_ms": 60_000 },
        "engines": { "main": { "addresses": [far.to_string()], "timeout_ms": 30_000 } },
        "channel": { "namespaces": { "far": { "engine": "main", "history_size": 10, "history_ttl_ms": 60_000 }, "near": {} } },
    });
    let kind = "application/merge-patch+json";
    let changed = node.call_as("PATCH", "/config", kind, &settings.to_string()).unwrap();
    assert_eq!(changed.0, 200, "{changed:?}");
    let deadline = Instant::now() + 2 * TIMEOUT;
    let until = |what: &str| {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    };
    while !node.call("GET", "/health", "").unwrap().1.contains("\"main\": \"ready\"") {
        until("the engine is never ready");
    }
    let publish =
        |at: usize| post(node.at.client, &json!({"channel": format!("far:{at}"), "data": at}));
    // Two workers that sent one at a time would take fifty times as long as for one. Any round will do: others may use the cores.
    for offset in 1.. {
        let began = Instant::now();
        let alone = answer(publish(PUBLISHES));
        assert_eq!(alone["result"]["offset"], offset, "{alone}");
        let one = began.elapsed();
        let began = Instant::now();
        let under_way: Vec<_> = (0..PUBLISHES).map(publish).collect();
        let near = answer(post(node.at.client, &json!({"channel": "near:1", "data": 1})));
        assert!(near["result"].is_object(), "{near}");
        for stream in under_way {
            let far = answer(stream);
            assert_eq!(far["result"]["offset"], offset, "each is stored once: {far}");
        }
        if began.elapsed() < one * (PUBLISHES as u32 / 4) {
            break;
        }
        until("they wait for each other");
    }
}
