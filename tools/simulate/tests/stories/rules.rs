//! Tests of the API's rules: each header, each reason.

use dunlin_simulate::apns::{Behaviour, Config, Environment, Reason, Rule, Simulator};

use crate::sender::{Sender, TOKEN, plain, scenario};

type Headers<'a> = &'a [(&'a str, &'a str)];

#[test]
fn a_push_is_accepted_and_stands_in_the_ledger() {
    let simulator = plain(Behaviour::default());
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        let id = "123e4567-e89b-12d3-a456-426655440000";
        let answer = sender.push(TOKEN, &[("apns-id", id)]).await;
        assert_eq!((answer.status, answer.apns_id.as_str()), (200, id));
        let given = sender.push(TOKEN, &[]).await.apns_id;
        assert!(given.len() == 36 && given != id, "{given}");

        let ledger = simulator.ledger();
        assert_eq!(ledger.len(), 2);
        let entry = &ledger[0];
        assert_eq!((entry.n, entry.connection, entry.stream, entry.status), (1, 1, 1, 200));
        assert_eq!((entry.apns_id.as_str(), entry.device_token.as_str()), (id, TOKEN));
        assert_eq!(entry.topic, "com.example.app");
        // printf '{"aps":{"alert":"hello"}}' | sha256sum | cut -c-16
        assert_eq!(entry.body_sha256, "aade16f97c8aa1cb");
        assert_eq!(ledger[1].apns_id, given);
        assert_eq!(simulator.counts().accepted, 2);
    });
}

#[test]
fn each_fault_of_a_request_has_its_reason() {
    let long = "x".repeat(65);
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("apns-id", "1234")], "BadMessageId"),
        (&[("apns-expiration", "tomorrow")], "BadExpirationDate"),
        (&[("apns-expiration", "-1")], "BadExpirationDate"),
        (&[("apns-priority", "7")], "BadPriority"),
        (&[("apns-push-type", "background"), ("apns-priority", "10")], "BadPriority"),
        (&[("apns-push-type", "telegram")], "InvalidPushType"),
        (&[("apns-push-type", "voip")], "InvalidPushType"),
        (&[("apns-push-type", "alert"), ("apns-topic", "com.example.app.voip")], "InvalidPushType"),
        (&[("apns-topic", "")], "MissingTopic"),
        (&[("apns-topic", "com example")], "BadTopic"),
        (&[("apns-collapse-id", &long)], "BadCollapseId"),
        (&[("apns-priority", "5"), ("apns-priority", "5")], "DuplicateHeaders"),
        (&[("authorization", "")], "MissingProviderToken"),
        (&[("authorization", "bearer what.ever")], "InvalidProviderToken"),
        (&[("authorization", "basic abc")], "InvalidProviderToken"),
    ];
    let simulator = plain(Behaviour::default());
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        for (headers, reason) in cases {
            let answer = sender.push(TOKEN, headers).await;
            assert_eq!(answer.reason(), *reason, "{headers:?}");
            let known = Reason::ALL.iter().find(|known| known.as_str() == *reason).unwrap();
            assert_eq!(answer.status, known.status(), "{headers:?}");
            assert_eq!(answer.apns_id.len(), 36, "a refusal has an id too");
        }
        assert_eq!(simulator.counts().rejected, cases.len() as u64);
        assert_eq!(simulator.counts().accepted, 0);
    });
}

#[test]
fn method_path_and_payload_have_theirs() {
    let simulator = plain(Behaviour::default());
    let device = format!("/3/device/{TOKEN}");
    let broadcast = "/4/broadcasts/apps/com.example.app";
    let live: &[(&str, &str)] =
        &[("apns-channel-id", "dHN0LXNyY2gtY2hubA=="), ("apns-push-type", "liveactivity")];
    let voip: &[(&str, &str)] =
        &[("apns-topic", "com.example.app.voip"), ("apns-push-type", "voip")];
    let cases: &[(&str, &str, Headers<'_>, usize, u16, &str)] = &[
        ("GET", &device, &[], 0, 405, "MethodNotAllowed"),
        ("POST", "/3/devices", &[], 9, 404, "BadPath"),
        ("POST", "/", &[], 9, 404, "BadPath"),
        ("POST", "/3/device/", &[], 9, 400, "MissingDeviceToken"),
        ("POST", "/3/device/abc", &[], 9, 400, "BadDeviceToken"),
        ("POST", "/3/device/zz", &[], 9, 400, "BadDeviceToken"),
        ("POST", &device, &[], 0, 400, "PayloadEmpty"),
        ("POST", &device, &[], 4_096, 200, ""),
        ("POST", &device, &[], 4_097, 413, "PayloadTooLarge"),
        ("POST", &device, voip, 5_120, 200, ""),
        ("POST", &device, voip, 5_121, 413, "PayloadTooLarge"),
        ("POST", broadcast, live, 5_120, 200, ""),
        ("POST", broadcast, &[], 9, 400, "MissingChannelId"),
        ("POST", broadcast, &[("apns-channel-id", "!")], 9, 400, "BadChannelId"),
    ];
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        for (method, path, headers, bytes, status, reason) in cases {
            let body = vec![b' '; *bytes];
            let answer = sender.request(method, path, headers, &body).await.unwrap();
            let answer = crate::sender::read(answer).await.unwrap();
            assert_eq!(answer.status, *status, "{method} {path} {bytes}: {}", answer.body);
            if !reason.is_empty() {
                assert_eq!(answer.reason(), *reason, "{method} {path} {bytes}");
            }
        }
    });
}

#[test]
fn a_device_token_is_judged_by_its_first_digits() {
    let simulator = plain(Behaviour::default());
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        for (prefix, status, reason) in [
            ("dead", 410, "Unregistered"),
            ("e410", 410, "ExpiredToken"),
            ("bad0", 400, "BadDeviceToken"),
            ("d0f0", 400, "DeviceTokenNotForTopic"),
            ("0429", 429, "TooManyRequests"),
            ("0500", 500, "InternalServerError"),
            ("0503", 503, "ServiceUnavailable"),
        ] {
            let token = format!("{prefix}{}", &TOKEN[4..]);
            let answer = sender.push(&token, &[]).await;
            assert_eq!((answer.status, answer.reason().as_str()), (status, reason));
            let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!(body["timestamp"].is_u64(), status == 410, "{}", answer.body);
        }
        let entry = &simulator.ledger()[0];
        assert_eq!((entry.status, entry.reason), (410, Some(Reason::Unregistered)));
    });
}

#[test]
fn rules_of_ones_own_take_the_place_of_the_defaults() {
    let rules: Vec<Rule> = serde_json::from_str(
        r#"[{"token": "00", "every": 2, "reason": "Unregistered", "timestamp_ms": 1700000000000}]"#,
    )
    .unwrap();
    let simulator = Simulator::start(Config {
        tls: false,
        rules,
        environment: Environment::Production,
        ..Config::default()
    });
    let simulator = simulator.unwrap();
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        assert_eq!(sender.push(TOKEN, &[]).await.status, 200);
        let answer = sender.push(TOKEN, &[]).await;
        assert_eq!(answer.body, r#"{"reason":"Unregistered","timestamp":1700000000000}"#);
    });
}
