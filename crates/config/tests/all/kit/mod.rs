//! Stores on a simulated disk, and changes for them.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::ops::Range;

use dunlin_config::store::{InitialConfig, Origin, Recovery, Store};
use dunlin_config::{Change, Config, Pointer};
use dunlin_log::simulated::{Random, SimulatedDisk};

pub fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).expect("a pointer")
}

pub fn put(at: &str, value: serde_json::Value) -> Change {
    Change::Put { pointer: pointer(at), value }
}

pub fn origin(who: &str) -> Origin {
    Origin { who: who.into(), from: "127.0.0.1:1".into(), at_unix_ms: 1_000, ..Origin::default() }
}

pub fn begin(config: Config) -> InitialConfig {
    InitialConfig { config: Ok(config), name: "dunlin.toml".into(), judge: |_, _, _| {} }
}

/// The machine after losses of power, each with other pages and names of those that were not synced.
pub fn after_power_cuts(
    disk: &SimulatedDisk,
    seeds: Range<u64>,
) -> impl Iterator<Item = SimulatedDisk> {
    seeds.map(|seed| disk.after_power_cut(&mut Random::new(seed)))
}

pub fn open(disk: &SimulatedDisk) -> (Store, Recovery) {
    open_with(disk, Config::default())
}

pub fn open_with(disk: &SimulatedDisk, config: Config) -> (Store, Recovery) {
    Store::open(Some(Box::new(disk.clone())), begin(config), 500).expect("a store")
}

/// Prepares, appends and confirms one change; gives its revision.
pub fn commit(store: &mut Store, change: &Change) -> u64 {
    let prepared = store.head().prepare(change, None).expect("a valid change");
    if prepared.is_unchanged() {
        return store.head().revision;
    }
    store.append(&[(prepared, origin("ada"))]).expect("room in the log");
    store.confirm().revision
}
