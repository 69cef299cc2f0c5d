//! Tests that two tenants with equal names of channels and users on one server are isolated from each other.

use std::io::{Read, Write};
use std::net::TcpStream;

use dunlin_config::{ChannelOptions, Config, Secret, SharedBudget, Tenant};
use serde_json::{Value, json};

use super::testkit::{Subscriber, TIMEOUT, TestServer, development, receive};

const GLOBAL: &str = "the operator's own token key";
pub(super) const TENANTS: [&str; 2] = ["acme", "globex"];

fn api_key(tenant: &str) -> String {
    format!("{tenant}'s key for the API")
}

fn token_key(tenant: &str) -> String {
    format!("{tenant}'s key for its tokens")
}

pub(super) fn tenant(name: &str, channels: &ChannelOptions) -> Tenant {
    let mut tenant = Tenant { without_namespace: channels.clone(), ..Tenant::default() };
    tenant.api_keys.insert("backend", Secret::new(api_key(name)));
    tenant.token_keys.insert(format!("{name}-1"), Secret::new(token_key(name)));
    tenant.namespaces.insert(format!("of-{name}"), channels.clone());
    tenant
}

fn config() -> Config {
    let mut config = development();
    config.client.token.hmac_secret = Some(Secret::new(GLOBAL));
    for name in TENANTS {
        let tenant = tenant(name, &config.channel.without_namespace);
        config.tenants.insert(name, tenant);
    }
    config
}

fn signed(kid: &str, key: &str, claims: &Value) -> String {
    let header = jsonwebtoken::Header { kid: Some(kid.into()), ..Default::default() };
    let key = jsonwebtoken::EncodingKey::from_secret(key.as_bytes());
    jsonwebtoken::encode(&header, claims, &key).unwrap()
}

pub(super) fn token(tenant: &str, claims: &Value) -> String {
    signed(&format!("{tenant}-1"), &token_key(tenant), claims)
}

fn exchange(server: &TestServer, line: &str, headers: &str, body: &str) -> Value {
    let mut stream = TcpStream::connect(server.clients).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let length = body.len();
    write!(stream, "{line} HTTP/1.1\r\nHost: d\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
        .unwrap();
    receive(&mut stream).json()
}

/// Returns the response of the server API to a tenant, or to the operator if `tenant` is empty.
pub(super) fn api(server: &TestServer, tenant: &str, method: &str, body: &Value) -> Value {
    let headers = match tenant {
        "" => String::new(),
        tenant => format!("X-API-Key: {}\r\n", api_key(tenant)),
    };
    exchange(server, &format!("POST /api/{method}"), &headers, &body.to_string())
}

/// Returns the first message that a client with this token gets.
fn begin(server: &TestServer, token: &str) -> Value {
    Subscriber::begin(server.clients, &["news"], token)
}

/// A client of `/connection/http_stream` and `/emulation`.
pub(super) struct Client<'s> {
    server: &'s TestServer,
    stream: std::io::BufReader<TcpStream>,
    session: Value,
    node: Value,
}

impl<'s> Client<'s> {
    pub(super) fn connect(server: &'s TestServer, token: &str) -> Client<'s> {
        let mut stream = TcpStream::connect(server.clients).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let body = json!({"id": 1, "connect": {"token": token}}).to_string();
        write!(
            stream,
            "POST /connection/http_stream HTTP/1.1\r\nHost: d\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let stream = std::io::BufReader::new(stream);
        let mut client = Client { server, stream, session: Value::Null, node: Value::Null };
        let connected = client.next();
        client.session = connected["connect"]["session"].clone();
        client.node = connected["connect"].get("node").cloned().unwrap_or_else(|| json!(""));
        client
    }

    pub(super) fn next(&mut self) -> Value {
        use std::io::BufRead as _;
        loop {
            let mut line = String::new();
            assert!(self.stream.read_line(&mut line).unwrap() > 0, "the stream ended");
            if line.starts_with('{') && line.trim_end() != "{}" {
                return serde_json::from_str(&line).unwrap();
            }
        }
    }

    /// Sends a command and returns its reply, skipping pushes.
    pub(super) fn say(&mut self, command: &Value) -> Value {
        let data = command.to_string();
        let body = json!({"session": self.session, "node": self.node, "data": data}).to_string();
        let mut stream = TcpStream::connect(self.server.clients).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST /emulation HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
        loop {
            let next = self.next();
            if next["id"] == command["id"] {
                return next;
            }
        }
    }
}

#[test]
fn messages_history_and_presence_of_a_tenant_are_hidden_from_another() {
    let server = TestServer::begin(2, config(), None);
    let ada = |tenant| token(tenant, &json!({"sub": "ada"}));
    let mut streams = TENANTS.map(|of| Subscriber::at(server.clients, "news", &ada(of)));
    let outside = signed("", GLOBAL, &json!({"sub": "ada"}));
    let mut outside = Subscriber::at(server.clients, "news", &outside);
    for (at, of) in ["acme", "globex", ""].into_iter().enumerate() {
        let published = api(&server, of, "publish", &json!({"channel": "news", "data": at}));
        assert_eq!(published["result"]["offset"], 1, "{of} counts for itself: {published}");
    }
    for (at, stream) in streams.iter_mut().enumerate() {
        let push = stream.next().expect("a publication");
        assert_eq!((&push["channel"], &push["pub"]["data"]), (&json!("news"), &json!(at)));
    }
    assert_eq!(outside.publication()["data"], 2);

    for (at, of) in ["acme", "globex", ""].into_iter().enumerate() {
        let news = json!({"channel": "news", "limit": 10});
        let history = api(&server, of, "history", &news);
        let kept = history["result"]["publications"].as_array().unwrap();
        assert_eq!(kept.iter().map(|of| &of["data"]).collect::<Vec<_>>(), [at], "{history}");
        let present = api(&server, of, "presence", &json!({"channel": "news"}));
        let present: Vec<_> = present["result"]["presence"].as_object().unwrap().values().collect();
        assert_eq!(present.len(), 1, "{of}");
        assert_eq!(present[0]["user"], "ada");
        for pattern in ["", "*", "n*", "?ews", "news", "{news,x}"] {
            let channels = api(&server, of, "channels", &json!({ "pattern": pattern }));
            let expected = json!({"news": {"num_clients": 1}});
            assert_eq!(channels["result"]["channels"], expected, "{of} {pattern}");
        }
        let found = api(&server, of, "connections", &json!({"user": "ada"}));
        let found = found["result"]["connections"].as_object().unwrap();
        assert_eq!(found.len(), 1, "{of}: {found:?}");
        let found = found.values().next().unwrap();
        assert_eq!((&found["user"], &found["channels"]), (&json!("ada"), &json!({"news": {}})));
        let all = api(&server, of, "connections", &json!({}));
        assert_eq!(all["result"]["connections"].as_object().unwrap().len(), 1, "{of}");
    }
    let info = api(&server, "acme", "info", &json!({}));
    let node = &info["result"]["nodes"][0];
    for (key, count) in [("num_clients", 1), ("num_users", 1), ("num_channels", 1), ("num_subs", 1)]
    {
        assert_eq!(node[key], count, "{info}");
    }
    // A namespace belongs to one tenant, and is unknown to the other.
    for (of, channel) in [("acme", "of-globex:1"), ("acme", "of-nobody:1")] {
        let answer = api(&server, of, "publish", &json!({"channel": channel, "data": 1}));
        assert_eq!(answer["error"]["code"], 102, "{channel}");
    }
    let batch = json!({"commands": [
        {"publish": {"channel": "news", "data": 7}},
        {"broadcast": {"channels": ["news", "of-acme:1"], "data": 8}},
    ]});
    let batch = api(&server, "acme", "batch", &batch);
    assert_eq!(batch["replies"][0]["publish"]["offset"], 2, "{batch}");
    let status = server.get("/status/tenants").json();
    assert_eq!(status["tenants"]["acme"]["connections"], 1, "{status}");
}

#[test]
fn clients_of_every_kind_stay_in_their_tenant() {
    let server = TestServer::begin(2, config(), None);
    for (at, of) in TENANTS.into_iter().enumerate() {
        let ada = token(of, &json!({"sub": "ada", "info": {"of": of}}));
        let mut client = Client::connect(&server, &ada);
        let subscribed = client.say(&json!({"id": 2, "subscribe": {"channel": "room"}}));
        let offset = subscribed["subscribe"]["offset"].as_u64().unwrap_or(0);
        assert_eq!(offset, 0, "nothing was said: {subscribed}");
        let said = client.say(&json!({"id": 3, "publish": {"channel": "room", "data": at}}));
        assert_eq!(said["publish"], json!({}), "{said}");
        let history = client.say(&json!({"id": 4, "history": {"channel": "room", "limit": 10}}));
        let kept = history["history"]["publications"].as_array().unwrap();
        assert_eq!(kept.len(), 1, "{history}");
        assert_eq!((&kept[0]["data"], &kept[0]["info"]["user"]), (&json!(at), &json!("ada")));
        let present = client.say(&json!({"id": 5, "presence": {"channel": "room"}}));
        let present = present["presence"]["presence"].as_object().unwrap().clone();
        assert_eq!(present.values().map(|of| &of["user"]).collect::<Vec<_>>(), ["ada"]);
        // A client that knows how tenants are encoded in names gains nothing.
        for other in TENANTS {
            let channel = format!("\u{1}{other}\u{1}room");
            let refused = client.say(&json!({"id": 6, "subscribe": {"channel": channel}}));
            assert_eq!(refused["error"]["code"], 102, "{refused}");
        }
        let line = format!("GET /connection/poll?channel=room&cursor=0&timeout=0&token={ada}");
        let polled = exchange(&server, &line, "", "");
        assert_eq!(polled["positions"]["room"]["offset"], 1, "{polled}");
    }
}

#[test]
fn a_user_is_disconnected_revoked_and_blocked_in_his_tenant_alone() {
    let server = TestServer::begin(2, config(), None);
    let claims = json!({"sub": "ada", "jti": "one"});
    let mut streams = TENANTS.map(|of| Subscriber::at(server.clients, "news", &token(of, &claims)));
    for method in ["disconnect", "unsubscribe"] {
        let answer = api(&server, "globex", method, &json!({"user": "bob", "channel": "news"}));
        assert_eq!(answer["result"], json!({}));
    }
    let found = api(&server, "acme", "connections", &json!({}));
    let client = found["result"]["connections"].as_object().unwrap().keys().next().unwrap().clone();
    // The id of another tenant's session matches no session.
    api(&server, "globex", "disconnect", &json!({ "client": client }));
    api(&server, "globex", "disconnect", &json!({"client": client, "user": "ada"}));
    api(&server, "acme", "publish", &json!({"channel": "news", "data": 1}));
    assert_eq!(streams[0].publication()["data"], 1);
    api(&server, "acme", "disconnect", &json!({ "client": client }));
    assert_eq!(streams[0].next().unwrap()["disconnect"]["code"], 3503);
    assert_eq!(api(&server, "acme", "revoke_token", &json!({"uid": "one"})), json!({"result": {}}));
    assert!(begin(&server, &token("acme", &claims))["disconnect"].is_object());
    assert!(begin(&server, &token("globex", &claims))["connect"].is_object());
    api(&server, "acme", "block_user", &json!({"user": "eve"}));
    let eve = json!({"sub": "eve"});
    assert!(begin(&server, &token("acme", &eve))["disconnect"].is_object());
    assert!(begin(&server, &token("globex", &eve))["connect"].is_object());
    api(&server, "globex", "publish", &json!({"channel": "news", "data": 2}));
    assert_eq!(streams[1].publication()["data"], 2);
}

#[test]
fn a_token_is_of_the_tenant_whose_key_it_names_or_of_nobody() {
    let server = TestServer::begin(1, config(), None);
    let ada = json!({"sub": "ada"});
    for (kid, key) in [
        ("acme-1", token_key("globex")),
        ("acme-1", GLOBAL.to_owned()),
        ("acme-2", token_key("acme")),
        ("acme", token_key("acme")),
    ] {
        let refused = begin(&server, &signed(kid, &key, &ada));
        assert_eq!(refused["disconnect"]["code"], 3500, "{kid}: {refused}");
    }
    for claims in [
        json!({"sub": "\u{1}acme\u{1}ada"}),
        json!({"sub": "ada", "channels": ["\u{1}acme\u{1}news"]}),
    ] {
        let refused = begin(&server, &signed("", GLOBAL, &claims));
        assert_eq!(refused["disconnect"]["code"], 3500, "{refused}");
    }
    for name in ["\u{1}acme\u{1}news", "\u{1}", "a\u{1}", "a\nb", "\u{9b}31m"] {
        for of in ["", "globex"] {
            let answer = api(&server, of, "publish", &json!({"channel": name, "data": 1}));
            assert_eq!(answer["error"]["code"], 107, "{answer}");
        }
    }
}

/// Regression test: the names in tokens of a tenant were not checked.
#[test]
fn name_with_a_mark_in_a_token_of_a_tenant_disconnects() {
    let server = TestServer::begin(1, config(), None);
    for claims in [
        json!({"sub": "\u{1}globex\u{1}ada"}),
        json!({"sub": "\u{1}"}),
        json!({"sub": "a\u{1}b"}),
        json!({"sub": "a\r\nX-User: root"}),
        json!({"sub": "ada", "channels": ["a\u{7f}"]}),
        json!({"sub": "ada", "channels": ["\u{1}globex\u{1}news"]}),
        json!({"sub": "ada", "subs": {"a\u{1}": {}}}),
        json!({"sub": "ada", "jti": "\u{1}globex\u{1}one"}),
    ] {
        let refused = begin(&server, &token("acme", &claims));
        assert_eq!(refused["disconnect"]["code"], 3500, "{claims}: {refused}");
    }
    let mut client = Client::connect(&server, &token("acme", &json!({"sub": "ada"})));
    let refused = client.say(&json!({"id": 2, "subscribe": {"channel": "a\u{1}b"}}));
    assert_eq!(refused["error"]["code"], 102, "{refused}");
}

/// Regression test: a command of the operator without a user reached the sessions of tenants by their ids.
#[test]
fn command_with_the_id_of_a_tenants_session_and_no_user_affects_nobody() {
    let mut config = config();
    config.channel.namespaces.insert("chat", ChannelOptions::default());
    let scope =
        dunlin_config::ApiScope { namespaces: ["chat".to_owned()].into(), ..Default::default() };
    config.api.scopes.insert("scoped", scope);
    config.api.keys.insert("scoped", Secret::new("the key with a scope"));
    config.api.keys.insert("whole", Secret::new("the key without a scope"));
    config.api.without_key = false;
    let server = TestServer::begin(2, config, None);
    let claims = json!({"sub": "ada", "labels": {"region": "eu"}});
    let mut stream = Subscriber::at(server.clients, "news", &token("acme", &claims));
    let found = api(&server, "acme", "connections", &json!({}));
    let client = found["result"]["connections"].as_object().unwrap().keys().next().unwrap().clone();
    let eu = json!({"key": "region", "cmp": "eq", "val": "eu"});
    let call = |key: &str, method: &str, body: &Value| {
        exchange(
            &server,
            &format!("POST /api/{method}"),
            &format!("X-API-Key: {key}\r\n"),
            &body.to_string(),
        )
    };
    for key in ["the key with a scope", "the key without a scope"] {
        for only in [json!({"client": client}), json!({"client": client, "label_filter": eu})] {
            for (method, more) in [
                ("subscribe", json!({"channel": "chat:x"})),
                ("unsubscribe", json!({"channel": "news"})),
                ("disconnect", json!({})),
                ("refresh", json!({"expired": true})),
                ("send", json!({"data": "of the operator"})),
            ] {
                let mut body = only.clone();
                body["user"] = json!("");
                for (member, value) in more.as_object().unwrap() {
                    body[member] = value.clone();
                }
                if method == "send" {
                    body.as_object_mut().unwrap().remove("label_filter");
                }
                let answer = call(key, method, &body);
                let is_in_scope = key.contains("without") || method == "subscribe";
                assert_eq!(answer["error"].is_null(), is_in_scope, "{key}, {method}: {answer}");
                let batch = json!({"commands": [{ method: body }]});
                call(key, "batch", &batch);
            }
        }
    }
    call(
        "the key without a scope",
        "publish",
        &json!({"channel": "chat:x", "data": "of the operator"}),
    );
    api(&server, "acme", "publish", &json!({"channel": "news", "data": 7}));
    assert_eq!(stream.publication()["data"], 7, "the first that the client hears");
    api(&server, "acme", "disconnect", &json!({"client": client}));
    assert!(stream.next().unwrap().to_string().contains("3503"), "its own backend reaches it");
}

#[test]
fn a_tenant_that_is_taken_away_is_gone_with_all_it_had_and_no_other() {
    let mut server = TestServer::begin(2, config(), None);
    let ada = |tenant| token(tenant, &json!({"sub": "ada"}));
    let mut streams = TENANTS.map(|of| Subscriber::at(server.clients, "news", &ada(of)));
    for of in TENANTS {
        api(&server, of, "publish", &json!({"channel": "news", "data": of}));
    }
    for (stream, of) in streams.iter_mut().zip(TENANTS) {
        assert_eq!(stream.publication()["data"], of);
    }
    let kept = server.get("/config/tenants/acme").body;
    assert!(!kept.contains(&token_key("acme")), "secrets are hidden: {kept}");
    assert_eq!(server.call("DELETE", "/config/tenants/acme", &[], "").status, 200);
    assert_eq!(streams[0].next().unwrap()["disconnect"]["code"], 3507);
    assert!(begin(&server, &ada("acme"))["disconnect"].is_object());
    let news = json!({"channel": "news", "limit": 10});
    let refused = exchange(
        &server,
        "POST /api/history",
        &format!("X-API-Key: {}\r\n", api_key("acme")),
        &news.to_string(),
    );
    let kept = refused["result"]["publications"].as_array();
    assert!(kept.is_none_or(Vec::is_empty), "{refused}");

    // The tenant is created again with the same name and keys.
    let config = config();
    let again = serde_json::to_string(&config.tenants["acme"]).unwrap();
    let put = server.put("/config/tenants/acme", &again);
    assert!([200, 201].contains(&put.status), "{}", put.body);
    server.wait_until(|server| {
        let settings = server.state.settings.load();
        settings.tenants.get("acme").is_some_and(|acme| acme.is_open())
    });
    let history = api(&server, "acme", "history", &news);
    let kept = history["result"].get("publications").and_then(Value::as_array);
    assert!(kept.is_none_or(Vec::is_empty), "{history}");
    assert_eq!(api(&server, "acme", "channels", &json!({}))["result"]["channels"], json!({}));

    api(&server, "globex", "publish", &json!({"channel": "news", "data": "still here"}));
    assert_eq!(streams[1].publication()["data"], "still here");
    let kept = api(&server, "globex", "history", &news)["result"]["publications"].clone();
    assert_eq!(kept.as_array().unwrap().len(), 2);
}

#[test]
fn a_key_that_is_taken_away_ends_what_came_in_with_it() {
    let server = TestServer::begin(1, config(), None);
    let ada = |tenant| token(tenant, &json!({"sub": "ada"}));
    let mut streams = TENANTS.map(|of| Subscriber::at(server.clients, "news", &ada(of)));
    // Removing the operator's key does not affect tenants.
    assert_eq!(server.call("DELETE", "/config/client/token/hmac_secret", &[], "").status, 200);
    let removed = server.call("DELETE", "/config/tenants/acme/token_keys/acme-1", &[], "");
    assert_eq!(removed.status, 200, "{}", removed.body);
    assert_eq!(streams[0].next().unwrap()["disconnect"]["code"], 3005);
    api(&server, "globex", "publish", &json!({"channel": "news", "data": 1}));
    assert_eq!(streams[1].publication()["data"], 1);
}

#[test]
fn limits_of_a_tenant_bind_it_alone() {
    let mut config = config();
    let mut acme = config.tenants["acme"].clone();
    acme.connections_max = 1;
    acme.history_bytes_max = 20_000;
    acme.budget = SharedBudget { commands_per_s: 1_000_000, ..SharedBudget::default() };
    config.tenants.insert("acme", acme);
    let server = TestServer::begin(1, config, None);
    let ada = |tenant| token(tenant, &json!({"sub": "ada"}));
    let stay = Subscriber::at(server.clients, "news", &ada("acme"));
    assert!(begin(&server, &ada("acme"))["disconnect"].is_object());
    drop(stay);
    for _ in 0..3 {
        Subscriber::at(server.clients, "news", &ada("globex"));
    }
    let data = "x".repeat(1_000);
    for of in TENANTS {
        for channel in 0..50 {
            let publish = json!({"channel": format!("c{channel}"), "data": data});
            assert!(api(&server, of, "publish", &publish)["result"].is_object());
        }
    }
    let kept = |of| {
        let kept = (0..50).filter(|channel| {
            let of_it = json!({"channel": format!("c{channel}"), "limit": 1});
            let history = api(&server, of, "history", &of_it);
            history["result"]["publications"].as_array().is_some_and(|all| !all.is_empty())
        });
        kept.count()
    };
    assert_eq!(kept("globex"), 50);
    assert!((1..25).contains(&kept("acme")), "{}", kept("acme"));
}

/// A tenant's command about all users, or about the full name of another tenant's user, only reaches its own users.
#[test]
fn all_users_of_a_tenant_are_its_own_and_nobody_can_name_another_s() {
    let server = TestServer::begin(2, config(), None);
    let ada = |tenant| token(tenant, &json!({"sub": "ada", "labels": {"region": "eu"}}));
    let mut streams = TENANTS.map(|of| Subscriber::at(server.clients, "news", &ada(of)));
    let outside = json!({"sub": "ada", "labels": {"region": "eu"}});
    let mut outside = Subscriber::at(server.clients, "news", &signed("", GLOBAL, &outside));
    let eu = json!({"key": "region", "cmp": "eq", "val": "eu"});
    let seen = |tenant: &str| {
        let page = api(&server, tenant, "connections", &json!({"label_filter": eu}));
        page["result"]["connections"].as_object().unwrap().len()
    };
    assert_eq!((seen("acme"), seen("globex"), seen("")), (1, 1, 1));
    for user in ["\u{1}globex\u{1}", "\u{1}globex\u{1}ada"] {
        for tenant in ["acme", ""] {
            let body = json!({"user": user, "all_users": true, "label_filter": eu});
            let refused = api(&server, tenant, "disconnect", &body);
            assert_eq!(refused["error"]["code"], 107, "{refused}");
        }
    }
    let all = json!({"all_users": true, "label_filter": eu});
    assert_eq!(api(&server, "acme", "disconnect", &all), json!({"result": {}}));
    assert!(streams[0].next().unwrap().to_string().contains("3503"));
    assert_eq!((seen("acme"), seen("globex"), seen("")), (0, 1, 1));
    assert_eq!(api(&server, "", "disconnect", &all), json!({"result": {}}));
    assert!(outside.next().unwrap().to_string().contains("3503"));
    assert_eq!((seen("globex"), seen("")), (1, 0));
    api(&server, "globex", "publish", &json!({"channel": "news", "data": 7}));
    assert!(streams[1].next().unwrap().to_string().contains('7'));
}

/// Connections count on both workers and on every transport, whether opened before or after the bound is set.
#[test]
fn connections_of_a_user_are_bounded_and_in_each_tenant_for_themselves() {
    let server = TestServer::begin(2, config(), None);
    let ada = |tenant| token(tenant, &json!({"sub": "ada"}));
    let bound = |max: u32| {
        let path = "/config/limits/connections_per_user_max";
        let put = server.call("PUT", path, &[], &max.to_string());
        assert_eq!(put.status, 200, "{}", put.body);
    };
    let is_refused = |token: &str| begin(&server, token)["disconnect"]["code"] == 3504;
    let mut open = vec![Subscriber::at(server.clients, "news", &ada("acme"))];
    bound(3);
    open.push(Subscriber::at(server.clients, "news", &ada("acme")));
    let _both_ways = Client::connect(&server, &ada("acme"));
    // The earlier connection is counted once the bound has reached all workers.
    while !is_refused(&ada("acme")) {}
    let poll = |token: &str| {
        let line = format!("GET /connection/poll?channel=news&cursor=0&timeout=0&token={token}");
        exchange(&server, &line, "", "")
    };
    assert_eq!(poll(&ada("acme"))["error"]["code"], 503);
    // Another user, and users of the same name of the other tenant and of the operator, are not affected.
    assert!(!is_refused(&token("acme", &json!({"sub": "bob"}))));
    let outside = signed("", GLOBAL, &json!({"sub": "ada"}));
    for token in [&ada("globex"), &outside] {
        let _held: Vec<_> = (0..3).map(|_| Subscriber::at(server.clients, "news", token)).collect();
        assert!(is_refused(token));
    }
    // A closed connection makes room.
    open.pop();
    while is_refused(&ada("acme")) {}
    while poll(&ada("acme"))["error"].is_object() {}
    // Open connections stay when the bound is lowered.
    bound(1);
    assert!(is_refused(&ada("acme")));
    api(&server, "acme", "publish", &json!({"channel": "news", "data": 1}));
    assert_eq!(open[0].publication()["data"], 1);
    bound(0);
    let _many: Vec<_> =
        (0..5).map(|_| Subscriber::at(server.clients, "news", &ada("acme"))).collect();
    let reason = r#"dunlin_connections_refused_total{reason="limits.connections_per_user_max"}"#;
    assert!(server.get("/metrics").body.contains(reason));
}
