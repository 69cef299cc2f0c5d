//! One push to all who follow a broadcast channel.

use std::process::Command;

use dunlin_simulate::apns::Behaviour;
use serde_json::{Value, json};

use super::kit::{KEY, Served, credential, simulator, token};

const CHANNEL: &str = "dHN0LXNyY2gtY2hubA==";

/// A score, as Live Activities take it.
fn score() -> Value {
    json!({ "apns": { "aps": { "timestamp": 1_700_000_000, "event": "update", "content-state": { "goals": 1 } } } })
}

#[test]
fn one_push_goes_to_all_that_follow_a_channel_beside_devices_of_their_own() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let broadcast = json!({ "provider": "apns", "app": "shop", "channel": CHANNEL });
    let push = json!({
        "notification": score(), "broadcasts": [broadcast],
        "devices": [{ "provider": "apns", "app": "shop", "token": token(1) }]
    });
    let answer = served.api("push", &push);
    assert_eq!(answer["result"]["accepted"], 2, "{answer}");
    let outcomes = answer["result"]["outcomes"].as_array().unwrap();
    let reported = outcomes.iter().find(|line| line["channel"] == CHANNEL).unwrap();
    assert_eq!((&reported["app"], &reported["outcome"]), (&"shop".into(), &"accepted".into()));
    assert!(reported.get("token").is_none(), "{reported}");
    // The simulator judges type, channel and size as Apple documents them, and writes the app where a token would stand.
    let ledger = simulator.ledger();
    let entry = ledger.iter().find(|entry| entry.device_token == "com.example.app").unwrap();
    assert_eq!((entry.status, &*entry.topic), (200, "com.example.app"));

    // A batch numbers its notifications; this one goes to a channel alone, and would be kept for a minute.
    let mut kept = score();
    kept["ttl_s"] = 60.into();
    kept["collapse_id"] = "match-7".into();
    let push = json!({ "pushes": [{ "notification": kept, "broadcasts": [broadcast] }] });
    let lines: Vec<Value> = served.batch(&push).collect();
    assert_eq!((&lines[0]["push"], &lines[0]["outcome"]), (&0.into(), &"accepted".into()));
    assert_eq!((&lines[1]["end"], &lines[1]["accepted"]), (&true.into(), &1.into()));
    let accepted = "dunlin_push_outcomes_total{provider=\"apns\",app=\"shop\",outcome=\"accepted\",reason=\"\"} 3";
    assert!(served.metrics().contains(accepted));
}

#[test]
fn a_broadcast_that_phones_would_pass_over_is_refused_with_its_field() {
    let served = Served::start(None);
    let broadcast = json!({ "provider": "apns", "app": "shop", "channel": CHANNEL });
    let mut alert = score();
    alert["apns_options"] = json!({ "push_type": "alert" });
    for (push, field) in [
        (
            json!({ "notification": { "title": "Goal!" }, "broadcasts": [broadcast] }),
            "notification.apns.aps",
        ),
        (
            json!({ "notification": alert, "broadcasts": [broadcast] }),
            "notification.apns_options.push_type",
        ),
        (
            json!({ "notification": score(), "broadcasts": [{ "provider": "apns", "app": "shop" }] }),
            "broadcasts[0]: channel",
        ),
        (
            json!({ "notification": score(), "broadcasts": [{ "provider": "web", "app": "shop", "topic": "x" }] }),
            "broadcasts[0]: provider",
        ),
    ] {
        let (status, text) = Served::call(served.client, "POST", "/api/push", &push);
        assert!(status == 400 && text.contains(field), "{status} {text}");
    }
    // A channel is no device, and no user has it.
    let device = json!([{ "provider": "apns", "app": "shop", "channel": CHANNEL }]);
    let body = json!({ "user": "ada", "devices": device });
    let (status, text) = Served::call(served.client, "POST", "/api/push/devices/register", &body);
    assert!(status == 400 && text.contains("channel"), "{status} {text}");
}

#[test]
fn a_broadcast_can_be_sent_from_a_shell() {
    let simulator = simulator(Behaviour::default());
    let directory = tempfile::tempdir().unwrap();
    let (ca, key) = (directory.path().join("ca.pem"), directory.path().join("key.p8"));
    std::fs::write(&ca, simulator.ca_pem()).unwrap();
    std::fs::write(&key, KEY).unwrap();
    let send = |notification: &Value| {
        let output = Command::new(env!("CARGO_BIN_EXE_dunlin"))
            .args(["push", "send", "apns", "--channel", CHANNEL, "--topic", "com.example.app"])
            .args(["--key-id", "KEY1234567", "--team-id", "TEAM123456", "--key"])
            .arg(&key)
            .args(["--address", &simulator.addr().to_string(), "--roots"])
            .arg(&ca)
            .args(["--notification", &notification.to_string()])
            .output()
            .unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), text)
    };
    let (sent, reported) = send(&score());
    assert!(sent && reported.starts_with("accepted"), "{reported}");
    assert_eq!(simulator.ledger()[0].device_token, "com.example.app");
    let (sent, reported) = send(&json!({ "title": "Goal!" }));
    assert!(
        !sent && reported.contains("notification.apns.aps") && reported.contains("timestamp"),
        "{reported}"
    );
}
