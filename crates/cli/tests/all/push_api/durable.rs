//! Durable acceptance: what was answered is sent, whatever becomes of the server, and the feed says how each push ended.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dunlin_simulate::apns::{AnswerTime, Behaviour, Config, Simulator};
use serde_json::{Value, json};

use super::kit::{KEY, Served, credential, simulator, to, token};

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Pushes that may have left and have no outcome in the journal.
const WINDOW: usize = 4_096;

/// The outcomes behind a cursor, once there are so many.
fn outcomes(served: &Served, after: u64, count: usize) -> Vec<Value> {
    let (mut outcomes, mut cursor): (Vec<Value>, Value) = (Vec::new(), after.into());
    let begun = Instant::now();
    while outcomes.len() < count {
        assert!(begun.elapsed() < TIMEOUT, "{} of {count}", outcomes.len());
        let follow = json!({ "after": cursor, "limit": 10_000, "wait_ms": 1_000 });
        let page = served.api("push/outcomes/feed", &follow);
        outcomes.extend(page["result"]["outcomes"].as_array().unwrap().clone());
        cursor = page["result"]["cursor"].clone();
    }
    outcomes
}

/// Waits until something is so.
fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < TIMEOUT, "it never came to be");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn durable(mut push: Value, key: Option<&str>) -> Value {
    push["durable"] = true.into();
    if let Some(key) = key {
        push["idempotency_key"] = key.into();
    }
    push
}

#[test]
fn a_durable_push_is_answered_once_it_is_kept_and_its_outcome_is_in_the_feed() {
    let simulator = simulator(Behaviour::default());
    let nowhere = Served::start(None);
    let refused = nowhere.api("push", &durable(to(&[token(1)]), None));
    assert!(refused["error"]["message"].to_string().contains("--state"), "{refused}");

    let state = tempfile::tempdir().unwrap();
    let served = Served::start(Some(state.path()));
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let id = "123e4567-e89b-12d3-a456-426614174000";
    let mut push = to(&[]);
    push["devices"] = json!([
        { "provider": "apns", "app": "shop", "token": token(1), "id": id },
        { "provider": "apns", "app": "shop", "tokens": [token(2), format!("dead{:060x}", 3)] },
    ]);
    push["users"] = json!(["nobody"]);
    let push = durable(push, Some("order 7"));
    let answer = served.api("push", &push);
    let taken = json!({ "batch": 1, "pushes": 3 });
    assert_eq!(answer["result"]["durable"], taken, "{answer}");
    let again = served.api("push", &push);
    assert_eq!(again["result"]["durable"]["repeated"], true, "{again}");
    let feed = outcomes(&served, 0, 4);
    assert_eq!(feed.len(), 4, "{feed:?}");
    let of = |token: &str| feed.iter().find(|line| line["token"] == token).unwrap();
    assert_eq!((&of(&token(1))["outcome"], &of(&token(1))["id"]), (&"accepted".into(), &id.into()));
    assert_eq!((&of(&token(2))["batch"], &of(&token(2))["push"]), (&1.into(), &0.into()));
    assert_eq!(of(&format!("dead{:060x}", 3))["reason"], "Unregistered");
    assert!(feed.iter().any(|line| line["user"] == "nobody" && line["reason"] == "no_device"));
    assert_eq!(simulator.counts().accepted, 2, "the key is carried out once");

    let at_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() + 2;
    let mut later = durable(to(&[token(4)]), None);
    later["send_at_s"] = at_s.into();
    served.api("push", &later);
    assert_eq!(outcomes(&served, 4, 1)[0]["token"], token(4));
    assert!(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() >= at_s, "not before its time");
}

#[test]
fn durable_batch_posted_right_after_a_start_is_sent_once() {
    let simulator = simulator(Behaviour::default());
    let state = tempfile::tempdir().unwrap();
    let served = Served::start(Some(state.path()));
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let mut served = Some(served);
    for start in 1..=5 {
        served.take().unwrap().terminate();
        let again = Served::start(Some(state.path()));
        again.api("push", &durable(to(&[token(start)]), None));
        let feed = outcomes(&again, 0, start);
        assert!(feed.iter().all(|line| line["outcome"] == "accepted"), "{feed:?}");
        served = Some(again);
    }
    assert_eq!(simulator.counts().accepted, 5, "each once");
}

#[test]
fn scheduled_batches_are_listed_and_cancelled_and_a_cancelled_one_is_never_sent() {
    let simulator = simulator(Behaviour::default());
    let state = tempfile::tempdir().unwrap();
    let served = Served::start(Some(state.path()));
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let at_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() + 3;
    let mut later = durable(to(&[token(1), token(2)]), Some("later"));
    later["send_at_s"] = at_s.into();
    let batch = |answer: &Value| answer["result"]["durable"]["batch"].clone();
    let first = batch(&served.api("push", &later));
    later["idempotency_key"] = "another".into();
    let second = batch(&served.api("push", &later));
    let listed = served.api("push/scheduled/list", &json!({}));
    let scheduled = |batch: &Value| json!({ "batch": batch, "pushes": 2, "send_at_s": at_s });
    let all = json!([scheduled(&first), scheduled(&second)]);
    assert_eq!(listed["result"]["scheduled"], all, "{listed}");
    let cancelled = served.api("push/scheduled/cancel", &json!({ "batch": first }));
    assert_eq!(cancelled["result"], json!({ "batch": first, "cancelled": 2 }));
    let gone = served.api("push/scheduled/cancel", &json!({ "batch": first }));
    assert_eq!(gone["error"]["code"], 104, "{gone}");
    let next = served.api("push/scheduled/list", &json!({ "after": second }));
    assert_eq!(next["result"]["scheduled"], json!([]));

    let client = served.client.to_string();
    let listed = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["push", "scheduled", "list", "--json", "--server", &client])
        .output()
        .unwrap();
    let listed: Value =
        serde_json::from_slice(&listed.stdout).unwrap_or_else(|_| panic!("{listed:?}"));
    assert_eq!(listed["scheduled"][0]["batch"], second);
    assert_eq!(outcomes(&served, 0, 2).len(), 2);
    assert_eq!(simulator.counts().accepted, 2, "those of the second");
    let cancelled = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["push", "scheduled", "cancel", &second.to_string(), "--server", &client])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&cancelled.stderr).into_owned();
    assert!(!cancelled.status.success() && said.contains("not in the journal"), "{said}");
}

#[test]
fn in_a_cluster_answers_name_the_node_and_a_key_says_whose_it_is() {
    let simulator = simulator(Behaviour::default());
    let state = tempfile::tempdir().unwrap();
    let served = Served::start(Some(state.path()));
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let alone = served.api("push", &to(&[token(1)]));
    assert!(alone["result"].get("node").is_none(), "{alone}");
    // A store that is not there: the node is one of a cluster nevertheless.
    let engine = json!({ "type": "redis", "addresses": ["127.0.0.1:9"] });
    assert_eq!(served.put("engines/shared", &engine).0, 201);
    assert_eq!(served.put("server/name", &json!("n1")).0, 200);
    assert_eq!(served.put("cluster/engine", &json!("shared")).0, 200);
    let answer = served.api("push", &to(&[token(2)]));
    assert_eq!(answer["result"]["node"], "n1", "{answer}");
    let mut push = durable(to(&[token(3)]), Some("order 7"));
    let refused = served.api("push", &push);
    let why = refused["error"]["message"].as_str().unwrap();
    assert!(why.contains("add `node`") && why.contains("\"n1\""), "{refused}");
    push["node"] = "n2".into();
    assert!(served.api("push", &push)["error"]["message"].to_string().contains("n2 was named"));
    push["node"] = "n1".into();
    assert_eq!(served.api("push", &push)["result"]["node"], "n1");
    let mut absent = to(&[]);
    absent["devices"] = json!([]);
    absent["users"] = json!(["nobody"]);
    let answer = served.api("push", &absent);
    let line = &answer["result"]["outcomes"][0];
    assert!(line["detail"].to_string().contains("at this node (n1)"), "{answer}");
    for feed in ["push/outcomes/feed", "push/devices/feed"] {
        let page = served.api(feed, &json!({ "after": 0 }));
        assert_eq!(page["result"]["node"], "n1", "{page}");
        let future = served.api(feed, &json!({ "after": 1_000_000 }));
        assert_eq!(future["error"]["code"], 112, "{future}");
        let foreign = served.api(feed, &json!({ "after": "1-0" }));
        assert!(foreign["error"]["message"].to_string().contains("n1"), "{foreign}");
    }
}

/// A backend that takes webhooks: the events that are posted to it.
fn backend() -> (SocketAddr, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, events) = mpsc::channel();
    let serve = move |stream: TcpStream| -> Option<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let (mut line, mut length) = (String::new(), 0);
            while line != "\r\n" {
                line.clear();
                (reader.read_line(&mut line).ok()? > 0).then_some(())?;
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().ok()?;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let posted: Vec<Value> = serde_json::from_slice(&body).ok()?;
            posted.into_iter().try_for_each(|event| sender.send(event)).ok()?;
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok()?;
        }
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    (address, events)
}

#[test]
fn a_hook_is_posted_what_the_feed_has() {
    let simulator = simulator(Behaviour::default());
    let state = tempfile::tempdir().unwrap();
    let served = Served::start(Some(state.path()));
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let (address, events) = backend();
    let members = json!({ "a": { "address": address.to_string() } });
    assert_eq!(served.put("webhooks/upstreams/backend", &json!({ "members": members })).0, 201);
    let hook = json!({ "upstream": "backend", "events": ["push_outcome"] });
    assert_eq!(served.put("webhooks/hooks/pushes", &hook).0, 201);
    let tokens: Vec<String> = (0..300).map(token).collect();
    served.api("push", &durable(to(&tokens), None));
    let feed = outcomes(&served, 0, tokens.len());
    let mut posted = HashMap::new();
    while posted.len() < tokens.len() {
        let event = events.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(event["event"], "push_outcome", "{event}");
        posted.insert(event["data"]["token"].to_string(), event["data"].clone());
    }
    for mut line in feed {
        line.as_object_mut().unwrap().remove("n");
        assert_eq!(posted[&line["token"].to_string()], line);
    }
}

#[test]
fn a_key_of_a_push_that_is_not_durable_has_the_same_answer_again() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let mut push = to(&[token(1)]);
    push["idempotency_key"] = "once".into();
    let (first, second) = (served.api("push", &push), served.api("push", &push));
    assert_eq!(first["result"]["accepted"], 1, "{first}");
    assert_eq!(first, second);
    assert_eq!(simulator.counts().accepted, 1);
}

#[test]
fn a_client_that_hangs_up_finds_the_outcomes_of_what_had_begun_in_the_feed() {
    let simulator = simulator(Behaviour { rtt_ms: 100, ..Behaviour::default() });
    let served = Served::start(None);
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let tokens: Vec<String> = (0..20_000).map(token).collect();
    let mut lines = served.batch(&json!({ "pushes": [to(&tokens)] }));
    let read: HashSet<String> =
        lines.by_ref().take(10).map(|line| line["token"].as_str().unwrap().to_owned()).collect();
    drop(lines);
    let (mut known, mut cursor, mut fed) = (read, Value::from(0), false);
    let begun = Instant::now();
    loop {
        let follow = json!({ "after": cursor, "limit": 10_000, "wait_ms": 200 });
        let page = served.api("push/outcomes/feed", &follow);
        let feed = page["result"]["outcomes"].as_array().unwrap();
        known.extend(feed.iter().map(|line| line["token"].as_str().unwrap().to_owned()));
        fed |= !feed.is_empty();
        cursor = page["result"]["cursor"].clone();
        let ended =
            served.metrics().contains("dunlin_push_in_flight{provider=\"apns\",app=\"shop\"} 0");
        let accepted = simulator.ledger().into_iter().map(|entry| entry.device_token);
        let missing = accepted.filter(|token| !known.contains(token)).count();
        if ended && fed && missing == 0 {
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "{missing} outcomes are missing");
    }
}

/// Sends a durable batch and kills the server again and again meanwhile; ledger and feed agree push by push.
fn survive(pushes: usize, kills: usize) {
    let behaviour = Behaviour { rtt_ms: 20, ..Behaviour::default() };
    let config = Config { behaviour, ledger_max: pushes * 2 + 100_000, ..Config::default() };
    let simulator = Simulator::start(config).unwrap();
    let state = tempfile::tempdir().unwrap();
    let mut served = Served::start(Some(state.path()));
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let begun = Instant::now();
    for (at, tokens) in (0..pushes).map(token).collect::<Vec<_>>().chunks(50_000).enumerate() {
        let batch = json!({ "pushes": [to(tokens)] });
        let answer = served.api("push/batch", &durable(batch, Some(&format!("part {at}"))));
        assert_eq!(answer["result"]["durable"]["pushes"], tokens.len(), "{answer}");
    }
    let accepted_s = begun.elapsed().as_secs_f64();
    for kill in 1..=kills {
        let enough = (pushes * kill / (kills + 1)) as u64;
        until(|| simulator.counts().accepted >= enough);
        served.kill();
        served = Served::start(Some(state.path()));
    }
    let feed = outcomes(&served, 0, pushes);
    assert_eq!(feed.len(), pushes, "each has one outcome");
    let of: HashMap<&str, &Value> =
        feed.iter().map(|line| (line["token"].as_str().unwrap(), line)).collect();
    assert_eq!(of.len(), pushes, "each its own");
    let mut accepted: HashMap<String, usize> = HashMap::new();
    for entry in simulator.ledger().into_iter().filter(|entry| entry.status == 200) {
        *accepted.entry(entry.device_token).or_default() += 1;
    }
    let (mut twice, mut marked) = (0, 0);
    for (token, line) in &of {
        let times = accepted.get(*token).copied().unwrap_or(0);
        let mark = line["possible_duplicate"] == true;
        assert_eq!(line["outcome"], "accepted", "{line}");
        assert!(times == 1 || (times > 1 && mark), "{times} times: {line}");
        twice += usize::from(times > 1);
        marked += usize::from(mark);
    }
    eprintln!(
        "{pushes} pushes taken in {accepted_s:.1} s, all ended after {:.1} s and {kills} kills; {twice} twice, {marked} marked",
        begun.elapsed().as_secs_f64()
    );
    assert!(marked <= kills * WINDOW, "{marked} marked");
}

/// `scripts/durable-pushes 1000000 20` is the long form.
#[test]
fn a_durable_batch_survives_kill_9_and_ledger_and_feed_agree_push_by_push() {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    survive(number("DUNLIN_PUSHES", 15_000), number("DUNLIN_KILLS", 4));
}

#[test]
fn a_disk_that_fails_for_a_while_delays_a_durable_batch_and_loses_nothing() {
    // So late that most of the batch still waits for its turn when the disk fails, on any machine.
    let answer_time = AnswerTime::constant(10_000.0);
    let simulator =
        simulator(Behaviour { streams_first: 1_000, answer_time, ..Behaviour::default() });
    let state = tempfile::tempdir().unwrap();
    let served = Served::start(Some(state.path()));
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let tokens: Vec<String> = (0..15_000).map(token).collect();
    served.api("push/batch", &durable(json!({ "pushes": [to(&tokens)] }), None));
    until(|| simulator.counts().received > 0);
    // From here on every write to a file fails (EFBIG). What has left is answered.
    served.set_file_bytes_max(Some(0));
    simulator.set_behaviour(Behaviour { streams_first: 1_000, ..Behaviour::default() }).unwrap();
    until(|| simulator.counts().accepted > 0);
    until(|| served.metrics().contains("dunlin_push_in_flight{provider=\"apns\",app=\"shop\"} 0"));
    let left = simulator.counts().accepted;
    assert!(left < tokens.len() as u64, "what is not in the journal does not leave: {left}");
    served.set_file_bytes_max(None);
    let feed = outcomes(&served, 0, tokens.len());
    assert!(feed.iter().all(|line| line["outcome"] == "accepted"));
    assert_eq!(simulator.counts().accepted, tokens.len() as u64, "none twice");
}

#[test]
fn sigterm_leaves_what_has_not_left_to_the_next_start_without_a_mark() {
    let simulator = simulator(Behaviour { rtt_ms: 50, ..Behaviour::default() });
    let state = tempfile::tempdir().unwrap();
    let mut served = Served::start(Some(state.path()));
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let tokens: Vec<String> = (0..15_000).map(token).collect();
    served.api("push/batch", &durable(json!({ "pushes": [to(&tokens)] }), None));
    until(|| simulator.counts().accepted >= 500);
    served.terminate();
    let served = Served::start(Some(state.path()));
    let feed = outcomes(&served, 0, tokens.len());
    let marked = feed.iter().filter(|line| line["possible_duplicate"] == true).count();
    assert_eq!((feed.len(), marked), (tokens.len(), 0));
    assert_eq!(simulator.counts().accepted, tokens.len() as u64, "none twice");
}
