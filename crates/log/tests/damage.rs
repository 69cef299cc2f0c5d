//! What must hold whichever bit flips, and whatever files stand in the directory.

#![allow(clippy::unwrap_used)]

mod kit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dunlin_log::simulated::{Random, SimulatedDisk};
use dunlin_log::{AppendError, Log, OpenError, ReadRange, Threads, Trim};
use kit::{HOUR, NOW, bodies, body, config, dropping, flush, open, record};

const STREAMS: u64 = 6;

/// Records by stream and offset.
type Records = BTreeSet<(String, u64)>;

/// A closed log of a few streams, and every body in it.
fn closed(records: u64) -> (SimulatedDisk, BTreeMap<(String, u64), Vec<u8>>) {
    let disk = SimulatedDisk::default();
    let (log, _) = open(&disk, "boot");
    let mut random = Random::new(records);
    let mut all = BTreeMap::new();
    for number in 0..records {
        let stream = format!("stream-{}", number % STREAMS);
        let offset = number / STREAMS + 1;
        let body = body(&stream, offset, &mut random);
        log.append(&record(&stream, &body)).unwrap();
        all.insert((stream, offset), body);
        if number % 50 == 0 {
            flush(&log);
            log.maintain(NOW).unwrap();
        }
    }
    log.close().unwrap();
    (disk, all)
}

/// Reads every stream. Returns which records are missing and which are named as damaged, by the opening or by a read.
fn judge(disk: &SimulatedDisk, all: &BTreeMap<(String, u64), Vec<u8>>) -> (Records, Records) {
    let (log, recovery) = open(disk, "boot");
    let mut named: BTreeSet<_> =
        recovery.damaged.iter().map(|it| (it.stream.clone(), it.offset)).collect();
    let mut missing = BTreeSet::new();
    for number in 0..STREAMS {
        let stream = format!("stream-{number}");
        let read = log.read(&stream, &ReadRange::ALL, NOW).unwrap();
        named.extend(read.damaged.iter().map(|it| (it.stream.clone(), it.offset)));
        let found: BTreeMap<_, _> =
            read.records.into_iter().map(|record| (record.offset, record.body)).collect();
        for ((_, offset), body) in all.range((stream.clone(), 0)..=(stream.clone(), u64::MAX)) {
            match found.get(offset) {
                Some(found) => assert!(found == body, "another body at {stream}/{offset}"),
                None => drop(missing.insert((stream.clone(), *offset))),
            }
        }
    }
    (missing, named)
}

#[test]
fn flipped_bit_anywhere_is_named_and_every_other_record_is_read() {
    let (disk, all) = closed(30);
    let name = "00000001.segment";
    let bits = disk.bytes(name).len() * 8;
    let mut lost = 0;
    for bit in (32 * 8..bits).step_by(11) {
        let disk = disk.after_kill();
        disk.flip(name, bit);
        let (missing, named) = judge(&disk, &all);
        assert!(missing.len() <= 1, "bit {bit}: {missing:?}");
        let is_mark = named.is_empty() && missing.is_empty();
        assert!(
            missing.is_subset(&named),
            "bit {bit}: {missing:?} are missing, {named:?} are named"
        );
        // A bit of the log's own records, of which there are two, loses no record of a stream.
        lost += missing.len();
        assert!(named.len() == 1 || is_mark, "bit {bit}: {named:?}");
    }
    assert!(lost > 500, "bodies are not corrected");
}

#[test]
fn flipped_bit_in_a_complete_segment_is_named_by_the_read_that_meets_it() {
    let (disk, all) = closed(1_500);
    assert!(disk.names().iter().any(|name| name == "00000001.summary"), "{:?}", disk.names());
    let mut random = Random::new(5);
    for name in ["00000001.segment", "00000002.segment"] {
        let bits = disk.bytes(name).len() * 8;
        for _ in 0..60 {
            let disk = disk.after_kill();
            let bit = 32 * 8 + random.below(bits - 32 * 8);
            disk.flip(name, bit);
            let (missing, named) = judge(&disk, &all);
            assert!(
                missing.len() <= 1 && missing.is_subset(&named),
                "{name}, bit {bit}: {missing:?}"
            );
        }
    }
}

#[test]
fn several_damaged_bytes_in_a_header_lose_that_record_alone() {
    let (disk, all) = closed(60);
    let name = "00000001.segment";
    let bytes = disk.bytes(name);
    // Behind the first record of each stream, which has the name for the others of its segment.
    for at in (2_600..bytes.len() - 400).step_by(97) {
        let disk = disk.after_kill();
        let mut damaged = bytes.clone();
        for byte in &mut damaged[at..at + 6] {
            *byte ^= 0xa5;
        }
        disk.set_bytes(name, damaged);
        let (missing, named) = judge(&disk, &all);
        assert!(missing.len() <= 2, "byte {at}: {missing:?}");
        // The last record of a stream has none behind it that could name it.
        let is_named = missing.is_subset(&named) || named.contains(&(String::new(), 0));
        assert!(is_named, "byte {at}: {missing:?} are missing, {named:?} are named");
    }
}

#[test]
fn damaged_summary_is_replaced_by_what_the_segment_says() {
    let (disk, all) = closed(1_500);
    for bit in [3, 200, 999] {
        let disk = disk.after_kill();
        disk.flip("00000001.summary", bit);
        let (missing, named) = judge(&disk, &all);
        assert!(missing.is_empty() && named.is_empty());
    }
}

#[test]
fn full_disk_refuses_appends_and_reads_go_on_until_there_is_room() {
    let disk = SimulatedDisk::default();
    disk.set_room(Some(150 << 10));
    let (log, _) = open(&disk, "boot");
    let mut appended = 0;
    let full = loop {
        let _ = log.maintain(NOW);
        match log.append(&record("a", &[b'x'; 1_000])) {
            Ok(_) => appended += 1,
            Err(error) => break error,
        }
        flush(&log);
    };
    let AppendError::Full(reason) = &full else { panic!("{full}") };
    assert!(log.full().is_some_and(|full| full == *reason));
    assert!(full.to_string().starts_with("the log is full: "), "{full}");
    assert_eq!(bodies(&log, "a", 100).len(), appended);
    // A restart finds the same, and refuses the same.
    let (again, _) = open(&disk.after_kill(), "boot");
    assert_eq!(bodies(&again, "a", 100).len(), appended);
    disk.set_room(None);
    log.maintain(NOW).unwrap();
    assert_eq!(log.append(&record("a", b"x")).unwrap().offset, appended as u64 + 1);
}

#[test]
fn log_at_its_bound_drops_its_oldest_segment_if_it_may() {
    let disk = SimulatedDisk::default();
    let (log, _) = Log::open(Arc::new(disk.clone()), &dropping("boot")).unwrap();
    log.append(&record("old", b"x")).unwrap();
    for _ in 0..1_000 {
        log.append(&record("a", &[b'x'; 1_000])).unwrap();
        flush(&log);
        log.maintain(NOW).unwrap();
    }
    assert!(disk.used() <= 300 << 10, "{} bytes", disk.used());
    assert!(log.stats().dropped_early > 5);
    let read = log.read("a", &ReadRange::ALL, NOW).unwrap();
    assert_eq!(read.records.last().unwrap().offset, 1_000);
    assert_eq!(read.trimmed_before, read.records[0].offset, "and the reader learns what is gone");
    // The stream at rest has no record any more, and its offset goes on.
    assert_eq!(log.append(&record("old", b"y")).unwrap().offset, 2);
}

#[test]
fn sync_that_fails_ends_the_writer_and_is_never_repeated() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(&disk, "boot");
    log.append(&record("a", b"1")).unwrap();
    flush(&log);
    log.append(&record("a", b"2")).unwrap();
    log.write();
    disk.set_syncs_fail(true);
    assert!(log.sync().is_err());
    disk.set_syncs_fail(false);
    assert!(log.sync().is_err(), "the second would succeed and mean nothing");
    let error = log.append(&record("a", b"3")).unwrap_err();
    assert!(matches!(error, AppendError::Failed(_)), "{error}");
    assert_eq!(bodies(&log, "a", 10).len(), 2, "reads go on");
    // What the cache still has is written once more by the next start, so that it survives then.
    let (again, _) = open(&disk, "boot");
    assert_eq!(bodies(&again, "a", 10).len(), 2);
    let (later, _) = open(&disk.after_power_cut(&mut Random::new(3)), "next boot");
    assert_eq!(bodies(&later, "a", 10).len(), 2);
}

#[test]
fn slow_disk_fills_the_buffer_and_not_the_memory() {
    let disk = SimulatedDisk::default();
    let mut config = config("boot");
    config.limits.buffer_bytes_max = 40_000;
    let (log, _) = Log::open(Arc::new(disk), &config).unwrap();
    let accepted =
        (0..100).take_while(|_| log.append(&record("a", &[b'x'; 1_000])).is_ok()).count();
    assert_eq!(accepted, 38);
    assert_eq!(log.append(&record("a", &[b'x'; 1_000])).unwrap_err(), AppendError::Busy);
    flush(&log);
    assert!(log.append(&record("a", &[b'x'; 1_000])).is_ok());
}

#[test]
fn log_of_another_node_of_a_later_version_or_without_identity_is_refused_by_name() {
    let (disk, _) = closed(20);
    let refused = |disk: &SimulatedDisk| {
        Log::open(Arc::new(disk.clone()), &config("boot")).err().expect("it is refused")
    };
    let mut other = config("boot");
    other.owner = "node-b".to_owned();
    let error = Log::open(Arc::new(disk.clone()), &other).err().expect("it is refused");
    assert!(matches!(error, OpenError::OtherNode { .. }), "{error}");
    assert!(error.to_string().contains("`node-a`") && error.to_string().contains("`node-b`"));

    let later = disk.after_kill();
    let mut bytes = later.bytes("00000001.segment");
    bytes[8] = 2;
    later.set_bytes("00000001.segment", bytes);
    let error = refused(&later);
    assert!(matches!(error, OpenError::Newer { version: 2, known: 1, .. }), "{error}");

    let later = disk.after_kill();
    let mut bytes = later.bytes("identity");
    bytes[8] = 9;
    later.set_bytes("identity", bytes);
    assert!(matches!(refused(&later), OpenError::Newer { version: 9, .. }));

    let nobodys = disk.after_kill();
    dunlin_log::Disk::remove(&nobodys, "identity").unwrap();
    let error = refused(&nobodys);
    assert!(
        error.to_string().starts_with("identity is missing, but there are segments"),
        "{error}"
    );
    let damaged = disk.after_kill();
    damaged.flip("identity", 200);
    assert!(matches!(refused(&damaged), OpenError::NoIdentity { reason: "damaged", .. }));
}

#[test]
fn foreign_segment_is_refused_by_name_and_a_foreign_file_is_left_alone() {
    let (disk, all) = closed(20);
    let (other, _) = closed(30);
    disk.set_bytes("00000002.segment", other.bytes("00000001.segment"));
    let error = Log::open(Arc::new(disk.clone()), &config("boot")).err().expect("it is refused");
    let text = error.to_string();
    assert_eq!(text, "00000002.segment is not of this log: it is of another log; move it away");
    dunlin_log::Disk::remove(&disk, "00000002.segment").unwrap();
    disk.set_bytes("notes.txt", b"mine".to_vec());
    let (_, recovery) = open(&disk, "boot");
    assert_eq!(recovery.warnings, ["notes.txt is not a file of the log; move it away"]);
    assert!(judge(&disk, &all).0.is_empty());
    assert_eq!(disk.bytes("notes.txt"), b"mine");
}

#[test]
fn read_only_disk_is_refused_by_name() {
    let (disk, _) = closed(20);
    disk.set_read_only(true);
    let error = Log::open(Arc::new(disk), &config("boot")).err().expect("it is refused");
    assert!(error.to_string().starts_with("the log's directory cannot be used: "), "{error}");
}

#[test]
fn expired_segments_go_whole_and_the_offsets_of_their_streams_go_on() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(&disk, "boot");
    let first = log.append(&record("rare", b"x")).unwrap();
    for number in 0..400 {
        log.append(&record("often", &[b'x'; 1_000])).unwrap();
        if number % 20 == 0 {
            flush(&log);
            log.maintain(NOW).unwrap();
        }
    }
    flush(&log);
    let before = disk.used();
    assert!(before > 400_000);
    for _ in 0..4 {
        log.maintain(NOW + 2 * HOUR).unwrap();
        flush(&log);
    }
    assert!(disk.used() < 200_000, "{} bytes of {before}", disk.used());
    assert!(log.read("often", &ReadRange::ALL, NOW + 2 * HOUR).unwrap().records.is_empty());
    // After a restart, too.
    drop(log);
    let (log, _) = open(&disk, "boot");
    let state = log.stream("rare").unwrap();
    assert_eq!((state.id, state.top), (first.stream, 1));
    assert_eq!(log.append(&record("rare", b"y")).unwrap().offset, 2);
    assert_eq!(log.append(&record("often", b"y")).unwrap().offset, 401);
    // And at last they are forgotten.
    flush(&log);
    for _ in 0..4 {
        log.maintain(NOW + 100 * HOUR).unwrap();
        flush(&log);
    }
    assert_eq!(log.stream("rare"), None);
    let anew = log.append(&record("rare", b"z")).unwrap();
    assert!(anew.offset == 1 && anew.stream > first.stream, "another id, another epoch");
}

#[test]
fn stream_removed_stays_removed_and_its_successor_has_another_epoch() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(&disk, "boot");
    let first = log.append(&record("a", b"secret")).unwrap();
    log.remove("a", true).unwrap();
    assert_eq!(log.remove("a", true).unwrap_err(), AppendError::NoStream);
    assert_eq!(log.stream("a"), None);
    let second = log.append(&record("a", b"new")).unwrap();
    flush(&log);
    for log in [log, open(&disk.after_kill(), "boot").0] {
        assert_eq!(second.offset, 1);
        assert_ne!(log.epoch(first.stream, true), log.epoch(second.stream, true));
        let records = log.read("a", &ReadRange::ALL, NOW).unwrap().records;
        assert_eq!(records.iter().map(|it| &it.body[..]).collect::<Vec<_>>(), [b"new"]);
    }
}

#[test]
fn pages_of_a_long_stream_are_read_from_any_place_in_either_direction() {
    let (log, _) = open(&SimulatedDisk::default(), "boot");
    for offset in 1..=20_000u64 {
        log.append(&record("a", &offset.to_le_bytes())).unwrap();
        if offset % 500 == 0 {
            flush(&log);
            log.maintain(NOW).unwrap();
        }
    }
    let offsets = |range: ReadRange| {
        let read = log.read("a", &range, NOW).unwrap();
        assert!(read.records.iter().all(|it| it.body == it.offset.to_le_bytes()));
        read.records.iter().map(|it| it.offset).collect::<Vec<_>>()
    };
    for after in [0, 1, 63, 64, 4_095, 4_096, 7_777, 19_990] {
        let range = ReadRange { after, limit: 20, ..ReadRange::ALL };
        assert_eq!(offsets(range), (after + 1..=20_000).take(20).collect::<Vec<_>>());
        let before = after + 1;
        let range = ReadRange { before, limit: 20, newest_first: true, ..ReadRange::ALL };
        assert_eq!(offsets(range), (1..before).rev().take(20).collect::<Vec<_>>());
    }
    let range = ReadRange { after: 10, bytes_max: 20, ..ReadRange::ALL };
    assert_eq!(offsets(range), [11, 12, 13]);
    let trim = Trim { stream: "a", before: 15_000, now_ms: NOW, keep_ms: HOUR, sync: false };
    log.trim(&trim).unwrap();
    assert_eq!(offsets(ReadRange { limit: 2, ..ReadRange::ALL }), [15_000, 15_001]);
    let read = log.read("a", &ReadRange { limit: 1, ..ReadRange::ALL }, NOW).unwrap();
    assert_eq!(read.trimmed_before, 15_000);
    let mut names = Vec::new();
    log.append(&record("b", b"")).unwrap();
    flush(&log);
    log.streams(|name, state| names.push((name.to_owned(), state.top))).unwrap();
    names.sort();
    assert_eq!(names, [("a".to_owned(), 20_000), ("b".to_owned(), 1)]);
}

#[test]
fn directory_of_a_file_system_is_written_by_threads_and_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let open = || {
        let disk = dunlin_log::Directory::open(directory.path()).unwrap();
        Log::open(Arc::new(disk), &config("boot")).unwrap().0
    };
    let threads = Threads::start(Arc::new(open())).unwrap();
    let mut end = 0;
    for number in 0..3_000u64 {
        let stream = format!("stream-{}", number % 10);
        loop {
            match threads.log().append(&record(&stream, &[b'x'; 100])) {
                Ok(appended) => break end = appended.end,
                Err(AppendError::Busy) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(threads.log().wait_synced(end, std::time::Duration::from_secs(60)));
    let (sender, receiver) = std::sync::mpsc::channel();
    let range = ReadRange { after: 290, ..ReadRange::ALL };
    let done = Box::new(move |result| drop(sender.send(result)));
    assert!(threads.reads().unwrap().start("stream-3", range, done).is_ok());
    assert_eq!(receiver.recv().unwrap().unwrap().records.len(), 10);
    let second = dunlin_log::Directory::open(directory.path()).expect_err("it is locked");
    assert_eq!(second.kind(), std::io::ErrorKind::WouldBlock);
    threads.close().unwrap();
    let log = open();
    assert_eq!(bodies(&log, "stream-9", 50).len(), 300);
}
