//! One notification, and what became of it.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use dunlin_simulate::apns::Behaviour;
use serde_json::{Value, json};

use super::kit::{KEY, Served, credential, simulator, to, token};
use crate::kit::TIMEOUT;
use crate::kit::redis;

#[test]
fn a_backend_pushes_to_devices_and_is_reported_of_each_what_became_of_it() {
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

/// What became of a push to each user.
fn outcomes(served: &Served, push: &Value) -> HashMap<String, String> {
    let answer = served.api("push", push);
    let outcomes =
        answer["result"]["outcomes"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
    let word = |line: &Value| {
        line["reason"].as_str().or(line["outcome"].as_str()).unwrap_or_default().to_owned()
    };
    outcomes.iter().map(|line| (line["user"].as_str().unwrap().to_owned(), word(line))).collect()
}

/// Registers a device of ada and one of bob.
fn register(served: &Served) {
    for (user, n) in [("ada", 1), ("bob", 2)] {
        let device = json!({ "provider": "apns", "app": "shop", "token": token(n) });
        served.api("push/devices/register", &json!({ "user": user, "devices": [device] }));
    }
}

/// Connects ada. Development mode takes an unsigned word for who she is only from a token.
fn connect_ada(served: &Served) -> BufReader<TcpStream> {
    let secret = "a secret of this test, long enough";
    assert_eq!(served.put("client/token/hmac_secret", &json!(secret)).0, 200);
    let token = std::process::Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["token", "ada", "--secret", secret])
        .output()
        .expect("the binary runs");
    let token = String::from_utf8(token.stdout).expect("a token");
    let stream = Served::send(
        served.client,
        "POST",
        "/connection/uni_http_stream",
        &json!({ "token": token.trim_end(), "subs": {} }),
    );
    let mut session = BufReader::new(stream);
    let mut line = String::new();
    while !line.contains("\"connect\"") {
        line.clear();
        assert_ne!(session.read_line(&mut line).unwrap(), 0, "she connects");
    }
    session
}

fn push_to_both(only_offline: bool) -> Value {
    json!({ "notification": { "title": "Hi" }, "users": ["ada", "bob"], "only_offline": only_offline })
}

fn expected(ada: &str) -> HashMap<String, String> {
    HashMap::from([("ada".into(), ada.into()), ("bob".into(), "accepted".into())])
}

#[test]
fn connected_user_is_not_pushed_to() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    register(&served);
    let _ada = connect_ada(&served);
    assert_eq!(outcomes(&served, &push_to_both(true)), expected("online"));
    assert_eq!(outcomes(&served, &push_to_both(false)), expected("accepted"));
}

#[test]
fn user_connected_to_another_node_is_not_pushed_to() {
    let simulator = simulator(Behaviour::default());
    let redis = redis::start();
    let nodes = [Served::start(None), Served::start(None)];
    for node in &nodes {
        let engine = json!({ "addresses": [redis.addr.to_string()] });
        let (status, answer) = node.put("engines/main", &engine);
        assert_eq!(status, 201, "{answer}");
        let (status, answer) = node.put("cluster/engine", &json!("main"));
        assert_eq!(status, 200, "{answer}");
    }
    let [sender, other] = &nodes;
    let living = || {
        let (_, status) = Served::call(sender.admin, "GET", "/cluster", &Value::Null);
        let status: Value = serde_json::from_str(&status).unwrap();
        status["nodes"]
            .as_array()
            .map_or(0, |all| all.iter().filter(|of| of["alive"] == true).count())
    };
    let deadline = Instant::now() + TIMEOUT;
    while living() < 2 {
        assert!(Instant::now() < deadline, "they do not meet");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(sender.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    register(sender);
    assert_eq!(outcomes(sender, &push_to_both(true)), expected("accepted"));
    let _ada = connect_ada(other);
    assert_eq!(outcomes(sender, &push_to_both(true)), expected("online"));
    assert_eq!(outcomes(sender, &push_to_both(false)), expected("accepted"));
}
