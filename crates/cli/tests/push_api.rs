//! `POST /api/push` of a real server against the simulator: a backend's pushes, credentials changed at run time, and
//! the devices that turn out dead.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunlin_simulate::apns::{Behaviour, Config, Simulator};
use serde_json::{Value, json};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Keys made for these tests; they open nothing.
const KEY: &str = include_str!("../../server/tests/data/apns-key.p8");
const OTHER_KEY: &str = include_str!("../../server/tests/data/apns-key-2.p8");

/// A server of this very build.
struct Served {
    child: Child,
    client: SocketAddr,
    admin: SocketAddr,
}

impl Served {
    fn start(state: Option<&Path>) -> Served {
        let free = || TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
        let (client, admin) = (free(), free());
        let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
        command.args(["serve", "--workers", "2"]);
        command.args(["--client", &client.to_string(), "--admin", &admin.to_string()]);
        if let Some(state) = state {
            command.arg("--state").arg(state);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.contains(&admin.to_string())));
        assert!(ready, "it did not start");
        Served { child, client, admin }
    }

    fn send(address: SocketAddr, method: &str, target: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// Status and body of the answer.
    fn call(address: SocketAddr, method: &str, target: &str, body: &Value) -> (u16, String) {
        let mut answer = String::new();
        Served::send(address, method, target, body).read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// The answer of the server API.
    fn api(&self, method: &str, body: &Value) -> Value {
        let (_, text) = Served::call(self.client, "POST", &format!("/api/{method}"), body);
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
    }

    fn put(&self, pointer: &str, value: &Value) -> (u16, Value) {
        let (status, text) = Served::call(self.admin, "PUT", &format!("/config/{pointer}"), value);
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}")))
    }

    fn metrics(&self) -> String {
        Served::call(self.admin, "GET", "/metrics", &Value::Null).1
    }

    /// Begins a batch; its lines are read one by one.
    fn batch(&self, body: &Value) -> Lines {
        let stream = Served::send(self.client, "POST", "/api/push/batch", body);
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the head has an end");
        }
        Lines { reader, pieces: Vec::new() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Killed already, or about to be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a chunked answer.
struct Lines {
    reader: BufReader<TcpStream>,
    pieces: Vec<u8>,
}

impl Iterator for Lines {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.pieces.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pieces.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let mut size = String::new();
            if self.reader.read_line(&mut size).unwrap() == 0 {
                return None;
            }
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            self.reader.read_exact(&mut chunk).unwrap();
            if size == 0 {
                return None;
            }
            self.pieces.extend_from_slice(&chunk[..size]);
        }
    }
}

fn simulator(behaviour: Behaviour) -> Simulator {
    Simulator::start(Config { behaviour, ..Config::default() }).unwrap()
}

/// A credential of the configuration that leads to the simulator.
fn credential(simulator: &Simulator, key: &str) -> Value {
    json!({
        "key": key, "key_id": "KEY1234567", "team_id": "TEAM123456", "topic": "com.example.app",
        "route": { "address": simulator.addr().to_string(), "ca": simulator.ca_pem() }
    })
}

fn token(n: usize) -> String {
    format!("{n:064x}")
}

fn to(tokens: &[String]) -> Value {
    to_app("shop", tokens)
}

fn to_app(app: &str, tokens: &[String]) -> Value {
    json!({
        "notification": { "title": "Hello", "data": { "room": 7 } },
        "devices": [{ "provider": "apns", "app": app, "tokens": tokens }]
    })
}

#[test]
fn a_backend_pushes_to_devices_and_is_told_of_each_what_became_of_it() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    let before = served.api("push", &to(&[token(1)]));
    assert_eq!(before["result"]["outcomes"][0]["reason"], "credential", "{before}");
    assert!(before.to_string().contains("there is no push.apns.shop"));

    let (status, set) = served.put("push/apns/shop", &credential(&simulator, KEY));
    assert_eq!(status, 201, "{set}");
    // The answer to the change means that it is in effect.
    let dead = format!("dead{:060x}", 1);
    let answer = served.api("push", &to(&[token(1), dead.clone(), "xyz".into()]));
    let result = &answer["result"];
    assert_eq!((&result["accepted"], &result["rejected"]), (&1.into(), &1.into()), "{answer}");
    let of: HashMap<&str, &Value> = result["outcomes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| (line["token"].as_str().unwrap(), line))
        .collect();
    assert_eq!(of[&*token(1)]["outcome"], "accepted");
    assert_eq!(of[&*token(1)]["id"].as_str().unwrap().len(), 36);
    assert_eq!(
        (&of[&*dead]["status"], &of[&*dead]["reason"]),
        (&410.into(), &"Unregistered".into())
    );
    assert!(of[&*dead]["timestamp_ms"].is_u64());
    assert_eq!(
        (&of["xyz"]["outcome"], &of["xyz"]["reason"]),
        (&"not_sent".into(), &"invalid".into())
    );
    let topics: HashSet<String> =
        simulator.ledger().iter().map(|entry| entry.topic.to_string()).collect();
    assert_eq!(topics, HashSet::from(["com.example.app".to_owned()]));

    let (status, text) = Served::call(
        served.client,
        "POST",
        "/api/push",
        &json!({ "notification": { "titel": "Hi" }, "users": ["ada"] }),
    );
    assert_eq!(status, 400);
    assert!(text.contains("notification.titel") && text.contains("\"code\":107"), "{text}");
    let (status, text) = Served::call(served.client, "POST", "/api/push/bulk", &json!({}));
    assert!(status == 404 && text.contains("push/batch"), "{text}");

    let metrics = served.metrics();
    for series in [
        "dunlin_push_outcomes_total{provider=\"apns\",app=\"shop\",outcome=\"accepted\",reason=\"\"} 1",
        "dunlin_push_outcomes_total{provider=\"apns\",app=\"shop\",outcome=\"rejected\",reason=\"Unregistered\"} 1",
        "dunlin_push_in_flight{provider=\"apns\",app=\"shop\"} 0",
        "dunlin_push_usable{provider=\"apns\",app=\"shop\"} 1",
    ] {
        assert!(metrics.contains(series), "{series}\n{metrics}");
    }
}

#[test]
fn a_credential_that_cannot_be_used_is_refused_with_its_pointer_and_the_one_before_stays() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let account: Value =
        serde_json::from_str(include_str!("../../push/tests/data/service-account.json")).unwrap();
    let rsa = account["private_key"].as_str().unwrap();
    let (status, refused) = served.put("push/apns/shop", &credential(&simulator, rsa));
    assert_eq!((status, &refused["errors"][0]["pointer"]), (422, &"/push/apns/shop/key".into()));
    assert!(refused["errors"][0]["detail"].as_str().unwrap().contains("P-256"), "{refused}");

    let (pem, key) = expired_certificate();
    let expired = json!({ "certificate": pem + &key, "topic": "com.example.app" });
    for target in ["push/apns/shop", "push/apns/shop?dry_run=1"] {
        let (status, refused) = served.put(target, &expired);
        let error = &refused["errors"][0];
        assert_eq!((status, &error["pointer"]), (422, &"/push/apns/shop/certificate".into()));
        assert!(error["detail"].as_str().unwrap().contains("expired on 2001-"), "{refused}");
    }
    let (status, refused) = served.put("push/fcm/shop", &json!({ "service_account": "nonsense" }));
    assert_eq!(status, 422);
    assert_eq!(refused["errors"][0]["pointer"], "/push/fcm/shop/service_account");

    let answer = served.api("push", &to(&[token(1)]));
    assert_eq!(answer["result"]["accepted"], 1, "{answer}");
    let (status, _) = Served::call(served.admin, "DELETE", "/config/push/apns/shop", &Value::Null);
    assert_eq!(status, 200);
    let answer = served.api("push", &to(&[token(1)]));
    assert_eq!(answer["result"]["outcomes"][0]["reason"], "credential", "{answer}");
}

/// Certificate and key in PEM; its time was over in 2001.
fn expired_certificate() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["push.test".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[test]
fn a_batch_is_answered_as_it_goes_and_a_rotation_in_its_midst_loses_none_of_it() {
    const PUSHES: usize = 10_000;
    // Slow enough that the rotations below come in its midst.
    let simulator = simulator(Behaviour { rtt_ms: 20, streams_max: 100, ..Behaviour::default() });
    let served = Served::start(None);
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let tokens: Vec<String> = (0..PUSHES).map(token).collect();
    let mut lines = served.batch(&json!({ "pushes": [to(&tokens)] }));
    let mut seen = HashSet::new();
    let mut end = None;
    for (n, line) in lines.by_ref().enumerate() {
        if line["end"] == true {
            end = Some(line);
            continue;
        }
        assert_eq!((&line["push"], &line["outcome"]), (&0.into(), &"accepted".into()), "{line}");
        assert!(seen.insert(line["token"].as_str().unwrap().to_owned()), "one line each");
        if n % 2_000 == 500 {
            // Answered while it goes on; the key is another one from here.
            let key = if n % 4_000 == 500 { OTHER_KEY } else { KEY };
            assert_eq!(served.put("push/apns/shop", &credential(&simulator, key)).0, 200);
        }
    }
    assert_eq!(seen.len(), PUSHES);
    let end = end.expect("the last line says that it is the last");
    assert_eq!((&end["accepted"], &end["uncertain"]), (&PUSHES.into(), &0.into()));
    // By the server's own book each was accepted once.
    let mut accepted: HashMap<String, usize> = HashMap::new();
    for entry in simulator.ledger().iter().filter(|entry| entry.status == 200) {
        *accepted.entry(entry.device_token.to_string()).or_default() += 1;
    }
    assert_eq!(accepted.len(), PUSHES);
    assert!(accepted.values().all(|times| *times == 1));
    assert!(simulator.counts().connections > 4, "each key has connections of its own");
}

#[test]
fn a_client_that_does_not_read_its_batch_stops_it_and_nobody_else() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    // Lines so long that no socket's buffers hold all of them.
    let app = "x".repeat(250);
    assert_eq!(served.put(&format!("push/apns/{app}"), &credential(&simulator, KEY)).0, 201);
    let group = |from: usize| to_app(&app, &(from..from + 20_000).map(token).collect::<Vec<_>>());
    let body = json!({ "pushes": [group(0), group(20_000)] });
    let before_kib = rss_kib(&served);
    let mut unread = Served::send(served.client, "POST", "/api/push/batch", &body);
    // Its socket and its share of the window fill up, and then nothing more is sent for it.
    let stopped = wait_until_it_stops(|| simulator.counts().accepted as usize);
    assert!((1..40_000).contains(&stopped), "{stopped} were sent for a client that reads nothing");
    let answer = served.api("push", &to_app(&app, &[token(50_000)]));
    assert_eq!(answer["result"]["accepted"], 1, "{answer}");
    let grown = rss_kib(&served).saturating_sub(before_kib);
    assert!(grown < 64 << 10, "{grown} KiB are held for it");
    // It begins to read, and gets all of it.
    let mut answer = String::new();
    unread.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(r#"{"accepted":40000,"#), "{}", &answer[answer.len() - 200..]);
}

/// Resident memory of the server.
fn rss_kib(served: &Served) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", served.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The number at which something stays for a second.
fn wait_until_it_stops(number: impl Fn() -> usize) -> usize {
    let (mut last, mut same) = (0, 0);
    while same < 10 || last == 0 {
        std::thread::sleep(Duration::from_millis(100));
        let now = number();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

#[test]
fn devices_are_registered_pushed_to_by_their_user_and_dropped_when_they_are_dead() {
    let simulator = simulator(Behaviour::default());
    let directory = tempfile::tempdir().unwrap();
    let dead = format!("dead{:060x}", 7);
    let again = format!("bad0{:060x}", 8);
    {
        let served = Served::start(Some(directory.path()));
        assert_eq!(served.put("push/apns/shop?durable=1", &credential(&simulator, KEY)).0, 201);
        let answer = served.api(
            "push/devices/register",
            &json!({ "user": "ada", "devices": [
                { "provider": "apns", "app": "shop", "tokens": [token(1), dead, again] } ] }),
        );
        assert_eq!(answer["result"]["registered"], 3, "{answer}");
        let refused = served.api(
            "push/devices/register",
            &json!({ "user": "ada", "devices": [{ "provider": "apns", "app": "shop", "token": "ab" }] }),
        );
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("devices[0].token") && message.contains("64 to 200"), "{message}");
    }
    // They outlive the process.
    let served = Served::start(Some(directory.path()));
    let push = json!({ "notification": { "title": "Hi" }, "users": ["ada", "bob"] });
    let answer = served.api("push", &push);
    let result = &answer["result"];
    assert_eq!(
        (&result["accepted"], &result["rejected"], &result["not_sent"]),
        (&1.into(), &2.into(), &1.into()),
        "{answer}"
    );
    assert!(answer.to_string().contains(r#""reason":"no_device""#), "{answer}");

    let feed = |after: u64, wait_ms: u64| {
        served.api("push/devices/feed", &json!({ "after": after, "wait_ms": wait_ms }))["result"]
            .clone()
    };
    // The one that was dead before it was registered has a new lease; the other is of no use.
    let mut verdicts = Vec::new();
    while verdicts.len() < 2 {
        let page = feed(verdicts.len() as u64, 60_000);
        verdicts.extend(page["verdicts"].as_array().unwrap().clone());
        assert_eq!(page["cursor"], verdicts.len());
    }
    let dropped = |token: &str| {
        let of = verdicts.iter().find(|verdict| verdict["device"]["token"] == token).unwrap();
        (of["user"].clone(), of["reason"].clone(), of["dropped"].clone())
    };
    assert_eq!(dropped(&dead), ("ada".into(), "Unregistered".into(), false.into()));
    assert_eq!(dropped(&again), ("ada".into(), "BadDeviceToken".into(), true.into()));
    assert_eq!(feed(2, 0)["verdicts"], json!([]));
    let listed = served.api("push/devices/list", &json!({ "user": "ada" }));
    let listed = listed["result"]["devices"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 2, "{listed:?}");
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(listed.iter().all(|device| device["registered_ms"].as_u64().unwrap() <= now_ms));

    let removed = json!({ "devices": [{ "provider": "apns", "app": "shop", "token": token(1) }] });
    assert_eq!(served.api("push/devices/remove", &removed)["result"]["removed"], 1);
    assert_eq!(
        served.api("push/devices/remove", &json!({ "user": "ada" }))["result"]["removed"],
        1
    );
}

#[test]
fn who_is_connected_need_not_be_pushed_to() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let users = |push: &Value| -> HashMap<String, String> {
        let answer = served.api("push", push);
        let outcomes =
            answer["result"]["outcomes"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
        let word = |line: &Value| {
            line["reason"].as_str().or(line["outcome"].as_str()).unwrap_or_default().to_owned()
        };
        outcomes
            .iter()
            .map(|line| (line["user"].as_str().unwrap().to_owned(), word(line)))
            .collect()
    };
    for (user, n) in [("ada", 1), ("bob", 2)] {
        let device = json!({ "provider": "apns", "app": "shop", "token": token(n) });
        served.api("push/devices/register", &json!({ "user": user, "devices": [device] }));
    }
    // Ada has a session; development mode takes an unsigned word for it only from a token.
    let claims = json!({ "sub": "ada" });
    let secret = "a secret of this test, long enough";
    assert_eq!(served.put("client/token/hmac_secret", &json!(secret)).0, 200);
    let token = jsonwebtoken::encode(
        &jsonwebtoken::Header::default(),
        &claims,
        &jsonwebtoken::EncodingKey::from_secret(secret.as_bytes()),
    )
    .unwrap();
    let stream = Served::send(
        served.client,
        "POST",
        "/connection/uni_http_stream",
        &json!({ "token": token, "subs": {} }),
    );
    let mut session = BufReader::new(stream);
    let mut line = String::new();
    while !line.contains("\"connect\"") {
        line.clear();
        assert_ne!(session.read_line(&mut line).unwrap(), 0, "she connects");
    }
    let push = |only_offline: bool| json!({ "notification": { "title": "Hi" }, "users": ["ada", "bob"], "only_offline": only_offline });
    let expected =
        |ada: &str| HashMap::from([("ada".into(), ada.into()), ("bob".into(), "accepted".into())]);
    assert_eq!(users(&push(true)), expected("online"));
    assert_eq!(users(&push(false)), expected("accepted"));
}
