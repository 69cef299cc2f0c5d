//! One notification, and what became of it.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};

use dunlin_simulate::apns::Behaviour;
use serde_json::{Value, json};

use super::kit::{KEY, Served, credential, simulator, to, token};

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
    let push = |only_offline: bool| json!({ "notification": { "title": "Hi" }, "users": ["ada", "bob"], "only_offline": only_offline });
    let expected =
        |ada: &str| HashMap::from([("ada".into(), ada.into()), ("bob".into(), "accepted".into())]);
    assert_eq!(users(&push(true)), expected("online"));
    assert_eq!(users(&push(false)), expected("accepted"));
}
