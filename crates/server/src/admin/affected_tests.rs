//! Tests that a dry run reports the sessions that a change would affect, and a change those that it has closed.

use std::net::TcpListener;

use dunlin_config::Secret;
use serde_json::{Value, json};

use super::testkit::{Subscriber, TestServer, development, receive};

const CHAT: &str = "/config/channel/namespaces/chat";

/// Waits until the workers report `sessions` open sessions in total.
fn settled(server: &mut TestServer, sessions: u64) {
    server.wait_until(|server| {
        let status = server.get("/status/workers").json();
        let each = status["workers"].as_array().unwrap().clone();
        each.iter().map(|one| one["sessions"].as_u64().unwrap()).sum::<u64>() == sessions
    });
}

#[test]
fn a_change_of_a_namespace_concerns_who_is_subscribed_in_it() {
    let mut server = TestServer::start(3);
    server.put(CHAT, r#"{"allow_subscribe_for_anonymous":true}"#);
    let mut subscribers = Vec::new();
    for room in 0..6 {
        subscribers.push(Subscriber::to(
            server.clients,
            &["chat:all", &format!("chat:{room}")],
            "",
        ));
    }
    subscribers.push(server.subscribe("news"));
    settled(&mut server, 7);
    let dry = server.put(&format!("{CHAT}/presence?dry_run=1"), "true").json();
    assert_eq!(
        dry["sessions"],
        json!({"total": 7, "closed": 0, "affected": 6, "by": [
            {"pointer": "/channel/namespaces/chat", "subscriptions": 12},
        ]})
    );
    let dry = server.call("DELETE", &format!("{CHAT}?dry_run=1"), &[], "").json();
    assert_eq!(dry["sessions"]["affected"], 6);
    assert!(dry["warnings"][0]["detail"].as_str().unwrap().contains("102"), "{dry}");
    let dry = server.put("/config/channel/without_namespace/presence?dry_run=1", "false").json();
    assert_eq!(dry["sessions"]["by"][0]["pointer"], "/channel/without_namespace");
    assert_eq!(dry["sessions"]["affected"], 1);
    // A channel without subscribers affects no session, a limit affects all.
    let dry = server.put("/config/channel/namespaces/new?dry_run=1", "{}").json();
    assert_eq!((&dry["sessions"]["affected"], &dry["sessions"]["by"]), (&json!(0), &Value::Null));
    let dry = server.put("/config/limits/channels_max?dry_run=1", "500").json();
    assert_eq!(dry["sessions"]["affected"], 7);
    assert_eq!(server.revision(), 2, "nothing has changed");
}

#[test]
fn a_listener_that_goes_concerns_who_came_through_it() {
    let server = TestServer::start(2);
    let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    server.put("/config/listeners/side", &json!({"addr": address.to_string()}).to_string());
    let _through: Vec<Subscriber> = (0..5).map(|_| Subscriber::at(address, "news", "")).collect();
    let _beside: Vec<Subscriber> = (0..3).map(|_| server.subscribe("news")).collect();
    let dry = server.call("DELETE", "/config/listeners/side?dry_run=1", &[], "").json();
    assert_eq!(
        dry["sessions"]["by"],
        json!([{"pointer": "/listeners/side", "connections": 5, "closed": false}])
    );
    assert_eq!(dry["sessions"]["closed"], 0);
}

#[test]
fn a_key_that_goes_closes_whom_it_let_in_and_says_how_many() {
    let mut config = development();
    config.client.token.keys.insert("2025", Secret::new("the key of the year before"));
    config.client.token.keys.insert("2026", Secret::new("the key of this year 2026"));
    let mut server = TestServer::begin(2, config, None);
    let token = |kid: &str, key: &str| {
        let key = jsonwebtoken::EncodingKey::from_secret(key.as_bytes());
        let header =
            jsonwebtoken::Header { kid: Some(kid.to_owned()), ..jsonwebtoken::Header::default() };
        jsonwebtoken::encode(&header, &json!({"sub": "42", "channels": ["news"]}), &key).unwrap()
    };
    let old = token("2025", "the key of the year before");
    let new = token("2026", "the key of this year 2026");
    let _old: Vec<Subscriber> =
        (0..4).map(|_| Subscriber::at(server.clients, "news", &old)).collect();
    let _new = Subscriber::at(server.clients, "news", &new);
    // Workers report once a second how many sessions each key has authenticated.
    server.wait_until(|server| server.state.sessions_without(|_| false) == 5);
    let target = "/config/client/token/keys/2025";
    let dry = server.call("DELETE", &format!("{target}?dry_run=1"), &[], "").json();
    assert_eq!(dry["sessions"]["closed"], 4, "{dry}");
    assert_eq!(
        dry["sessions"]["by"],
        json!([{"pointer": "/client/token/keys/2025", "sessions": 4, "closed": true}])
    );
    let done = server.call("DELETE", target, &[], "").json();
    assert_eq!(done["sessions"]["closed"], 4, "{done}");
    assert_eq!(done["warnings"][0]["pointer"], "/client/token");
}

#[test]
fn a_worker_that_does_not_count_in_time_is_named() {
    let mut server = TestServer::start(2);
    server.put(CHAT, r#"{"allow_subscribe_for_anonymous":true}"#);
    let _subscriber = server.subscribe("chat:1");
    let stalled = server.stall(1);
    let mut stream = server.connect();
    server.send(&mut stream, "PUT", &format!("{CHAT}/presence?dry_run=1"), &[], "true");
    server.wait_until(|server| server.on_admin(|admin, _| admin.dry_runs.unresponsive() == [&[1]]));
    server.on_admin(|admin, cx| admin.answer_overdue_dry_runs(cx, u64::MAX));
    let dry = receive(&mut stream);
    assert_eq!(
        (dry.status, &dry.json()["sessions"]["unresponsive_workers"]),
        (200, &json!([1])),
        "{dry:?}"
    );
    drop(stalled);
}

#[test]
fn a_subscription_ends_with_the_permission_it_rests_on_and_others_stay() {
    let server = TestServer::start(2);
    let open = |anonymous: bool| json!({"allow_subscribe_for_anonymous": anonymous}).to_string();
    for namespace in ["chat", "news"] {
        server.put(&format!("/config/channel/namespaces/{namespace}"), &open(true));
    }
    let mut chats: Vec<Subscriber> = (0..8).map(|_| server.subscribe("chat:a")).collect();
    let mut news = server.subscribe("news:a");
    let answer = server.put("/config/channel/namespaces/chat", &open(false));
    let warning = answer.json()["warnings"][0].clone();
    assert_eq!(warning["pointer"], "/channel/namespaces/chat", "{answer:?}");
    for chat in &mut chats {
        let push = chat.next().expect("a push");
        assert_eq!(
            (&push["channel"], &push["unsubscribe"]["code"]),
            (&json!("chat:a"), &json!(2000))
        );
    }
    server.publish("chat:a", 1);
    server.publish("news:a", 2);
    assert_eq!(news.publication()["data"], 2);

    // A removed namespace grants no permission either.
    assert_eq!(server.call("DELETE", "/config/channel/namespaces/news", &[], "").status, 200);
    assert_eq!(news.next().expect("a push")["unsubscribe"]["code"], 2000);
}

#[test]
fn clients_without_a_token_leave_when_a_token_is_asked_for() {
    let server = TestServer::start(2);
    let mut clients: Vec<Subscriber> = (0..4).map(|_| server.subscribe("news")).collect();
    let answer = server.put("/config/client/anonymous", "false");
    assert_eq!(answer.json()["warnings"][0]["pointer"], "/client/anonymous", "{answer:?}");
    for client in &mut clients {
        assert_eq!(client.next().expect("a push")["disconnect"]["code"], 3507);
    }
}
