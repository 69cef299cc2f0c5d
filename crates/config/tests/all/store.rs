//! What is kept, what is given back, and what a disk may do to it.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::kit::{after_power_cuts, begin, commit, open, open_with, origin, pointer, put};
use dunlin_config::store::{AppendError, InitialConfig, RecoverySource, RevisionKind, Store};
use dunlin_config::{Change, ChangeError, Config, ConfigError, ConfigErrors, Secret};
use dunlin_log::simulated::SimulatedDisk;
use serde_json::json;

fn ping(ms: u64) -> Change {
    put("/client/ping_interval_ms", json!(ms))
}

#[test]
fn confirmed_revision_survives_with_its_author() {
    let disk = SimulatedDisk::default();
    let (mut store, recovery) = open(&disk);
    assert_eq!((recovery.revision, recovery.from), (1, RecoverySource::File));
    assert_eq!(commit(&mut store, &ping(10_000)), 2);
    assert_eq!(commit(&mut store, &put("/channel/namespaces/chat", json!({"presence": true}))), 3);
    let first = store.revision(2).expect("kept").snapshot.clone();
    assert_eq!(commit(&mut store, &Change::Restore(first)), 4);
    assert_eq!(
        commit(&mut store, &Change::Delete { pointer: pointer("/client/ping_interval_ms") }),
        5
    );

    let (store, recovery) = open(&disk.after_kill());
    assert_eq!((recovery.revision, recovery.from), (5, RecoverySource::Log));
    assert_eq!(recovery.warnings, []);
    assert_eq!(store.head().config, Config::default());
    let history: Vec<_> =
        store.revisions().map(|r| (r.snapshot.revision, &*r.origin.who, r.changes.len())).collect();
    assert_eq!(
        history,
        [(1, "start", 0), (2, "ada", 1), (3, "ada", 1), (4, "ada", 1), (5, "ada", 1)]
    );
    assert_eq!(store.revision(3).unwrap().snapshot.config.client.ping_interval_ms, 10_000);
    assert!(store.revision(3).unwrap().snapshot.config.channel.namespaces["chat"].presence);
    assert_eq!(store.since(3).unwrap().count(), 2);
    assert_eq!(store.since(5).unwrap().count(), 0);
    assert!(store.since(6).is_none() && store.since(0).is_none());
}

#[test]
fn unconfirmed_revision_is_dropped_and_its_number_reused() {
    let disk = SimulatedDisk::default();
    let (mut store, _) = open(&disk);
    let prepared = store.head().prepare(&ping(11_000), None).unwrap();
    store.append(&[(prepared, origin("ada"))]).unwrap();
    assert_eq!(store.head().revision, 1, "nobody runs it yet");

    let killed = disk.after_kill();
    let (mut store, recovery) = open(&killed);
    assert_eq!(store.head().config, Config::default());
    assert!(recovery.warnings[0].message.contains("revision 2 was never confirmed"));
    assert_eq!(commit(&mut store, &ping(12_000)), 2);
    let (store, recovery) = open(&killed.after_kill());
    assert_eq!((recovery.warnings.len(), store.head().revision), (0, 2));
    assert_eq!(store.head().config.client.ping_interval_ms, 12_000);
}

#[test]
fn a_refused_change_returns_as_the_settings_before_it() {
    let disk = SimulatedDisk::default();
    let (mut store, _) = open(&disk);
    commit(&mut store, &ping(10_000));
    let one = store.head().prepare(&ping(11_000), None).unwrap();
    let two = one.snapshot().prepare(&put("/server/name", json!("b")), None).unwrap();
    store.append(&[(one, origin("ada")), (two, origin("bob"))]).unwrap();
    let back = store.roll_back("worker 1: no such port", 9);
    assert_eq!((back.revision, back.config.client.ping_interval_ms), (5, 10_000));
    for store in [&store, &open(&disk.after_kill()).0] {
        let numbers: Vec<_> =
            store.revisions().map(|r| (r.snapshot.revision, r.previous, r.kind)).collect();
        assert_eq!(
            numbers,
            [
                (1, 0, RevisionKind::Start),
                (2, 1, RevisionKind::Change),
                (5, 2, RevisionKind::RolledBack)
            ],
            "a refused revision is not written"
        );
        let last = store.revisions().next_back().unwrap();
        assert_eq!(&*last.origin.comment, "worker 1: no such port");
        assert_eq!(*store.head().config.server.name, *"");
    }
}

#[test]
fn changes_are_appended_in_their_order_only() {
    let (mut store, _) = Store::open(None, begin(Config::default()), 0).unwrap();
    let one = store.head().prepare(&ping(10_000), None).unwrap();
    let other = store.head().prepare(&ping(12_000), None).unwrap();
    store.append(&[(one, origin("ada"))]).unwrap();
    let refused = store.append(&[(other, origin("bob"))]);
    assert!(matches!(refused, Err(AppendError::Stale { newest: 2 })));
    assert_eq!(store.confirm().config.client.ping_interval_ms, 10_000);
    let late = store.head().prepare(&ping(13_000), Some(1));
    assert_eq!(late.unwrap_err(), ChangeError::Revision { current: 2 });
}

#[test]
fn an_edited_file_adds_what_was_edited_to_what_the_api_did() {
    let disk = SimulatedDisk::default();
    let mut file = Config::default();
    file.client.ping_interval_ms = 20_000;
    let (mut store, _) = open_with(&disk, file.clone());
    commit(&mut store, &put("/server/name", json!("by the API")));
    commit(&mut store, &ping(30_000));
    drop(store);

    let (store, recovery) = open_with(&disk.after_kill(), file.clone());
    assert_eq!(store.head().config.client.ping_interval_ms, 30_000, "the file says nothing new");
    assert_eq!(recovery.revision, 3);

    file.client.compression = true;
    let disk = disk.after_kill();
    let (store, _) = open_with(&disk, file.clone());
    let head = &store.head().config;
    assert!(head.client.compression && head.client.ping_interval_ms == 30_000);
    assert_eq!(&*head.server.name, "by the API");
    let last = store.revisions().next_back().unwrap();
    assert_eq!((last.kind, last.changes.len()), (RevisionKind::File, 1));
    assert_eq!(open_with(&disk.after_kill(), file.clone()).1.revision, 4, "once is enough");

    // Edited so that it does not fit: named, and not used.
    file.limits.bus_slots = 1_000;
    let (store, recovery) = open_with(&disk.after_kill(), file);
    assert_eq!(store.head().revision, 4);
    assert!(recovery.warnings[0].message.contains("limits.bus_slots"), "{:?}", recovery.warnings);

    // Not to be read at all: the same.
    let errors: ConfigErrors = Config::from_toml("[client]\nping = 1\n").unwrap_err();
    let start =
        InitialConfig { config: Err(errors), name: "dunlin.toml".into(), judge: |_, _, _| {} };
    let disk = disk.after_kill();
    let (store, recovery) = Store::open(Some(Box::new(disk)), start.clone(), 0).unwrap();
    assert_eq!(store.head().revision, 4);
    assert!(recovery.warnings[0].message.contains("client.ping: there is no such key"));
    assert!(
        Store::open(Some(Box::new(SimulatedDisk::default())), start, 0).is_err(),
        "nothing else"
    );
}

#[test]
fn a_full_disk_refuses_changes_and_takes_them_again_once_there_is_room() {
    let disk = SimulatedDisk::default();
    disk.set_room(Some(3 << 20));
    let (mut store, _) = open(&disk);
    let mut refused = None;
    for number in 0..100_000_u64 {
        let change = put(
            &format!("/channel/namespaces/n{number}"),
            json!({"history_ttl_ms": 5, "history_size": 1}),
        );
        let prepared = store.head().prepare(&change, None).unwrap();
        if let Err(error) = store.append(&[(prepared, origin("ada"))]) {
            refused = Some((number, error));
            break;
        }
        assert_eq!(store.confirm().revision, number + 2);
    }
    let (number, error) = refused.expect("3 MiB are full at some time");
    assert!(error.to_string().contains("nothing has changed"), "{error}");
    assert_eq!(store.head().revision, number + 1);
    assert_eq!(store.head().config.channel.namespaces.len() as u64, number);
    assert_eq!(store.failure(), None, "the log is whole");
    let again = open(&disk.after_kill()).0;
    assert_eq!(again.head().config, store.head().config);

    // A rollback and a confirmation find room even now.
    disk.set_room(None);
    commit(&mut store, &ping(10_000));
    assert_eq!(open(&disk.after_kill()).0.head().config, store.head().config);
}

#[test]
fn a_disk_that_cannot_sync_promises_nothing_until_a_new_log_is_begun() {
    let disk = SimulatedDisk::default();
    let (mut store, _) = open(&disk);
    let sync = store.sync_handle().unwrap();
    commit(&mut store, &ping(10_000));
    assert_eq!((sync.sync().unwrap(), sync.durable()), (2, 2));
    for after in after_power_cuts(&disk, 0..2) {
        assert_eq!(open(&after).0.head().revision, 2);
    }

    disk.set_syncs_fail(true);
    commit(&mut store, &ping(11_000));
    assert!(sync.sync().is_err());
    disk.set_syncs_fail(false);
    assert!(
        sync.sync().is_err(),
        "a second success would not say that the first one's data is there"
    );
    commit(&mut store, &ping(12_000));
    assert_eq!(sync.sync().unwrap(), 4);
    for after in after_power_cuts(&disk, 0..2) {
        assert_eq!(open(&after).0.head().config.client.ping_interval_ms, 12_000);
    }
}

#[test]
fn a_thousand_writers_with_if_match_lose_nothing() {
    let (store, _) = Store::open(None, begin(Config::default()), 0).unwrap();
    let store = Mutex::new(store);
    let wins = Mutex::new(BTreeMap::new());
    // Ten threads play a hundred writers each: every one reads, then writes if nobody was faster.
    std::thread::scope(|scope| {
        for thread in 0..10 {
            let (store, wins) = (&store, &wins);
            scope.spawn(move || {
                for writer in 0..100 {
                    let name = format!("writer-{thread}-{writer}");
                    loop {
                        let read = Arc::clone(store.lock().unwrap().head());
                        let change = put(&format!("/channel/namespaces/{name}"), json!({}));
                        std::thread::yield_now();
                        let mut store = store.lock().unwrap();
                        let Ok(prepared) = store.head().prepare(&change, Some(read.revision))
                        else {
                            continue;
                        };
                        store.append(&[(prepared, origin(&name))]).unwrap();
                        let revision = store.confirm().revision;
                        assert!(wins.lock().unwrap().insert(revision, name).is_none());
                        break;
                    }
                }
            });
        }
    });
    let store = store.into_inner().unwrap();
    let wins = wins.into_inner().unwrap();
    assert_eq!((wins.len(), store.head().config.channel.namespaces.len()), (1_000, 1_000));
    let kept: BTreeMap<_, _> = store
        .revisions()
        .map(|revision| (revision.snapshot.revision, revision.origin.who.to_string()))
        .collect();
    assert_eq!(kept, wins, "the history has them all, each once (the first revision gave way)");
}

#[test]
fn history_is_bounded_in_number() {
    let (mut store, _) = Store::open(None, begin(Config::default()), 0).unwrap();
    commit(&mut store, &put("/config/revisions_max", json!(3)));
    for ms in 10_000..10_010 {
        commit(&mut store, &ping(ms));
    }
    assert_eq!((store.revisions().count(), store.oldest(), store.head().revision), (3, 10, 12));
    assert!(store.revision(9).is_none() && store.since(8).is_none());
    assert_eq!(store.since(9).unwrap().count(), 3);
}

#[test]
fn a_long_log_is_followed_by_a_new_pair_and_the_old_one_goes() {
    let disk = SimulatedDisk::default();
    let (mut store, _) = open(&disk);
    commit(&mut store, &put("/config/revisions_max", json!(10)));
    let text = "x".repeat(200_000);
    let mut compactions = 0;
    for number in 0..160 {
        let service = format!(
            "{{\"project_id\":\"p{number}\",\"client_email\":\"e\",\"private_key\":\"{text}\"}}"
        );
        commit(&mut store, &put("/push/fcm/app", json!({"service_account": service})));
        if let Some(compaction) = store.poll_compaction() {
            compactions += 1;
            // Killed before it runs: the old log leads to the new one.
            let (between, recovery) = open(&disk.after_kill());
            assert_eq!((&between.head().config, recovery.warnings), (&store.head().config, vec![]));
            // More is written meanwhile.
            commit(&mut store, &ping(10_000 + number));
            let compacted = compaction.run();
            assert!(compacted.error().is_none());
            store.handle_compacted(compacted);
        }
    }
    assert!(compactions >= 3, "{compactions}");
    assert!(disk.names().len() <= 6, "{:?}", disk.names());
    let (again, recovery) = open(&disk.after_kill());
    assert_eq!((&again.head().config, recovery.warnings), (&store.head().config, vec![]));
    assert_eq!(again.revisions().count(), 10, "the history is there too");
    assert_eq!(store.sync_handle().unwrap().sync().unwrap(), store.head().revision);
    for after in after_power_cuts(&disk, 0..2) {
        assert_eq!(open(&after).0.head().config, store.head().config);
    }
}

#[test]
fn the_key_of_a_caller_is_found_and_secrets_are_hidden_until_written_back() {
    let (mut store, _) = Store::open(None, begin(Config::default()), 0).unwrap();
    let key = "0123456789abcdef";
    commit(&mut store, &put("/api/keys", json!({"backend": key, "billing": "fedcba9876543210"})));
    assert_eq!(store.head().api_key(key).map(|key| &*key.name), Some("backend"));
    let shown = store.head().get(&pointer("/api"), dunlin_config::Secrets::Hidden).unwrap();
    assert_eq!(shown["keys"], json!({"backend": "***", "billing": "***"}));
    assert_eq!(commit(&mut store, &put("/api", shown)), 2, "written back as it was read");
    assert_eq!(store.head().config.api.keys["backend"], Secret::new(key));
    let reported = store.head().prepare(&put("/api/keys/new", json!("***")), None).unwrap_err();
    assert!(reported.to_string().contains("api.keys.new: there is no secret yet"), "{reported}");
    let changed = &store.revision(2).unwrap().changes[0];
    assert_eq!(changed.hidden().after, Some(json!("***")));
    let twice = store.head().prepare(&put("/api/keys/third", json!(key)), None).unwrap_err();
    assert!(twice.to_string().contains("it is the same key as \"backend\""), "{twice}");
    commit(&mut store, &Change::Delete { pointer: pointer("/api/keys/backend") });
    assert_eq!(store.head().api_key(key), None);
}

#[test]
fn settings_on_the_disk_that_the_server_refuses_are_replaced_by_the_newest_that_it_takes() {
    let disk = SimulatedDisk::default();
    let (mut store, _) = open(&disk);
    assert_eq!(commit(&mut store, &put("/server/name", json!("good"))), 2);
    assert_eq!(commit(&mut store, &put("/server/name", json!("bad"))), 3);
    drop(store);
    // A check that only the server can make, and that the version before did not.
    let start = InitialConfig {
        judge: |_, after, errors| {
            if after.server.name == "bad" {
                let (line, fix) = (None, None);
                let (path, message) = ("server.name".into(), "it is bad".to_owned());
                errors.push(ConfigError { path, line, message, fix });
            }
        },
        ..begin(Config::default())
    };
    let (store, recovery) = Store::open(Some(Box::new(disk.after_kill())), start, 0).unwrap();
    assert_eq!(store.head().config.server.name, "good");
    let warning = &recovery.warnings[0].message;
    assert!(warning.contains("server.name: it is bad; revision 2 is used"), "{warning}");
}
