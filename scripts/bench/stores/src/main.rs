//! What an engine for history could stand on, in one run on one disk: synced publishes a second and how long one waits, bytes
//! on disk for each byte stored, time until the last offset of a million streams is known again, and memory for each of them.
//!
//! `stores DIRECTORY [STORE ...]` prints a table.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

const STREAMS: u64 = 10_000;
const IDLE_STREAMS: u64 = 1_000_000;
const SECONDS: u64 = 5;

struct Record {
    stream: u64,
    offset: u64,
    body: Vec<u8>,
}

/// A store with the whole of a group in one synced write.
trait Store {
    fn commit(&mut self, group: Vec<Record>);
    /// Returns the top of each stream, as far as the store must know it to go on.
    fn tops(&mut self) -> usize;
}

fn name(stream: u64) -> String {
    format!("inbox:user-{stream:08}")
}

struct Fjall(fjall::Database, fjall::Keyspace);

impl Fjall {
    fn open(path: &Path) -> Fjall {
        let db = fjall::Database::builder(path).open().expect("a store");
        let records = db.keyspace("records", fjall::KeyspaceCreateOptions::default);
        Fjall(db, records.expect("a keyspace"))
    }
}

fn key(stream: u64, offset: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&stream.to_be_bytes());
    key[8..].copy_from_slice(&offset.to_be_bytes());
    key
}

impl Store for Fjall {
    fn commit(&mut self, group: Vec<Record>) {
        let mut batch = fjall::OwnedWriteBatch::with_capacity(self.0.clone(), group.len());
        for record in group {
            batch.insert(&self.1, key(record.stream, record.offset), record.body);
        }
        batch.durability(Some(fjall::PersistMode::SyncData)).commit().expect("a commit");
    }

    // A stream's top is the last key below its prefix, looked up when it is needed.
    fn tops(&mut self) -> usize {
        let last = self.1.prefix(7u64.to_be_bytes()).next_back();
        usize::from(last.is_some())
    }
}

struct Redb(redb::Database);

const RECORDS: redb::TableDefinition<'_, (u64, u64), &[u8]> = redb::TableDefinition::new("records");

impl Redb {
    fn open(path: &Path) -> Redb {
        fs::create_dir_all(path).expect("a directory");
        Redb(redb::Database::create(path.join("store.redb")).expect("a store"))
    }
}

impl Store for Redb {
    fn commit(&mut self, group: Vec<Record>) {
        let write = self.0.begin_write().expect("a transaction");
        let mut table = write.open_table(RECORDS).expect("a table");
        for record in group {
            table.insert((record.stream, record.offset), &*record.body).expect("room");
        }
        drop(table);
        write.commit().expect("a commit");
    }

    fn tops(&mut self) -> usize {
        use redb::ReadableDatabase;
        let read = self.0.begin_read().expect("a transaction");
        let table = read.open_table(RECORDS).expect("a table");
        usize::from(table.range((7, 0)..(8, 0)).expect("a range").next_back().is_some())
    }
}

struct Segments(std::sync::Arc<dunlin_log::Log>, Option<dunlin_log::Threads>);

impl Segments {
    fn open(path: &Path) -> Segments {
        let disk = dunlin_log::Directory::open(path).expect("a directory");
        let opened =
            dunlin_log::Log::open(std::sync::Arc::new(disk), &dunlin_log::LogConfig::default());
        let log = std::sync::Arc::new(opened.expect("a log").0);
        let threads = dunlin_log::Threads::start(std::sync::Arc::clone(&log)).expect("threads");
        Segments(log, Some(threads))
    }
}

impl Store for Segments {
    fn commit(&mut self, group: Vec<Record>) {
        let names: Vec<_> = group.iter().map(|record| name(record.stream)).collect();
        let records: Vec<_> = group
            .iter()
            .zip(&names)
            .map(|(record, stream)| dunlin_log::Append {
                stream,
                body: &record.body,
                expires_ms: 1 << 47,
                keep_ms: 0,
                sync: true,
            })
            .collect();
        let mut from = 0;
        while from < records.len() {
            let mut results = Vec::new();
            self.0.append_all(&records[from..], &mut results);
            let appended = results.iter().take_while(|result| result.is_ok()).count();
            assert!(results[appended..].iter().all(|result| result.is_err()));
            from += appended;
            if let Some(Ok(last)) = results[..appended].last() {
                assert!(self.0.wait_synced(last.end, Duration::from_secs(60)));
            }
        }
    }

    fn tops(&mut self) -> usize {
        self.0.stats().streams as usize
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        self.1.take().map(dunlin_log::Threads::close);
    }
}

fn open(kind: &str, path: &Path) -> Box<dyn Store> {
    match kind {
        "fjall" => Box::new(Fjall::open(path)),
        "log" => Box::new(Segments::open(path)),
        "redb" => Box::new(Redb::open(path)),
        _ => panic!("no such store"),
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Text that no compressor makes much smaller, as that of ids and tokens.
    fn body(&mut self, bytes: usize) -> Vec<u8> {
        const DIGITS: &[u8; 64] =
            b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
        let mut body = Vec::with_capacity(bytes + 8);
        while body.len() < bytes {
            let mut word = self.next();
            for _ in 0..10 {
                body.push(DIGITS[(word & 63) as usize]);
                word >>= 6;
            }
        }
        body.truncate(bytes);
        body
    }
}

struct Queue {
    waiting: Mutex<Vec<(Instant, Record)>>,
    filled: Condvar,
    in_flight: AtomicUsize,
    ended: AtomicBool,
}

/// `window`: publications that wait for the disk at a time, of all publishers together.
fn publishes(kind: &str, path: &Path, bytes: usize, window: usize) -> String {
    let mut store = open(kind, path);
    let queue = Queue {
        waiting: Mutex::default(),
        filled: Condvar::new(),
        in_flight: AtomicUsize::new(0),
        ended: AtomicBool::new(false),
    };
    let (mut times, mut groups) = (Vec::new(), 0u64);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for publisher in 0..2u64 {
            let queue = &queue;
            scope.spawn(move || {
                let mut random = Random(0x9e37_79b9 + publisher);
                let mut tops = HashMap::new();
                let bodies: Vec<_> = (0..1_000).map(|_| random.body(bytes)).collect();
                while !queue.ended.load(Ordering::Relaxed) {
                    if queue.in_flight.load(Ordering::Relaxed) >= window {
                        std::thread::sleep(Duration::from_micros(200));
                        continue;
                    }
                    // A worker's turn.
                    let turn: Vec<_> = (0..64)
                        .map(|_| {
                            let stream = random.next() % STREAMS / 2 * 2 + publisher;
                            let top = tops.entry(stream).or_insert(0u64);
                            *top += 1;
                            let body = bodies[(random.next() % 1_000) as usize].clone();
                            (Instant::now(), Record { stream, offset: *top, body })
                        })
                        .collect();
                    queue.in_flight.fetch_add(turn.len(), Ordering::Relaxed);
                    queue.waiting.lock().expect("no panic").extend(turn);
                    queue.filled.notify_one();
                }
            });
        }
        while began.elapsed() < Duration::from_secs(SECONDS) {
            let mut waiting = queue.waiting.lock().expect("no panic");
            while waiting.is_empty() {
                waiting = queue.filled.wait(waiting).expect("no panic");
            }
            let group = std::mem::take(&mut *waiting);
            drop(waiting);
            let (at, records): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            let count = records.len();
            store.commit(records);
            let now = Instant::now();
            times.extend(at.into_iter().map(|at| (now - at).as_micros() as u32));
            groups += 1;
            queue.in_flight.fetch_sub(count, Ordering::Relaxed);
        }
        queue.ended.store(true, Ordering::Relaxed);
    });
    let seconds = began.elapsed().as_secs_f64();
    let most = usage(path);
    drop(store);
    times.sort_unstable();
    let at = |part: f64| f64::from(times[(times.len() as f64 * part) as usize]) / 1e3;
    let stored = (times.len() * bytes) as f64;
    format!(
        "{:>9.0} | {:>6.1} | {:>6.1} | {:>6.0} | {:>5.2} | {:>5.2}",
        times.len() as f64 / seconds,
        at(0.5),
        at(0.99),
        times.len() as f64 / groups as f64,
        usage(path) as f64 / stored,
        most as f64 / stored,
    )
}

fn usage(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    let each = entries.flatten().map(|entry| match entry.metadata() {
        Ok(of) if of.is_dir() => usage(&entry.path()),
        Ok(of) => of.blocks() * 512,
        Err(_) => 0,
    });
    each.sum()
}

fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kilobytes.unwrap_or(0u64) * 1024
}

fn fill(kind: &str, path: &Path) {
    let mut store = open(kind, path);
    let mut random = Random(7);
    for first in (0..IDLE_STREAMS).step_by(10_000) {
        let streams = first..first + 10_000;
        let body = random.body(100);
        store.commit(
            streams.map(|stream| Record { stream, offset: 1, body: body.clone() }).collect(),
        );
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().expect("stores DIRECTORY [STORE ...]"));
    let mut kinds: Vec<String> = arguments.collect();
    // One store of a million streams is opened by a process of its own, so that its memory is its own.
    if let [mode, kind] = &*kinds
        && mode == "--open"
    {
        let before = memory();
        let began = Instant::now();
        let mut store = open(kind, &path);
        assert!(store.tops() > 0, "the streams are there");
        let (seconds, after) = (began.elapsed().as_secs_f64(), memory());
        println!(
            "{seconds:.2} s | {:.0} B",
            after.saturating_sub(before) as f64 / IDLE_STREAMS as f64
        );
        return;
    }
    if kinds.is_empty() {
        kinds = ["fjall", "redb", "log"].map(String::from).to_vec();
    }
    println!(
        "store | body | window | synced/s | p50 ms | p99 ms | group | on disk / stored | at most"
    );
    for kind in &kinds {
        for (bytes, window) in
            [(100, 2_000), (100, 4_000), (1024, 1_000), (1024, 2_000), (1024, 4_000)]
        {
            let place = path.join(format!("{kind}-{bytes}"));
            let _ = fs::remove_dir_all(&place);
            println!(
                "{kind:>5} | {bytes:>4} | {window:>6} | {}",
                publishes(kind, &place, bytes, window)
            );
            let _ = fs::remove_dir_all(&place);
        }
    }
    println!("store | open with 1 M streams | memory for each");
    for kind in &kinds {
        let place = path.join(format!("{kind}-idle"));
        let _ = fs::remove_dir_all(&place);
        fill(kind, &place);
        let this = std::env::current_exe().expect("this program");
        let output = std::process::Command::new(this).arg(&place).args(["--open", kind]).output();
        let output = output.expect("a process").stdout;
        println!("{kind:>5} | {}", String::from_utf8_lossy(&output).trim());
        let _ = fs::remove_dir_all(&place);
    }
}
