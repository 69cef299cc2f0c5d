//! The registry of devices: who has which, what is acknowledged, and what is dropped.

use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunlin_simulate::apns::{Behaviour, Config, Reason, Rule, Simulator};
use serde_json::{Value, json};

use super::kit::{KEY, Served, credential, simulator, token};

#[test]
fn a_user_and_a_device_are_sent_what_the_limits_of_the_moment_allow() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let device = |n| json!({ "provider": "apns", "app": "shop", "token": token(n) });
    let devices = json!({ "user": "ada", "devices": [device(1), device(2)] });
    served.api("push/devices/register", &devices);
    let to_ada = json!({ "notification": { "title": "Hi" }, "users": ["ada"] });
    let to_one = json!({ "notification": { "title": "Hi" }, "devices": [device(1)] });
    let ends = |push: &Value| {
        let result = served.api("push", push)["result"].clone();
        let first = result["outcomes"][0]["reason"].clone();
        (result["accepted"].as_u64().unwrap(), result["not_sent"].as_u64().unwrap(), first)
    };
    let limit = |name: &str, max: u32| {
        assert_eq!(served.put(&format!("limits/{name}"), &json!(max)).0, 200);
    };
    limit("pushes_per_user_per_min_max", 1);
    assert_eq!(ends(&to_ada), (2, 0, Value::Null));
    assert_eq!(ends(&to_ada), (0, 1, "user_limit".into()));
    limit("pushes_per_user_per_min_max", 0);
    limit("pushes_per_device_per_min_max", 2);
    assert_eq!(ends(&to_one), (1, 0, Value::Null));
    assert_eq!(ends(&to_ada), (2, 0, Value::Null));
    assert_eq!(ends(&to_one), (0, 1, "device_limit".into()));
    let (accepted, not_sent, _) = ends(&to_ada);
    assert_eq!((accepted, not_sent), (1, 1), "the other device has one left");
    limit("pushes_per_device_per_min_max", 0);
    assert_eq!(ends(&to_ada), (2, 0, Value::Null));
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

    let feed = |after: &Value, wait_ms: u64| {
        served.api("push/devices/feed", &json!({ "after": after, "wait_ms": wait_ms }))["result"]
            .clone()
    };
    // The one that was dead before it was registered has a new lease; the other is of no use.
    let (mut entries, mut cursor) = (Vec::new(), Value::from(0));
    while entries.len() < 2 {
        let page = feed(&cursor, 60_000);
        entries.extend(page["entries"].as_array().unwrap().clone());
        cursor = page["cursor"].clone();
        let number = cursor.as_str().unwrap().split_once('-').unwrap().1;
        assert_eq!(number, entries.len().to_string());
    }
    let dropped = |token: &str| {
        let of = entries.iter().find(|entry| entry["device"]["token"] == token).unwrap();
        (of["user"].clone(), of["reason"].clone(), of["dropped"].clone())
    };
    assert_eq!(dropped(&dead), ("ada".into(), "Unregistered".into(), false.into()));
    assert_eq!(dropped(&again), ("ada".into(), "BadDeviceToken".into(), true.into()));
    assert_eq!(feed(&cursor, 0)["entries"], json!([]));
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

fn device(token: &str) -> Value {
    json!([{ "provider": "apns", "app": "shop", "token": token }])
}

#[test]
fn acknowledged_change_survives_a_kill() {
    const WRITERS: usize = 16;
    let directory = tempfile::tempdir().unwrap();
    let acknowledged: Mutex<Vec<String>> = Mutex::default();
    for life in 0..3 {
        let mut served = Served::start(Some(directory.path()));
        for user in acknowledged.lock().unwrap().iter() {
            let listed = served.api("push/devices/list", &json!({ "user": user }));
            assert_eq!(
                listed["result"]["devices"].as_array().map(Vec::len),
                Some(1),
                "{user}: {listed}"
            );
        }
        let before = acknowledged.lock().unwrap().len();
        // Killed while all of them write: whoever had an answer must find the device again.
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (client, acknowledged) = (served.client, &acknowledged);
                scope.spawn(move || {
                    for n in 0.. {
                        let user = format!("user-{life}-{writer}-{n}");
                        let token = format!("{life:04x}{writer:04x}{n:056x}");
                        let body = json!({ "user": user, "devices": device(&token) });
                        match Served::try_call(client, "/api/push/devices/register", &body) {
                            Some((200, _)) => acknowledged.lock().unwrap().push(user),
                            Some((status, text)) => panic!("{status} {text}"),
                            None => return,
                        }
                    }
                });
            }
            while acknowledged.lock().unwrap().len() < before + 10 * WRITERS {
                std::thread::sleep(Duration::from_millis(1));
            }
            served.kill();
        });
    }
}

/// Pushes to a user, and gives the reason of each line by its token.
fn push_to(served: &Served, user: &str) -> Vec<String> {
    let push = json!({ "notification": { "title": "Hi" }, "users": [user] });
    let answer = served.api("push", &push);
    let outcomes = answer["result"]["outcomes"].as_array().unwrap_or_else(|| panic!("{answer}"));
    outcomes.iter().map(|line| line["reason"].as_str().unwrap_or("").to_owned()).collect()
}

/// The entries behind a cursor, once there are so many.
fn entries(served: &Served, after: usize, count: usize) -> Vec<Value> {
    let mut entries = Vec::new();
    while entries.len() < count {
        let follow = json!({ "after": after + entries.len(), "wait_ms": 60_000 });
        let page = served.api("push/devices/feed", &follow);
        entries.extend(page["result"]["entries"].as_array().unwrap().clone());
    }
    entries
}

fn listed(served: &Served, user: &str) -> usize {
    let listed = served.api("push/devices/list", &json!({ "user": user }));
    listed["result"]["devices"].as_array().unwrap().len()
}

#[test]
fn a_credential_of_the_wrong_environment_costs_nobody_their_devices() {
    const DEVICES: usize = 50;
    // Apple's sandbox does not know tokens of apps from the store.
    let any = Rule {
        token: String::new(),
        topic: None,
        every: 0,
        times: 0,
        reason: Reason::BadDeviceToken,
        timestamp_ms: None,
    };
    let sandbox = Simulator::start(Config { rules: vec![any], ..Config::default() }).unwrap();
    let production = simulator(Behaviour::default());
    let served = Served::start(None);
    let tokens: Vec<String> = (0..DEVICES).map(token).chain([format!("bad0{:060x}", 1)]).collect();
    let devices = json!([{ "provider": "apns", "app": "shop", "tokens": tokens }]);
    served.api("push/devices/register", &json!({ "user": "ada", "devices": devices }));

    assert_eq!(served.put("push/apns/shop", &credential(&sandbox, KEY)).0, 201);
    let reasons = push_to(&served, "ada");
    assert!(reasons.iter().all(|reason| reason == "BadDeviceToken"), "{reasons:?}");
    let reported = entries(&served, 0, DEVICES + 1);
    assert!(reported.iter().all(|entry| entry["kept"] == "environment" && entry["user"] == "ada"));
    assert_eq!(listed(&served, "ada"), DEVICES + 1, "all of them are kept");
    let doubtful = "dunlin_push_environment_suspect{provider=\"apns\",app=\"shop\"}";
    let metrics = served.metrics();
    assert!(metrics.contains(&format!("{doubtful} 1")), "{metrics}");
    let kept =
        format!("dunlin_push_bad_tokens_kept{{provider=\"apns\",app=\"shop\"}} {}", DEVICES + 1);
    assert!(metrics.contains(&kept), "{metrics}");

    // The right one: what is bad among good ones is bad.
    assert_eq!(served.put("push/apns/shop", &credential(&production, KEY)).0, 200);
    let reasons = push_to(&served, "ada");
    assert_eq!(reasons.iter().filter(|reason| reason.is_empty()).count(), DEVICES);
    let reported = entries(&served, DEVICES + 1, 1);
    assert_eq!(
        (&reported[0]["dropped"], &reported[0]["kept"]),
        (&true.into(), &Value::Null),
        "{reported:?}"
    );
    assert_eq!(listed(&served, "ada"), DEVICES);
    assert!(served.metrics().contains(&format!("{doubtful} 0")));
}
