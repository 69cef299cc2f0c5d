//! What a notification becomes for each service.

use serde_json::json;

use super::*;
use crate::web_push;

fn notification(json: Value) -> Notification {
    let notification: Notification = serde_json::from_value(json).unwrap();
    notification.validate().unwrap();
    notification
}

#[test]
fn one_notification_is_spelled_for_each_platform() {
    let notification = notification(json!({
        "title": "Hi", "body": "there", "badge": 3, "link": "https://a.example/x",
        "data": { "room": 7 }, "collapse_id": "room-7", "ttl_s": 60
    }));
    let apns = notification.apns(1_000);
    let payload: Value = serde_json::from_slice(&apns.payload).unwrap();
    let expected = json!({
        "aps": { "alert": { "title": "Hi", "body": "there" }, "badge": 3 },
        "link": "https://a.example/x", "room": 7
    });
    assert_eq!(payload, expected);
    assert_eq!((apns.push_type, apns.priority, apns.expiration_s), ("alert", 10, Some(1_060)));
    assert_eq!(apns.collapse_id.as_deref(), Some("room-7"));

    let expected = json!({
        "notification": { "title": "Hi", "body": "there" },
        "data": { "room": "7", "link": "https://a.example/x" },
        "android": {
            "priority": "HIGH", "ttl": "60s", "collapse_key": "room-7",
            "notification": { "tag": "room-7", "notification_count": 3 }
        },
        "apns": {
            "headers": {
                "apns-push-type": "alert", "apns-priority": "10", "apns-expiration": "1060",
                "apns-collapse-id": "room-7"
            },
            "payload": { "aps": { "badge": 3 } }
        }
    });
    assert_eq!(Value::Object(notification.fcm(1_000)), expected);

    let (message, options) = notification.web();
    let message: Value = serde_json::from_slice(&message).unwrap();
    let expected = json!({
        "title": "Hi", "body": "there", "badge": 3, "link": "https://a.example/x",
        "tag": "room-7", "data": { "room": 7 }
    });
    assert_eq!(message, expected);
    let wanted = web_push::Options::new(60, web_push::Urgency::High).with_topic("room-7");
    assert_eq!(options, wanted.unwrap());
}

#[test]
fn a_platform_is_sent_what_it_alone_is_to_get() {
    let notification = notification(json!({
        "title": "Hi", "sound": "default",
        "apns": { "aps": { "sound": { "name": "alarm", "critical": 1 }, "thread-id": "t" } },
        "fcm": { "android": { "ttl": "5s" }, "notification": null },
        "web": { "actions": ["reply"] }
    }));
    let payload: Value = serde_json::from_slice(&notification.apns(0).payload).unwrap();
    assert_eq!(payload["aps"]["sound"], json!({ "name": "alarm", "critical": 1 }));
    assert_eq!(payload["aps"]["alert"]["title"], "Hi");
    let fcm = notification.fcm(1_000);
    assert!(!fcm.contains_key("notification") && fcm["android"]["ttl"] == "5s");
    assert_eq!(fcm["android"]["priority"], "HIGH");
    let web: Value = serde_json::from_slice(&notification.web().0).unwrap();
    assert_eq!(web["actions"], json!(["reply"]));
}

#[test]
fn without_anything_to_see_it_wakes_the_app_and_never_urgently() {
    let silent = notification(json!({ "data": { "sync": true } }));
    let apns = silent.apns(0);
    assert_eq!((apns.push_type, apns.priority, apns.expiration_s), ("background", 5, None));
    assert!(!silent.fcm(1_000).contains_key("notification"));
}

#[test]
fn only_a_background_push_says_that_there_is_content() {
    let live = notification(json!({
        "apns": { "aps": { "timestamp": 7, "event": "update", "content-state": { "goals": 1 } } },
        "apns_options": { "push_type": "liveactivity" }
    }));
    let apns = live.apns(0);
    let payload: Value = serde_json::from_slice(&apns.payload).unwrap();
    let expected = json!({ "timestamp": 7, "event": "update", "content-state": { "goals": 1 } });
    assert_eq!((&payload["aps"], apns.priority), (&expected, 10));
}

#[test]
fn a_broadcast_is_a_live_activity_that_is_not_kept_unless_that_is_said() {
    let score = notification(json!({
        "collapse_id": "match-7",
        "apns": { "aps": { "timestamp": 7, "event": "update", "content-state": { "goals": 1 } } }
    }));
    score.validate_broadcast().unwrap();
    let sent = score.apns_broadcast(1_000);
    assert_eq!(
        (sent.push_type, sent.collapse_id, sent.expiration_s),
        ("liveactivity", None, Some(0))
    );
    let kept = Notification { ttl_s: Some(60), ..score.clone() };
    assert_eq!(kept.apns_broadcast(1_000).expiration_s, Some(1_060));
    let words = notification(json!({ "title": "Hi" }));
    assert!(words.validate_broadcast().unwrap_err().to_string().starts_with("apns.aps"));
    let mut alert = score;
    alert.apns_options.push_type = Some("alert".to_owned());
    assert!(alert.validate_broadcast().unwrap_err().to_string().starts_with("apns_options"));
}

#[test]
fn no_service_is_asked_to_keep_a_message_for_longer_than_it_may() {
    let eternal = notification(json!({ "title": "Hi", "ttl_s": u32::MAX }));
    assert_eq!(eternal.fcm(1_000)["android"]["ttl"], "2419200s");
    let expected = web_push::Options::new(TTL_S_MAX, web_push::Urgency::High);
    assert_eq!(eternal.web().1, expected);
}

#[test]
fn a_fault_is_named_with_its_field() {
    for (json, field) in [
        (json!({}), "title"),
        (json!({ "title": "x", "collapse_id": "a b" }), "collapse_id"),
        (json!({ "title": "x", "apns": [] }), "apns"),
        (json!({ "data": { "aps": {} } }), "data"),
    ] {
        let parsed: Notification = serde_json::from_value(json).unwrap();
        assert!(parsed.validate().unwrap_err().to_string().starts_with(field));
    }
    let unknown = serde_json::from_value::<Notification>(json!({ "titel": "x" })).unwrap_err();
    assert!(unknown.to_string().contains("titel"));
}

#[test]
fn type_and_priority_follow_what_the_payload_shows_after_the_merge() {
    for (json, push_type, priority) in [
        (json!({ "apns": { "aps": { "alert": "Hello" } } }), "alert", 10),
        (json!({ "apns": { "aps": { "alert": { "title": "Hello" } } } }), "alert", 10),
        (json!({ "badge": 0 }), "alert", 10),
        (json!({ "data": { "a": 1 }, "apns": { "aps": { "sound": "default" } } }), "alert", 10),
        (json!({ "title": "Hi", "apns": { "aps": { "alert": null } } }), "background", 5),
        (json!({ "apns": { "aps": { "timestamp": 1, "event": "end" } } }), "liveactivity", 10),
        (
            json!({ "apns": { "aps": { "alert": "a" } }, "apns_options": { "push_type": "voip" } }),
            "voip",
            10,
        ),
        (json!({ "apns": { "aps": { "alert": "a" } }, "urgency": "normal" }), "alert", 5),
    ] {
        let apns = notification(json.clone()).apns(0);
        assert_eq!((apns.push_type, apns.priority), (push_type, priority), "{json}");
        let payload: Value = serde_json::from_slice(&apns.payload).unwrap();
        let wakes = payload["aps"]["content-available"] == 1;
        assert_eq!(wakes, push_type == "background", "{payload}");
    }
}

#[test]
fn an_iphone_behind_fcm_gets_what_an_iphone_behind_apple_gets() {
    let notification = notification(json!({
        "title": "Hi", "sound": "chime", "badge": 2, "ttl_s": 0, "urgency": "normal",
        "thread_id": "t", "category": "c", "interruption_level": "time-sensitive",
        "collapse_id": "7", "image": "https://a.example/x.png"
    }));
    let apns = notification.fcm(1_000)["apns"].clone();
    let headers = json!({
        "apns-push-type": "alert", "apns-priority": "5", "apns-expiration": "0",
        "apns-collapse-id": "7"
    });
    assert_eq!(apns["headers"], headers);
    let payload: Value = serde_json::from_slice(&notification.apns(1_000).payload).unwrap();
    let mut aps = payload["aps"].clone();
    aps.as_object_mut().unwrap().remove("alert");
    assert_eq!(apns["payload"]["aps"], aps, "FCM itself writes the title");
    assert_eq!(apns["fcm_options"]["image"], "https://a.example/x.png");

    let silent = self::notification(json!({ "data": { "sync": 1 } })).fcm(0);
    assert_eq!(silent["apns"]["payload"]["aps"]["content-available"], 1);
    assert_eq!(silent["apns"]["headers"]["apns-push-type"], "background");
    assert_eq!(silent["apns"]["headers"]["apns-priority"], "5");
    let own = json!({ "title": "Hi", "fcm": { "apns": { "headers": { "apns-priority": "1" } } } });
    assert_eq!(self::notification(own).fcm(0)["apns"]["headers"]["apns-priority"], "1");
    let none = self::notification(json!({ "title": "Hi", "fcm": { "apns": null } })).fcm(0);
    assert!(!none.contains_key("apns"));
}

#[test]
fn texts_in_the_apps_languages_and_a_subtitle_reach_each_platform_that_has_them() {
    let notification = notification(json!({
        "title_loc_key": "GOAL", "title_loc_args": ["Ada"], "body_loc_key": "SCORE", "subtitle": "now"
    }));
    let alert = json!({
        "title-loc-key": "GOAL", "title-loc-args": ["Ada"], "loc-key": "SCORE", "subtitle": "now"
    });
    let apns = notification.apns(0);
    let payload: Value = serde_json::from_slice(&apns.payload).unwrap();
    assert_eq!((&payload["aps"]["alert"], apns.push_type), (&alert, "alert"));
    let fcm = notification.fcm(0);
    assert_eq!(fcm["apns"]["payload"]["aps"]["alert"], alert);
    assert_eq!(fcm["apns"]["headers"]["apns-push-type"], "alert");
    let android = json!({
        "title_loc_key": "GOAL", "title_loc_args": ["Ada"], "body_loc_key": "SCORE"
    });
    assert_eq!(fcm["android"]["notification"], android);
    let alone = json!({ "title": "Hi", "body_loc_args": ["x"] });
    let alone: Notification = serde_json::from_value(alone).unwrap();
    assert!(alone.validate().unwrap_err().to_string().contains("body_loc_key"));
}

#[test]
fn a_uuid_is_a_collapse_id_and_a_browsers_service_is_given_a_topic_of_it() {
    let id = "123e4567-e89b-12d3-a456-426614174000";
    let notification = notification(json!({ "title": "Hi", "collapse_id": id }));
    assert_eq!(notification.apns(0).collapse_id.as_deref(), Some(id));
    assert_eq!(notification.fcm(0)["android"]["collapse_key"], id);
    let (message, options) = notification.web();
    let message: Value = serde_json::from_slice(&message).unwrap();
    assert_eq!(message["tag"], id);
    let topic = options.topic().unwrap().to_owned();
    assert_eq!(topic.len(), 32);
    assert_eq!(notification.web().1.topic(), Some(topic.as_str()), "always the same");
}
