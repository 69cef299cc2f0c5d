//! One rule on every transport: who is let in by whom, and what a subscription shows.

use dunlin_hub::{Epoch, StreamPosition};
use dunlin_protocol::long_poll::{Cursor, Since};

use super::*;

/// Answers to one client on each transport, for a subscription from the beginning: whether it is made, the messages that came with
/// it, and the position that is shown.
fn outcomes(cluster: &Cluster, claims: &Value, channel: &str) -> Vec<(&'static str, Value)> {
    let shown = token(claims);
    let outcome = |of: &Value| {
        let is_made = of.is_object();
        let has_position = of["offset"].is_u64() || of["epoch"].is_string();
        json!([is_made, data_of(of), has_position])
    };
    let since = json!({"recover": true, "recoverable": true, "positioned": true});
    let mut command = since.clone();
    command["channel"] = json!(channel);
    let mut client = Client::connect(cluster, claims);
    let by_command = client.say(&json!({"id": 2, "subscribe": command}))["subscribe"].clone();
    let asked = json!({"token": shown, "subs": {channel: since}}).to_string();
    let (_, connected) = Listener::connect_to(cluster.address, &asked);
    let by_uni = connected["connect"]["subs"][channel].clone();
    let line = format!("GET /connection/poll?channel={channel}&cursor=0&timeout=0&token={shown}");
    let (status, body) = cluster.call(&line, "", "");
    let mut by_poll = Value::Null;
    if status == 200 {
        let answer: Value = serde_json::from_str(&body).unwrap();
        by_poll = answer["positions"].get(channel).cloned().unwrap_or(json!({}));
        by_poll["publications"] = answer["publications"].clone();
    }
    vec![
        ("command", outcome(&by_command)),
        ("unidirectional", outcome(&by_uni)),
        ("long-poll", outcome(&by_poll)),
    ]
}

#[test]
fn subscription_is_the_same_on_every_transport_whoever_lets_the_client_in() {
    let cluster = Cluster::start_with(2, |config| {
        namespaces(config);
        let shut = || ChannelOptions {
            allow_subscribe_for_client: false,
            allow_subscribe_for_anonymous: false,
            ..kept()
        };
        let expressed = || ChannelOptions { subscribe_cel: Some("meta.staff".into()), ..shut() };
        config.channel.namespaces.insert("shut", shut());
        config.channel.namespaces.insert("expressed", expressed());
        let read = ChannelOptions { history_cel: Some("meta.staff".into()), ..expressed() };
        config.channel.namespaces.insert("read", read);
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    let names = ["closed", "recovering", "readable", "subscribers", "shut", "expressed", "read"];
    for name in names {
        let publish = json!({"channel": format!("{name}:a"), "data": 7}).to_string();
        cluster.post("/api/publish", &publish);
    }
    let nobody = json!({"sub": "ada"});
    let staff = json!({"sub": "ada", "meta": {"staff": true}});
    let capable = |channel: &str, allow: Value| json!({"sub": "ada", "caps": [{"channels": [channel], "allow": allow}]});
    let (refused, blind, all) =
        (json!([false, [], false]), json!([true, [], false]), json!([true, [7], true]));
    for (claims, channel, expected) in [
        (nobody.clone(), "closed:a", &blind),
        (nobody.clone(), "recovering:a", &all),
        (nobody.clone(), "subscribers:a", &all),
        (nobody.clone(), "shut:a", &refused),
        (nobody, "expressed:a", &refused),
        (staff.clone(), "expressed:a", &blind),
        (staff, "read:a", &all),
        (capable("shut:a", json!(["sub"])), "shut:a", &blind),
        (capable("shut:a", json!(["sub", "hst"])), "shut:a", &all),
        (capable("shut:a", json!(["hst"])), "shut:a", &refused),
        (capable("closed:a", json!(["hst"])), "closed:a", &all),
    ] {
        for (transport, outcome) in outcomes(&cluster, &claims, channel) {
            assert_eq!(outcome, *expected, "{claims} in {channel} by {transport}");
        }
    }
}

/// Regression test: a long-poll showed a client without the permission to read the history where the stream stands.
#[test]
fn poll_without_the_history_permission_shows_no_position() {
    let cluster = with_three_messages();
    let poll = |channel: &str, cursor: &str| -> Value {
        let line = format!("GET /connection/poll?channel={channel}&cursor={cursor}&timeout=0");
        serde_json::from_str(&cluster.call(&line, "", "").1).unwrap()
    };
    let since = |answer: &Value, channel: &str| {
        let cursor = Cursor::parse(answer["cursor"].as_str().unwrap(), 9).unwrap();
        match cursor.since(channel) {
            Since::Position(position) => position,
            other => panic!("{other:?}"),
        }
    };
    let epoch_of = |of: &Value| Epoch::parse(of["epoch"].as_str().unwrap());
    let open = poll("readable:a", "0");
    let position = &open["positions"]["readable:a"];
    assert_eq!(position["offset"], 3, "{open}");
    let epoch = epoch_of(position);
    assert_eq!(since(&open, "readable:a"), StreamPosition { offset: 3, epoch });

    let first = poll("closed:a", "");
    assert_eq!(first["positions"], json!({}), "{first}");
    let history = cluster.post("/api/history", r#"{"channel":"closed:a"}"#);
    let epoch = epoch_of(&serde_json::from_str::<Value>(&history).unwrap()["result"]);
    let sealed = since(&first, "closed:a");
    assert!(sealed.offset == 0 && sealed.epoch != epoch, "{sealed:?}");

    // It learns all the same whether it has missed something.
    let cursor = first["cursor"].as_str().unwrap();
    let second = poll("closed:a", cursor);
    assert_eq!((&second["gap"], &second["cursor"]), (&Value::Null, &first["cursor"]), "{second}");
    cluster.post("/api/publish", r#"{"channel":"closed:a","data":4}"#);
    let third = poll("closed:a", cursor);
    assert_eq!(third["gap"][0]["reason"], "no_history", "{third}");
    assert!(data_of(&third).is_empty() && third["positions"] == json!({}), "{third}");
    // A position that is guessed tells nothing.
    let guessed = [("closed:a", StreamPosition { offset: 4, epoch: Epoch::NONE })];
    let answer = poll("closed:a", &Cursor::new(guessed).to_string());
    assert_eq!(answer["gap"][0]["reason"], "no_history", "{answer}");
}

/// Regression test: what a poll rests on was not known, so that a change of any permission ended it.
#[test]
fn poll_by_a_capability_outlives_a_change_of_other_permissions() {
    use std::io::Read;
    let cluster = Cluster::start_with(1, |config| {
        let options = &mut config.channel.without_namespace;
        options.allow_subscribe_for_client = false;
        options.allow_subscribe_for_anonymous = false;
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    let caps = json!([{"channels": ["a"], "allow": ["sub"]}]);
    let mut poll = waiting_poll(&cluster, &token(&json!({"sub": "ada", "caps": caps})));
    let mut config = cluster.state.newest_for(0).config.clone();
    config.channel.without_namespace.allow_presence_for_client = true;
    let snapshot = Arc::new(dunlin_config::Snapshot::new(2, config).unwrap());
    cluster.state.publish(Arc::new(Settings::new(snapshot)));
    // One turn adopts the settings, the next ones compare the subscriptions.
    for _ in 0..3 {
        cluster.post("/api/info", "{}");
    }
    cluster.post("/api/publish", r#"{"channel":"a","data":7}"#);
    let mut answer = String::new();
    poll.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"data\":7"), "{answer}");
}

/// Regression: whoever had no room had the signatures of all his subscription tokens verified before the refusal.
#[test]
fn unidirectional_client_without_room_is_refused_before_its_tokens_are_verified() {
    let cluster = Cluster::start_with(1, |config| {
        config.channel.namespaces.insert("x", kept());
        config.client.token.hmac_secret = Some(Secret::new(KEY));
        config.limits.connections_per_user_max = 1;
    });
    let shown = token(&json!({"sub": "ada"}));
    let with = |sub_token: &str| json!({"token": shown, "subs": {"x:a": {"token": sub_token}}});
    let wrong = with("no.token.at all").to_string();
    let (_, refused) = Listener::connect_to(cluster.address, &wrong);
    let reason = refused["disconnect"]["reason"].as_str().unwrap();
    assert!(reason.contains("subscription token"), "there is room: {refused}");
    let of_channel = token(&json!({"sub": "ada", "channel": "x:a"}));
    let (_first, connected) = Listener::connect_to(cluster.address, &with(&of_channel).to_string());
    assert!(connected["connect"]["subs"]["x:a"].is_object(), "{connected}");
    let (_, refused) = Listener::connect_to(cluster.address, &wrong);
    assert_eq!(refused["disconnect"]["code"], 3504, "{refused}");
}
