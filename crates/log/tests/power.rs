//! What must hold wherever the process or the power ends, whatever pages have reached the disk.

#![allow(clippy::unwrap_used)]

mod kit;

use std::collections::BTreeMap;
use std::sync::Arc;

use dunlin_log::simulated::{Random, SimulatedDisk};
use dunlin_log::{Log, ReadRange, Trim};
use kit::{HOUR, NOW, bodies, body, open, record};

/// What was answered to whoever appended.
#[derive(Clone, Default)]
struct Ledger {
    /// Bodies by stream and offset, with the end of the record.
    appended: BTreeMap<(String, u64), (u64, Vec<u8>)>,
    /// Records before this were trimmed, with the end of the record that says so.
    trimmed: BTreeMap<String, (u64, u64)>,
    epochs: BTreeMap<String, (u64, u64)>,
    written: u64,
    synced: u64,
}

fn note(log: &Log, ledger: &mut Ledger) {
    ledger.written = log.written();
    ledger.synced = log.synced();
}

/// Appends, trims, writes, syncs and maintains in any order until the disk dies or the turns are over.
fn play(log: &Log, ledger: &mut Ledger, random: &mut Random, turns: usize) {
    for _ in 0..turns {
        match random.below(20) {
            0..10 => {
                let stream = format!("stream-{}", random.below(12));
                let top = log.stream(&stream).map_or(0, |stream| stream.top);
                let body = body(&stream, top + 1, random);
                let Ok(appended) = log.append(&record(&stream, &body)) else { continue };
                assert_eq!(appended.offset, top + 1);
                ledger.appended.insert((stream.clone(), top + 1), (appended.end, body));
                let epochs = (log.epoch(appended.stream, false), log.epoch(appended.stream, true));
                ledger.epochs.insert(stream, epochs);
            }
            10 => {
                let stream = format!("stream-{}", random.below(12));
                let Some(state) = log.stream(&stream) else { continue };
                let before = random.below(state.top as usize + 2) as u64;
                let trim = Trim { stream: &stream, before, now_ms: NOW, keep_ms: HOUR, sync: true };
                if let Ok(appended) = log.trim(&trim) {
                    let known = ledger.trimmed.get(&stream).map_or(0, |known| known.0);
                    ledger.trimmed.insert(stream, (known.max(before), appended.end));
                }
            }
            11..15 => drop(log.write()),
            15..18 => {
                if log.sync().is_ok() && log.failure().is_none() {
                    note(log, ledger);
                }
            }
            _ => drop(log.maintain(NOW)),
        }
        ledger.written = ledger.written.max(log.written());
    }
    note(log, ledger);
}

/// Nothing that was answered is lost, nothing is there that was never appended, offsets have no gap.
fn check(log: &Log, ledger: &Ledger, survives: u64, seed: u64) {
    for number in 0..12 {
        let stream = format!("stream-{number}");
        let found = bodies(log, &stream, 7);
        let (trimmed, trim_end) = ledger.trimmed.get(&stream).copied().unwrap_or_default();
        let mut last = None;
        for (offset, body) in &found {
            let (_, appended) = &ledger.appended[&(stream.clone(), *offset)];
            assert!(body == appended, "seed {seed}: another body at {stream}/{offset}");
            assert!(last.is_none_or(|last| last + 1 == *offset), "seed {seed}: a gap in {stream}");
            last = Some(*offset);
        }
        let all = ledger.appended.range((stream.clone(), 0)..=(stream.clone(), u64::MAX));
        for ((_, offset), (end, _)) in all {
            if *end <= survives && *offset >= trimmed {
                assert!(found.contains_key(offset), "seed {seed}: {stream}/{offset} is lost");
            }
            if trim_end <= survives && *offset < trimmed {
                assert!(!found.contains_key(offset), "seed {seed}: {stream}/{offset} was trimmed");
            }
        }
    }
}

/// One run of a machine: turns until it dies, at a step or with the turns; then the next boot.
fn machine(seed: u64, cuts_power: bool) {
    let mut random = Random::new(seed);
    let mut disk = SimulatedDisk::default();
    let mut ledger = Ledger::default();
    for round in 0..3 {
        let boot = if cuts_power { format!("boot-{round}") } else { "boot".to_owned() };
        let (log, recovery) = open(&disk, &boot);
        assert!(recovery.damaged.is_empty(), "seed {seed}: {:?}", recovery.damaged);
        if round > 0 {
            let survives = if cuts_power { ledger.synced } else { ledger.written };
            check(&log, &ledger, survives, seed);
            // From here on the ledger is what is there.
            let mut found = BTreeMap::new();
            for number in 0..12 {
                let stream = format!("stream-{number}");
                found.insert(stream.clone(), bodies(&log, &stream, 1_000));
            }
            ledger.appended.retain(|(stream, offset), _| found[stream].contains_key(offset));
            for (stream, (written, synced)) in &ledger.epochs {
                let Some(state) = log.stream(stream) else { continue };
                assert_eq!(log.epoch(state.id, true), *synced, "seed {seed}: {stream}");
                if !cuts_power {
                    assert_eq!(log.epoch(state.id, false), *written, "seed {seed}: {stream}");
                } else if recovery.may_have_lost {
                    assert_ne!(log.epoch(state.id, false), *written, "seed {seed}: {stream}");
                }
            }
            assert_eq!(recovery.may_have_lost, cuts_power, "seed {seed}");
            ledger.trimmed.clear();
            ledger.epochs.clear();
        }
        let turns = 30 + random.below(500);
        if random.below(2) == 0 {
            disk.die_after(random.below(turns));
        }
        play(&log, &mut ledger, &mut random, turns);
        disk = if cuts_power { disk.after_power_cut(&mut random) } else { disk.after_kill() };
    }
}

#[test]
fn log_after_each_of_a_thousand_power_cuts_has_everything_synced_and_nothing_else() {
    // Two cuts each.
    for seed in 0..500 {
        machine(seed, true);
    }
}

#[test]
fn log_after_each_of_a_thousand_kills_has_everything_written_and_the_same_epochs() {
    for seed in 1_000..1_500 {
        machine(seed, false);
    }
}

#[test]
fn power_cut_while_a_recovery_writes_loses_nothing_either() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let disk = SimulatedDisk::default();
        let mut ledger = Ledger::default();
        let (log, _) = open(&disk, "first");
        play(&log, &mut ledger, &mut random, 200);
        let disk = disk.after_power_cut(&mut random);
        let mut steps = 0;
        loop {
            let again = disk.after_kill();
            again.die_after(steps);
            let opened = Log::open(Arc::new(again.clone()), &kit::config("second"));
            let (log, _) = open(&again.after_power_cut(&mut random), "third");
            check(&log, &ledger, ledger.synced, seed);
            if opened.is_ok() {
                break;
            }
            steps += 1;
        }
    }
}

#[test]
fn closed_log_is_complete_after_a_loss_of_power_and_keeps_its_epochs() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(&disk, "first");
    let appended = log.append(&record("a", b"1")).unwrap();
    let epoch = log.epoch(appended.stream, false);
    log.close().unwrap();
    let disk = disk.after_power_cut(&mut Random::new(1));
    let (log, recovery) = open(&disk, "second");
    assert_eq!(log.epoch(appended.stream, false), epoch);
    assert!(!recovery.may_have_lost);
    assert_eq!(log.read("a", &ReadRange::ALL, NOW).unwrap().records.len(), 1);
}
