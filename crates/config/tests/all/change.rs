//! Changes as the standards have them, on settings.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::kit::{pointer, put};
use dunlin_config::{Change, ChangeError, ChannelOptions, Config, Map, Secrets, Snapshot, json};
use proptest::prelude::*;
use serde_json::{Value, json};

fn snapshot(config: Config) -> Arc<Snapshot> {
    Arc::new(Snapshot::new(1, config).expect("a valid config"))
}

fn with_origins(origins: &[&str]) -> Config {
    let mut config = Config::default();
    config.client.allowed_origins = origins.iter().map(|origin| (*origin).to_owned()).collect();
    config
}

fn patch(config: Config, operations: &Value) -> Result<Config, ChangeError> {
    let change = Change::patch(operations.to_string().as_bytes()).expect("a JSON Patch");
    Ok(snapshot(config).prepare(&change, None)?.snapshot().config.clone())
}

fn origins(config: &Config) -> Vec<&str> {
    config.client.allowed_origins.iter().map(String::as_str).collect()
}

const A: &str = "https://a.example";
const B: &str = "https://b.example";
const C: &str = "https://c.example";
const AT: &str = "/client/allowed_origins";

/// RFC 6902, appendix A, each example as settings have it.
#[test]
fn the_examples_of_rfc_6902() {
    let one = |op: Value| json!([op]);
    // A.1, A.3, A.10: a member of an object is added (with what it holds) and removed.
    let added = patch(
        Config::default(),
        &one(json!({"op": "add", "path": "/channel/namespaces/chat", "value": {"pacing": {"burst_ms": 5}}})),
    )
    .unwrap();
    assert_eq!(added.channel.namespaces["chat"].pacing.burst_ms, 5);
    let removed = patch(added, &one(json!({"op": "remove", "path": "/channel/namespaces/chat"})));
    assert_eq!(removed.unwrap(), Config::default());
    // A.2, A.4, A.5: an element of an array.
    let inserted = patch(
        with_origins(&[A, C]),
        &one(json!({"op": "add", "path": format!("{AT}/1"), "value": B})),
    );
    assert_eq!(origins(&inserted.unwrap()), [A, B, C]);
    let removed =
        patch(with_origins(&[A, B, C]), &one(json!({"op": "remove", "path": format!("{AT}/1")})));
    assert_eq!(origins(&removed.unwrap()), [A, C]);
    let replaced = patch(
        with_origins(&[A]),
        &one(json!({"op": "replace", "path": format!("{AT}/0"), "value": B})),
    );
    assert_eq!(origins(&replaced.unwrap()), [B]);
    // A.6: a value moves from one object to another.
    let mut upstreams = Config::default();
    upstreams.webhooks.upstreams.insert(
        "a",
        serde_json::from_value(json!({"members": {"1": {"address": "h:80"}}})).unwrap(),
    );
    upstreams.webhooks.upstreams.insert("b", Default::default());
    let moved = patch(upstreams, &one(json!({
        "op": "move", "from": "/webhooks/upstreams/a/members/1", "path": "/webhooks/upstreams/b/members/2"
    })))
    .unwrap();
    assert!(moved.webhooks.upstreams["a"].members.is_empty());
    assert_eq!(&*moved.webhooks.upstreams["b"].members["2"].address, "h:80");
    // A.7: an element moves to the end.
    let moved = patch(
        with_origins(&[A, B, C]),
        &one(json!({"op": "move", "from": format!("{AT}/0"), "path": format!("{AT}/2")})),
    );
    assert_eq!(origins(&moved.unwrap()), [B, C, A]);
    // A.8, A.9: a test that holds, and one that does not.
    let test = |value: &str| {
        json!([
            {"op": "test", "path": format!("{AT}/0"), "value": value},
            {"op": "add", "path": format!("{AT}/-"), "value": C},
        ])
    };
    assert_eq!(origins(&patch(with_origins(&[A]), &test(A)).unwrap()), [A, C]);
    let refused = patch(with_origins(&[A]), &test(B)).unwrap_err();
    assert!(
        matches!(&refused, ChangeError::Conflict(error) if error.message == "operation 0: it has another value")
    );
    // A.11: what else an operation says is ignored.
    let more = patch(
        Config::default(),
        &one(json!({"op": "add", "path": "/server/name", "value": "n", "xyz": 123})),
    );
    assert_eq!(more.unwrap().server.name, "n");
    // A.12: nothing is added to what is not there.
    let nowhere = patch(
        Config::default(),
        &one(json!({"op": "add", "path": "/channel/namespaces/no/presence", "value": true})),
    );
    assert!(matches!(nowhere.unwrap_err(), ChangeError::Conflict(_)));
    // A.13: a key given twice is no JSON Patch.
    let twice =
        Change::patch(br#"[{"op": "add", "path": "/server/name", "value": "n", "op": "remove"}]"#);
    assert!(twice.unwrap_err().to_string().contains("this key is given twice"));
    // A.14: `~01` is the name `~1`.
    let mut keys = Config::default();
    keys.api.keys.insert("/", dunlin_config::Secret::new("0123456789abcdef"));
    keys.api.keys.insert("~1", dunlin_config::Secret::new("fedcba9876543210"));
    let test = one(json!({"op": "test", "path": "/api/keys/~01", "value": "fedcba9876543210"}));
    assert!(patch(keys.clone(), &test).is_ok());
    // A.15: a string is no number.
    let number = one(json!({"op": "test", "path": "/client/ping_interval_ms", "value": "25000"}));
    assert!(matches!(patch(keys, &number).unwrap_err(), ChangeError::Conflict(_)));
    // A.16 adds an array to an array, which no setting is: refused by its type.
    let array = one(json!({"op": "add", "path": format!("{AT}/-"), "value": [A]}));
    assert!(matches!(patch(with_origins(&[]), &array).unwrap_err(), ChangeError::Invalid(_)));
}

#[test]
fn a_patch_is_done_whole_or_not_at_all_and_its_faults_are_reported_together() {
    let base = snapshot(Config::default());
    let change = Change::patch(
        br#"[{"op":"add","path":"/client/ping_intervall_ms","value":1},
             {"op":"replace","path":"/limits/connections_max","value":"many"},
             {"op":"remove","path":"/channel/namespaces/x/presence/y"}]"#,
    )
    .unwrap();
    let Err(ChangeError::Invalid(errors)) = base.prepare(&change, None) else { panic!("refused") };
    let reported: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        reported,
        [
            "client.ping_intervall_ms: there is no such key; did you mean `ping_interval_ms`?",
            "limits.connections_max: expected an integer from 1 to 100000000, found the string \"many\"",
            "channel.namespaces.x.presence.y: there is nothing below this key; name the key itself: \
             `channel.namespaces.x.presence`",
        ]
    );
    for bad in [
        r#"{}"#,
        r#"[1]"#,
        r#"[{"op":"add"}]"#,
        r#"[{"op":"put","path":""}]"#,
        r#"[{"op":"add","path":"a","value":1}]"#,
        r#"[{"op":"add","path":"/a"}]"#,
        r#"[{"op":"move","from":"/api","path":"/api/keys"}]"#,
    ] {
        assert!(Change::patch(bad.as_bytes()).is_err(), "{bad}");
    }
}

/// RFC 7396, appendix A, where its documents have a counterpart in the schema.
#[test]
fn the_examples_of_rfc_7396() {
    let merge = |config: &Config, patch: Value| {
        let prepared = snapshot(config.clone()).prepare(&Change::Merge(patch), None);
        prepared.expect("a valid patch").snapshot().config.clone()
    };
    let empty = Config::default();
    let namespaces = |config: &Config| -> Vec<String> {
        config.channel.namespaces.keys().map(str::to_owned).collect()
    };
    // {"a":"b"} {"a":"c"}, and {"a":"b"} {"b":"c"}
    let named = merge(&empty, json!({"server": {"name": "b"}}));
    assert_eq!(merge(&named, json!({"server": {"name": "c"}})).server.name, "c");
    let both = merge(&named, json!({"server": {"pin_workers": true}}));
    assert_eq!((both.server.name.as_str(), both.server.pin_workers), ("b", true));
    // {"a":"b"} {"a":null}, and {"a":"b","b":"c"} {"a":null}
    let two = merge(&empty, json!({"channel": {"namespaces": {"a": {}, "b": {}}}}));
    let one = merge(&two, json!({"channel": {"namespaces": {"a": null}}}));
    assert_eq!(namespaces(&one), ["b"]);
    assert_eq!(merge(&named, json!({"server": {"name": null}})), empty);
    // {"a":["b"]} {"a":"c"} is another type here; {"a":["b"]} {"a":["c"]} replaces the array.
    let origins = merge(&with_origins(&[A, B]), json!({"client": {"allowed_origins": [C]}}));
    assert_eq!(self::origins(&origins), [C]);
    // {"a":{"b":"c"}} {"a":{"b":"d","c":null}}: taking away what is not there is no error.
    let deep =
        merge(&two, json!({"channel": {"namespaces": {"a": {"presence": true}, "zz": null}}}));
    assert!(deep.channel.namespaces["a"].presence && deep.channel.namespaces.len() == 2);
    // {} {"a":{"bb":{"ccc":null}}} makes {"a":{"bb":{}}}
    let made = merge(&empty, json!({"channel": {"namespaces": {"n": {"name_pattern": null}}}}));
    assert_eq!(made.channel.namespaces["n"], ChannelOptions::default());
    assert_eq!(merge(&two, json!({"channel": {"namespaces": null}})), empty);
    let wrong = snapshot(empty).prepare(&Change::Merge(json!({"server": ["x"]})), None);
    assert!(wrong.unwrap_err().to_string().contains("server: expected a table, found an array"));
}

#[test]
fn a_reference_to_what_is_not_there_is_refused_on_either_side() {
    let hook = json!({"upstream": "backend", "events": ["publish"], "channels": "chat:*"});
    let base = snapshot(Config::default());
    let reported = base.prepare(&put("/webhooks/hooks/audit", hook.clone()), None).unwrap_err();
    assert!(
        reported
            .to_string()
            .starts_with("webhooks.hooks.audit.upstream: there is no upstream \"backend\"")
    );
    let both = Change::Merge(json!({"webhooks": {
        "upstreams": {"backend": {"members": {"a": {"address": "10.0.0.7:80"}}}},
        "hooks": {"audit": hook},
    }}));
    let with = base.prepare(&both, None).unwrap().snapshot().clone();
    let gone = Change::Delete { pointer: pointer("/webhooks/upstreams/backend") };
    assert!(with.prepare(&gone, None).unwrap_err().to_string().contains("there is no upstream"));
    let neither = Change::Delete { pointer: pointer("/webhooks") };
    assert_eq!(with.prepare(&neither, None).unwrap().snapshot().config, Config::default());
    let no_port = put("/webhooks/upstreams/backend/members/b", json!({"address": "10.0.0.8"}));
    assert!(with.prepare(&no_port, None).unwrap_err().to_string().contains("it has no port"));
}

#[test]
fn an_upstreams_authority_is_a_certificate_and_has_something_to_certify() {
    let base = snapshot(Config::default());
    let pem = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";
    for (tls, ca, error) in [
        (true, pem, None),
        (false, pem, Some("its members are not spoken to by TLS; set `tls = true`, or remove it")),
        (true, "MA==", Some("there is no certificate in PEM in it")),
    ] {
        let change = put("/webhooks/upstreams/backend", json!({"tls": tls, "ca": ca}));
        match (base.prepare(&change, None), error) {
            (Ok(_), None) => {}
            (Err(reported), Some(error)) => {
                let reported = reported.to_string();
                assert!(reported.contains("webhooks.upstreams.backend.ca: "), "{reported}");
                assert!(reported.contains(error), "{reported}");
            }
            (reported, _) => panic!("{:?}", reported.map(drop)),
        }
    }
}

#[test]
fn a_pattern_that_would_backtrack_is_refused_with_its_pointer() {
    let base = snapshot(Config::default());
    let change = put("/channel/namespaces/chat", json!({"name_pattern": "(a+)+$"}));
    let Err(ChangeError::Invalid(errors)) = base.prepare(&change, None) else { panic!("refused") };
    let error = errors.iter().next().unwrap();
    assert_eq!(error.path.pointer(), "/channel/namespaces/chat/name_pattern");
    assert!(error.message.contains("backtrack"), "{}", error.message);
    let two = Change::Merge(json!({"channel": {"without_namespace": {"name_pattern": "*a*"}}}));
    assert!(base.prepare(&two, None).unwrap_err().to_string().contains("backtracking"));
}

#[test]
fn a_hundred_megabytes_are_refused_before_they_are_read() {
    let mut text = b"{\"channel\": {\"namespaces\": {".to_vec();
    text.resize(100 << 20, b' ');
    let errors = Change::merge(&text).unwrap_err();
    assert!(errors.to_string().contains("the text has 104857600 bytes"), "{errors}");
    // What fits the text and not the memory: a value for every two bytes.
    let mut text = b"[0".to_vec();
    text.extend(std::iter::repeat_n(*b",0", json::VALUES_MAX).flatten());
    text.push(b']');
    let errors = json::parse(&text, json::BYTES_MAX).unwrap_err();
    assert!(errors.to_string().contains("there are more than"), "{errors}");
}

#[test]
fn change_reports_when_its_keys_apply() {
    let base = snapshot(Config::default());
    let applies = |change: &Change| base.prepare(change, None).unwrap().applies().name();
    assert_eq!(applies(&put("/api/without_key", json!(true))), "live");
    assert_eq!(applies(&put("/client/compression", json!(true))), "new connections only");
    assert_eq!(applies(&put("/server/workers", json!(2))), "restart");
    assert_eq!(applies(&put("/channel/namespaces/x", json!({}))), "live");
}

#[test]
fn unchanged_sections_are_shared() {
    let mut config = Config::default();
    config.channel.namespaces =
        (0..1_000).map(|i| (format!("n{i:04}"), ChannelOptions::default())).collect::<Map<_>>();
    let base = snapshot(config);
    let replaced: Value =
        (0..1_000).map(|i| (format!("n{i:04}"), json!({"presence": i == 7}))).collect();
    let prepared = base.prepare(&put("/channel/namespaces", replaced), None).unwrap();
    assert_eq!(prepared.changes().len(), 1, "the whole was replaced, one key is different");
    assert_eq!(prepared.changes()[0].pointer, "/channel/namespaces/n0007/presence");
    let (old, new) =
        (&base.config.channel.namespaces, &prepared.snapshot().config.channel.namespaces);
    let same = |name| Arc::ptr_eq(old.get_shared(name).unwrap(), new.get_shared(name).unwrap());
    assert!(same("n0006") && !same("n0007"));
}

fn any_change() -> impl Strategy<Value = Change> {
    let name = "[a-d]";
    let options = (any::<bool>(), proptest::option::of(1_u32..9)).prop_map(|(presence, size)| {
        let mut options = json!({"presence": presence});
        if let Some(size) = size {
            options["history_size"] = json!(size);
            options["history_ttl_ms"] = json!(1_000);
        }
        options
    });
    prop_oneof![
        (name, options.clone()).prop_map(|(n, o)| put(&format!("/channel/namespaces/{n}"), o)),
        name.prop_map(|n| Change::Merge(json!({"channel": {"namespaces": {n: null}}}))),
        (name, any::<bool>()).prop_map(|(n, on)| {
            Change::Merge(json!({"channel": {"namespaces": {n: {"join_leave": on}}}}))
        }),
        proptest::collection::btree_map(name, options, 0..4)
            .prop_map(|map| put("/channel/namespaces", json!(map))),
        (1_000_u64..100_000).prop_map(|ms| put("/client/connect_timeout_ms", json!(ms))),
        proptest::collection::vec(name, 0..3).prop_map(|names| {
            let origins: Vec<_> = names.iter().map(|n| format!("https://{n}.example")).collect();
            put(AT, json!(origins))
        }),
        (name, 1_u32..9).prop_map(|(n, weight)| Change::Merge(json!({
            "webhooks": {"upstreams": {"u": {"members": {n: {"address": "h:80", "weight": weight}}}}}
        }))),
        Just(Change::Delete { pointer: pointer("/webhooks") }),
        Just(Change::Delete { pointer: pointer("/client") }),
    ]
}

proptest! {
    /// Whatever changes one after the other: what is reported of each leads there and back.
    #[test]
    fn what_is_reported_of_a_change_leads_there_and_back(changes in proptest::collection::vec(any_change(), 1..12)) {
        let first = snapshot(Config::default());
        let mut now = Arc::clone(&first);
        for change in &changes {
            let prepared = now.prepare(change, None).unwrap();
            let next = prepared.snapshot();
            let replay = |from: &Arc<Snapshot>, forward: bool| {
                let operations: Vec<_> = prepared.changes().iter().map(|change| {
                    let value = if forward { &change.after } else { &change.before };
                    match value {
                        Some(value) => json!({"op": "add", "path": change.pointer, "value": value}),
                        None => json!({"op": "remove", "path": change.pointer}),
                    }
                }).collect();
                let change = Change::patch(json!(operations).to_string().as_bytes()).unwrap();
                from.prepare(&change, None).unwrap().snapshot().config.clone()
            };
            prop_assert_eq!(&replay(&now, true), &next.config);
            prop_assert_eq!(&replay(next, false), &now.config);
            prop_assert_eq!(next.changes_from(&now), prepared.changes());
            // Judged by what it touches, it is what judging it whole finds.
            prop_assert!(Snapshot::new(0, next.config.clone()).is_ok());
            // Read and written back as a whole it is the same.
            let all = next.get(&pointer(""), Secrets::Hidden).unwrap();
            prop_assert!(next.prepare(&put("", all), None).unwrap().is_unchanged());
            now = Arc::clone(next);
        }
        let back = now.prepare(&Change::Restore(first.clone()), None).unwrap();
        prop_assert_eq!(&back.snapshot().config, &first.config);
    }

    #[test]
    fn any_text_is_answered_without_a_panic(text in "\\PC{0,200}") {
        let _ = Change::merge(text.as_bytes());
        let _ = Change::patch(text.as_bytes());
        let _ = dunlin_config::Pointer::parse(&text);
    }
}
