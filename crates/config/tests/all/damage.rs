//! What must hold wherever the process dies, whichever bit flips, wherever the log is torn.

#![allow(clippy::unwrap_used)]

use std::panic::AssertUnwindSafe;

use crate::kit::{after_power_cuts, begin, open, origin, pointer, put};
use dunlin_config::store::{Recovery, Store};
use dunlin_config::{Change, Config};
use dunlin_log::simulated::SimulatedDisk;
use proptest::prelude::*;
use serde_json::json;

/// Changes that touch keys, entries and whole tables.
fn changes() -> Vec<Change> {
    vec![
        put("/client/ping_interval_ms", json!(10_000)),
        put("/channel/namespaces", json!({"a": {"presence": true}, "b": {}})),
        put("/api/keys/backend", json!("0123456789abcdef")),
        Change::Delete { pointer: pointer("/channel/namespaces/a") },
        Change::Merge(json!({"channel": {"namespaces": {"b": null, "c": {"join_leave": true}}}})),
        put("/client/allowed_origins", json!(["https://a.example", "*"])),
    ]
}

/// Every state that was the head at some time, the first one first.
fn states() -> Vec<Config> {
    let (mut store, _) = Store::open(None, begin(Config::default()), 0).unwrap();
    let mut states = vec![store.head().config.clone()];
    for change in changes() {
        crate::kit::commit(&mut store, &change);
        states.push(store.head().config.clone());
    }
    states
}

/// Does all changes, each durable, until the disk dies. Gives how many were acknowledged.
fn play(disk: &SimulatedDisk) -> Option<usize> {
    let (mut store, _) =
        Store::open(Some(Box::new(disk.clone())), begin(Config::default()), 0).ok()?;
    let sync = store.sync_handle().unwrap();
    let mut acknowledged = 0;
    for change in changes() {
        let prepared = store.head().prepare(&change, None).unwrap();
        if store.append(&[(prepared, origin("ada"))]).is_err() {
            return Some(acknowledged);
        }
        let confirmed = store.confirm();
        match sync.sync() {
            Ok(durable) if durable >= confirmed.revision => acknowledged += 1,
            _ => return Some(acknowledged),
        }
    }
    Some(acknowledged)
}

#[test]
fn whichever_step_is_the_last_the_settings_are_an_acknowledged_revision_or_the_one_under_way() {
    let whole = SimulatedDisk::default();
    assert_eq!(play(&whole), Some(changes().len()));
    let states = states();
    for step in 0..whole.steps() {
        let disk = SimulatedDisk::default();
        disk.die_after(step);
        let acknowledged = play(&disk);
        let seeds = 4 * step as u64..4 * step as u64 + 4;
        for after in std::iter::once(disk.after_kill()).chain(after_power_cuts(&disk, seeds)) {
            let (store, _) = open(&after);
            let found = states.iter().position(|state| *state == store.head().config);
            let found = found.unwrap_or_else(|| panic!("step {step}: no state of the history"));
            let least = acknowledged.unwrap_or(0);
            assert!((least..=least + 1).contains(&found), "step {step}: {found}, not {least}");
            // And it goes on from there.
            let (mut store, recovery) = (store, open(&after).1);
            assert_eq!(recovery.revision, store.head().revision);
            crate::kit::commit(&mut store, &put("/server/name", json!("later")));
            assert_eq!(*open(&after.after_kill()).0.head().config.server.name, *"later");
        }
    }
}

/// A small log and the states it holds.
fn log() -> (SimulatedDisk, String, usize) {
    let disk = SimulatedDisk::default();
    play(&disk);
    let name = disk.names().into_iter().find(|name| name.ends_with(".log")).unwrap();
    // The last record is a confirmation, whose last bytes are the high ones of a small number.
    let end = disk.bytes(&name).iter().rposition(|byte| *byte != 0).unwrap() + 8;
    (disk, name, end)
}

/// What is on a disk with another log, as a position in the history.
fn found(disk: &SimulatedDisk, states: &[Config], at: &str) -> (usize, Recovery) {
    let opened = std::panic::catch_unwind(AssertUnwindSafe(|| open(disk)));
    let (store, recovery) = opened.unwrap_or_else(|_| panic!("{at}: a panic"));
    let found = states.iter().position(|state| *state == store.head().config);
    (found.unwrap_or_else(|| panic!("{at}: no state of the history")), recovery)
}

#[test]
fn wherever_the_log_is_torn_a_state_before_that_place_is_found() {
    let (disk, name, end) = log();
    let states = states();
    let bytes = disk.bytes(&name);
    let mut last = 0;
    for torn in 0..=end {
        let disk = disk.after_kill();
        disk.set_bytes(&name, bytes[..torn].to_vec());
        let (position, _) = found(&disk, &states, &format!("torn at {torn}"));
        assert!(position >= last, "more of the log is never less of the history");
        last = position;
    }
    assert_eq!(last, states.len() - 1);
}

#[test]
fn whichever_byte_flips_a_state_before_that_place_is_found_and_the_byte_is_named() {
    let (disk, name, end) = log();
    let states = states();
    let bytes = disk.bytes(&name);
    for place in (0..end).chain([end, end + 1, end + 7, end + 8, end + 100]) {
        let disk = disk.after_kill();
        let mut flipped = bytes.clone();
        flipped[place] ^= 1 << (place % 8);
        disk.set_bytes(&name, flipped);
        let (position, recovery) = found(&disk, &states, &format!("flipped at {place}"));
        if place < end {
            assert!(
                position < states.len() - 1,
                "{place} belongs to a record, and none is trusted"
            );
        } else {
            assert_eq!(position, states.len() - 1, "{place} is behind all records");
        }
        let named = recovery.warnings.iter().any(|warning| warning.file == name);
        assert!(named, "flipped at {place}: {:?}", recovery.warnings);
        // The damaged log is set aside: the next start finds nothing wrong.
        if place % 8 == 0 {
            let (again, recovery) = found(&disk.after_kill(), &states, "the second start");
            assert_eq!((again, recovery.warnings.len()), (position, 0));
        }
    }
}

#[test]
fn a_damaged_snapshot_is_named_and_the_log_before_it_is_used() {
    let disk = SimulatedDisk::default();
    play(&disk);
    // A restart with a torn log makes a second pair.
    let name = disk.names().into_iter().find(|name| name.ends_with(".log")).unwrap();
    let mut bytes = disk.bytes(&name);
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes.truncate(end - 1);
    disk.set_bytes(&name, bytes);
    let (store, recovery) = open(&disk);
    assert_eq!(recovery.warnings.len(), 2, "{:?}", recovery.warnings);
    let config = store.head().config.clone();
    let newest = disk.names().into_iter().rfind(|name| name.ends_with(".snapshot")).unwrap();
    let snapshot = disk.bytes(&newest);
    for place in (0..snapshot.len()).step_by(7) {
        let disk = disk.after_kill();
        let mut flipped = snapshot.clone();
        flipped[place] ^= 0x10;
        disk.set_bytes(&newest, flipped);
        let (store, recovery) = open(&disk);
        assert!(recovery.warnings.iter().any(|warning| warning.file == newest), "{place}");
        // The older snapshot is the start; the log that led here was set aside with the damage.
        assert_eq!(store.head().config, Config::default());
    }
    assert_eq!(open(&disk).0.head().config, config);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_stands_in_the_files_the_store_opens_or_says_why(
        log in proptest::collection::vec(any::<u8>(), 0..300),
        snapshot in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let disk = SimulatedDisk::default();
        disk.set_bytes("00000000000000000001.log", log);
        disk.set_bytes("00000000000000000001.snapshot", snapshot);
        disk.set_bytes("00000000000000000009.snapshot.new", Vec::new());
        let (store, recovery) = open(&disk);
        prop_assert_eq!(&store.head().config, &Config::default());
        prop_assert_eq!(recovery.warnings.len(), 2);
    }
}
