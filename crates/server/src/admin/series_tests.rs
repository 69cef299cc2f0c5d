//! What is made and deleted again leaves no lines on `/metrics`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::testkit::TestServer;

/// Makes the thing of a number.
type Make<'a> = &'a dyn Fn(usize) -> Value;

/// How many of each kind are made.
const MADE: usize = 300;

/// Counts the lines of `/metrics` by their metric's name.
fn lines(server: &TestServer) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for line in server.get("/metrics").body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        *lines.entry(name.to_owned()).or_default() += 1;
    }
    lines
}

/// Makes entries of a map, or removes them.
fn set(server: &TestServer, map: &str, entry: Make<'_>) {
    let entries: serde_json::Map<String, Value> =
        (0..MADE).map(|at| (format!("made-{at}"), entry(at))).collect();
    let patch = map.rsplit('/').fold(Value::Object(entries), |below, step| json!({ step: below }));
    let answer = server.merge("/config", &patch);
    assert_eq!(answer.status, 200, "{map}: {}", answer.body);
    server.wait_until_adopted();
}

#[test]
fn names_that_are_gone_leave_no_lines_and_begin_again_at_zero() {
    let server = TestServer::start(2);
    server.put("/config/channel/namespaces/chat", "{}");
    let before = lines(&server);
    let secret = |at: usize| json!(format!("a secret of enough bytes, number {at}"));
    let kinds: [(&str, Make<'_>, bool); 9] = [
        ("proxies", &|_| json!({ "endpoint": "http://127.0.0.1:1/" }), true),
        ("engines", &|_| json!({ "addresses": ["127.0.0.1:1"] }), true),
        ("tenants", &|_| json!({ "namespaces": { "chat": {} } }), false),
        ("channel/namespaces", &|_| json!({}), false),
        ("api/keys", &secret, false),
        ("admin/tokens", &|at| json!({ "token": secret(at) }), false),
        ("client/token/keys", &secret, false),
        (
            "webhooks/upstreams",
            &|_| json!({ "members": { "one": { "address": "127.0.0.1:1" } } }),
            false,
        ),
        (
            "pusher/apps",
            &|at| {
                let name = format!("{at}-0123456789");
                json!({ "id": name, "key": name, "secret": secret(at), "namespace": "chat" })
            },
            false,
        ),
    ];
    for (map, entry, has_series) in kinds {
        for _ in 0..2 {
            set(&server, map, entry);
            let made = lines(&server);
            assert_eq!(made != before, has_series, "{map}: what its entries add");
            set(&server, map, &|_| Value::Null);
            assert_eq!(lines(&server), before, "{map}");
        }
    }
}
