//! What the fuzzer feeds, and what must hold whatever it feeds.
//!
//! Shared by `fuzz/`, which explores, and by `tests/fuzz_corpus.rs`, which replays the seeds.

use std::sync::{Arc, OnceLock};

use dunlin_log::simulated::SimulatedDisk;
use dunlin_log::{Append, Limits, Log, LogConfig, ReadRange};

/// A target by the name of its corpus.
pub type Target = fn(&[u8]);

/// All targets: `fuzz/corpus/NAME` holds the seeds of each.
pub const TARGETS: &[(&str, Target)] = &[("log_recovery", recovery)];

const NOW: u64 = 1_800_000_000_000;
const STREAMS: [&str; 3] = ["a", "inbox:7", "stream-of-a-longer-name"];

fn config() -> LogConfig {
    let limits = Limits { segment_bytes: 64 << 10, bytes_max: 1 << 20, ..Limits::default() };
    LogConfig { limits, owner: String::new(), boot: "boot".to_owned() }
}

fn open(disk: &SimulatedDisk) -> Option<Log> {
    Log::open(Arc::new(disk.clone()), &config()).ok().map(|(log, _)| log)
}

fn append(log: &Log, stream: &str) -> Option<u64> {
    let body = format!("{stream}.");
    let record =
        Append { stream, body: body.as_bytes(), expires_ms: NOW + 1, keep_ms: 1_000, sync: true };
    log.append_synced(&record).ok().map(|appended| appended.offset)
}

/// A log with some records and a complete segment.
fn begun() -> &'static SimulatedDisk {
    static DISK: OnceLock<SimulatedDisk> = OnceLock::new();
    DISK.get_or_init(|| {
        let disk = SimulatedDisk::default();
        if let Some(log) = open(&disk) {
            for number in 0..30 {
                append(&log, STREAMS[number % 3]);
            }
        }
        disk
    })
}

/// A log whose files were overwritten in places opens with what is whole, or is refused; it never gives back what was not
/// appended, goes on after what it has, and the next start agrees.
///
/// The input is a list of changes: file, what to do, a place of two bytes, a length and as many bytes.
fn recovery(mut input: &[u8]) {
    let disk = begun().after_kill();
    while let [file, kind, low, high, length, rest @ ..] = input {
        let names = disk.names();
        let name = &names[usize::from(*file) % names.len()];
        let mut bytes = disk.bytes(name);
        let place = usize::from(u16::from_le_bytes([*low, *high])) % (bytes.len() + 1);
        let (new, next) = rest.split_at(rest.len().min((*length).into()));
        match kind % 4 {
            0 => bytes.truncate(place),
            1 => bytes.extend_from_slice(new),
            _ => {
                for (byte, new) in bytes[place..].iter_mut().zip(new) {
                    *byte = if kind % 4 == 2 { *new } else { *byte ^ new };
                }
            }
        }
        disk.set_bytes(name, bytes);
        input = next;
    }
    let Some(log) = open(&disk) else { return };
    let mut tops = Vec::new();
    for stream in STREAMS {
        let read = log.read(stream, &ReadRange::ALL, NOW).expect("memory is read");
        let mut last = 0;
        for record in &read.records {
            assert_eq!(record.body, format!("{stream}.").as_bytes());
            assert!(record.offset > last, "offsets rise");
            last = record.offset;
        }
        let top = read.stream.map_or(0, |stream| stream.top);
        assert!(top >= last);
        let appended = append(&log, stream).expect("room");
        assert_eq!(appended, top + 1);
        tops.push(appended);
    }
    let again = open(&disk.after_kill()).expect("what was opened opens again");
    for (stream, top) in STREAMS.iter().zip(tops) {
        assert_eq!(again.stream(stream).map(|stream| stream.top), Some(top), "{stream}");
    }
}
