//! What is made and deleted again leaves no lines on `/metrics`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::testkit::{Subscriber, TestServer};
use crate::metrics::namespaces::NAMESPACES_MAX;

/// Makes the thing of a number.
type Make<'a> = &'a dyn Fn(usize) -> Value;

/// Everybody may subscribe.
const OPEN: &str =
    r#"{ "allow_subscribe_for_client": true, "allow_subscribe_for_anonymous": true }"#;
/// How many of each kind are made.
const MADE: usize = 300;

/// Counts the lines of `/metrics` by their metric's name, but for what the test itself causes, and what follows within a second.
fn lines(server: &TestServer) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for line in server.get("/metrics").body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        if name.starts_with("dunlin_admin_") || name.starts_with("dunlin_namespace_") {
            continue;
        }
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

#[test]
fn namespace_has_series_while_it_is_there_and_those_beyond_the_bound_have_none() {
    let mut server = TestServer::start(2);
    server.put("/config/channel/namespaces/chat", OPEN);
    server.wait_until_adopted();
    let has = |server: &TestServer, line: &str| server.get("/metrics").body.contains(line);
    let _subscriber = server.subscribe("chat:1");
    server.publish("chat:1", 7);
    server.wait_until(|server| {
        has(server, "dunlin_namespace_publications_total{namespace=\"chat\"} 1\n")
            && has(server, "dunlin_namespace_deliveries_total{namespace=\"chat\"} 1\n")
            && has(server, "dunlin_namespace_channels{namespace=\"chat\"} 1\n")
            && has(server, "dunlin_delivery_duration_seconds_sum")
    });
    set(&server, "channel/namespaces", &|_| json!({}));
    let series = |server: &TestServer| {
        let text = server.get("/metrics").body;
        text.lines().filter(|line| line.starts_with("dunlin_namespace_channels{")).count()
    };
    server.wait_until(|server| series(server) == NAMESPACES_MAX + 1);
    set(&server, "channel/namespaces", &|_| Value::Null);
    let removed =
        server.merge("/config", &json!({ "channel": { "namespaces": { "chat": null } } }));
    assert_eq!(removed.status, 200, "{}", removed.body);
    server.wait_until(|server| !has(server, "namespace=\"chat\"") && series(server) == 2);
    assert!(has(&server, "dunlin_namespace_publications_total{namespace=\"other\"} 0\n"));
}

#[test]
fn what_is_counted_has_the_labels_of_which_one() {
    let server = TestServer::start(2);
    server.put("/config/channel/namespaces/chat", OPEN);
    server.wait_until_adopted();
    let mut subscriber = server.subscribe("chat:1");
    assert!(server.publish("chat:1", 7).contains("result"));
    assert_eq!(subscriber.publication()["data"], 7);
    assert!(server.publish("nowhere:1", 7).contains("102"));
    assert!(server.get("/nothing").status == 404);
    let (_, refused) = ("", Subscriber::begin(server.clients, &[], "no token"));
    assert_eq!(refused["disconnect"]["code"], 3500, "{refused}");
    let text = server.get("/metrics").body;
    for line in [
        "dunlin_client_disconnects_total{code=\"3500\",reason=\"invalid token\",transport=\"uni_http_stream\"} 1",
        "dunlin_client_commands_total{method=\"connect\",transport=\"uni_http_stream\"} 2",
        "dunlin_client_connect_duration_seconds_count{transport=\"uni_http_stream\"} 1",
        "dunlin_api_commands_total{api=\"server\",method=\"publish\",result=\"0\"} 1",
        "dunlin_api_commands_total{api=\"server\",method=\"publish\",result=\"102\"} 1",
        "dunlin_api_call_duration_seconds_count{api=\"server\",method=\"publish\"} 2",
        "dunlin_admin_requests_total{endpoint=\"/config\",status=\"201\"} 1",
        "dunlin_admin_requests_total{endpoint=\"other\",status=\"404\"} 1",
    ] {
        let about: Vec<_> = text.lines().filter(|of| of.starts_with(&line[..20])).collect();
        assert!(text.lines().any(|of| of == line), "{line} is not in\n{}", about.join("\n"));
    }
    for begin in ["process_cpu_seconds_total ", "process_open_fds ", "dunlin_build_info{version="] {
        assert!(text.lines().any(|line| line.starts_with(begin)), "{begin}");
    }
    let mut families: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let all = families.len();
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), all, "a family is there twice");
}
