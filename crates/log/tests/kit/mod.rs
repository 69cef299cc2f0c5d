//! A log that is driven step by step, and what it must hold.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use dunlin_log::simulated::{Random, SimulatedDisk};
use dunlin_log::{Append, Limits, Log, LogConfig, ReadRange, Recovery, WhenFull};

pub const NOW: u64 = 1_800_000_000_000;
pub const HOUR: u64 = 3_600_000;

pub fn config(boot: &str) -> LogConfig {
    let limits = Limits { segment_bytes: 64 << 10, bytes_max: 64 << 20, ..Limits::default() };
    LogConfig { limits, owner: "node-a".to_owned(), boot: boot.to_owned() }
}

pub fn open(disk: &SimulatedDisk, boot: &str) -> (Log, Recovery) {
    Log::open(Arc::new(disk.clone()), &config(boot)).expect("a log")
}

pub fn dropping(boot: &str) -> LogConfig {
    let mut config = config(boot);
    config.limits.when_full = WhenFull::DropOldest;
    config.limits.bytes_max = 256 << 10;
    config
}

pub fn record<'a>(stream: &'a str, body: &'a [u8]) -> Append<'a> {
    Append { stream, body, expires_ms: NOW + HOUR, keep_ms: 24 * HOUR, sync: true }
}

pub fn flush(log: &Log) {
    while log.write() {}
    log.sync().expect("a disk that works");
}

/// A body that says whose it is.
pub fn body(stream: &str, offset: u64, random: &mut Random) -> Vec<u8> {
    let mut body = format!("{stream}/{offset}/").into_bytes();
    body.resize(body.len() + random.below(300), b'.');
    body
}

/// All bodies of a stream by offset, through pages of `page`.
pub fn bodies(log: &Log, stream: &str, page: usize) -> BTreeMap<u64, Vec<u8>> {
    let mut bodies = BTreeMap::new();
    let mut range = ReadRange { limit: page, ..ReadRange::ALL };
    loop {
        let read = log.read(stream, &range, NOW).expect("a disk that reads");
        let Some(last) = read.records.last() else { return bodies };
        range.after = last.offset;
        bodies.extend(read.records.into_iter().map(|record| (record.offset, record.body)));
    }
}
