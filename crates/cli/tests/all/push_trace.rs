//! What an operator sees of a push who asks for traces.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use dunlin_simulate::apns::{Config, Simulator};
use serde_json::{Value, json};

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Made for these tests; it opens nothing.
const KEY: &str = include_str!("../../../server/tests/data/apns-key.p8");
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn call(address: SocketAddr, request: &str, header: &str, body: &Value) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (body, mut answer) = (body.to_string(), String::new());
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: {length}\r\n{header}\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_push_is_traced_under_the_trace_of_its_request() {
    let simulator = Simulator::start(Config::default()).unwrap();
    let crate::kit::Addresses { client, admin, .. } = crate::kit::Addresses::new();
    let state = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["serve", "--workers", "1", "--client", &client.to_string()])
        .args(["--admin", &admin.to_string(), "--state"])
        .arg(state.path())
        .env("DUNLIN_LOG", "info,dunlin_push::trace=trace")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains(&admin.to_string()))));

    let credential = json!({
        "key": KEY, "key_id": "KEY1234567", "team_id": "TEAM123456", "topic": "com.example.app",
        "route": { "address": simulator.addr().to_string(), "ca": simulator.ca_pem() }
    });
    let token = std::fs::read_to_string(state.path().join("admin-token")).unwrap();
    let header = format!("Authorization: Bearer {}\r\n", token.trim());
    let set = call(admin, "PUT /config/push/apns/shop", &header, &credential);
    assert!(set.starts_with("HTTP/1.1 201"), "{set}");
    let dead = format!("dead{:060x}", 7);
    let push = json!({
        "notification": { "title": "Hello" },
        "devices": [{ "provider": "apns", "app": "shop", "tokens": [dead] }]
    });
    let header = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n");
    let answer = call(client, "POST /api/push", &header, &push);
    assert!(answer.contains("Unregistered"), "{answer}");

    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let ended = log.by_ref().map_while(Result::ok).find(|line| line.ends_with("ended"));
    // Killed before anything is asserted: nobody is left behind.
    let _ = child.kill();
    let _ = child.wait();
    let ended = ended.unwrap();
    for part in [
        format!("trace_id=\"{TRACE}\""),
        format!("parent_span_id=\"{PARENT}\""),
        "credential=\"push.apns.shop\"".to_owned(),
        "platform=\"apns\"".to_owned(),
        "token=dead0000…".to_owned(),
        "attempts=1".to_owned(),
        "outcome=\"rejected\"".to_owned(),
        "reason=\"Unregistered\"".to_owned(),
    ] {
        assert!(ended.contains(&part), "{part} is not in {ended}");
    }
    assert!(!ended.contains(&dead), "nor does a log hold what one could send to: {ended}");
}
