//! Labels of connections, and commands that select connections by labels.

use dunlin_config::{ClaimPath, Config, Secret};
use serde_json::{Value, json};

use super::{Client, KEY, token};
use crate::tests::proxies::{backend, client, connect, ok, proxy};
use crate::tests::{Cluster, Listener};

fn signed(config: &mut Config) {
    config.client.token.hmac_secret = Some(Secret::new(KEY));
    let labels = &mut config.client.token.labels_from_claim;
    labels.insert("tier", ClaimPath::from("plan.tier"));
    labels.insert("beta", ClaimPath::from("beta"));
}

fn api(cluster: &Cluster, method: &str, body: &Value) -> Value {
    let answer = cluster.post(&format!("/api/{method}"), &body.to_string());
    serde_json::from_str(&answer).unwrap()
}

fn is(key: &str, value: &str) -> Value {
    json!({"key": key, "cmp": "eq", "val": value})
}

/// Returns users and labels of the connections that a filter selects, sorted.
fn found(cluster: &Cluster, filter: &Value) -> Vec<(String, Value)> {
    let (mut found, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let asked = json!({"label_filter": filter, "cursor": cursor});
        let page = api(cluster, "connections", &asked)["result"].take();
        for of in page["connections"].as_object().unwrap().values() {
            found.push((of["user"].as_str().unwrap().to_owned(), of["labels"].clone()));
        }
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            found.sort_by(|a, b| a.0.cmp(&b.0));
            return found;
        }
    }
}

#[test]
fn labels_of_tokens_are_found_and_acted_on_over_all_workers() {
    let cluster = Cluster::start_with(3, signed);
    let connect = |user: &str, labels: Value, tier: Option<&str>| {
        let claims = json!({"sub": user, "labels": labels, "plan": {"tier": tier}, "beta": true});
        Client::connect(&cluster, &claims)
    };
    let mut many: Vec<_> =
        (0..6).map(|n| connect(&format!("eu {n}"), json!({"region": "eu"}), Some("pro"))).collect();
    let mut us = connect("us", json!({"region": "us", "tier": "mapped over"}), Some("pro"));
    let mut free = connect("free", json!({"region": "eu", "tier": "kept"}), None);

    let eu = found(&cluster, &is("region", "eu"));
    assert_eq!(eu.len(), 7, "{eu:?}");
    assert_eq!(eu[0], ("eu 0".into(), json!({"region": "eu", "tier": "pro", "beta": "true"})));
    assert_eq!(eu[6], ("free".into(), json!({"region": "eu", "tier": "kept", "beta": "true"})));
    let not_us = json!({"op": "not", "nodes": [is("region", "us")]});
    assert_eq!(found(&cluster, &not_us).len(), 7);
    assert_eq!(found(&cluster, &is("tier", "mapped over")), []);

    // Subscribe all of them, then unsubscribe those of one user by a label.
    let pro_in_eu = json!({"op": "and", "nodes": [is("region", "eu"), is("tier", "pro")]});
    let subscribe = json!({"all_users": true, "label_filter": pro_in_eu, "channel": "prices"});
    assert_eq!(api(&cluster, "subscribe", &subscribe), json!({"result": {}}));
    for client in &mut many {
        assert_eq!(client.next()["push"]["channel"], "prices");
    }
    let unsubscribe =
        json!({"user": "eu 0", "channel": "prices", "label_filter": is("tier", "free")});
    api(&cluster, "unsubscribe", &unsubscribe);
    let unsubscribe =
        json!({"user": "eu 0", "channel": "prices", "label_filter": is("tier", "pro")});
    api(&cluster, "unsubscribe", &unsubscribe);
    assert!(many[0].next()["push"]["unsubscribe"].is_object(), "once");
    api(&cluster, "publish", &json!({"channel": "prices", "data": 7}));
    for client in &mut many[1..] {
        assert_eq!(client.next()["push"]["pub"]["data"], 7);
    }

    // Filter and client must both match. With a user, `all_users` is ignored.
    let client = many[0].connect["client"].clone();
    let one = json!({"user": "eu 0", "all_users": true, "client": client, "label_filter": is("region", "us")});
    api(&cluster, "disconnect", &one);
    let refresh = json!({"all_users": true, "expired": true, "label_filter": is("region", "us")});
    assert_eq!(api(&cluster, "refresh", &refresh), json!({"result": {}}));
    assert_eq!(us.next()["push"]["disconnect"]["code"], 3005);
    let batch = json!({"commands": [
        {"disconnect": {"all_users": true, "label_filter": pro_in_eu}},
        {"disconnect": {"all_users": true, "disconnect": {"code": 4000, "reason": "maintenance"}}},
    ]});
    let replies = api(&cluster, "batch", &batch);
    assert_eq!(replies["replies"], json!([{"disconnect": {}}, {"disconnect": {}}]));
    for client in &mut many {
        assert_eq!(client.next()["push"]["disconnect"]["code"], 3503);
    }
    assert_eq!(free.next()["push"]["disconnect"]["code"], 4000);
}

/// A user with sessions disconnected by a label may reconnect with the tokens of other sessions, and at once with a new
/// one.
#[test]
fn a_disconnect_by_labels_bars_the_tokens_it_met_and_no_other() {
    let cluster = Cluster::start_with(1, signed);
    let claims = |tier: &str| json!({"sub": "ada", "iat": 1_000, "plan": {"tier": tier}});
    let mut old = Client::connect(&cluster, &claims("old"));
    let disconnect = json!({"all_users": true, "label_filter": is("tier", "old")});
    api(&cluster, "disconnect", &disconnect);
    assert_eq!(old.next()["push"]["disconnect"]["code"], 3503);
    assert!(Client::connect(&cluster, &claims("new")).connect["client"].is_string());
    let asked = json!({"token": token(&claims("old"))}).to_string();
    let (_, push) = Listener::connect_to(cluster.address, &asked);
    assert!(push.to_string().contains("this token's client was disconnected"), "{push}");
}

#[test]
fn a_backend_labels_connections_and_too_many_are_its_fault() {
    let address = backend(|asked| {
        let labels: Value = match asked.body["name"].as_str() {
            Some("many") => (0..33)
                .map(|n| (n.to_string(), json!("")))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            Some("long") => json!({"name": "v".repeat(1 << 20)}),
            Some("number") => json!({"age": 7}),
            _ => json!({"region": "eu"}),
        };
        ok(&json!({"result": {"user": "ada", "labels": labels}}))
    });
    let cluster = Cluster::start_with(2, |config| {
        let mut connect = proxy(address, "/connect");
        connect.answer_bytes_max = 4 << 20;
        config.proxies.insert("connect", connect);
        config.client.anonymous = false;
        config.client.proxy.connect = Some("connect".into());
    });
    let (_ada, connected) = client(&cluster, &[connect()]);
    assert!(connected["connect"]["client"].is_string(), "{connected}");
    for name in ["many", "long", "number"] {
        let (_, refused) = client(&cluster, &[json!({"id": 1, "connect": {"name": name}})]);
        assert_eq!(refused["error"]["code"], 100, "{name}: {refused}");
    }
    let labels = json!({"region": "eu"});
    assert_eq!(found(&cluster, &is("region", "eu")), [("ada".to_owned(), labels)]);
}

/// Labels in tokens and filters in calls are bounded; beyond a bound they are rejected with an error that states it.
#[test]
fn labels_and_filters_without_bounds_are_refused_by_them() {
    let cluster = Cluster::start_with(2, signed);
    let _ada = Client::connect(&cluster, &json!({"sub": "ada"}));
    let many: serde_json::Map<_, _> = (0..1_000).map(|n| (n.to_string(), json!(""))).collect();
    for (labels, why) in [
        (many.into(), "there are 1000, a connection has at most 32"),
        (json!({"name": "v".repeat(3_000)}), "have 3004 bytes, those of a connection at most 2048"),
        (json!({"name": "v".repeat(20_000)}), "longer than 16384 bytes"),
        (json!({"name": 7}), "invalid type"),
        (json!([1]), "invalid type"),
    ] {
        let asked = json!({"token": token(&json!({"sub": "eve", "labels": labels}))}).to_string();
        let (_, push) = Listener::connect_to(cluster.address, &asked);
        assert_eq!(push["disconnect"]["code"], 3500, "{why}: {push}");
        let reason = push["disconnect"]["reason"].as_str().unwrap();
        assert!(reason.contains(why), "{reason}");
    }
    let deep = |levels: usize| {
        let open = r#"{"op":"not","nodes":["#.repeat(levels);
        format!(r#"{open}{{"key":"a","cmp":"ex"}}{}"#, "]}".repeat(levels))
    };
    let wide =
        format!(r#"{{"op":"or","nodes":[{}]}}"#, vec![is("a", "b").to_string(); 10_000].join(","));
    for method in ["disconnect", "connections"] {
        for (filter, why) in [
            (deep(10_000), "recursion limit"),
            (deep(16), "nested deeper than 16 levels"),
            (wide.clone(), "more than 128 nodes and values"),
            (is("a", &"v".repeat(1 << 20)).to_string(), "takes more than 16384 bytes"),
            ("{}".to_owned(), "a comparison"),
            (r#"{"op":"xor"}"#.to_owned(), "`op` is empty"),
            ("[]".to_owned(), "label_filter"),
        ] {
            let all = if method == "disconnect" { r#""all_users":true,"# } else { "" };
            let body = format!(r#"{{{all}"label_filter":{filter}}}"#);
            let answer = cluster.post(&format!("/api/{method}"), &body);
            assert!(answer.contains("\"code\":107") && answer.contains(why), "{method}: {answer}");
        }
    }
    // None of these calls affected a connection.
    assert_eq!(found(&cluster, &json!({"key": "beta", "cmp": "nex"})).len(), 1);
}

/// A target that a method does not support is rejected; it does not widen the call to other sessions.
#[test]
fn a_target_that_is_not_understood_is_refused() {
    let cluster = Cluster::start_with(1, signed);
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
    for (method, body) in [
        ("send", json!({"user": "ada", "data": 1, "label_filter": is("region", "eu")})),
        ("send", json!({"all_users": true, "data": 1})),
        ("block_user", json!({"user": "ada", "label_filter": is("region", "eu")})),
        ("disconnect", json!({"label_filter": is("region", "eu")})),
        ("disconnect", json!({"all_users": "yes"})),
        ("disconnect", json!({"user": "", "all_users": false})),
    ] {
        assert_eq!(api(&cluster, method, &body)["error"]["code"], 107, "{method} {body}");
    }
    assert_eq!(ada.say(&json!({"id": 9, "rpc": {"method": "x"}}))["id"], 9, "it is still there");
}
