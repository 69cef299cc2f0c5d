//! Tests that revoked and barred tokens are rejected on every worker, and that their sessions end.

use std::io::Write;
use std::net::TcpStream;

use dunlin_config::Secret;
use serde_json::{Value, json};

use super::testkit::{Subscriber, TIMEOUT, TestServer, development, receive};

const KEY: &str = "the backend's own key, long enough";

fn token(claims: &Value) -> String {
    let key = jsonwebtoken::EncodingKey::from_secret(KEY.as_bytes());
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), claims, &key).unwrap()
}

fn server(bar_ms: u64) -> TestServer {
    let mut config = development();
    config.client.token.hmac_secret = Some(Secret::new(KEY));
    config.client.token.bar_after_disconnect_ms = bar_ms;
    TestServer::begin(2, config, None)
}

/// Returns the response of the server API.
fn api(server: &TestServer, method: &str, body: &Value) -> Value {
    let mut stream = TcpStream::connect(server.clients).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let body = body.to_string();
    let head = format!("POST /api/{method} HTTP/1.1\r\nHost: d\r\nContent-Length: {}", body.len());
    write!(stream, "{head}\r\n\r\n{body}").unwrap();
    receive(&mut stream).json()
}

/// Returns the code with which a client with this token is disconnected at once; `None` if it is accepted.
fn refused(server: &TestServer, token: &str) -> Option<u64> {
    // Several attempts reach different workers.
    let codes = [(); 6].map(|()| {
        let first = Subscriber::begin(server.clients, &["news"], token);
        first["disconnect"]["code"].as_u64()
    });
    assert!(codes.iter().all(|code| *code == codes[0]), "all workers agree: {codes:?}");
    codes[0]
}

#[test]
fn a_revoked_token_ends_its_sessions_and_no_others() {
    let server = server(0);
    let (stolen, other) = (
        token(&json!({"sub": "ada", "jti": "stolen"})),
        token(&json!({"sub": "ada", "jti": "own"})),
    );
    let mut thief = Subscriber::at(server.clients, "news", &stolen);
    let mut owner = Subscriber::at(server.clients, "news", &other);
    let answer = api(&server, "revoke_token", &json!({"uid": "stolen"}));
    assert_eq!(answer, json!({"result": {}}));
    assert_eq!(refused(&server, &stolen), Some(3500));
    assert_eq!(refused(&server, &other), None);
    assert_eq!(thief.next().expect("a disconnect")["disconnect"]["code"], 3500);
    server.publish("news", 1);
    assert_eq!(owner.publication()["data"], 1);
    let poll = |token: &str| {
        let mut stream = TcpStream::connect(server.clients).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let target = format!("/connection/poll?channel=news&timeout=0&token={token}");
        write!(stream, "GET {target} HTTP/1.1\r\nHost: d\r\n\r\n").unwrap();
        receive(&mut stream).status
    };
    assert_eq!((poll(&stolen), poll(&other)), (401, 200));

    let listed = server.get("/revocations").json();
    assert_eq!(listed["revocations"][0]["jti"], "stolen", "{listed}");
    let back = server.call("DELETE", "/revocations", &[], &json!({"jti": "stolen"}).to_string());
    assert_eq!(back.status, 200);
    assert_eq!(refused(&server, &stolen), None);
}

#[test]
fn a_users_tokens_of_before_end_his_sessions_and_later_ones_do_not() {
    let server = server(0);
    let issued = |user: &str, iat: u64| token(&json!({"sub": user, "iat": iat}));
    let mut old = Subscriber::at(server.clients, "news", &issued("ada", 1_000));
    let mut without = Subscriber::at(server.clients, "news", &token(&json!({"sub": "ada"})));
    let mut new = Subscriber::at(server.clients, "news", &issued("ada", 3_000));
    let mut bob = Subscriber::at(server.clients, "news", &issued("bob", 1_000));
    let body = json!({"user": "ada", "issued_before": 2_000}).to_string();
    assert_eq!(server.call("POST", "/revocations", &[], &body).status, 200);
    for gone in [&mut old, &mut without] {
        assert_eq!(gone.next().expect("a disconnect")["disconnect"]["code"], 3500);
    }
    assert_eq!(refused(&server, &issued("ada", 1_999)), Some(3500));
    assert_eq!(refused(&server, &issued("ada", 2_000)), None);
    server.publish("news", 1);
    for stays in [&mut new, &mut bob] {
        assert_eq!(stays.publication()["data"], 1);
    }
    let answer = api(&server, "invalidate_user_tokens", &json!({"user": "bob"}));
    assert_eq!(answer, json!({"result": {}}));
    assert_eq!(bob.next().expect("a disconnect")["disconnect"]["code"], 3500);
}

/// Regression test: a worker whose ring was full was not notified and kept the sessions, although the caller had a
/// response.
#[test]
fn sessions_end_on_a_worker_that_missed_the_revocation() {
    let mut config = development();
    config.client.token.hmac_secret = Some(Secret::new(KEY));
    config.limits.bus_slots = 16;
    let mut server = TestServer::begin(1, config, None);
    let mut by_user = Subscriber::at(server.clients, "news", &token(&json!({"sub": "ada"})));
    let claims = json!({"sub": "bob", "jti": "stolen"});
    let mut by_id = Subscriber::at(server.clients, "news", &token(&claims));
    let mut stays = Subscriber::at(server.clients, "news", &token(&json!({"sub": "eve"})));
    let stalled = server.stall(0);
    let post = |body: Value| server.call("POST", "/revocations", &[], &body.to_string()).status;
    for number in 0..100 {
        assert_eq!(post(json!({"user": format!("somebody{number}")})), 200);
    }
    assert_eq!((post(json!({"user": "ada"})), post(json!({"jti": "stolen"}))), (200, 200));
    drop(stalled);
    for gone in [&mut by_user, &mut by_id] {
        assert_eq!(gone.next().expect("a disconnect")["disconnect"]["code"], 3500);
    }
    server.publish("news", 1);
    assert_eq!(stays.publication()["data"], 1);
}

#[test]
fn one_disconnect_bars_the_token_and_not_the_user() {
    let server = server(600_000);
    let (barred, fresh) =
        (token(&json!({"sub": "ada", "n": 1})), token(&json!({"sub": "ada", "n": 2})));
    let mut client = Subscriber::at(server.clients, "news", &barred);
    api(&server, "disconnect", &json!({"user": "ada"}));
    assert_eq!(client.next().expect("a disconnect")["disconnect"]["code"], 3503);
    assert_eq!(refused(&server, &barred), Some(3503), "the same token does not come back");
    assert_eq!(refused(&server, &fresh), None, "a new one does");

    // A client that is asked to reconnect may do so.
    let mut client = Subscriber::at(server.clients, "news", &fresh);
    api(
        &server,
        "disconnect",
        &json!({"user": "ada", "disconnect": {"code": 3000, "reason": "again"}}),
    );
    assert_eq!(client.next().expect("a disconnect")["disconnect"]["code"], 3000);
    assert_eq!(refused(&server, &fresh), None);
}

/// Regression test: a disconnect did not bar clients without a connection at that moment, such as a long-poll client
/// between two polls, or a client that reconnects.
#[test]
fn a_disconnect_bars_who_has_no_connection_just_now() {
    let server = server(600_000);
    let of = |sub: &str, iat: u64, n: u32| token(&json!({"sub": sub, "iat": iat, "n": n}));
    let again = json!({"code": 3000, "reason": "again"});
    api(&server, "disconnect", &json!({"user": "ada", "disconnect": again}));
    assert_eq!(refused(&server, &of("ada", 1_000, 1)), None, "some may come back");
    api(&server, "disconnect", &json!({"user": "ada"}));
    assert_eq!(refused(&server, &of("ada", 1_000, 2)), Some(3503));
    assert_eq!(refused(&server, &of("ada", 4_000_000_000, 3)), None, "issued since");
    assert_eq!(refused(&server, &of("bob", 1_000, 4)), None);
}

#[test]
fn a_blocked_user_is_sent_away_and_comes_back_when_he_is_unblocked() {
    let server = server(0);
    let ada = token(&json!({"sub": "ada", "iat": 4_000_000_000_u64}));
    let bob = token(&json!({"sub": "bob"}));
    let mut session = Subscriber::at(server.clients, "news", &ada);
    assert_eq!(api(&server, "block_user", &json!({"user": "ada"})), json!({"result": {}}));
    assert_eq!(session.next().expect("a disconnect")["disconnect"]["code"], 3500);
    assert_eq!(refused(&server, &ada), Some(3500));
    assert_eq!(refused(&server, &bob), None);
    assert_eq!(api(&server, "unblock_user", &json!({"user": "ada"})), json!({"result": {}}));
    assert_eq!(refused(&server, &ada), None);
    assert_eq!(
        api(&server, "unblock_user", &json!({"user": "ada"})),
        json!({"result": {}}),
        "again"
    );
    assert_eq!(api(&server, "block_user", &json!({}))["error"]["code"], 107);
}
