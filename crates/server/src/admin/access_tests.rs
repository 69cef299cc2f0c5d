//! Tests of access to the admin port: in each, a caller tries to exceed its rights.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use dunlin_config::{AdminRole, AdminToken, Config, Secret};
use serde_json::json;

use super::testkit::{OPERATOR, TestResponse, TestServer, development, receive};

const JSON: (&str, &str) = ("Content-Type", "application/json");

fn with_secrets() -> Config {
    let mut config = development();
    config.api.keys.insert("backend", Secret::new("0123456789abcdef0123"));
    config
}

/// Starts a server without a state directory, for a caller without a token.
fn in_memory() -> TestServer {
    let mut server = TestServer::begin_as(1, with_secrets(), None, false);
    server.token = None;
    server
}

/// Starts a server with a token in its state directory, for a caller without one.
fn with_state() -> TestServer {
    let mut server = TestServer::begin(1, with_secrets(), None);
    server.token = None;
    server
}

#[test]
fn local_caller_without_a_token_cannot_set_secrets() {
    let server = in_memory();
    let refused = |answer: TestResponse| {
        assert_eq!((answer.status, answer.problem()), (403, "/problems/secrets-need-token".into()));
    };
    let put = |target: &str, body: &str| server.call("PUT", target, &[JSON], body);
    refused(put("/config/admin/token", "\"a token of some length\""));
    refused(put("/config/admin/token?dry_run=1", "\"a token of some length\""));
    // Nor does the caller learn the contents of a file that it cannot read itself.
    refused(put(
        "/config/tls/certificates/mine?dry_run=1",
        &json!({"chain_file": "/etc/shadow", "key_file": "/etc/shadow"}).to_string(),
    ));
    refused(put(
        "/config/engines/mine?dry_run=1",
        &json!({"type": "nats", "addresses": ["10.0.0.7:4222"], "nkey_seed_file": "/etc/shadow"})
            .to_string(),
    ));
    refused(put(
        "/config/admin/tokens/mine",
        &json!({"token": "a token of some length"}).to_string(),
    ));
    refused(put("/config/api/keys/mine", "\"a key of some length\""));
    refused(server.call("DELETE", "/config/api/keys/backend", &[JSON], ""));
    refused(server.get("/config/api/keys?secrets=1"));
    let patch = |operation: serde_json::Value| {
        let media = [("Content-Type", "application/json-patch+json")];
        server.call("PATCH", "/config", &media, &json!([operation]).to_string())
    };
    refused(patch(json!({"op": "copy", "from": "/api/keys/backend", "path": "/server/name"})));
    refused(patch(
        json!({"op": "test", "path": "/api/keys/backend", "value": "a guess of some length"}),
    ));
    assert_eq!(server.revision(), 1, "nothing was changed");

    // Keys without secrets can be changed, but the admin address cannot be moved to all interfaces.
    assert_eq!(put("/config/limits/broadcast_quantum", "32").status, 200);
    assert_eq!(put("/config/server/admin_addr", "\"0.0.0.0:8001\"").status, 422);
}

#[test]
fn a_server_that_asks_backends_for_keys_asks_operators_for_a_token() {
    let mut config = with_secrets();
    config.api.without_key = false;
    let mut server = TestServer::begin_as(1, config, None, false);
    server.token = None;
    let open = server.call("PUT", "/config/api/without_key", &[JSON], "true");
    assert_eq!(open.status, 401, "{open:?}");
    assert_eq!(server.get("/config").status, 200);
}

#[test]
fn a_watch_ends_with_the_token_that_let_it_in() {
    let mut config = with_secrets();
    config.admin.token = Some(Secret::new("a token that was stolen"));
    let mut server = TestServer::begin(1, config, None);
    server.token = Some("a token that was stolen");
    let mut stream = server.connect();
    server.send(&mut stream, "GET", "/config/watch?secrets=1", &[], "");
    let mut stream = BufReader::new(stream);
    let mut first = String::new();
    while !first.contains("\n\n") {
        assert!(stream.read_line(&mut first).unwrap() > 0, "{first}");
    }
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    server.token = Some(OPERATOR);
    assert_eq!(server.put("/config/admin/token", "\"a token that is new\"").status, 200);
    let mut seen = String::new();
    stream.read_to_string(&mut seen).expect("the stream ends");
    assert!(!seen.contains("a token that is new"), "{seen}");
}

/// Regression test: a caller without a token had a proxy's secret headers sent to its own server, by changing the address.
#[test]
fn secret_is_sent_nowhere_else_by_a_caller_without_a_token() {
    let mut config = with_secrets();
    let member =
        |address: &str| dunlin_config::Member { address: address.into(), ..Default::default() };
    let mut upstream = dunlin_config::Upstream::default();
    upstream.members.insert("a", member("127.0.0.1:9"));
    config.webhooks.upstreams.insert("backend", upstream);
    let mut proxy =
        dunlin_config::Proxy { endpoint: "http://127.0.0.1:9/".into(), ..Default::default() };
    config.proxies.insert("open", proxy.clone());
    proxy.static_headers.insert("Authorization", Secret::new("Bearer of the backend's secret"));
    config.proxies.insert("p", proxy.clone());
    proxy.upstream = Some("backend".into());
    proxy.endpoint = "/".into();
    config.proxies.insert("by_upstream", proxy);
    let mut server = TestServer::begin_as(1, config, None, false);
    server.token = None;
    let put = |target: &str, body: &str| {
        let answer = server.call("PUT", target, &[JSON], body);
        let problem = if answer.status == 403 { answer.problem() } else { String::new() };
        (answer.status, problem)
    };
    let refused = (403, "/problems/secrets-need-token".to_owned());
    let mine = "\"http://127.0.0.1:10/\"";
    assert_eq!(put("/config/proxies/p/endpoint", mine), refused);
    assert_eq!(put("/config/proxies/p/endpoint?dry_run=1", mine), refused);
    assert_eq!(
        put("/config/webhooks/upstreams/backend/members/a/address", "\"127.0.0.1:10\""),
        refused
    );
    let whole = server.call("GET", "/config/proxies/p", &[], "").body;
    assert!(whole.contains("***"), "{whole}");
    assert_eq!(put("/config/proxies/p", &whole.replace("127.0.0.1:9", "127.0.0.1:10")), refused);
    assert_eq!(put("/config/proxies/q", &whole.replace("127.0.0.1:9", "127.0.0.1:10")).0, 422);
    // Nor does it learn whether it has guessed a secret.
    for guess in ["0123456789abcdef0123", "a wrong guess of some length"] {
        assert_eq!(put("/config/api/keys/backend", &format!("\"{guess}\"")), refused);
    }
    // Everything else stays free in development mode.
    assert_eq!(put("/config/proxies/p/timeout_ms", "77").0, 200);
    assert_eq!(put("/config/proxies/open/endpoint", mine).0, 200);
    assert_eq!(put("/config/api/keys/backend", "\"***\"").0, 200);
}

#[test]
fn where_there_is_a_token_changes_take_it() {
    let mut server = with_state();
    for (method, target) in [
        ("PUT", "/config/limits/broadcast_quantum"),
        ("DELETE", "/config/limits/broadcast_quantum"),
        ("PATCH", "/config"),
        ("POST", "/config/revisions/1/restore"),
        ("POST", "/broadcasts/news/cancel"),
        ("POST", "/broadcasts/news/pause"),
    ] {
        let answer = server.call(method, target, &[JSON], "32");
        assert_eq!(answer.status, 401, "{method} {target}: {answer:?}");
        assert_eq!(answer.header("WWW-Authenticate"), Some("Bearer"));
    }
    assert_eq!(server.get("/config").status, 200, "looking takes none");
    assert_eq!(server.get("/config?secrets=1").status, 403);
    server.token = Some("a token that somebody guessed");
    assert_eq!(server.get("/config").status, 401);
    server.token = Some(OPERATOR);
    assert_eq!(server.put("/config/limits/broadcast_quantum", "32").status, 200);
    assert_eq!(server.get("/config/api/keys?secrets=1").json()["backend"], "0123456789abcdef0123");
}

#[test]
fn a_page_of_another_site_changes_nothing_whatever_it_sends() {
    let server = in_memory();
    let own = format!("http://{}", server.address);
    let from = |headers: &[(&str, &str)]| {
        server.call("PUT", "/config/limits/broadcast_quantum", headers, "32").status
    };
    assert_eq!(from(&[("Origin", "https://evil.example"), JSON]), 403);
    assert_eq!(from(&[("Origin", "null"), JSON]), 403);
    assert_eq!(from(&[("Sec-Fetch-Site", "cross-site"), JSON]), 403);
    assert_eq!(from(&[("Sec-Fetch-Site", "same-site"), JSON]), 403);
    assert_eq!(from(&[("Content-Type", "text/plain")]), 415);
    assert_eq!(from(&[]), 415, "what a page may send without asking");
    let restore = |headers: &[(&str, &str)]| {
        server.call("POST", "/config/revisions/1/restore", headers, "").status
    };
    assert_eq!(restore(&[]), 415);
    // A page can send a form without a preflight request, but not a PUT, as `curl -d` sends it.
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    assert_eq!(restore(&[form]), 415);
    assert_eq!(from(&[form, ("Origin", "https://evil.example")]), 403);
    assert_eq!(restore(&[("Content-Type", "text/plain"), ("Origin", "https://evil.example")]), 403);
    // A foreign name that resolves to this machine (DNS rebinding): the page's origin is the same as the host.
    let rebound = |method: &str, target: &str| {
        let headers = [("Host", "evil.example:8001"), ("Origin", "http://evil.example:8001"), JSON];
        server.call(method, target, &headers, "32").status
    };
    assert_eq!(rebound("PUT", "/config/limits/broadcast_quantum"), 403);
    assert_eq!(rebound("POST", "/broadcasts/news/cancel"), 403);
    assert_eq!(rebound("GET", "/config"), 403, "nor is it read");
    assert_eq!(rebound("GET", "/metrics"), 403);
    assert_eq!(server.revision(), 1);

    let host = server.address.to_string();
    let page = [("Host", &*host), ("Origin", &own), ("Sec-Fetch-Site", "same-origin"), JSON];
    let answer = server.call("PUT", "/config/limits/broadcast_quantum", &page, "32");
    assert_eq!(answer.status, 200, "its own page does: {answer:?}");
}

#[test]
fn a_token_may_what_its_role_says() {
    let mut config = with_secrets();
    for (name, role) in
        [("viewer", AdminRole::See), ("oncall", AdminRole::Operate), ("deploy", AdminRole::Change)]
    {
        let token = Some(Secret::new(format!("the token of {name}, long enough")));
        config.admin.tokens.insert(name, AdminToken { token, role });
    }
    let mut server = TestServer::begin(1, config, None);
    let mut statuses = |token: Option<&'static str>| {
        server.token = token;
        [
            server.get("/config").status,
            server.call("POST", "/broadcasts/news/cancel", &[], "").status,
            server.put("/config/limits/broadcast_quantum", "32").status,
            server.get("/config?secrets=1").status,
        ]
    };
    // 404 shows that the token was accepted: there is no broadcast to cancel.
    assert_eq!(statuses(Some("the token of viewer, long enough")), [200, 403, 403, 403]);
    assert_eq!(statuses(Some("the token of oncall, long enough")), [200, 404, 403, 403]);
    assert_eq!(statuses(Some("the token of deploy, long enough")), [200, 404, 200, 200]);
    assert_eq!(statuses(None), [401, 401, 401, 401], "none is not enough any more");
}

#[test]
fn programs_and_the_tokens_that_load_them_take_the_role_program() {
    let mut config = with_secrets();
    config.admin.token = Some(Secret::new("the token of them all"));
    for (name, role) in [("deploy", AdminRole::Change), ("author", AdminRole::Program)] {
        let token = Some(Secret::new(format!("the token of {name}, long enough")));
        config.admin.tokens.insert(name, AdminToken { token, role });
    }
    let mut server = TestServer::begin(1, config, None);
    let program =
        r#"{"source":"return { publish = function() return true end }","on_error":"deny"}"#;
    let mine = r#"{"token":"a token that is my own","role":"program"}"#;
    server.token = Some("the token of deploy, long enough");
    for (path, body) in [
        ("/config/programs/p", program),
        ("/config/programs/p?dry_run=1", program),
        ("/config/admin/tokens/mine", mine),
        ("/config/admin/tokens/author/token", "\"a token that is my own\""),
        ("/config/admin/token", "\"a token that is my own\""),
    ] {
        let refused = server.put(path, body);
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
        assert!(refused.json().to_string().contains("role `program`"), "{path}: {refused:?}");
    }
    // Nor does it read a token that may.
    for path in ["/config?secrets=1", "/config/admin?secrets=1", "/config/admin/tokens?secrets=1"] {
        let read = server.get(path);
        assert_eq!(read.status, 200, "{path}: {read:?}");
        assert!(
            !read.json().to_string().contains("long enough")
                && !read.json().to_string().contains("of them all"),
            "{path}"
        );
    }
    assert_eq!(server.get("/config/api/keys?secrets=1").json()["backend"], "0123456789abcdef0123");
    let less = r#"{"token":"a token of the watch","role":"operate"}"#;
    assert_eq!(server.put("/config/admin/tokens/watch", less).status, 201, "lower roles it makes");
    server.token = Some("the token of author, long enough");
    let made = server.put("/config/programs/p", program);
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(server.get("/config/admin/token?secrets=1").json(), "the token of them all");
    server.token = Some("the token of deploy, long enough");
    let gone = server.call("DELETE", "/config/programs/p", &[], "");
    assert_eq!(gone.status, 403, "{gone:?}");
}

#[test]
fn the_socket_is_the_way_in_of_the_local_operator() {
    let server = with_state();
    let call = |head: &str, body: &str| {
        let mut stream = UnixStream::connect(server.socket()).unwrap();
        write!(
            stream,
            "{head} HTTP/1.1\r\nHost: d\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        receive(&mut stream)
    };
    let keys = call("GET /config/api/keys?secrets=1", "");
    assert_eq!(keys.json()["backend"], "0123456789abcdef0123");
    assert_eq!(call("PUT /config/admin/token", "\"a token of some length\"").status, 200);
    let history = call("GET /config/revisions", "").json();
    assert_eq!(history["revisions"][0]["from"], "local", "{history}");

    // A rejected caller on this machine is referred to the socket.
    let refused = server.put("/config/limits/broadcast_quantum", "32");
    assert_eq!(refused.status, 401);
    assert_eq!(refused.json()["socket"], server.socket().to_str().unwrap());
}

/// Regression test: the port could not be closed.
#[test]
fn the_admin_port_can_be_closed_where_the_socket_is_there_and_opened_again() {
    let server = with_state();
    let patch = |body: &str| {
        let mut stream = UnixStream::connect(server.socket()).unwrap();
        let body = format!("{{\"server\": {body}}}");
        let length = body.len();
        let head =
            "PATCH /config HTTP/1.1\r\nHost: d\r\nContent-Type: application/merge-patch+json";
        write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        receive(&mut stream).status
    };
    let is_open = |address: SocketAddr| TcpStream::connect(address).is_ok();
    assert!(is_open(server.address));
    assert_eq!(patch("{\"admin_tcp\": false}"), 200);
    // No other process listens on this address.
    let elsewhere = SocketAddr::from(([127, 91, 17, 3], 8001));
    assert!(!is_open(server.address) && !is_open(elsewhere));
    let body = format!("{{\"admin_tcp\": true, \"admin_addr\": \"{elsewhere}\"}}");
    assert_eq!(patch(&body), 200);
    assert!(is_open(elsewhere) && !is_open(server.address));
    assert_eq!(patch("{\"admin_tcp\": false}"), 200);
    assert!(!is_open(elsewhere));
    assert_eq!(patch("{\"admin_tcp\": true}"), 200);
    assert!(is_open(elsewhere));
    // Without the socket, nobody could open the port again.
    let mut server = TestServer::begin_as(1, development(), None, false);
    server.token = None;
    let refused = server.call("PUT", "/config/server/admin_tcp", &[JSON], "false");
    assert_eq!(refused.status, 422, "{}", refused.json());
}

/// Regression test: a caller that may only see sent its body, for as long as it liked, before it was refused.
#[test]
fn change_by_a_token_that_may_only_see_is_refused_before_its_body_comes() {
    let mut config = with_secrets();
    for (name, role) in [("sees", AdminRole::See), ("operates", AdminRole::Operate)] {
        let token = Some(Secret::new(format!("the token that {name}")));
        config.admin.tokens.insert(name, AdminToken { token, role });
    }
    let server = TestServer::begin(1, config, None);
    for (token, line) in [
        ("sees", "PUT /config/limits/broadcast_quantum"),
        ("sees", "PATCH /config"),
        ("sees", "POST /config/revisions/1/restore"),
        ("sees", "POST /revocations"),
        ("sees", "DELETE /revocations"),
        ("sees", "POST /broadcasts/news/cancel"),
        ("operates", "PUT /config/limits/broadcast_quantum"),
    ] {
        let mut stream = server.connect();
        write!(
            stream,
            "{line} HTTP/1.1\r\nHost: d\r\nAuthorization: Bearer the token that {token}\r\nContent-Length: 9\r\n\r\n"
        )
        .unwrap();
        // The body never comes.
        assert_eq!(receive(&mut stream).status, 403, "{token}: {line}");
    }
}

#[test]
fn the_history_names_the_token_of_a_change_and_never_its_value() {
    let mut config = with_secrets();
    config.admin.token = Some(Secret::new("the token of them all"));
    let role = AdminRole::Change;
    let token = Some(Secret::new("the token of ada"));
    config.admin.tokens.insert("ada", AdminToken { token, role });
    let mut server = TestServer::begin(1, config, None);
    for (token, name) in [
        ("the token of them all", "admin.token"),
        ("the token of ada", "admin.tokens.ada"),
        (OPERATOR, "admin-token"),
    ] {
        server.token = Some(token);
        let size = name.len().to_string();
        assert_eq!(server.put("/config/limits/broadcast_quantum", &size).status, 200, "{name}");
        let page = server.get("/config/revisions?limit=1").body;
        assert!(page.contains(&format!("\"token\": \"{name}\"")), "{page}");
        assert!(!page.contains(token), "{page}");
    }
}
