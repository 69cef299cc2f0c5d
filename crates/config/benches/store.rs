//! What a change costs by the number of objects there are: `cargo bench -p dunlin-config`.
//!
//! One thread, one change at a time, log on the disk under `TMPDIR`: prepared, appended and confirmed, as
//! the server does, without the workers between. The floor is what the two writes cost alone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_config::store::{Directory, InitialConfig, Origin, Store};
use dunlin_config::{Change, Config, Pointer};
use redb::{Database, Durability, TableDefinition};
use serde_json::{Value, json};

const CHANGES: usize = 20_000;
const WARM_UP: usize = 2_000;

struct Figures {
    what: String,
    objects: usize,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut all = vec![
        floor(directory.path()),
        redb(directory.path(), "redb, lost with the process", Durability::None, CHANGES),
        redb(directory.path(), "redb, waits for the disk", Durability::Immediate, CHANGES / 50),
    ];
    for objects in [1_000, 10_000, 100_000] {
        let members: serde_json::Map<String, Value> = (0..objects)
            .map(|i| {
                (format!("m{i:06}"), json!({"address": format!("10.0.{}.{}:80", i / 250, i % 250)}))
            })
            .collect();
        let config = json!({"webhooks": {"upstreams": {"u": {"members": members}}}});
        let mut store = open(&directory.path().join(format!("members-{objects}")), config);
        all.push(measure(&mut store, "one member's weight", objects, |i| {
            let member = i.wrapping_mul(7_919) % objects;
            (format!("/webhooks/upstreams/u/members/m{member:06}/weight"), json!(i % 100 + 2))
        }));
        let namespaces: serde_json::Map<String, Value> =
            (0..objects).map(|i| (format!("n{i:06}"), json!({"presence": true}))).collect();
        let config = json!({"channel": {"namespaces": namespaces}});
        let mut store = open(&directory.path().join(format!("namespaces-{objects}")), config);
        all.push(measure(&mut store, "one key of a namespace", objects, |i| {
            let namespace = i.wrapping_mul(7_919) % objects;
            (format!("/channel/namespaces/n{namespace:06}/history_meta_ttl_ms"), json!(i + 2_000))
        }));
        all.push(measure(&mut store, "a key beside them", objects, |i| {
            ("/limits/connections_max".to_owned(), json!(i + 1_000))
        }));
    }
    all.push(replace(&directory.path().join("replace")));
    if std::env::args().any(|argument| argument == "--json") {
        let rows: Vec<_> = all
            .iter()
            .map(|f| json!({"what": f.what, "objects": f.objects, "mean_us": f.mean_us, "p50_us": f.p50_us, "p99_us": f.p99_us}))
            .collect();
        println!("{}", json!({ "changes": CHANGES, "rows": rows }));
        return;
    }
    println!("{:<28}{:>9}{:>12}{:>12}{:>12}", "", "objects", "mean µs", "p50 µs", "p99 µs");
    for f in &all {
        println!(
            "{:<28}{:>9}{:>12.2}{:>12.2}{:>12.2}",
            f.what, f.objects, f.mean_us, f.p50_us, f.p99_us
        );
    }
}

fn open(path: &std::path::Path, config: Value) -> Store {
    let config = Config::from_json(config).expect("a valid config");
    let disk = Directory::open(path).expect("a directory");
    let start = InitialConfig { config: Ok(config), name: "bench".into(), judge: |_, _, _| {} };
    Store::open(Some(Box::new(disk)), start, 0).expect("a store").0
}

fn measure(
    store: &mut Store,
    what: &str,
    objects: usize,
    change: impl Fn(usize) -> (String, Value),
) -> Figures {
    let origin = Origin {
        who: Arc::from("ada@example.com"),
        from: Arc::from("127.0.0.1:40000"),
        at_unix_ms: 1_800_000_000_000,
        ..Origin::default()
    };
    let mut times = Vec::with_capacity(CHANGES);
    for i in 0..WARM_UP + CHANGES {
        let (pointer, value) = change(i);
        let text = value.to_string();
        let began = Instant::now();
        let pointer = Pointer::parse(&pointer).expect("a pointer");
        let change = Change::put(pointer, text.as_bytes()).expect("JSON");
        let prepared = store.head().prepare(&change, None).expect("a valid change");
        store.append(&[(prepared, origin.clone())]).expect("room");
        store.confirm();
        if i >= WARM_UP {
            times.push(began.elapsed());
        }
        if let Some(compaction) = store.poll_compaction() {
            store.handle_compacted(compaction.run());
        }
    }
    figures(what, objects, times)
}

/// A full replace of ten thousand namespaces, one key of each different.
fn replace(path: &std::path::Path) -> Figures {
    let all = |size: usize| -> Value {
        let one = json!({"presence": true, "history_size": size, "history_ttl_ms": 60_000});
        (0..10_000).map(|i| (format!("n{i:06}"), one.clone())).collect()
    };
    let mut store = open(path, json!({"channel": {"namespaces": all(1)}}));
    let mut times = Vec::new();
    for round in 2..12 {
        let text = all(round).to_string();
        let began = Instant::now();
        let pointer = Pointer::parse("/channel/namespaces").expect("a pointer");
        let change = Change::put(pointer, text.as_bytes()).expect("JSON");
        let prepared = store.head().prepare(&change, None).expect("a valid change");
        assert_eq!(prepared.changes().len(), 10_000);
        store.append(&[(prepared, Origin::default())]).expect("room");
        store.confirm();
        times.push(began.elapsed());
    }
    figures("all namespaces replaced", 10_000, times)
}

/// The two writes of a change, without the change.
fn floor(path: &std::path::Path) -> Figures {
    let file = File::create(path.join("floor")).expect("a file");
    let (record, mark) = ([7; 200], [7; 17]);
    let mut times = Vec::with_capacity(CHANGES);
    let mut at = 0;
    for _ in 0..CHANGES {
        let began = Instant::now();
        file.write_all_at(&record, at).expect("room");
        file.write_all_at(&mark, at + record.len() as u64).expect("room");
        at += (record.len() + mark.len()) as u64;
        times.push(began.elapsed());
    }
    figures("floor: two writes", 0, times)
}

/// The same record as a row of `redb`. It knows no commit that survives the end of the process without a wait for the disk,
/// which is what a change of the settings needs; so the settings have a log of their own. Means of two runs on two cores that others
/// used meanwhile: the two writes 2.4 and 4.0 µs, a row that is lost with the process 14 and 15 µs, one that is not 2.0 and 2.7 ms.
fn redb(path: &std::path::Path, what: &str, durability: Durability, changes: usize) -> Figures {
    const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
    let database = Database::create(path.join(format!("{durability:?}.redb"))).expect("a file");
    let mut times = Vec::with_capacity(changes);
    for revision in 0..changes as u64 {
        let began = Instant::now();
        let mut transaction = database.begin_write().expect("the only writer");
        transaction.set_durability(durability).expect("a durability");
        let mut records = transaction.open_table(RECORDS).expect("a table");
        records.insert(revision, &[7; 217][..]).expect("room");
        drop(records);
        transaction.commit().expect("room");
        times.push(began.elapsed());
    }
    figures(what, 0, times)
}

fn figures(what: &str, objects: usize, mut times: Vec<Duration>) -> Figures {
    times.sort_unstable();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let at = |part: f64| us(times[((times.len() - 1) as f64 * part) as usize]);
    let mean_us = us(times.iter().sum::<Duration>()) / times.len() as f64;
    Figures { what: what.to_owned(), objects, mean_us, p50_us: at(0.5), p99_us: at(0.99) }
}
