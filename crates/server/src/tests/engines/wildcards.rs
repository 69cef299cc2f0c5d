//! Wildcards of a real NATS: which clients receive what by them, and which must not.

use dunlin_config::{ChannelOptions, Config, Pattern, Secret};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::super::{Cluster, Listener};
use super::nats;
use super::{publish, ready};
use dunlin_testkit::Nats;

const SECRET: &str = "wildcards-wildcards-wildcards-01";

fn node(number: u16, nats: &Nats, change: impl FnOnce(&mut Config)) -> Cluster {
    let engine = nats::engine_at(nats);
    let cluster = Cluster::start_with(2, |config| {
        config.server.node = number;
        config.client.token.hmac_secret = Some(Secret::new(SECRET));
        config.engines.insert("main", engine);
        let open = ChannelOptions {
            engine: Some("main".into()),
            wildcards: true,
            allow_subscribe_for_client: true,
            ..ChannelOptions::default()
        };
        let names = |config: &mut Config, name: &str, options: ChannelOptions| {
            config.channel.namespaces.insert(name, options);
        };
        config.channel.any_namespace = false;
        config.channel.without_namespace = open.clone();
        let kept = ChannelOptions {
            history_size: 10,
            history_ttl_ms: 60_000,
            recover: true,
            presence: true,
            join_leave: true,
            allow_user_limited_channels: true,
            ..open.clone()
        };
        names(config, "chat", kept);
        names(config, "plain", ChannelOptions { wildcards: false, ..open.clone() });
        names(
            config,
            "closed",
            ChannelOptions { allow_subscribe_for_client: false, ..open.clone() },
        );
        let pattern = Some(Pattern::parse("[!s]*").unwrap());
        names(config, "named", ChannelOptions { name_pattern: pattern, ..open.clone() });
        let cel = |text: &str| ChannelOptions {
            allow_subscribe_for_client: false,
            subscribe_cel: Some(text.to_owned()),
            ..open.clone()
        };
        names(config, "own", cel("channel == 'own:' + user"));
        names(config, "ada", cel("user == 'ada'"));
        names(config, "memory", ChannelOptions { engine: None, wildcards: false, ..open });
        change(config);
    });
    ready(&cluster);
    cluster
}

fn token(claims: &Value) -> String {
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    encode(&Header::new(Algorithm::HS256), claims, &key).unwrap()
}

/// Connects a client of this user, with additional claims and subscriptions to these channels. Returns its connect
/// reply.
fn connect(cluster: &Cluster, user: &str, claims: Value, channels: &[&str]) -> (Listener, Value) {
    let mut all = claims;
    all["sub"] = user.into();
    let subs: serde_json::Map<String, Value> =
        channels.iter().map(|&channel| (channel.to_owned(), json!({}))).collect();
    let body = json!({"token": token(&all), "subs": subs}).to_string();
    Listener::connect_to(cluster.address, &body)
}

fn may_subscribe(cluster: &Cluster, user: &str, claims: Value, channel: &str) -> bool {
    let (_, connect) = connect(cluster, user, claims, &[channel]);
    connect["connect"]["subs"].get(channel).is_some()
}

#[test]
fn a_wildcard_hears_the_channels_of_its_namespace_on_every_node_and_each_once() {
    let nats = nats::start();
    let (a, b) = (node(1, &nats, |_| {}), node(2, &nats, |_| {}));
    let channels = ["chat:>", "chat:a.*", "chat:a.b"];
    let (mut listener, connected) = connect(&b, "bob", json!({}), &channels);
    for wildcard in &channels[..2] {
        let subscribed = &connected["connect"]["subs"][wildcard];
        assert_ne!(subscribed["recoverable"], true, "{connected}");
        assert!(subscribed["epoch"].is_null(), "it has no position: {connected}");
    }
    for (number, node) in (1..=10).zip([&a, &b].into_iter().cycle()) {
        publish(node, "chat:a.b", number);
    }
    publish(&a, "chat:a.b.c", 11);
    let elsewhere = ["a.b", "plain:a.b", "chat:a.b#1", "$chat:a.b", "memory:a.b", "closed:a.b"];
    for channel in elsewhere {
        publish(&a, channel, 99);
    }
    publish(&a, "chat:end.", 12);
    let mut heard: [Vec<(String, u64)>; 3] = Default::default();
    loop {
        let push = listener.next().expect("it is still connected");
        let by = channels.iter().position(|name| push["channel"] == **name).expect("one of them");
        let of = push["pub"]["channel"].as_str().unwrap_or_default();
        assert!(push["pub"]["offset"].is_null() || by == 2, "{push}");
        heard[by].push((of.to_owned(), push["pub"]["data"].as_u64().unwrap()));
        if of == "chat:end." {
            break;
        }
    }
    let of = |channel: &str, numbers: std::ops::RangeInclusive<u64>| {
        numbers.map(|number| (channel.to_owned(), number)).collect::<Vec<_>>()
    };
    let all = [of("chat:a.b", 1..=10), of("chat:a.b.c", 11..=11), of("chat:end.", 12..=12)];
    assert_eq!(heard[0], all.concat());
    assert_eq!(heard[1], of("chat:a.b", 1..=10));
    assert_eq!(heard[2], of("", 1..=10), "no wildcard, and no channel beside its own");
}

#[test]
fn nothing_but_subscribing_is_done_with_a_wildcard() {
    let nats = nats::start();
    let node = node(1, &nats, |_| {});
    for (path, body) in [
        ("/api/publish", json!({"channel": "chat:*", "data": 1})),
        ("/api/publish", json!({"channel": "chat:a.>", "data": 1})),
        ("/api/history", json!({"channel": "chat:>"})),
        ("/api/history_remove", json!({"channel": "chat:>"})),
        ("/api/presence", json!({"channel": "chat:>"})),
        ("/api/presence_stats", json!({"channel": "chat:>"})),
    ] {
        let answer = node.post(path, &body.to_string());
        assert!(answer.contains("a wildcard stands for many channels"), "{path}: {answer}");
    }
    for invalid in ["chat:a*", "chat:>.a", "chat:a..*", "ch*:a", "$chat:*", "chat:*#1", "*:a"] {
        let answer = node.post("/api/publish", &json!({"channel": invalid, "data": 1}).to_string());
        assert!(answer.contains("\"code\":102"), "{invalid}: {answer}");
    }
    // In a namespace without wildcards, `*` is an ordinary character.
    publish(&node, "plain:*", 1);
}

/// Each of these users may subscribe to some channels, and tries to receive others by a wildcard.
#[test]
fn grant_for_some_channels_is_not_widened_by_a_wildcard() {
    let nats = nats::start();
    let node = node(1, &nats, |_| {});
    let may =
        |user: &str, claims: Value, channel: &str| may_subscribe(&node, user, claims, channel);
    let caps = |by: &str, name: &str| json!({"caps": [{"channels": [name], "match": by, "allow": ["sub"]}]});

    // A user who may subscribe to all channels of a namespace may use its wildcards, and no others.
    assert!(may("bob", json!({}), "chat:*") && may("bob", json!({}), "*"));
    assert!(!may("", json!({}), "chat:*"), "an anonymous client may not");
    for closed in ["closed:*", "closed:>", "*:a", ">:a", "closed*"] {
        assert!(!may("bob", json!({}), closed), "{closed}");
    }
    // Channels of some users, and private ones.
    for name in ["chat:*#bob", "chat:#*", "chat:a.*#bob,*", "$*", "$chat:*", "$chat:a.>", "$>"] {
        assert!(!may("bob", json!({}), name), "{name}");
        assert!(!may("*", caps("", name), name), "{name}");
    }
    // Capabilities: a name or pattern must cover the whole wildcard.
    assert!(may("bob", caps("", "closed:a.*"), "closed:a.*"));
    assert!(may("bob", caps("wildcard", "closed:a.*"), "closed:a.>"));
    for (by, pattern) in [
        ("", "closed:a.b"),
        ("", "closed:a.>"),
        ("wildcard", "closed:a.*.c"),
        ("wildcard", "closed:a.b*"),
        ("regex", "^closed:a\\..$"),
        ("regex", "^closed:[^s].*$"),
    ] {
        assert!(!may("bob", caps(by, pattern), "closed:a.*"), "{by} {pattern}");
    }
    // Expressions: a user whose name is a wildcard does not match all names.
    assert!(may("bob", json!({}), "own:bob"));
    for user in ["*", ">", "bob"] {
        assert!(!may(user, json!({}), &format!("own:{user}")) || user == "bob");
        assert!(!may(user, json!({}), "own:*") && !may(user, json!({}), "own:>"));
    }
    assert!(may("ada", json!({}), "ada:>") && !may("bob", json!({}), "ada:>"));
    // Names that the namespace does not allow.
    publish(&node, "named:a", 1);
    assert!(may("bob", json!({}), "named:*") && !may("bob", json!({}), "named:s.*"));
}

#[test]
fn names_that_a_namespace_stopped_admitting_are_not_heard_by_a_wildcard() {
    let nats = nats::start();
    // The nodes have different rules, as in the middle of a change.
    let open = node(1, &nats, |config| {
        let mut options = config.channel.namespaces.get("named").unwrap().clone();
        options.name_pattern = None;
        config.channel.namespaces.insert("named", options);
    });
    let node = node(2, &nats, |_| {});
    let (mut listener, connected) = connect(&node, "bob", json!({}), &["named:*"]);
    assert!(connected["connect"]["subs"].get("named:*").is_some(), "{connected}");
    publish(&open, "named:secret", 1);
    publish(&open, "named:a", 2);
    let push = listener.next().expect("it is still connected");
    assert_eq!((&push["pub"]["channel"], &push["pub"]["data"]), (&json!("named:a"), &json!(2)));
}

#[test]
fn a_node_hears_so_many_wildcards_and_no_more() {
    let nats = nats::start();
    let node = node(1, &nats, |config| {
        let mut engine = config.engines.get("main").unwrap().clone();
        engine.wildcards_max = 2;
        config.engines.insert("main", engine);
    });
    let mut kept = Vec::new();
    for number in 0..20 {
        let name = format!("chat:{number}.*");
        let (listener, connected) = connect(&node, "bob", json!({}), &[&name]);
        if connected["connect"]["subs"].get(&name).is_some() {
            kept.push(listener);
        }
    }
    assert!((1..=2).contains(&kept.len()), "one on each worker: {}", kept.len());
    assert!(may_subscribe(&node, "bob", json!({}), "chat:a"), "channels are no wildcards");
}
