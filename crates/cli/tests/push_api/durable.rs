//! Durable acceptance: what was answered is sent, whatever becomes of the server, and the feed says how each push ended.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use dunlin_simulate::apns::{Behaviour, Config, Simulator};
use serde_json::{Value, json};

use super::kit::{KEY, Served, credential, simulator, to, token};

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Pushes that may have left and have no outcome in the journal.
const WINDOW: usize = 4_096;

/// The outcomes behind a cursor, once there are so many.
fn outcomes(served: &Served, after: u64, count: usize) -> Vec<Value> {
    let (mut outcomes, mut cursor): (Vec<Value>, u64) = (Vec::new(), after);
    let begun = Instant::now();
    while outcomes.len() < count {
        assert!(begun.elapsed() < TIMEOUT, "{} of {count}", outcomes.len());
        let follow = json!({ "after": cursor, "limit": 10_000, "wait_ms": 1_000 });
        let page = served.api("push/outcomes/feed", &follow);
        outcomes.extend(page["result"]["outcomes"].as_array().unwrap().clone());
        cursor = page["result"]["cursor"].as_u64().unwrap();
    }
    outcomes
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
        lines.by_ref().take(10).map(|line| line["token"].to_string()).collect();
    drop(lines);
    let begun = Instant::now();
    loop {
        let page = served.api("push/outcomes/feed", &json!({ "limit": 10_000, "wait_ms": 200 }));
        let feed = page["result"]["outcomes"].as_array().unwrap();
        let mut known: HashSet<String> =
            feed.iter().map(|line| line["token"].to_string()).collect();
        known.extend(read.iter().cloned());
        let accepted = simulator.counts().accepted as usize;
        // What the kernel of a client that is gone had taken nobody can know.
        let taken_at_most = accepted.saturating_sub(known.len());
        let ended =
            served.metrics().contains("dunlin_push_in_flight{provider=\"apns\",app=\"shop\"} 0");
        if ended && accepted > 0 && !feed.is_empty() && taken_at_most < 8_192 {
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "{accepted} accepted, {} known", known.len());
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
        let begun = Instant::now();
        while simulator.counts().accepted < enough {
            assert!(begun.elapsed() < TIMEOUT, "it goes on after {} kills", kill - 1);
            std::thread::sleep(Duration::from_millis(2));
        }
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

#[test]
fn a_durable_batch_survives_kill_9_and_ledger_and_feed_agree_push_by_push() {
    survive(15_000, 4);
}

/// The long form: `DUNLIN_PUSHES=1000000 DUNLIN_KILLS=20 cargo test --release --test push_api survives_at_length -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn a_durable_batch_survives_at_length() {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    survive(number("DUNLIN_PUSHES", 1_000_000), number("DUNLIN_KILLS", 20));
}

#[test]
fn sigterm_leaves_what_has_not_left_to_the_next_start_without_a_mark() {
    let simulator = simulator(Behaviour { rtt_ms: 50, ..Behaviour::default() });
    let state = tempfile::tempdir().unwrap();
    let mut served = Served::start(Some(state.path()));
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let tokens: Vec<String> = (0..15_000).map(token).collect();
    served.api("push/batch", &durable(json!({ "pushes": [to(&tokens)] }), None));
    let begun = Instant::now();
    while simulator.counts().accepted < 500 {
        assert!(begun.elapsed() < TIMEOUT, "it sends");
        std::thread::sleep(Duration::from_millis(2));
    }
    served.terminate();
    let served = Served::start(Some(state.path()));
    let feed = outcomes(&served, 0, tokens.len());
    let marked = feed.iter().filter(|line| line["possible_duplicate"] == true).count();
    assert_eq!((feed.len(), marked), (tokens.len(), 0));
    assert_eq!(simulator.counts().accepted, tokens.len() as u64, "none twice");
}
