//! Clients and backends of the Pusher protocol over sockets: what signatures permit, and what is rejected.

mod tenants;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

use dunlin_config::{Config, PusherApp, Secret};
use dunlin_testkit::WebSocket;
use ring::hmac;
use serde_json::{Value, json};

use super::{Cluster, Listener, TIMEOUT};
use crate::message::worker::WorkerMessage;

const SECRET: &str = "the shop's own secret";

fn with_apps(config: &mut Config) {
    for (name, id, secret) in [("shop", "3", SECRET), ("other", "4", "another app's secret")] {
        config.channel.namespaces.insert(name, config.channel.without_namespace.clone());
        let app = PusherApp {
            id: id.into(),
            key: format!("{name}-key").into(),
            secret: Some(Secret::new(secret)),
            namespace: name.into(),
            client_events: true,
            ..PusherApp::default()
        };
        config.pusher.apps.insert(name, app);
    }
}

fn cluster(workers: usize) -> Cluster {
    Cluster::start_with(workers, with_apps)
}

fn sign(secret: &str, text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    hex(hmac::sign(&key, text.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A client that has connected.
struct Client {
    socket: WebSocket,
    id: String,
}

impl Client {
    fn connect(cluster: &Cluster) -> Client {
        let mut client = Client::open(cluster, "/app/shop-key?protocol=7&client=test&version=1");
        let opened = client.next();
        assert_eq!(opened["event"], "pusher:connection_established", "{opened}");
        let data: Value = serde_json::from_str(opened["data"].as_str().unwrap()).unwrap();
        assert_eq!(data["activity_timeout"], 30, "proxies cut idle connections after 60 s");
        client.id = data["socket_id"].as_str().unwrap().to_owned();
        client
    }

    fn open(cluster: &Cluster, target: &str) -> Client {
        let origin = "Origin: https://example.com\r\n";
        Client { socket: WebSocket::open(cluster.address, target, origin), id: String::new() }
    }

    fn say(&mut self, message: &Value) {
        self.say_text(&message.to_string());
    }

    fn say_text(&mut self, text: &str) {
        self.socket.text(text);
    }

    /// Returns opcode and payload of the next frame.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        let (first, payload) = self.socket.frame().unwrap();
        (first & 15, payload)
    }

    fn next(&mut self) -> Value {
        let (opcode, payload) = self.frame();
        assert_eq!(opcode, 1, "{}", String::from_utf8_lossy(&payload));
        serde_json::from_slice(&payload).unwrap()
    }

    /// Returns the close code, which follows an error with the same code.
    fn closed(&mut self) -> u16 {
        let error = self.next();
        assert_eq!(error["event"], "pusher:error", "{error}");
        let (opcode, payload) = self.frame();
        assert_eq!(opcode, 8);
        let code = u16::from_be_bytes([payload[0], payload[1]]);
        assert_eq!(error["data"]["code"], code);
        code
    }

    fn auth(&self, secret: &str, channel: &str, data: &str) -> String {
        let rest = if data.is_empty() { String::new() } else { format!(":{data}") };
        format!("shop-key:{}", sign(secret, &format!("{}:{channel}{rest}", self.id)))
    }

    fn subscribe(&mut self, channel: &str, data: &str) {
        let auth = self.auth(SECRET, channel, data);
        self.subscribe_with(channel, &auth, data);
    }

    fn subscribe_with(&mut self, channel: &str, auth: &str, data: &str) {
        let data = json!({"channel": channel, "auth": auth, "channel_data": data});
        self.say(&json!({"event": "pusher:subscribe", "data": data}));
    }

    /// Subscribes and returns the data of the confirmation.
    fn subscribed(&mut self, channel: &str, data: &str) -> Value {
        self.subscribe(channel, data);
        let answer = self.next();
        assert_eq!(answer["event"], "pusher_internal:subscription_succeeded", "{answer}");
        assert_eq!(answer["channel"], channel);
        serde_json::from_str(answer["data"].as_str().unwrap()).unwrap()
    }

    /// Checks that nothing else was sent to the client.
    fn has_nothing(&mut self) {
        self.say(&json!({"event": "pusher:ping", "data": {}}));
        let next = self.next();
        assert_eq!(next["event"], "pusher:pong", "{next}");
    }
}

/// Makes a signed call of an app's API; returns status and body.
fn call(cluster: &Cluster, method: &str, path: &str, query: &str, body: &str) -> (u16, String) {
    call_as(cluster, ("shop-key", SECRET), (method, path, query), body)
}

fn call_as(
    cluster: &Cluster,
    (key, secret): (&str, &str),
    (method, path, query): (&str, &str, &str),
    body: &str,
) -> (u16, String) {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut pairs = vec![
        format!("auth_key={key}"),
        format!("auth_timestamp={at}"),
        "auth_version=1.0".to_owned(),
    ];
    if !body.is_empty() {
        pairs.push(format!("body_md5={}", hex(&md5(body))));
    }
    pairs.extend(query.split('&').filter(|pair| !pair.is_empty()).map(str::to_owned));
    pairs.sort();
    let query = pairs.join("&");
    let signature = sign(secret, &format!("{method}\n{path}\n{query}"));
    cluster.call(&format!("{method} {path}?{query}&auth_signature={signature}"), "", body)
}

fn md5(text: &str) -> Vec<u8> {
    use md5::Digest;
    md5::Md5::digest(text.as_bytes()).to_vec()
}

fn publish(cluster: &Cluster, body: &Value) -> (u16, String) {
    call(cluster, "POST", "/apps/3/events", "", &body.to_string())
}

#[test]
fn an_event_of_the_backend_reaches_subscribers_of_both_protocols() {
    let cluster = cluster(2);
    let mut client = Client::connect(&cluster);
    assert_eq!(client.subscribed("news", ""), json!({}));
    let mut other = Listener::connect(cluster.address, "shop:news");
    let event = json!({"name": "made", "channels": ["news"], "data": "{\"a\": 1}"});
    assert_eq!(publish(&cluster, &event), (200, "{}".into()));
    let expected = json!({"event": "made", "channel": "news", "data": "{\"a\": 1}"});
    assert_eq!(client.next(), expected);
    let push = other.next().unwrap();
    assert_eq!(
        (&push["pub"]["data"], &push["pub"]["tags"]["event"]),
        (&json!({"a": 1}), &json!("made"))
    );
    // And in the opposite direction.
    cluster
        .post("/api/publish", r#"{"channel":"shop:news","data":{"b":2},"tags":{"event":"sold"}}"#);
    assert_eq!(client.next(), json!({"event": "sold", "channel": "news", "data": "{\"b\":2}"}));
    client.say(&json!({"event": "pusher:unsubscribe", "data": {"channel": "news"}}));
    client.has_nothing();
    publish(&cluster, &event);
    client.has_nothing();
}

#[test]
fn a_connection_that_names_no_app_or_version_is_closed_with_its_code() {
    let cluster = cluster(1);
    for (target, code) in [
        ("/app/nobody?protocol=7", 4001),
        ("/app/?protocol=7", 4001),
        ("/app/shop-key", 4008),
        ("/app/shop-key?protocol=x", 4006),
        ("/app/shop-key?protocol=4", 4007),
        ("/app/shop-key?protocol=8", 4007),
    ] {
        assert_eq!(Client::open(&cluster, target).closed(), code, "{target}");
    }
}

#[test]
fn only_the_apps_signature_for_this_connection_and_channel_opens_a_private_one() {
    let cluster = cluster(1);
    let mut client = Client::connect(&cluster);
    let stranger = Client::connect(&cluster);
    let data = r#"{"user_id":"ada"}"#;
    let forged = r#"{"user_id":"eve"}"#;
    for (channel, auth, data) in [
        ("private-a", String::new(), ""),
        ("private-a", stranger.auth(SECRET, "private-a", ""), ""),
        ("private-a", client.auth(SECRET, "private-b", ""), ""),
        ("private-a", client.auth("another app's secret", "private-a", ""), ""),
        ("private-a", client.auth(SECRET, "private-a", "").replace("shop-key", "other-key"), ""),
        ("presence-a", client.auth(SECRET, "presence-a", data), forged),
        ("presence-a", client.auth(SECRET, "presence-a", ""), ""),
        ("presence-a", client.auth(SECRET, "presence-a", ""), data),
        ("private-encrypted-a", client.auth(SECRET, "private-a", ""), ""),
        ("#server-to-user-ada", client.auth(SECRET, "#server-to-user-ada", ""), ""),
    ] {
        client.subscribe_with(channel, &auth, data);
        let refused = client.next();
        assert_eq!(refused["event"], "pusher:subscription_error", "{channel} {refused}");
        assert_eq!(
            (&refused["channel"], &refused["data"]["status"]),
            (&json!(channel), &json!(401))
        );
    }
    assert_eq!(client.subscribed("private-a", ""), json!({}));
    assert_eq!(client.subscribed("private-encrypted-a", ""), json!({}));
    client.subscribe("private-a", "");
    assert_eq!(client.next()["event"], "pusher:error", "it is subscribed already");
}

#[test]
fn names_and_members_that_may_not_be_are_refused_and_so_is_what_is_too_much() {
    let cluster = Cluster::start_with(1, |config| {
        with_apps(config);
        config.limits.subscriptions_per_client_max = 3;
    });
    let mut client = Client::connect(&cluster);
    let long = "a".repeat(201);
    for channel in ["", "a b", "a:b", "other:news", &long] {
        client.subscribe(channel, "");
        assert_eq!(client.next()["data"]["status"], 400, "{channel}");
    }
    let huge = format!(r#"{{"user_id":"1","user_info":"{}"}}"#, "x".repeat(3_000));
    for (data, status) in [(&*huge, 4004), ("{}", 400), ("[1]", 400), (r#"{"user_id":""}"#, 400)] {
        client.subscribe("presence-a", data);
        assert_eq!(client.next()["data"]["status"], status);
    }
    for at in 0..3 {
        client.subscribed(&format!("c{at}"), "");
    }
    client.subscribe("c3", "");
    assert_eq!(client.next()["data"]["type"], "LimitReached");
    client.say_text("nonsense");
    client.say(&json!({"event": "pusher:subscribe"}));
    client.say(&json!({"event": "pusher_internal:member_added", "channel": "c0", "data": "{}"}));
    for _ in 0..3 {
        assert_eq!(client.next()["event"], "pusher:error");
    }
    client.has_nothing();
}

#[test]
fn a_presence_channel_knows_users_and_not_their_connections() {
    let cluster = cluster(2);
    let member = |user: &str| format!(r#"{{"user_id":"{user}","user_info":{{"name":"{user}!"}}}}"#);
    let mut ada = Client::connect(&cluster);
    let listed = ada.subscribed("presence-a", &member("ada"));
    assert_eq!(listed["presence"]["hash"], json!({"ada": {"name": "ada!"}}));
    let mut bob = Client::connect(&cluster);
    assert_eq!(
        bob.subscribed("presence-a", &member("bob"))["presence"]["ids"],
        json!(["ada", "bob"])
    );
    let added = ada.next();
    assert_eq!(added["event"], "pusher_internal:member_added", "{added}");
    assert_eq!(added["data"], member("bob"));
    let mut again = Client::connect(&cluster);
    assert_eq!(again.subscribed("presence-a", &member("bob"))["presence"]["count"], 2);
    ada.has_nothing();
    bob.has_nothing();
    drop(bob);
    let path = "/apps/3/channels/presence-a";
    let users = call(&cluster, "GET", &format!("{path}/users"), "", "");
    assert_eq!(users, (200, r#"{"users":[{"id":"ada"},{"id":"bob"}]}"#.into()));
    drop(again);
    let removed = ada.next();
    assert_eq!(removed["event"], "pusher_internal:member_removed");
    assert_eq!(removed["data"], r#"{"user_id":"bob"}"#);
    let facts = call(&cluster, "GET", path, "info=user_count,subscription_count", "");
    let facts: Value = serde_json::from_str(&facts.1).unwrap();
    assert_eq!(facts, json!({"occupied": true, "user_count": 1, "subscription_count": 1}));
    // A client of another protocol may only subscribe with a token, which this one does not have.
    let subs = json!({"subs": {"shop:presence-a": {}}}).to_string();
    let (_eve, connect) = Listener::connect_to(cluster.address, &subs);
    assert_eq!(connect["connect"].get("subs"), None, "{connect}");
    ada.has_nothing();
}

#[test]
fn an_event_of_a_client_goes_to_the_others_of_a_private_channel_and_nowhere_else() {
    let cluster = cluster(2);
    let event =
        |channel: &str| json!({"event": "client-moved", "channel": channel, "data": {"x": 1}});
    let mut ada = Client::connect(&cluster);
    let mut bob = Client::connect(&cluster);
    for client in [&mut ada, &mut bob] {
        client.subscribed("private-a", "");
        client.subscribed("news", "");
    }
    ada.say(&event("private-a"));
    assert_eq!(
        bob.next(),
        json!({"event": "client-moved", "channel": "private-a", "data": "{\"x\":1}"})
    );
    ada.has_nothing();
    for channel in ["news", "private-b", "private-encrypted-a", "presence-a", "#server-to-user-1"] {
        ada.say(&event(channel));
        let refused = ada.next();
        assert_eq!(refused["data"]["code"], 4301, "{channel} {refused}");
    }
    bob.has_nothing();
    let data = |user: &str| format!(r#"{{"user_id":{user}}}"#);
    ada.subscribed("presence-a", &data("7"));
    bob.subscribed("presence-a", &data("8"));
    assert_eq!(ada.next()["event"], "pusher_internal:member_added");
    // A `user_id` in the message is replaced by the signed one.
    ada.say(&json!({"event": "client-moved", "channel": "presence-a", "data": 1, "user_id": "8"}));
    assert_eq!(bob.next()["user_id"], 7);
    let large = json!({"event": "client-a", "channel": "private-a", "data": "x".repeat(10_241)});
    ada.say(&large);
    assert_eq!(ada.next()["data"]["code"], 4301);
}

#[test]
fn a_client_sends_so_many_events_a_second_and_others_are_refused() {
    let cluster = Cluster::start_with(1, |config| {
        with_apps(config);
        let app =
            PusherApp { client_events_per_s: 1, ..config.pusher.apps.get("shop").unwrap().clone() };
        config.pusher.apps.insert("shop", app);
    });
    let mut ada = Client::connect(&cluster);
    ada.subscribed("private-a", "");
    for _ in 0..200 {
        ada.say(&json!({"event": "client-a", "channel": "private-a", "data": 1}));
    }
    let refused = ada.next();
    assert_eq!(refused["data"]["code"], 4301, "{refused}");
}

#[test]
fn signed_in_user_is_reached_and_disconnected_by_its_id() {
    let cluster = Cluster::start_with(2, |config| {
        with_apps(config);
        config.limits.connections_per_user_max = 2;
    });
    let user_data = r#"{"id":"ada","user_info":{"name":"Ada"}}"#;
    let sign_in = |client: &mut Client, secret: &str| {
        let auth =
            format!("shop-key:{}", sign(secret, &format!("{}::user::{user_data}", client.id)));
        client.say(
            &json!({"event": "pusher:signin", "data": {"auth": auth, "user_data": user_data}}),
        );
    };
    let mut ada = Client::connect(&cluster);
    sign_in(&mut ada, SECRET);
    let signed_in = ada.next();
    assert_eq!(signed_in["event"], "pusher:signin_success", "{signed_in}");
    // Regression test: what was sent before the client had subscribed to its channel was lost.
    let event = json!({"name": "early", "channels": ["#server-to-user-ada"], "data": "welcome"});
    assert_eq!(publish(&cluster, &event).0, 200);
    let early = ada.next();
    assert_eq!((&early["event"], &early["data"]), (&json!("early"), &json!("welcome")), "{early}");
    ada.subscribed("#server-to-user-ada", "");
    // A client that has signed in needs no channel data.
    let listed = ada.subscribed("presence-a", "");
    assert_eq!(listed["presence"]["hash"], json!({"ada": {"name": "Ada"}}));
    let event = json!({"name": "hi", "channels": ["#server-to-user-ada"], "data": "you"});
    assert_eq!(publish(&cluster, &event).0, 200);
    assert_eq!(ada.next()["data"], "you");

    let mut eve = Client::connect(&cluster);
    sign_in(&mut eve, "a guess");
    assert_eq!(eve.closed(), 4009);
    let mut second = Client::connect(&cluster);
    sign_in(&mut second, SECRET);
    assert_eq!(second.next()["event"], "pusher:signin_success");
    let mut third = Client::connect(&cluster);
    sign_in(&mut third, SECRET);
    assert_eq!(third.closed(), 4100);
    drop(second);
    // A user of another app with the same name is a different user.
    let path = "/apps/4/users/ada/terminate_connections";
    let other = ("other-key", "another app's secret");
    assert_eq!(call_as(&cluster, other, ("POST", path, ""), "{}").0, 200);
    ada.has_nothing();
    let path = "/apps/3/users/ada/terminate_connections";
    assert_eq!(call(&cluster, "POST", path, "", "{}"), (200, "{}".into()));
    assert_eq!(ada.closed(), 4009);
}

#[test]
fn an_event_goes_to_many_channels_and_not_to_the_connection_that_caused_it() {
    let cluster = cluster(2);
    let mut ada = Client::connect(&cluster);
    let mut bob = Client::connect(&cluster);
    for client in [&mut ada, &mut bob] {
        client.subscribed("a", "");
        client.subscribed("b", "");
    }
    let event = json!({
        "name": "e", "channels": ["a", "b"], "data": "1", "socket_id": ada.id,
        "info": "subscription_count",
    });
    let (status, body) = publish(&cluster, &event);
    let expected =
        json!({"channels": {"a": {"subscription_count": 2}, "b": {"subscription_count": 2}}});
    assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()), (200, expected));
    let mut channels = [bob.next()["channel"].clone(), bob.next()["channel"].clone()];
    channels.sort_by_key(Value::to_string);
    assert_eq!(channels, [json!("a"), json!("b")]);
    ada.has_nothing();
    let batch = json!({"batch": [
        {"name": "x", "channel": "a", "data": "1", "socket_id": bob.id},
        {"name": "y", "channel": "b", "data": "2", "socket_id": bob.id, "info": "subscription_count"},
    ]});
    let answer = call(&cluster, "POST", "/apps/3/batch_events", "", &batch.to_string());
    assert_eq!(answer, (200, r#"{"batch":[{},{"subscription_count":2}]}"#.into()));
    let mut events = [ada.next()["event"].clone(), ada.next()["event"].clone()];
    events.sort_by_key(Value::to_string);
    assert_eq!(events, [json!("x"), json!("y")]);
    bob.has_nothing();
    let (_, channels) = call(&cluster, "GET", "/apps/3/channels", "", "");
    assert_eq!(
        serde_json::from_str::<Value>(&channels).unwrap(),
        json!({"channels": {"a": {}, "b": {}}})
    );
    assert_eq!(
        call_as(
            &cluster,
            ("other-key", "another app's secret"),
            ("GET", "/apps/4/channels", ""),
            ""
        ),
        (200, r#"{"channels":{}}"#.into())
    );
}

#[test]
fn a_call_is_of_the_app_whose_secret_has_signed_it() {
    let cluster = cluster(1);
    let body = json!({"name": "e", "channels": ["a"], "data": ""}).to_string();
    let (post, path) = ("POST", "/apps/3/events");
    let of_other =
        call_as(&cluster, ("other-key", "another app's secret"), (post, path, ""), &body);
    assert_eq!(of_other.0, 401);
    let key_alone =
        call_as(&cluster, ("shop-key", "another app's secret"), (post, path, ""), &body);
    assert_eq!(key_alone.0, 401);
    assert_eq!(cluster.call("POST /apps/3/events", "", &body).0, 401);
    assert_eq!(call(&cluster, post, "/apps/5/events", "", &body).0, 404);
    assert_eq!(call(&cluster, "GET", path, "", "").0, 405);
    let large = json!({"name": "e", "channels": ["a"], "data": "x".repeat(10_241)});
    assert_eq!(publish(&cluster, &large).0, 413);
    // A request without a signature is rejected before its body is read.
    let mut stream = TcpStream::connect(cluster.address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n")
        .unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
}

#[test]
fn a_cache_channel_begins_with_its_last_event() {
    let cluster = cluster(2);
    let mut early = Client::connect(&cluster);
    early.subscribed("private-cache-a", "");
    assert_eq!(early.next(), json!({"event": "pusher:cache_miss", "channel": "private-cache-a"}));
    for data in ["1", "2"] {
        let event = json!({"name": "e", "channels": ["private-cache-a"], "data": data});
        assert_eq!(publish(&cluster, &event).0, 200);
        assert_eq!(early.next()["data"], data);
    }
    // Events of clients are not cached.
    early.say(&json!({"event": "client-e", "channel": "private-cache-a", "data": 3}));
    early.has_nothing();
    let mut late = Client::connect(&cluster);
    late.subscribed("private-cache-a", "");
    assert_eq!(late.next(), json!({"event": "e", "channel": "private-cache-a", "data": "2"}));
    late.has_nothing();
    let (status, shown) =
        call(&cluster, "GET", "/apps/3/channels/private-cache-a", "info=cache", "");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (status, &shown["cache"]["data"], &shown["cache"]["event"]),
        (200, &json!("2"), &json!("e"))
    );
    assert!((1..=1800).contains(&shown["cache"]["ttl"].as_u64().unwrap()), "{shown}");
    let none = call(&cluster, "GET", "/apps/3/channels/cache-b", "info=cache", "");
    assert_eq!(none, (200, r#"{"occupied":false,"cache":null}"#.into()));
}

/// Regression test: a number became a string on its way.
#[test]
fn a_user_whose_id_is_a_number_is_a_number_to_clients_and_backends() {
    let cluster = cluster(2);
    let mut ada = Client::connect(&cluster);
    assert_eq!(
        ada.subscribed("presence-a", r#"{"user_id":"ada"}"#)["presence"]["ids"],
        json!(["ada"])
    );
    let mut ten = Client::connect(&cluster);
    let listed = ten.subscribed("presence-a", r#"{"user_id":10,"user_info":{"n":1}}"#);
    assert_eq!(listed["presence"]["ids"], json!([10, "ada"]));
    assert_eq!(ada.next()["data"], r#"{"user_id":10,"user_info":{"n":1}}"#);
    ten.say(&json!({"event": "client-e", "channel": "presence-a", "data": 3}));
    assert_eq!(ada.next()["user_id"], 10);
    let users = call(&cluster, "GET", "/apps/3/channels/presence-a/users", "", "");
    assert_eq!(users, (200, r#"{"users":[{"id":10},{"id":"ada"}]}"#.into()));
    drop(ten);
    assert_eq!(ada.next()["data"], r#"{"user_id":10}"#);
}

#[test]
fn an_app_that_is_taken_away_takes_its_clients_along() {
    let mut cluster = cluster(1);
    let mut client = Client::connect(&cluster);
    client.subscribed("news", "");
    let mut config = cluster.state.settings.load().config.clone();
    config.pusher.apps.remove("shop");
    let snapshot = dunlin_config::Snapshot::new(2, config).unwrap();
    let next = cluster.state.settings.load().next(std::sync::Arc::new(snapshot));
    cluster.state.publish(std::sync::Arc::new(next));
    cluster.send(0, WorkerMessage::AdoptSettings);
    assert_eq!(client.closed(), 4001);
    assert_eq!(Client::open(&cluster, "/app/shop-key?protocol=7").closed(), 4001);
    assert_eq!(call(&cluster, "GET", "/apps/3/channels", "", "").0, 404);
}

/// Regression test: what an app's secret had signed outlived the secret.
#[test]
fn client_of_an_app_whose_secret_is_replaced_comes_back_with_new_signatures() {
    let mut cluster = cluster(1);
    let mut client = Client::connect(&cluster);
    let mut other = Client::open(&cluster, "/app/other-key?protocol=7");
    assert_eq!(other.next()["event"], "pusher:connection_established");
    let mut config = cluster.state.settings.load().config.clone();
    let shop = PusherApp::clone(&config.pusher.apps["shop"]);
    let secret = Some(Secret::new("the next secret of the shop"));
    config.pusher.apps.insert("shop", PusherApp { secret, ..shop });
    let snapshot = dunlin_config::Snapshot::new(2, config).unwrap();
    let next = cluster.state.settings.load().next(std::sync::Arc::new(snapshot));
    cluster.state.publish(std::sync::Arc::new(next));
    cluster.send(0, WorkerMessage::AdoptSettings);
    assert_eq!(client.closed(), 4200);
    other.subscribed("news", "");
}

/// The rules of the namespace permit everything, but channels private to the app's clients remain closed to other
/// protocols.
#[test]
fn private_channels_of_an_app_are_private_to_clients_of_other_protocols() {
    let cluster = cluster(1);
    for channel in
        ["shop:private-a", "shop:presence-a", "shop:#server-to-user-1", "shop:private-cache-a"]
    {
        let body = json!({"subs": {channel: {}}}).to_string();
        let (_client, connect) = Listener::connect_to(cluster.address, &body);
        assert_eq!(connect["connect"].get("subs"), None, "{connect}");
    }
    let body = json!({"subs": {"shop:news": {}}}).to_string();
    let (_client, connect) = Listener::connect_to(cluster.address, &body);
    assert!(connect["connect"]["subs"]["shop:news"].is_object(), "{connect}");
}
