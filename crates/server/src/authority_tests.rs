//! Who is given what: each test is somebody who tries to get around a permission.

use dunlin_config::{ChannelOptions, Config, Secret, Serves};
use serde_json::{Value, json};

use crate::tests::{Cluster, Listener};

const KEY: &str = "the backend's own key, long enough";

/// A namespace that keeps messages and lets anybody subscribe.
fn kept() -> ChannelOptions {
    ChannelOptions {
        history_size: 10,
        history_ttl_ms: 60_000,
        allow_subscribe_for_client: true,
        allow_subscribe_for_anonymous: true,
        ..ChannelOptions::default()
    }
}

/// `closed` keeps messages for others; `recovering`, `readable` and `subscribers` give them to who subscribes, each for
/// another reason.
fn namespaces(config: &mut Config) {
    let mut add = |name: &str, options| config.channel.namespaces.insert(name, options);
    add("closed", kept());
    add("recovering", ChannelOptions { recover: true, ..kept() });
    add("readable", ChannelOptions { allow_history_for_anonymous: true, ..kept() });
    add("subscribers", ChannelOptions { allow_history_for_subscriber: true, ..kept() });
}

const OPEN: [&str; 3] = ["recovering:a", "readable:a", "subscribers:a"];

/// A server of these namespaces, in each of which three messages are kept.
fn with_three_messages() -> Cluster {
    let cluster = Cluster::start_with(2, namespaces);
    for channel in OPEN.into_iter().chain(["closed:a"]) {
        for n in 1..=3 {
            let publish = json!({"channel": channel, "data": n}).to_string();
            let answer = cluster.post("/api/publish", &publish);
            assert!(answer.contains("\"offset\""), "{answer}");
        }
    }
    cluster
}

fn data_of(subscribed: &Value) -> Vec<u64> {
    let publications = subscribed["publications"].as_array();
    publications.into_iter().flatten().filter_map(|of| of["data"].as_u64()).collect()
}

#[test]
fn recovery_is_no_way_around_the_history_permission_on_a_unidirectional_transport() {
    let cluster = with_three_messages();
    let subscribed = |channel: &str| {
        let from_the_beginning = json!({"recover": true, "epoch": "", "offset": 0});
        let asked = json!({"subs": {channel: from_the_beginning}}).to_string();
        let (_, push) = Listener::connect_to(cluster.address, &asked);
        push["connect"]["subs"][channel].clone()
    };
    for channel in OPEN {
        assert_eq!(data_of(&subscribed(channel)), [1, 2, 3], "{channel}");
    }
    let closed = subscribed("closed:a");
    assert!(data_of(&closed).is_empty(), "{closed}");
    assert_eq!((&closed["was_recovering"], &closed["recovered"]), (&json!(true), &Value::Null));
    assert_eq!((&closed["offset"], &closed["epoch"]), (&Value::Null, &Value::Null), "{closed}");
}

#[test]
fn recovery_is_no_way_around_the_history_permission_for_commands() {
    let cluster = with_three_messages();
    let subscribed = |channel: &str| {
        let subscribe = json!({"id": 2, "subscribe": {
            "channel": channel, "recover": true, "recoverable": true, "positioned": true, "epoch": "", "offset": 0,
        }});
        let (mut listener, connected) = Listener::open(
            cluster.address,
            "/connection/http_stream",
            &json!({"id": 1, "connect": {}}).to_string(),
        );
        let session = &connected["connect"]["session"];
        let emulated = json!({
            "session": session, "node": connected["connect"]["node"], "data": subscribe.to_string(),
        });
        cluster.call("POST /emulation", "", &emulated.to_string());
        listener.next().expect("a reply")["subscribe"].clone()
    };
    for channel in OPEN {
        assert_eq!(data_of(&subscribed(channel)), [1, 2, 3], "{channel}");
    }
    let closed = subscribed("closed:a");
    assert!(data_of(&closed).is_empty(), "{closed}");
    assert_eq!(closed["recovered"], Value::Null, "{closed}");
    assert_eq!(closed["recoverable"], Value::Null, "{closed}");
    assert_eq!((&closed["offset"], &closed["epoch"]), (&Value::Null, &Value::Null), "{closed}");
}

#[test]
fn a_token_that_subscribes_gives_no_history_either_unless_it_says_so() {
    let cluster = Cluster::start_with(1, |config| {
        namespaces(config);
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    cluster.post("/api/publish", r#"{"channel":"closed:a","data":7}"#);
    let subscribed = |options: Value| {
        let claims = json!({"sub": "ada", "subs": {"closed:a": options}});
        let key = jsonwebtoken::EncodingKey::from_secret(KEY.as_bytes());
        let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap();
        let asked = json!({"token": token, "subs": {"closed:a": {"recover": true}}}).to_string();
        let (_, push) = Listener::connect_to(cluster.address, &asked);
        data_of(&push["connect"]["subs"]["closed:a"])
    };
    assert!(subscribed(json!({})).is_empty());
    assert_eq!(subscribed(json!({"override": {"force_recovery": {"value": true}}})), [7]);
}

#[test]
fn a_polls_cursor_is_no_way_around_the_history_permission() {
    let cluster = with_three_messages();
    let poll = |channel: &str, cursor: &str| -> Value {
        let line = format!("GET /connection/poll?channel={channel}&cursor={cursor}&timeout=0");
        serde_json::from_str(&cluster.call(&line, "", "").1).unwrap()
    };
    for channel in OPEN {
        assert_eq!(data_of(&poll(channel, "0")), [1, 2, 3], "{channel}");
    }
    let closed = poll("closed:a", "0");
    assert!(data_of(&closed).is_empty(), "{closed}");
    assert_eq!(closed["gap"][0]["reason"], "no_history", "and is notified: {closed}");

    // What is published between two polls is not kept for this client, and it is notified.
    let cursor = closed["cursor"].as_str().unwrap();
    let unchanged = poll("closed:a", cursor);
    assert_eq!(unchanged["gap"], Value::Null, "nothing was published: {unchanged}");
    cluster.post("/api/publish", r#"{"channel":"closed:a","data":4}"#);
    let missed = poll("closed:a", cursor);
    assert!(data_of(&missed).is_empty(), "{missed}");
    assert_eq!(missed["gap"][0]["reason"], "no_history");
}

#[test]
fn a_subscription_token_is_not_taken_for_verified() {
    let cluster = Cluster::start_with(1, namespaces);
    let error_of = |request: Value| {
        let (mut listener, connected) = Listener::open(
            cluster.address,
            "/connection/http_stream",
            &json!({"id": 1, "connect": {}}).to_string(),
        );
        let connect = &connected["connect"];
        let emulated = json!({"session": connect["session"], "node": connect["node"], "data": request.to_string()});
        cluster.call("POST /emulation", "", &emulated.to_string());
        listener.next().expect("a reply")["error"].clone()
    };
    for request in [
        json!({"id": 2, "subscribe": {"channel": "readable:a", "token": "a.b.c"}}),
        json!({"id": 2, "sub_refresh": {"channel": "readable:a", "token": "a.b.c"}}),
    ] {
        let error = error_of(request);
        assert_eq!(error["code"], 103, "final for the SDKs: {error}");
        assert!(error["message"].as_str().unwrap().contains("subscription token"), "{error}");
    }
    let asked = json!({"subs": {"readable:a": {"token": "a.b.c"}}}).to_string();
    let (_, push) = Listener::connect_to(cluster.address, &asked);
    assert_eq!(push["disconnect"]["code"], 3507, "{push}");
}

#[test]
fn a_page_whose_name_was_led_to_this_machine_gets_nothing_in_development_mode() {
    let cluster = Cluster::start_with(1, |_| {});
    let foreign = "Host: evil.example:8000\r\nOrigin: http://evil.example:8000\r\n";
    for (line, body) in [
        ("POST /api/publish", r#"{"channel":"news","data":1}"#),
        ("POST /api/history", r#"{"channel":"news"}"#),
        ("GET /connection/poll?channel=news&timeout=0", ""),
        ("POST /emulation", "{}"),
        ("POST /connection/uni_http_stream", r#"{"subs":{"news":{}}}"#),
        ("GET /", ""),
    ] {
        let answer = cluster.exchange(line, foreign, body);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{line}: {answer}");
        assert!(!answer.to_ascii_lowercase().contains("access-control"), "{line}: {answer}");
    }
    // A page of another name sends to this machine's: what needs no permission to be sent is refused, too.
    let cross =
        "Host: 127.0.0.1:8000\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n";
    let answer = cluster.exchange("POST /api/publish", cross, r#"{"channel":"news","data":1}"#);
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    // The same page under the machine's own name, and a server that asks for keys.
    assert_eq!(cluster.call("GET /connection/poll?channel=news&timeout=0", "", "").0, 200);
    let public = Cluster::start_with(1, |config| config.api.without_key = false);
    let answer = public.exchange("GET /connection/poll?channel=news&timeout=0", foreign, "");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn joins_are_no_way_around_the_presence_permission() {
    let cluster = Cluster::start_with(1, |config| {
        let joins = ChannelOptions { join_leave: true, ..kept() };
        let open = ChannelOptions { allow_presence_for_subscriber: true, ..joins.clone() };
        config.channel.namespaces.insert("closed", joins);
        config.channel.namespaces.insert("open", open);
    });
    let first_push = |channel: &str| {
        let asked = json!({"subs": {channel: {"join_leave": true}}}).to_string();
        let (mut watcher, _) = Listener::connect_to(cluster.address, &asked);
        let (_other, _) = Listener::connect_to(cluster.address, &asked);
        let publish = json!({"channel": channel, "data": 1}).to_string();
        cluster.post("/api/publish", &publish);
        // One's own join comes first where joins come.
        watcher.next().expect("a push")
    };
    assert!(first_push("open:a")["join"].is_object());
    let push = first_push("closed:a");
    assert!(push["pub"].is_object(), "{push}");
}

#[test]
fn an_address_serves_what_it_is_for() {
    // Free a moment ago; another process may still take them.
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (api, clients) = (free(), free());
    let mut cluster = Cluster::start_with(1, |config| {
        for (name, addr, serves) in
            [("api", api, Serves::Api), ("clients", clients, Serves::Clients)]
        {
            let listener = dunlin_config::Listener { addr, serves, ..Default::default() };
            config.listeners.insert(name, listener);
        }
    });
    let boot = cluster.address;
    let mut at = |address| {
        cluster.address = address;
        let publish = cluster.call("POST /api/publish", "", r#"{"channel":"news","data":1}"#).0;
        (publish, cluster.call("GET /connection/poll?channel=news&timeout=0", "", "").0)
    };
    assert_eq!([at(api), at(clients), at(boot)], [(200, 404), (404, 200), (200, 200)]);
}
