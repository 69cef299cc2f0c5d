//! What a change of one entry costs on the persistent map of the settings, beside `imbl` and `rpds`.
//!
//! A change of the settings is three steps: copy the map and set one entry, list the difference against the map before, and
//! free the older map once nobody uses it. `cargo bench -p dunlin-config --bench map` prints each for 1,000 to 100,000 entries.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_config::Map;
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use rpds::RedBlackTreeMapSync;

/// What an entry holds: about the size of a namespace's options.
type Entry = [u64; 24];

/// Changes that are measured, each of another entry; and how often all of them are.
const CHANGES: usize = 2_000;
const ROUNDS: usize = 5;

fn main() {
    println!(
        "one change: copy and set, difference, free; best of {ROUNDS} rounds; × is against ours"
    );
    println!("{:>8}  {:>18}  {:>18}  {:>18}", "entries", "ours", "imbl", "rpds");
    for entries in [1_000, 10_000, 100_000] {
        let names: Vec<Arc<str>> =
            (0..entries).map(|n| format!("namespace-{n:06}").into()).collect();
        let ours = ours(&names);
        let peers = [imbl(&names), rpds(&names)];
        let us = |time: Duration| time.as_nanos() as f64 / CHANGES as f64 / 1e3;
        let ratio = |time: Duration| time.as_secs_f64() / ours.as_secs_f64();
        let [imbl, rpds] = peers.map(|time| format!("{:.2} µs {:.2} ×", us(time), ratio(time)));
        println!("{entries:>8}  {:>15.2} µs  {imbl:>18}  {rpds:>18}", us(ours));
    }
}

/// The best time of a number of changes. Old versions are kept for a hundred changes, as revisions are.
fn best<M: Clone>(
    names: &[Arc<str>],
    first: M,
    mut change: impl FnMut(&M, &Arc<str>) -> M,
) -> Duration {
    let round = |_| {
        let mut kept = std::collections::VecDeque::from([first.clone()]);
        let begin = Instant::now();
        for n in 0..CHANGES {
            // A stride that shares no factor with the number of entries visits them out of order.
            let name = &names[n * 7_919 % names.len()];
            let next = change(kept.back().unwrap(), name);
            kept.push_back(next);
            if kept.len() > 100 {
                kept.pop_front();
            }
        }
        begin.elapsed()
    };
    (0..ROUNDS).map(round).min().unwrap()
}

fn ours(names: &[Arc<str>]) -> Duration {
    let first: Map<Entry> = names.iter().map(|name| (Arc::clone(name), [0; 24])).collect();
    best(names, first, |map, name| {
        let mut next = map.clone();
        next.insert(Arc::clone(name), [1; 24]);
        black_box(next.changes_from(map).count());
        next
    })
}

fn imbl(names: &[Arc<str>]) -> Duration {
    let entry = || Arc::new([0; 24]);
    let first: OrdMap<Arc<str>, Arc<Entry>> =
        names.iter().map(|name| (Arc::clone(name), entry())).collect();
    best(names, first, |map, name| {
        let mut next = map.clone();
        next.insert(Arc::clone(name), Arc::new([1; 24]));
        let is_update = |item: &DiffItem<'_, '_, _, _>| matches!(item, DiffItem::Update { .. });
        black_box(map.diff(&next).filter(is_update).count());
        next
    })
}

/// It has no difference of its own. Below 10,000 entries all of both maps are compared by address; from there on the figure is
/// the change alone, without a difference, and no comparison with the others.
fn rpds(names: &[Arc<str>]) -> Duration {
    let entry = || Arc::new([0; 24]);
    let first: RedBlackTreeMapSync<Arc<str>, Arc<Entry>> =
        names.iter().map(|name| (Arc::clone(name), entry())).collect();
    let names = &names[..names.len().min(10_000)];
    let compare = names.len() < 10_000;
    best(names, first, |map, name| {
        let next = map.insert(Arc::clone(name), Arc::new([1; 24]));
        if compare {
            let pairs = map.values().zip(next.values());
            black_box(pairs.filter(|(before, after)| !Arc::ptr_eq(before, after)).count());
        }
        next
    })
}
