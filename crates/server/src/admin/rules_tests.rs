//! Tests that changed permissions of a namespace hold on every worker once the change is answered.

use dunlin_testkit::WebSocket;
use serde_json::{Value, json};

use super::testkit::{TestServer, development};

const CHAT: &str = "/config/channel/namespaces/chat";

/// A client of `/connection/websocket` that sends commands and reads their replies.
struct Client {
    socket: WebSocket,
    commands: u64,
}

impl Client {
    fn connect(server: &TestServer) -> Client {
        let socket = WebSocket::open(server.clients, "/connection/websocket", "");
        let mut client = Client { socket, commands: 0 };
        let reply = client.command("connect", &json!({}));
        assert!(reply["connect"]["client"].is_string(), "{reply}");
        client
    }

    /// Sends a command and returns its reply, skipping pushes.
    fn command(&mut self, name: &str, of: &Value) -> Value {
        self.commands += 1;
        self.socket.text(&json!({"id": self.commands, name: of}).to_string());
        loop {
            let (_, payload) = self.socket.frame().unwrap();
            for line in payload.split(|byte| *byte == b'\n') {
                let reply: Value = serde_json::from_slice(line).unwrap();
                if reply["id"] == self.commands {
                    return reply;
                }
            }
        }
    }

    /// Returns the error code of the reply to a command; 0 without an error.
    fn code(&mut self, name: &str, of: &Value) -> u64 {
        self.command(name, of)["error"]["code"].as_u64().unwrap_or(0)
    }
}

#[test]
fn a_name_that_the_pattern_does_not_admit_is_no_channel_to_anyone() {
    let server = TestServer::start(3);
    let open = json!({
        "name_pattern": "room-*", "presence": true, "history_size": 5, "history_ttl_ms": 60_000,
        "allow_subscribe_for_anonymous": true, "allow_publish_for_anonymous": true,
        "allow_history_for_anonymous": true, "allow_presence_for_anonymous": true,
    });
    assert_eq!(server.put(CHAT, &open.to_string()).status, 201);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(&server)).collect();
    for client in &mut clients {
        for command in ["subscribe", "publish", "history", "presence"] {
            let of = |channel: &str| json!({"channel": channel, "data": 1, "limit": 1});
            assert_eq!(client.code(command, &of("chat:lobby")), 102, "{command}");
            assert_eq!(client.code(command, &of("chat:room-1")), 0, "{command}");
        }
    }
    assert!(server.publish("chat:lobby", 1).contains("102"));
    assert!(server.publish("chat:room-1", 1).contains("offset"));
    // With another pattern, names that no longer match are unknown to all clients of all workers once the change is
    // answered.
    assert_eq!(server.put(&format!("{CHAT}/name_pattern"), "\"[0-9]*\"").status, 200);
    for client in &mut clients {
        assert_eq!(client.code("publish", &json!({"channel": "chat:room-1", "data": 1})), 102);
        assert_eq!(client.code("publish", &json!({"channel": "chat:7", "data": 1})), 0);
    }
    assert_eq!(
        server.put("/config/channel/without_namespace/name_pattern", "\"news*\"").status,
        200
    );
    for client in &mut clients {
        assert_eq!(client.code("subscribe", &json!({"channel": "weather"})), 102);
        assert_eq!(client.code("subscribe", &json!({"channel": "news-7"})), 0);
    }
    assert_eq!(
        server.put(&format!("{CHAT}/name_pattern"), "\"*a*b*\"").status,
        422,
        "that would backtrack"
    );
}

#[test]
fn namespace_allows_its_options_and_no_others() {
    let server = TestServer::start(3);
    server.put(CHAT, r#"{"presence":true,"history_size":5,"history_ttl_ms":60000}"#);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(&server)).collect();
    let of = json!({"channel": "chat:1", "data": 1, "limit": 1});
    for (command, key) in [
        ("publish", "allow_publish_for_anonymous"),
        ("history", "allow_history_for_anonymous"),
        ("presence", "allow_presence_for_anonymous"),
        ("subscribe", "allow_subscribe_for_anonymous"),
    ] {
        assert!(clients.iter_mut().all(|client| client.code(command, &of) == 103), "{command}");
        assert_eq!(server.put(&format!("{CHAT}/{key}"), "true").status, 200);
        assert!(clients.iter_mut().all(|client| client.code(command, &of) == 0), "{command}");
        if command != "subscribe" {
            assert_eq!(server.put(&format!("{CHAT}/{key}"), "false").status, 200);
            assert!(clients.iter_mut().all(|client| client.code(command, &of) == 103), "{command}");
        }
    }
    // Subscribers have the permissions of subscribers.
    assert_eq!(server.put(&format!("{CHAT}/allow_publish_for_subscriber"), "true").status, 200);
    assert!(clients.iter_mut().all(|client| client.code("publish", &of) == 0));
    assert_eq!(Client::connect(&server).code("publish", &of), 103);
    // A removed namespace is unknown.
    assert_eq!(server.call("DELETE", CHAT, &[], "").status, 200);
    assert!(clients.iter_mut().all(|client| client.code("publish", &of) == 102));
}

/// A subscription granted by a capability, and later by an expression.
#[test]
fn a_subscription_that_an_expression_has_taken_over_ends_with_the_expression() {
    const KEY: &str = "the key of tokens, long enough";
    let mut config = development();
    config.client.token.hmac_secret = Some(dunlin_config::Secret::new(KEY));
    let closed = dunlin_config::ChannelOptions {
        subscribe_cel: Some("user == 'ada'".into()),
        ..dunlin_config::ChannelOptions::default()
    };
    config.channel.namespaces.insert("room", closed);
    let server = TestServer::begin(2, config, None);
    let token = |user: &str, caps: &Value| {
        let key = jsonwebtoken::EncodingKey::from_secret(KEY.as_bytes());
        let claims = json!({"sub": user, "caps": caps});
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
    };
    let caps = json!([{"channels": ["room:1"], "allow": ["sub"]}]);
    let mut clients = ["ada", "bob"].map(|user| {
        let mut client = super::tenant_tests::Client::connect(&server, &token(user, &caps));
        let subscribed = client.say(&json!({"id": 2, "subscribe": {"channel": "room:1"}}));
        assert!(subscribed["subscribe"].is_object(), "{subscribed}");
        client
    });
    // The new token has no capability; the expression permits the subscription.
    let refreshed =
        clients[0].say(&json!({"id": 3, "refresh": {"token": token("ada", &json!([]))}}));
    assert!(refreshed["refresh"].is_object(), "{refreshed}");
    server.publish("room:1", 1);
    assert_eq!(clients[0].next()["push"]["pub"]["data"], 1, "until then she was there");
    let changed = server.put("/config/channel/namespaces/room/subscribe_cel", "\"user == 'eve'\"");
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert_eq!(clients[0].next()["push"]["unsubscribe"]["code"], 2000);
    server.publish("room:1", 2);
    for data in [1, 2] {
        assert_eq!(clients[1].next()["push"]["pub"]["data"], data, "he has his capability");
    }
}
