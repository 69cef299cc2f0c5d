//! The log as an operator reads it at three in the morning: why something was refused, ended or changed.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dunlin_testkit::Addresses;
use serde_json::Value;

const API_KEY: &str = "8e1f0a6c59d34b1c9c1b2b7f1d1e7a55";
const HMAC_SECRET: &str = "b6a7f0c4d2e94f0f8a51c7f3e0d98a11";
const ADMIN_TOKEN: &str = "47c0b0d9f2aa4e6bb2a4f7a6c3b1e2d3";
/// Secrets, a token and a payload: none of them may stand in a log.
const PAYLOAD: &str = "a-payload-that-nobody-may-read";
const TIMEOUT: Duration = Duration::from_secs(20);

struct Server {
    child: Child,
    at: Addresses,
    log: Arc<Mutex<Vec<String>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn file(log: &str) -> String {
    format!(
        "[api]\nkeys = {{ shop = {API_KEY:?} }}\n[client]\ntoken = {{ hmac_secret = {HMAC_SECRET:?} }}\n\
         [admin]\ntoken = {ADMIN_TOKEN:?}\n[channel.namespaces.chat]\nallow_subscribe_for_client = true\n\
         [log]\nlevel = \"debug\"\n{log}"
    )
}

impl Server {
    fn start(path: &Path, config: &str) -> Server {
        std::fs::write(path, config).unwrap();
        let at = Addresses::new();
        let Addresses { client, admin, .. } = at;
        let mut child = Command::new(env!("CARGO_BIN_EXE_dunlin"))
            .args(["serve", "--workers", "2", "--config", path.to_str().unwrap()])
            .args(["--client", &client.to_string(), "--admin", &admin.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let (lines, stderr) = (Arc::clone(&log), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let mut reported = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains(&admin.to_string()) {
            line.clear();
            assert!(reported.read_line(&mut line).unwrap() > 0, "it starts: {:?}", log.lock());
        }
        std::thread::spawn(move || std::io::copy(&mut reported, &mut std::io::sink()));
        Server { child, at, log }
    }

    fn request(&self, to: std::net::SocketAddr, head: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let length = body.len();
        let head = head.replace("\r\n\r\n", "\r\n");
        write!(stream, "{head}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}")
            .unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn client(&self, head: &str, body: &str) -> String {
        self.request(self.at.client, &format!("{head} HTTP/1.1\r\nHost: d\r\n"), body)
    }

    fn api(&self, key: &str, method: &str, body: &str) -> String {
        let head = format!("POST /api/{method} HTTP/1.1\r\nHost: d\r\nX-API-Key: {key}\r\n");
        self.request(self.at.client, &head, body)
    }

    fn admin(&self, head: &str, headers: &str, body: &str) -> String {
        let head =
            format!("{head} HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\n{headers}");
        self.request(self.at.admin, &head, body)
    }

    fn hang_up(&self) {
        let status = Command::new("kill").args(["-HUP", &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// The line that has all these parts, once it is there.
    fn line(&self, parts: &[&str]) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let lines = self.log.lock().unwrap().clone();
            if let Some(line) =
                lines.iter().find(|line| parts.iter().all(|part| line.contains(part)))
            {
                return line.clone();
            }
            assert!(
                Instant::now() < deadline,
                "no line with {parts:?} among\n{}",
                lines.join("\n")
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }
}

fn token(user: &str) -> String {
    let mint = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["token", user, "--secret", HMAC_SECRET])
        .output()
        .unwrap();
    String::from_utf8(mint.stdout).unwrap().trim().to_owned()
}

fn admin_token() -> String {
    format!("Authorization: Bearer {ADMIN_TOKEN}\r\n")
}

#[test]
fn what_is_refused_or_changed_leaves_a_line_that_says_why_to_whom_and_by_whom() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("dunlin.toml"), &file(""));
    server.line(&["serving"]);

    server.client("POST /connection/uni_sse", r#"{"token":"a.wrong.token"}"#);
    server.line(&[
        "DEBUG",
        "client_refused",
        "code=3500",
        "reason=\"invalid token",
        "address=127.",
        "transport=\"uni_sse\"",
    ]);

    let own = token("ann");
    let connect = |then: &str| format!("{{\"id\":1,\"connect\":{{\"token\":\"{own}\"}}}}\n{then}");
    let body = connect(r#"{"id":2,"subscribe":{"channel":"nowhere:room"}}"#);
    let mut stream = TcpStream::connect(server.at.client).unwrap();
    write!(
        stream,
        "POST /connection/http_stream HTTP/1.1\r\nHost: d\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    server.line(&[
        "client_connected",
        "user=\"ann\"",
        "transport=\"http_stream\"",
        "protocol=\"json\"",
    ]);
    server.line(&[
        "command_refused",
        "code=102",
        "user=\"ann\"",
        "channel=\"nowhere:room\"",
        "method=\"subscribe\"",
        "client=",
    ]);
    drop(stream);
    server.line(&["client_closed", "user=\"ann\""]);

    server.api("a-wrong-key", "publish", "{}");
    server.line(&[
        "request_refused",
        "status=401",
        "path=\"/api/publish\"",
        "the API key is not in api.keys",
    ]);
    let publish = format!(r#"{{"channel":"nowhere:x","data":"{PAYLOAD}"}}"#);
    server.api(API_KEY, "publish", &publish);
    server.line(&["api_refused", "code=102", "method=\"publish\"", "key=\"shop\""]);

    let foreign = "GET /connection/sse?cf_connect=%7B%7D HTTP/1.1\r\nHost: d\r\nOrigin: https://evil.example\r\n";
    server.request(server.at.client, foreign, "");
    server.line(&[
        "request_refused",
        "status=403",
        "origin=\"https://evil.example\"",
        "path=\"/connection/sse\"",
    ]);
    server.client(&format!("GET /connection/poll?channel=chat:a&token={own}x"), "");
    server.line(&["request_refused", "status=401", "path=\"/connection/poll\""]);

    server.admin("GET /config", "Authorization: Bearer wrong-wrong-wrong-wrong\r\n", "");
    server.line(&["admin_refused", "status=401", "path=\"/config\"", "the token is unknown"]);
    server.admin("PUT /config/client/ping_interval_ms", &admin_token(), "20000");
    server.line(&[
        "INFO",
        "settings_changed",
        "key=\"admin.token\"",
        "keys=\"/client/ping_interval_ms\"",
        "revision=2",
        "127.",
    ]);
    server.admin("PUT /config/client/ping_interval_ms", &admin_token(), "1");
    server.line(&["settings_refused", "status=422", "ping_interval_ms"]);

    for secret in [
        API_KEY,
        HMAC_SECRET,
        ADMIN_TOKEN,
        PAYLOAD,
        &own,
        "a.wrong.token",
        "a-wrong-key",
        "wrong-wrong",
    ] {
        assert!(!server.log().contains(secret), "{secret} stands in the log:\n{}", server.log());
    }
}

#[test]
fn names_of_attackers_are_inert_and_cut_and_a_flood_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let config = file("format = \"json\"\n");
    let server = Server::start(&dir.path().join("dunlin.toml"), &config);
    let own = token("mallory");
    let hostile = format!("nowhere:\\u001b[2J\\nINFO all is well {}", "x".repeat(200));
    let mut body = format!("{{\"id\":1,\"connect\":{{\"token\":\"{own}\"}}}}");
    for id in 2..120 {
        body += &format!("\n{{\"id\":{id},\"subscribe\":{{\"channel\":\"{hostile}\"}}}}");
    }
    server.client("POST /connection/http_stream", "").clear();
    let mut stream = TcpStream::connect(server.at.client).unwrap();
    write!(
        stream,
        "POST /connection/http_stream HTTP/1.1\r\nHost: d\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let line = server.line(&["command_refused", "mallory"]);
    let parsed: Value =
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("one object a line: {line}"));
    assert_eq!(parsed["level"], "DEBUG");
    assert_eq!(
        (&parsed["target"], &parsed["fields"]["event"]),
        (&"dunlin::client".into(), &"command_refused".into())
    );
    let suppressed = server.line(&["more like it in this second"]);
    let parsed: Value = serde_json::from_str(&suppressed).unwrap();
    assert!(parsed["fields"]["more"].as_u64().unwrap() > 0, "{suppressed}");
    assert!(!server.log().contains('\u{1b}'), "no escape reaches a terminal");
    assert!(server.log().lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    assert!(server.log().lines().all(|line| line.len() < 4_096));
}

#[test]
fn levels_of_targets_and_the_access_log_change_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let config = file("").replace("level = \"debug\"", "level = \"info\"");
    let server = Server::start(&dir.path().join("dunlin.toml"), &config);
    server.client("GET /nowhere", "");
    server.api("a-wrong-key", "publish", "{}");
    let targets = r#"{"dunlin::listener": "debug"}"#;
    server.admin("PUT /config/log/targets", &admin_token(), targets);
    server.admin("PUT /config/server/client_ingress/access_log", &admin_token(), "true");
    server.line(&["settings_changed", "/server/client_ingress/access_log"]);
    assert!(!server.log().contains("request_refused"), "{}", server.log());
    server.client("GET /elsewhere?token=hidden", "");
    server.line(&["request_refused", "status=404", "path=\"/elsewhere\""]);
    server.line(&[
        "INFO",
        "dunlin::access",
        "event=\"request\"",
        "status=404",
        "method=\"GET\"",
        "duration_ms=",
    ]);
    server.api(API_KEY, "info", "{}");
    server.line(&["event=\"request\"", "status=200", "path=\"/api/info\"", "key=\"shop\""]);
    server.client("POST /connection/uni_sse", r#"{"token":"a.wrong.token"}"#);
    server.line(&["event=\"request\"", "path=\"/connection/uni_sse\""]);
    assert!(!server.log().contains("client_refused"), "another target stays as it was");
    assert!(!server.log().contains("hidden"), "a query may have a token");
}

#[test]
fn sighup_takes_over_what_changed_in_the_file_and_an_invalid_file_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dunlin.toml");
    let server = Server::start(&path, &file(""));
    // What was changed otherwise stays.
    server.admin("PUT /config/client/pong_timeout_ms", &admin_token(), "9000");
    std::fs::write(&path, file("") + "[limits]\nchannel_bytes_max = 100\n").unwrap();
    server.hang_up();
    server.line(&[
        "INFO",
        "settings_changed",
        "by=\"SIGHUP\"",
        "keys=\"/limits/channel_bytes_max\"",
        "revision=3",
    ]);
    server.line(&["SIGHUP: the file was read again"]);
    let config = server.admin("GET /config", &admin_token(), "");
    assert!(config.contains("\"channel_bytes_max\":100"), "{config}");
    assert!(config.contains("\"pong_timeout_ms\":9000"), "{config}");

    std::fs::write(&path, file("") + "[limits]\nchannel_bytes_max = 50\nno_such_limit = 1\n")
        .unwrap();
    server.hang_up();
    let lines = (file("") + "[limits]\nchannel_bytes_max = 50\n").lines().count() + 1;
    server.line(&["ERROR", &format!("dunlin.toml:{lines}"), "no_such_limit"]);
    server.line(&["ERROR", "SIGHUP: nothing is changed"]);
    std::fs::write(&path, &file("")[..40]).unwrap();
    server.hang_up();
    server.line(&["ERROR", "dunlin.toml:2"]);
    std::fs::write(&path, "").unwrap();
    server.hang_up();
    server.line(&["ERROR", "dunlin.toml is empty"]);
    std::fs::write(&path, file("") + "[limits]\nchannel_bytes_max = 60\n").unwrap();
    server.hang_up();
    server.line(&["settings_changed", "by=\"SIGHUP\"", "revision=4"]);
    let config = server.admin("GET /config", &admin_token(), "");
    assert!(config.contains("\"channel_bytes_max\":60"), "{config}");
    assert!(
        !server.log().contains(HMAC_SECRET) && !server.log().contains(API_KEY),
        "{}",
        server.log()
    );
}

fn dunlin(server: &Server, arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(arguments)
        .args(["--admin", &server.at.admin.to_string(), "--token", ADMIN_TOKEN])
        .output()
        .unwrap()
}

#[test]
fn a_live_trace_shows_one_user_and_explain_tells_the_decision() {
    let dir = tempfile::tempdir().unwrap();
    let config = file("").replace("level = \"debug\"", "level = \"error\"");
    let server = Server::start(&dir.path().join("dunlin.toml"), &config);
    let mut trace = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["trace", "--live", "--user", "ann", "--seconds", "30", "--json"])
        .args(["--admin", &server.at.admin.to_string(), "--token", ADMIN_TOKEN])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(trace.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.next().unwrap().contains("begin"));
    for user in ["bob", "ann"] {
        let connect = format!("{{\"id\":1,\"connect\":{{\"token\":\"{}\"}}}}", token(user));
        let body = format!(
            "{connect}\n{{\"id\":2,\"subscribe\":{{\"channel\":\"chat:a\"}}}}\n\
             {{\"id\":3,\"publish\":{{\"channel\":\"chat:a\",\"data\":\"{PAYLOAD}\"}}}}"
        );
        let mut stream = TcpStream::connect(server.at.client).unwrap();
        write!(
            stream,
            "POST /connection/http_stream HTTP/1.1\r\nHost: d\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        // What it is answered, and nothing more.
        let mut answered = String::new();
        while !answered.contains("permission denied") {
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).unwrap();
            assert!(read > 0, "{answered}");
            answered += &String::from_utf8_lossy(&bytes[..read]);
        }
    }
    let mut seen = Vec::new();
    while !seen.iter().any(|event| event == "client_closed") {
        let line = lines.next().unwrap();
        assert!(!line.contains("bob") && !line.contains(PAYLOAD), "{line}");
        let event: Value = serde_json::from_str(&line).unwrap();
        match event["event"].as_str().unwrap() {
            "permitted" => {
                assert_eq!((&event["by"], &event["channel"]), (&"rules".into(), &"chat:a".into()));
            }
            "command_refused" => {
                assert_eq!((&event["method"], &event["code"]), (&"publish".into(), &103.into()));
            }
            _ => {}
        }
        seen.push(event["event"].as_str().unwrap().to_owned());
    }
    trace.kill().unwrap();
    trace.wait().unwrap();
    for event in ["client_connected", "command", "permitted", "command_refused", "delivered"] {
        assert!(seen.iter().any(|of| of == event), "{event}: {seen:?}");
    }

    let own = token("ann");
    let story = dunlin(&server, &["explain", "publish", "chat:a", "--client-token", &own]);
    let story = String::from_utf8(story.stdout).unwrap();
    assert!(story.starts_with("refused: 103"), "{story}");
    assert!(story.contains("allow_publish_for_client"), "{story}");
    let claims = r#"{"caps":[{"channels":["chat:a"],"allow":["pub"]}]}"#;
    let story = dunlin(
        &server,
        &["explain", "publish", "chat:a", "--user", "ann", "--claims", claims, "--json"],
    );
    let story: Value = serde_json::from_slice(&story.stdout).unwrap();
    assert_eq!(
        (&story["permitted"], &story["by"]),
        (&true.into(), &"capability of the token".into())
    );
    let story = dunlin(&server, &["explain", "subscribe", "chat:a", "--client-token", "a.b.c"]);
    assert!(String::from_utf8(story.stdout).unwrap().starts_with("refused: 3500"));

    assert!(dunlin(&server, &["health"]).status.success());
    let top = dunlin(&server, &["top", "--once"]);
    assert!(String::from_utf8(top.stdout).unwrap().contains("messages out"));
    assert!(!server.log().contains("ann"), "the log is off: {}", server.log());
    let Addresses { admin, .. } = server.at;
    drop(server);
    let gone = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["health", "--admin", &admin.to_string()])
        .output();
    assert!(!gone.unwrap().status.success());
}
