//! Whatever is done to a log, it holds what a map would.

#![allow(clippy::unwrap_used)]

mod kit;

use std::collections::BTreeMap;

use dunlin_log::simulated::SimulatedDisk;
use dunlin_log::{Append, ReadRange, Trim};
use kit::{NOW, flush, open};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Action {
    Append { stream: u8, bytes: u16 },
    Trim { stream: u8, before: u64 },
    Remove { stream: u8 },
    Write,
    Flush,
    Maintain,
    Reopen { closes: bool },
    Read { stream: u8, after: u64, before: u64, limit: usize, newest_first: bool },
}

fn action() -> impl Strategy<Value = Action> {
    let stream = || 0..5u8;
    prop_oneof![
        12 => (stream(), 0..4_000u16).prop_map(|(stream, bytes)| Action::Append { stream, bytes }),
        2 => (stream(), 0..60u64).prop_map(|(stream, before)| Action::Trim { stream, before }),
        1 => stream().prop_map(|stream| Action::Remove { stream }),
        3 => Just(Action::Write),
        2 => Just(Action::Flush),
        2 => Just(Action::Maintain),
        1 => any::<bool>().prop_map(|closes| Action::Reopen { closes }),
        4 => (stream(), 0..50u64, 0..80u64, 0..9usize, any::<bool>()).prop_map(
            |(stream, after, before, limit, newest_first)| Action::Read {
                stream, after, before, limit, newest_first,
            }
        ),
    ]
}

#[derive(Default)]
struct Stream {
    id: u64,
    top: u64,
    bodies: BTreeMap<u64, usize>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn log_reads_as_a_map_of_streams_does(actions in proptest::collection::vec(action(), 1..250)) {
        let mut disk = SimulatedDisk::default();
        let mut log = open(&disk, "boot").0;
        let mut model: BTreeMap<u8, Stream> = BTreeMap::new();
        for action in actions {
            match action {
                Action::Append { stream, bytes } => {
                    let body = vec![stream; bytes.into()];
                    let name = stream.to_string();
                    let record = Append {
                        stream: &name, body: &body, expires_ms: NOW + 1, keep_ms: 1, sync: false,
                    };
                    let appended = match log.append(&record) {
                        Ok(appended) => appended,
                        // The segment that follows is not prepared yet.
                        Err(_) => {
                            flush(&log);
                            log.maintain(NOW).unwrap();
                            log.append(&record).unwrap()
                        }
                    };
                    let known = model.entry(stream).or_default();
                    known.top += 1;
                    known.id = appended.stream;
                    known.bodies.insert(known.top, bytes.into());
                    prop_assert_eq!(appended.offset, known.top);
                }
                Action::Trim { stream, before } => {
                    let name = stream.to_string();
                    let trim = Trim { stream: &name, before, now_ms: NOW, keep_ms: 1, sync: false };
                    let trimmed = log.trim(&trim).is_ok();
                    prop_assert_eq!(trimmed, model.contains_key(&stream));
                    if let Some(known) = model.get_mut(&stream) {
                        known.bodies.retain(|offset, _| *offset >= before);
                    }
                }
                Action::Remove { stream } => {
                    let removed = log.remove(&stream.to_string(), false).is_ok();
                    prop_assert_eq!(removed, model.remove(&stream).is_some());
                }
                Action::Write => drop(log.write()),
                Action::Flush => flush(&log),
                Action::Maintain => log.maintain(NOW).unwrap(),
                Action::Reopen { closes } => {
                    if closes {
                        log.close().unwrap();
                    } else {
                        while log.write() {}
                    }
                    disk = disk.after_kill();
                    let (opened, recovery) = open(&disk, "boot");
                    prop_assert!(recovery.damaged.is_empty() && recovery.cut_bytes == 0);
                    log = opened;
                }
                Action::Read { stream, after, before, limit, newest_first } => {
                    let range = ReadRange { after, before, limit, newest_first, bytes_max: usize::MAX };
                    let read = log.read(&stream.to_string(), &range, NOW).unwrap();
                    let none = Stream::default();
                    let known = model.get(&stream).unwrap_or(&none);
                    let state = read.stream.map(|state| (state.id, state.top));
                    let due = model.get(&stream).map(|known| (known.id, known.top));
                    prop_assert_eq!(state, due);
                    let mut due: Vec<_> = known
                        .bodies
                        .iter()
                        .filter(|(offset, _)| **offset > after && **offset < before)
                        .map(|(offset, bytes)| (*offset, *bytes))
                        .collect();
                    if newest_first {
                        due.reverse();
                    }
                    due.truncate(limit);
                    let found: Vec<_> =
                        read.records.iter().map(|it| (it.offset, it.body.len())).collect();
                    prop_assert_eq!(found, due, "{:?}", range);
                    prop_assert!(read.damaged.is_empty());
                }
            }
        }
        let mut names = Vec::new();
        flush(&log);
        log.streams(|name, _| names.push(name.to_owned())).unwrap();
        names.sort();
        let due: Vec<_> = model.keys().map(u8::to_string).collect();
        prop_assert_eq!(names, due);
        let _ = ReadRange::ALL;
    }
}
