//! Permission tests: each one tries to circumvent a permission.

mod labels;
mod renewals;
mod transports;

use std::sync::Arc;

use dunlin_config::{ChannelOptions, Config, Effects, RecoveryMode, Secret, Serves};
use serde_json::{Value, json};

use crate::state::settings::Settings;
use crate::tests::{Cluster, Listener};

const KEY: &str = "the backend's own key, long enough";

/// Returns the options of a namespace that stores publications and lets anyone subscribe.
fn kept() -> ChannelOptions {
    ChannelOptions {
        history_size: 10,
        history_ttl_ms: 60_000,
        allow_subscribe_for_client: true,
        allow_subscribe_for_anonymous: true,
        ..ChannelOptions::default()
    }
}

/// `closed` stores publications that subscribers must not read; `recovering`, `readable` and `subscribers` let
/// subscribers read them, each by a different option.
fn namespaces(config: &mut Config) {
    let mut add = |name: &str, options| config.channel.namespaces.insert(name, options);
    add("closed", kept());
    add("recovering", ChannelOptions { recover: true, ..kept() });
    add("readable", ChannelOptions { allow_history_for_anonymous: true, ..kept() });
    add("subscribers", ChannelOptions { allow_history_for_subscriber: true, ..kept() });
}

const OPEN: [&str; 3] = ["recovering:a", "readable:a", "subscribers:a"];

/// Starts a server with these namespaces and publishes three messages in each.
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

    // Publications between two polls are not kept for this client; it is notified of the gap.
    let cursor = closed["cursor"].as_str().unwrap();
    let unchanged = poll("closed:a", cursor);
    assert_eq!(unchanged["gap"], Value::Null, "nothing was published: {unchanged}");
    cluster.post("/api/publish", r#"{"channel":"closed:a","data":4}"#);
    let missed = poll("closed:a", cursor);
    assert!(data_of(&missed).is_empty(), "{missed}");
    assert_eq!(missed["gap"][0]["reason"], "no_history");
}

/// A client that can send commands: its stream, and its connect reply.
struct Client<'c> {
    cluster: &'c Cluster,
    stream: Listener,
    connect: Value,
}

impl<'c> Client<'c> {
    fn connect(cluster: &'c Cluster, claims: &Value) -> Client<'c> {
        let connect = json!({"id": 1, "connect": {"token": token(claims)}}).to_string();
        let path = "/connection/http_stream";
        let (stream, connected) = Listener::open(cluster.address, path, &connect);
        Client { cluster, stream, connect: connected["connect"].clone() }
    }

    /// Sends a command and returns the next object on the stream, without pings.
    fn say(&mut self, command: &Value) -> Value {
        let (session, node) = (&self.connect["session"], &self.connect["node"]);
        let emulated = json!({"session": session, "node": node, "data": command.to_string()});
        self.cluster.call("POST /emulation", "", &emulated.to_string());
        self.next()
    }

    fn next(&mut self) -> Value {
        self.stream.next().unwrap_or(Value::Null)
    }

    fn subscribe(&mut self, channel: &str, token: &str) -> Value {
        self.say(&json!({"id": 2, "subscribe": {"channel": channel, "token": token}}))
    }
}

fn token(claims: &Value) -> String {
    let key = jsonwebtoken::EncodingKey::from_secret(KEY.as_bytes());
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), claims, &key).unwrap()
}

fn now_s() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// `private` requires a token to subscribe, and stores publications for a minute.
fn with_private_channels(workers: usize) -> Cluster {
    Cluster::start_with(workers, |config| {
        let private = ChannelOptions {
            allow_subscribe_for_client: false,
            allow_subscribe_for_anonymous: false,
            presence: true,
            ..kept()
        };
        config.channel.namespaces.insert("private", private);
        config.channel.any_namespace = false;
        config.client.token.hmac_secret = Some(Secret::new(KEY));
        config.client.subscription_token.refresh_grace_ms = 0;
    })
}

#[test]
fn a_subscription_token_lets_in_who_may_not_subscribe_otherwise() {
    let cluster = with_private_channels(2);
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
    assert_eq!(ada.subscribe("private:a", "")["error"]["code"], 103);
    let shown = token(&json!({
        "sub": "ada", "channel": "private:a", "exp": now_s() + 600, "data": {"hello": 1},
    }));
    let subscribed = ada.subscribe("private:a", &shown);
    assert_eq!(subscribed["subscribe"]["expires"], true, "{subscribed}");
    assert!(subscribed["subscribe"]["ttl"].as_u64().is_some_and(|ttl| (590..=600).contains(&ttl)));
    assert_eq!(subscribed["subscribe"]["data"], json!({"hello": 1}));
    cluster.post("/api/publish", r#"{"channel":"private:a","data":7}"#);
    assert_eq!(ada.next()["push"]["pub"]["data"], 7);
    assert_eq!(ada.subscribe("private:a", &shown)["error"]["code"], 105, "already subscribed");

    let refresh =
        |token: String| json!({"id": 3, "sub_refresh": {"channel": "private:a", "token": token}});
    let longer = token(&json!({"sub": "ada", "channel": "private:a", "exp": now_s() + 5_000}));
    let refreshed = ada.say(&refresh(longer));
    assert!(refreshed["sub_refresh"]["ttl"].as_u64().is_some_and(|ttl| ttl > 4_000), "{refreshed}");
    let expired = token(&json!({"sub": "ada", "channel": "private:a", "exp": 1}));
    assert_eq!(ada.say(&refresh(expired))["error"]["code"], 109);
    assert_eq!(ada.say(&refresh(String::new()))["error"]["code"], 107);
}

#[test]
fn a_subscription_token_that_is_not_valid_is_refused_as_the_protocol_has_it() {
    let cluster = with_private_channels(1);
    let valid = json!({"sub": "ada", "channel": "private:a"});
    let with = |key: &str, value: Value| {
        let mut claims = valid.clone();
        claims[key] = value;
        token(&claims)
    };
    // {"alg":"none","typ":"JWT"} and {"sub":"ada","channel":"private:a"}.
    let none =
        "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJzdWIiOiJhZGEiLCJjaGFubmVsIjoicHJpdmF0ZTphIn0.";
    let forged = format!("{}x", token(&valid));
    let connection = token(&json!({"sub": "ada"}));
    for (shown, code) in [
        (with("exp", json!(1)), 109),
        (with("expire_at", json!(1)), 110),
        (with("nbf", json!(now_s() + 600)), 103),
        (none.into(), 103),
        (forged, 103),
        (connection, 103),
        ("a".repeat(20_000), 103),
    ] {
        let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
        let refused = ada.subscribe("private:a", &shown);
        assert_eq!(refused["error"]["code"], code, "{refused}");
    }
    for shown in
        [with("channel", json!("private:b")), with("sub", json!("bob")), with("client", json!("1"))]
    {
        let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
        let refused = ada.subscribe("private:a", &shown);
        assert_eq!(refused["push"]["disconnect"]["code"], 3500, "{refused}");
    }
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
    let shown = token(&json!({"sub": "ada", "channel": "unknown:a"}));
    assert_eq!(ada.subscribe("unknown:a", &shown)["error"]["code"], 102);
    // A subscription token cannot be used to connect.
    let mallory = Client::connect(&cluster, &valid);
    assert_eq!(mallory.connect, Value::Null);
}

#[test]
fn a_subscription_ends_with_its_token() {
    let cluster = with_private_channels(2);
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
    let shown = token(&json!({"sub": "ada", "channel": "private:a", "exp": now_s() + 2}));
    assert_eq!(ada.subscribe("private:a", &shown)["subscribe"]["expires"], true);
    let ended = ada.next();
    assert_eq!(ended["push"]["unsubscribe"]["code"], 2501, "{ended}");
    assert_eq!(ada.subscribe("private:a", &shown)["error"]["code"], 109, "get another one");
    let shown = token(&json!({"sub": "ada", "channel": "private:a", "exp": now_s() + 60}));
    assert_eq!(ada.subscribe("private:a", &shown)["subscribe"]["expires"], true);
}

#[test]
fn a_subscription_token_gives_no_history_unless_it_says_so() {
    let cluster = with_private_channels(1);
    cluster.post("/api/publish", r#"{"channel":"private:a","data":7}"#);
    let subscribed = |overrides: Value| {
        let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
        let claims = json!({"sub": "ada", "channel": "private:a", "override": overrides});
        let command = json!({"id": 2, "subscribe": {
            "channel": "private:a", "token": token(&claims), "recover": true, "recoverable": true, "positioned": true,
        }});
        ada.say(&command)["subscribe"].clone()
    };
    let plain = subscribed(json!({}));
    assert!(data_of(&plain).is_empty() && plain["recoverable"] == Value::Null, "{plain}");
    let overridden = subscribed(json!({"force_recovery": {"value": true}}));
    assert_eq!((data_of(&overridden), &overridden["recoverable"]), (vec![7], &json!(true)));
}

#[test]
fn a_unidirectional_client_shows_its_subscription_token_when_it_connects() {
    let cluster = with_private_channels(1);
    let connect = |claims: Value| {
        let subs = json!({"private:a": {"token": token(&claims)}});
        let asked = json!({"token": token(&json!({"sub": "ada"})), "subs": subs}).to_string();
        Listener::connect_to(cluster.address, &asked)
    };
    let (mut stream, push) =
        connect(json!({"sub": "ada", "channel": "private:a", "exp": now_s() + 2}));
    assert!(push["connect"]["subs"]["private:a"].is_object(), "{push}");
    assert_eq!(stream.next().unwrap()["unsubscribe"]["code"], 2501);
    let (_, push) = connect(json!({"sub": "ada", "channel": "private:b"}));
    assert_eq!(push["disconnect"]["code"], 3500, "{push}");
    let (_, push) = connect(json!({"sub": "ada", "channel": "private:a", "exp": 1}));
    assert_eq!(push["disconnect"]["code"], 3005, "{push}");
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
    // A page of another origin sends to this machine's own name: a request that needs no CORS preflight is rejected,
    // too.
    let cross =
        "Host: 127.0.0.1:8000\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n";
    let answer = cluster.exchange("POST /api/publish", cross, r#"{"channel":"news","data":1}"#);
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    // Accepted: a request under the machine's own name, and a foreign one to a server that requires keys.
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
        // If joins are sent, the client's own join comes first.
        watcher.next().expect("a push")
    };
    assert!(first_push("open:a")["join"].is_object());
    let push = first_push("closed:a");
    assert!(push["pub"].is_object(), "{push}");
}

#[test]
fn an_address_serves_what_it_is_for() {
    // These ports are free now; another process may still take them.
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

#[test]
fn a_private_channel_takes_a_token_whatever_its_namespace_allows() {
    let cluster = Cluster::start_with(1, |config| {
        namespaces(config);
        config.channel.any_namespace = false;
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    let all = json!([{"channels": ["*"], "match": "wildcard", "allow": ["sub"]}]);
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada", "caps": all}));
    for channel in ["$news", "$readable:a"] {
        let refused = ada.subscribe(channel, "");
        assert_eq!(refused["error"]["code"], 103, "{refused}");
        let shown = token(&json!({"sub": "ada", "channel": channel}));
        assert!(ada.subscribe(channel, &shown)["subscribe"].is_object());
    }
    assert_eq!(ada.subscribe("$unknown:a", "")["error"]["code"], 102);
    let asked = json!({"token": token(&json!({"sub": "ada"})), "subs": {"$news": {}}}).to_string();
    let (_, push) = Listener::connect_to(cluster.address, &asked);
    assert_eq!(push["connect"]["subs"], Value::Null, "{push}");
    let poll = format!(
        "GET /connection/poll?channel=%24news&timeout=0&token={}",
        token(&json!({"sub": "ada"}))
    );
    assert_eq!(cluster.call(&poll, "", "").0, 403);
}

#[test]
fn a_channel_may_list_its_users() {
    let cluster = Cluster::start_with(1, |config| {
        let limited = ChannelOptions { allow_user_limited_channels: true, ..kept() };
        config.channel.namespaces.insert("dialog", limited);
        config.channel.namespaces.insert("plain", kept());
        config.client.token.hmac_secret = Some(Secret::new(KEY));
        config.client.anonymous = true;
    });
    let code = |user: &str, channel: &str| {
        let mut client = Client::connect(&cluster, &json!({"sub": user}));
        client.subscribe(channel, "")["error"]["code"].clone()
    };
    for (user, channel, expected) in [
        ("42", "dialog:x#42,43", Value::Null),
        ("43", "dialog:x#42,43", Value::Null),
        ("4", "dialog:x#42,43", json!(103)),
        ("", "dialog:x#", json!(103)),
        ("", "dialog:x#,42", json!(103)),
        ("42", "dialog:x#42#7", json!(103)),
        ("7", "dialog:open", Value::Null),
        ("7", "plain:x#42", Value::Null),
    ] {
        assert_eq!(code(user, channel), expected, "{user:?} in {channel}");
    }
}

#[test]
fn a_name_must_match_the_regular_expression_of_its_namespace() {
    let cluster = Cluster::start_with(1, |config| {
        let digits = ChannelOptions { channel_regex: Some("^[0-9]+$".into()), ..kept() };
        config.channel.namespaces.insert("chat", digits);
    });
    for (channel, expected) in
        [("chat:12", true), ("chat:a", false), ("chat:", false), ("chat:1:2", false)]
    {
        let publish = json!({"channel": channel, "data": 1}).to_string();
        let answer = cluster.post("/api/publish", &publish);
        assert_eq!(answer.contains("\"offset\""), expected, "{channel}: {answer}");
    }
}

#[test]
fn capabilities_grant_what_a_namespace_does_not() {
    let cluster = with_private_channels(2);
    cluster.post("/api/publish", r#"{"channel":"private:a","data":7}"#);
    let caps = json!([
        {"channels": ["private:*"], "match": "wildcard", "allow": ["sub"]},
        {"channels": ["^private:[a-c]$"], "match": "regex", "allow": ["hst", "pub", "prs"]},
    ]);
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada", "caps": caps}));
    let mut bob = Client::connect(&cluster, &json!({"sub": "bob"}));
    assert_eq!(bob.subscribe("private:a", "")["error"]["code"], 103);
    let from_the_beginning = |channel: &str| json!({"id": 2, "subscribe": {"channel": channel, "recover": true, "recoverable": true}});
    let readable = ada.say(&from_the_beginning("private:a"))["subscribe"].clone();
    assert_eq!((data_of(&readable), &readable["recoverable"]), (vec![7], &json!(true)));
    let unreadable = ada.say(&from_the_beginning("private:z"))["subscribe"].clone();
    assert_eq!((data_of(&unreadable), &unreadable["recoverable"]), (vec![], &Value::Null));
    let publish = |channel: &str| json!({"id": 3, "publish": {"channel": channel, "data": 8}});
    assert_eq!(ada.say(&publish("private:z"))["error"]["code"], 103);
    let history = |channel: &str| json!({"id": 4, "history": {"channel": channel, "limit": 9}});
    assert!(data_of(&ada.say(&history("private:b"))["history"]).is_empty());
    assert_eq!(ada.say(&history("private:z"))["error"]["code"], 103);
    assert!(ada.say(&publish("private:b"))["publish"].is_object());

    // The next token lacks some of the capabilities: the subscriptions that depended on them end.
    let caps = json!([{"channels": ["private:a"], "allow": ["sub"]}]);
    let fewer = token(&json!({"sub": "ada", "caps": caps}));
    let ended = ada.say(&json!({"id": 5, "refresh": {"token": fewer}}));
    assert_eq!(ended["push"]["channel"], "private:z", "{ended}");
    assert_eq!(ended["push"]["unsubscribe"]["code"], 2000, "{ended}");
    assert!(ada.next()["refresh"].is_object());
    assert_eq!(ada.say(&history("private:b"))["error"]["code"], 103);
}

#[test]
fn option_that_a_channel_lacks_needs_no_permission() {
    let cluster = Cluster::start_with(1, |config| {
        let bare = ChannelOptions { history_size: 0, history_ttl_ms: 0, ..kept() };
        config.channel.namespaces.insert("bare", bare);
        config.channel.namespaces.insert("full", ChannelOptions { presence: true, ..kept() });
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
    for asked in ["history", "presence", "presence_stats"] {
        for (channel, expected) in [("bare:a", 108), ("full:a", 103)] {
            let answer = ada.say(&json!({"id": 3, asked: {"channel": channel}}));
            assert_eq!(answer["error"]["code"], expected, "{asked} of {channel}: {answer}");
        }
    }
}

#[test]
fn a_subscription_token_may_allow_more_than_to_subscribe() {
    let cluster = with_private_channels(1);
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
    let publish = json!({"id": 3, "publish": {"channel": "private:a", "data": 8}});
    assert_eq!(ada.say(&publish)["error"]["code"], 103);
    let shown = token(&json!({"sub": "ada", "channel": "private:a", "allow": ["pub", "hst"]}));
    assert!(ada.subscribe("private:a", &shown)["subscribe"].is_object());
    // Its own publication arrives too, before or after the reply.
    let said = [ada.say(&publish), ada.next()];
    assert!(said.iter().any(|one| one["publish"].is_object()), "{said:?}");
    let presence = json!({"id": 4, "presence": {"channel": "private:a"}});
    assert_eq!(ada.say(&presence)["error"]["code"], 103);
    let unsubscribe = json!({"id": 5, "unsubscribe": {"channel": "private:a"}});
    assert!(ada.say(&unsubscribe)["unsubscribe"].is_object());
    assert_eq!(ada.say(&publish)["error"]["code"], 103, "only while it is subscribed");
}

/// Regression: the first listener by name decided, so the API was served at the address for clients.
#[test]
fn of_two_addresses_with_one_port_the_one_that_stands_for_all_serves_the_rest() {
    let settings = |clients: &str, api: &str| {
        let mut config = Config::default();
        config.api.keys.insert("backend", Secret::new("a key that is long enough"));
        config.client.token.hmac_secret = Some(Secret::new("a key that is long enough, too"));
        for (name, addr, serves) in [("a", api, Serves::Api), ("z", clients, Serves::Clients)] {
            let addr = addr.parse().unwrap();
            let listener = dunlin_config::Listener { addr, serves, ..Default::default() };
            config.listeners.insert(name, listener);
        }
        Settings::new(Arc::new(dunlin_config::Snapshot::new(1, config).unwrap()))
    };
    let serves = |settings: &Settings, local: &str| settings.serves(local.parse().unwrap());
    for settings in [settings("127.0.0.1:900", "0.0.0.0:900"), settings("[::1]:900", "[::]:900")] {
        let own = settings.config.listeners["z"].addr.to_string();
        assert_eq!(serves(&settings, &own), Serves::Clients);
        assert_eq!(serves(&settings, "192.0.2.1:900"), Serves::Api);
        assert_eq!(serves(&settings, "127.0.0.1:901"), Serves::All, "of client_addr");
    }
}

#[test]
fn a_channel_that_holds_a_state_gives_it_to_who_may_read_it_and_to_nobody_else() {
    let cluster = Cluster::start_with(2, |config| {
        let cache = || ChannelOptions { force_recovery_mode: RecoveryMode::Cache, ..kept() };
        config.channel.namespaces.insert("closed", cache());
        config.channel.namespaces.insert("open", ChannelOptions { recover: true, ..cache() });
    });
    for (channel, state) in [("open:a", vec![3]), ("closed:a", vec![])] {
        for n in 1..=3 {
            cluster.post("/api/publish", &json!({"channel": channel, "data": n}).to_string());
        }
        for since in
            [json!({"recover": true}), json!({"recover": true, "offset": 2, "epoch": "other"})]
        {
            let asked = json!({"subs": {channel: since}}).to_string();
            let (_, push) = Listener::connect_to(cluster.address, &asked);
            let subscribed = &push["connect"]["subs"][channel];
            assert_eq!(data_of(subscribed), state, "{subscribed}");
            assert_eq!(subscribed["recovered"].is_null(), state.is_empty(), "{subscribed}");
        }
    }
}

#[test]
fn each_user_is_subscribed_to_a_channel_of_its_own() {
    let cluster = Cluster::start_with(2, |config| {
        config.channel.namespaces.insert("closed", ChannelOptions::default());
        config.client.token.hmac_secret = Some(Secret::new(KEY));
        config.client.anonymous = true;
        let personal = &mut config.client.subscribe_to_user_personal_channel;
        personal.enabled = true;
        personal.personal_channel_namespace = "closed".to_owned();
    });
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
    assert_eq!(ada.connect["subs"], json!({"closed:#ada": {}}));
    cluster.post("/api/publish", r##"{"channel":"closed:#ada","data":7}"##);
    assert_eq!(ada.next()["push"]["pub"]["data"], 7);
    let bob = Client::connect(&cluster, &json!({"sub": "bob"}));
    assert_eq!(bob.connect["subs"], json!({"closed:#bob": {}}));
    let (_, nobody) = Listener::connect_to(cluster.address, "{}");
    assert_eq!(nobody["connect"]["subs"], Value::Null);
}

/// Sends a long-poll and waits until it has subscribed to the channel.
fn waiting_poll(cluster: &Cluster, token: &str) -> std::net::TcpStream {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(cluster.address).unwrap();
    stream.set_read_timeout(Some(crate::tests::TIMEOUT)).unwrap();
    write!(
        stream,
        "GET /connection/poll?channel=a&cursor=0&timeout=15&token={token} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let info = |cluster: &Cluster| cluster.post("/api/channels", "{}");
    while !info(cluster).contains("\"a\"") {
        std::thread::yield_now();
    }
    stream
}

/// Regression: a waiting poll continued until the next message, and received it.
#[test]
fn a_poll_that_waits_ends_with_what_has_let_it_in() {
    use std::io::Read;
    for with_token in [true, false] {
        let cluster = Cluster::start_with(1, |config| {
            config.client.token.hmac_secret = Some(Secret::new(KEY));
            config.client.anonymous = true;
        });
        let token = if with_token { token(&json!({"sub": "ada"})) } else { String::new() };
        let mut poll = waiting_poll(&cluster, &token);
        let mut config = cluster.state.newest_for(0).config.clone();
        match with_token {
            true => {
                config.client.token.hmac_secret = Some(Secret::new("another key, as long as that"));
            }
            false => config.client.anonymous = false,
        }
        let snapshot = Arc::new(dunlin_config::Snapshot::new(2, config).unwrap());
        cluster.state.publish(Arc::new(Settings::new(snapshot)));
        cluster.post("/api/publish", "{\"channel\":\"a\",\"data\":\"secret\"}");
        let mut answer = String::new();
        poll.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 401") && !answer.contains("secret"), "{answer}");
    }
}

#[test]
fn client_that_loses_presence_permission_gets_no_joins() {
    let cluster = Cluster::start_with(1, |config| {
        let options = &mut config.channel.without_namespace;
        options.join_leave = true;
        options.allow_presence_for_subscriber = true;
    });
    let watch = "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"subscribe\":{\"channel\":\"a\",\"join_leave\":true}}";
    let (mut watcher, connected) =
        Listener::open(cluster.address, "/connection/http_stream", watch);
    let own = connected["connect"]["client"].clone();
    while watcher.next().unwrap()["id"] != 2 {}
    let mut config = cluster.state.newest_for(0).config.clone();
    let options = &mut config.channel.without_namespace;
    options.allow_presence_for_subscriber = false;
    options.allow_presence_for_client = false;
    options.allow_presence_for_anonymous = false;
    let snapshot = Arc::new(dunlin_config::Snapshot::new(2, config).unwrap());
    let before = cluster.state.newest_for(0);
    let newer = Settings::new(snapshot);
    assert!(
        before.effects(&newer).intersects(Effects::OF_SLEEPERS),
        "a worker that sleeps is woken"
    );
    cluster.state.publish(Arc::new(newer));
    // One turn adopts the settings, the next one withdraws the permission.
    for _ in 0..3 {
        cluster.post("/api/info", "{}");
    }
    let _other =
        Listener::open(cluster.address, "/connection/http_stream", &watch.replace("true", "false"));
    cluster.post("/api/publish", "{\"channel\":\"a\",\"data\":7}");
    loop {
        let said = watcher.next().unwrap();
        let join = &said["push"]["join"];
        assert!(join.is_null() || join["info"]["client"] == own, "{said}");
        if said["push"]["pub"]["data"] == 7 {
            break;
        }
    }
}
