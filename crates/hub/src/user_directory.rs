//! The workers that may have sessions of a user.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use foldhash::fast::RandomState;

/// Counters of a worker's first table.
const COUNTERS_MIN: usize = 1 << 10;
/// Each table has four times the counters of the one before: ten of them are enough for a worker's sessions.
const TABLES: usize = 10;
/// A counter with this value is not changed any more.
const STUCK: u8 = u8::MAX;

/// A directory shared by the hubs of a process. Commands about a user are sent only to workers that may have the
/// user's sessions.
///
/// Each worker has a table of counters of its users by the hash of their names. The answer may be yes for a worker
/// without a session of the user, in at most two cases of five, but is never no for a worker with one. Only a
/// worker's own hub writes its table. A user costs two to eleven bytes.
#[derive(Debug)]
pub struct UserDirectory {
    workers: Box<[Counters]>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Counters {
    tables: [OnceLock<Box<[AtomicU8]>>; TABLES],
    /// The number of tables; the last one is used.
    len: AtomicUsize,
}

impl Counters {
    fn current(&self) -> Option<&[AtomicU8]> {
        let at = self.len.load(Ordering::Acquire).checked_sub(1)?;
        self.tables[at].get().map(|table| &**table)
    }

    fn counter(table: &[AtomicU8], hash: u64) -> &AtomicU8 {
        // Hash tables use both ends of a hash; its middle is equally random.
        &table[(hash >> 16) as usize & (table.len() - 1)]
    }
}

fn increment(counter: &AtomicU8) {
    // There is no other writer.
    let count = counter.load(Ordering::Relaxed);
    counter.store(count.saturating_add(1), Ordering::Release);
}

impl UserDirectory {
    /// Creates a directory without users.
    pub fn new(workers: u8) -> Self {
        let workers = (0..workers).map(|_| Counters::default()).collect();
        Self { workers, hasher: RandomState::default() }
    }

    /// The hash of names, the same on all workers.
    pub(crate) fn hasher(&self) -> &RandomState {
        &self.hasher
    }

    /// Whether the worker may have a session of the user.
    pub(crate) fn may_have(&self, worker: u8, user: &str) -> bool {
        let hash = self.hasher.hash_one(user);
        let table = self.workers.get(usize::from(worker)).and_then(Counters::current);
        table.is_some_and(|table| Counters::counter(table, hash).load(Ordering::Acquire) > 0)
    }

    /// Clears the table of a worker that starts again. Only the worker itself calls this and the methods below.
    pub(crate) fn reset(&self, worker: u8) {
        let counters = &self.workers[usize::from(worker)];
        counters.len.store(0, Ordering::Release);
        for table in counters.tables.iter().filter_map(OnceLock::get) {
            table.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        }
    }

    /// Adds a user of the worker, which now has `users`. `hashes` returns the hashes of all their names, including
    /// the new one.
    pub(crate) fn add<I: Iterator<Item = u64>>(
        &self,
        worker: u8,
        hash: u64,
        users: usize,
        hashes: impl FnOnce() -> I,
    ) {
        let counters = &self.workers[usize::from(worker)];
        let len = counters.len.load(Ordering::Relaxed);
        match counters.current() {
            Some(table) if users * 2 <= table.len() || len == TABLES => {
                increment(Counters::counter(table, hash));
            }
            _ => {
                let counters_len = COUNTERS_MIN << (2 * len);
                let new = || (0..counters_len).map(|_| AtomicU8::new(0)).collect();
                let table = counters.tables[len].get_or_init(new);
                hashes().for_each(|hash| increment(Counters::counter(table, hash)));
                counters.len.store(len + 1, Ordering::Release);
            }
        }
    }

    /// Removes a user after the worker's last session of it has ended.
    pub(crate) fn remove(&self, worker: u8, hash: u64) {
        if let Some(table) = self.workers[usize::from(worker)].current() {
            let counter = Counters::counter(table, hash);
            let count = counter.load(Ordering::Relaxed);
            if count != STUCK {
                counter.store(count.saturating_sub(1), Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(directory: &UserDirectory, worker: u8, names: &[String], at: usize) {
        let hash = |name: &String| directory.hasher().hash_one(&**name);
        directory.add(worker, hash(&names[at]), at + 1, || names[..=at].iter().map(hash));
    }

    #[test]
    fn every_worker_with_a_user_is_found_and_most_others_are_not() {
        let directory = UserDirectory::new(2);
        let names: Vec<String> = (0..10_000).map(|n| format!("user{n}")).collect();
        for at in 0..names.len() {
            add(&directory, 0, &names, at);
            assert!(directory.may_have(0, &names[at]));
        }
        assert!(names.iter().all(|name| directory.may_have(0, name)));
        assert!(!names.iter().any(|name| directory.may_have(1, name)));
        let others = (0..1_000).filter(|n| directory.may_have(0, &format!("other{n}"))).count();
        assert!(others < 500, "{others} of 1,000");

        for name in &names[1..] {
            directory.remove(0, directory.hasher().hash_one(&**name));
        }
        assert!(directory.may_have(0, &names[0]));
        assert!(names.iter().filter(|name| directory.may_have(0, name)).count() < 100);
        directory.reset(0);
        assert!(!directory.may_have(0, &names[0]));
        add(&directory, 0, &names, 0);
        assert!(directory.may_have(0, &names[0]) && !directory.may_have(0, &names[1]));
    }

    #[test]
    fn a_counter_that_overflowed_stays() {
        let directory = UserDirectory::new(1);
        for _ in 0..300 {
            directory.add(0, 7 << 16, 1, || std::iter::once(7 << 16));
        }
        for _ in 0..300 {
            directory.remove(0, 7 << 16);
        }
        let table = directory.workers[0].current().unwrap();
        assert_eq!(Counters::counter(table, 7 << 16).load(Ordering::Relaxed), STUCK);
    }
}
