//! Connections of each user on all workers of this node; counted where `limits.connections_per_user_max` bounds them, or in a
//! cluster.
//!
//! A worker counts a connection here before it opens its session, under the lock of the user's shard, so that two workers do not
//! both accept the last one. After a session was opened or closed, the worker sets its exact count, which drops what was counted
//! and not opened. So every user with a session is in the table. A node outside of clusters that has no such bound has no table,
//! and takes no lock.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dunlin_hub::tenant;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

const SHARDS: usize = 64;
/// The most users of a shard whose changes are kept for the cluster; beyond it all counts are written again.
const CHANGED_MAX: usize = 4_096;

/// The number of connections of each user.
pub struct UserConnections {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    /// Workers that have counted the sessions that existed before the table.
    counted: Mutex<BTreeSet<usize>>,
    /// Changes are kept for the cluster.
    is_shared: AtomicBool,
    /// Some changes were not kept.
    is_lost: AtomicBool,
    /// The cluster's agent has been notified of changes.
    is_notified: AtomicBool,
}

#[derive(Default)]
struct Shard {
    /// By user: the workers with connections of the user, and how many.
    users: HashMap<Box<str>, Vec<(u8, u32)>, RandomState>,
    /// Users whose counts have changed, with the workers that have accepted a connection since, in order.
    changed: HashMap<Box<str>, Vec<u8>, RandomState>,
}

/// The changed count of a user.
#[derive(Debug, PartialEq, Eq)]
pub struct UserCount {
    /// The user.
    pub user: Box<str>,
    /// Connections on all workers of this node.
    pub connections: u32,
    /// Workers that accepted a connection since the last report, in order.
    pub let_in_by: Vec<u8>,
}

impl Default for UserConnections {
    fn default() -> UserConnections {
        UserConnections {
            hasher: RandomState::default(),
            shards: std::array::from_fn(|_| Mutex::default()),
            counted: Mutex::default(),
            is_shared: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            is_notified: AtomicBool::new(false),
        }
    }
}

impl UserConnections {
    /// Counts one more connection on a worker. Returns `false` if the user already has `max`; 0 means no bound. A call of
    /// [`set`](Self::set) must follow.
    pub fn admit(&self, user: &str, worker: usize, max: u32) -> bool {
        let mut shard = self.shard(user);
        let Shard { users, changed } = &mut *shard;
        if !users.contains_key(user) {
            users.insert(user.into(), Vec::new());
        }
        let Some(counts) = users.get_mut(user) else { return true };
        if max > 0 && total(counts) >= max {
            return false;
        }
        let worker = worker as u8;
        match counts.iter_mut().find(|(of, _)| *of == worker) {
            Some((_, count)) => *count += 1,
            None => counts.push((worker, 1)),
        }
        if let Some(by) = self.change(changed, user) {
            by.push(worker);
        }
        true
    }

    /// Sets a worker's number of connections of a user. Returns `true` if the cluster's agent must be notified of changes.
    pub fn set(&self, user: &str, worker: usize, connections: u32) -> bool {
        let mut shard = self.shard(user);
        let Shard { users, changed } = &mut *shard;
        let worker = worker as u8;
        let counts = users.get_mut(user);
        let at = counts.as_ref().and_then(|all| all.iter().position(|(of, _)| *of == worker));
        let before = counts.as_ref().zip(at).map_or(0, |(counts, at)| counts[at].1);
        if connections != before {
            let by = self.change(changed, user);
            let last = by.as_ref().and_then(|by| by.iter().rposition(|of| *of == worker));
            if let (Some(by), Some(last), true) = (by, last, connections < before) {
                by.remove(last);
            }
            match (counts, at) {
                (Some(counts), Some(at)) if connections == 0 => drop(counts.swap_remove(at)),
                (Some(counts), Some(at)) => counts[at].1 = connections,
                (Some(counts), None) => counts.push((worker, connections)),
                (None, _) => drop(users.insert(user.into(), vec![(worker, connections)])),
            }
            if users.get(user).is_some_and(Vec::is_empty) {
                users.remove(user);
            }
        }
        self.is_shared.load(Ordering::Relaxed)
            && (changed.contains_key(user) || self.is_lost.load(Ordering::Relaxed))
            && !self.is_notified.swap(true, Ordering::Relaxed)
    }

    /// Marks all sessions of a worker as counted.
    pub fn set_counted(&self, worker: usize) {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).insert(worker);
    }

    /// Whether a user has a counted session.
    pub fn has(&self, user: &str) -> bool {
        self.shard(user).users.contains_key(user)
    }

    /// Whether a user could have a session: false only if all `workers` have counted theirs, and the user has none.
    pub fn may_have(&self, user: &str, workers: usize) -> bool {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner).len();
        counted < workers || !is_somebody(user) || self.has(user)
    }

    /// Removes the connections of a worker that has ended.
    pub fn forget(&self, worker: usize) {
        for shard in &self.shards {
            let shard = lock(shard);
            let has =
                |counts: &[(u8, u32)]| counts.iter().any(|(of, _)| usize::from(*of) == worker);
            let of_it = shard.users.iter().filter(|(_, counts)| has(counts));
            let users: Vec<Box<str>> = of_it.map(|(user, _)| user.clone()).collect();
            drop(shard);
            users.iter().for_each(|user| _ = self.set(user, worker, 0));
        }
    }

    /// Sets whether changes are kept for [`take_changed`](Self::take_changed).
    pub fn share(&self, is_shared: bool) {
        self.is_shared.store(is_shared, Ordering::Relaxed);
    }

    /// Returns the counts that have changed since the last call. `None`: there were too many; use [all](Self::all).
    pub fn take_changed(&self) -> Option<Vec<UserCount>> {
        self.is_notified.store(false, Ordering::Relaxed);
        if self.is_lost.load(Ordering::Relaxed) {
            return None;
        }
        let mut taken = Vec::new();
        for shard in &self.shards {
            let Shard { users, changed } = &mut *lock(shard);
            taken.extend(changed.drain().map(|(user, let_in_by)| {
                let connections = users.get(&user).map_or(0, |counts| total(counts));
                UserCount { user, connections, let_in_by }
            }));
        }
        Some(taken)
    }

    /// Returns all counts, and drops the recorded changes.
    pub fn all(&self) -> Vec<UserCount> {
        self.is_notified.store(false, Ordering::Relaxed);
        self.is_lost.store(false, Ordering::Relaxed);
        let mut all = Vec::new();
        for shard in &self.shards {
            let Shard { users, changed } = &mut *lock(shard);
            *changed = HashMap::default();
            all.extend(users.iter().map(|(user, counts)| UserCount {
                user: user.clone(),
                connections: total(counts),
                let_in_by: Vec::new(),
            }));
        }
        all
    }

    /// Returns the entry of a changed user; `None` if the change is not kept.
    fn change<'a>(
        &self,
        changed: &'a mut HashMap<Box<str>, Vec<u8>, RandomState>,
        user: &str,
    ) -> Option<&'a mut Vec<u8>> {
        if !self.is_shared.load(Ordering::Relaxed) {
            return None;
        }
        if !changed.contains_key(user) {
            if changed.len() >= CHANGED_MAX {
                self.is_lost.store(true, Ordering::Relaxed);
                return None;
            }
            changed.insert(user.into(), Vec::new());
        }
        changed.get_mut(user)
    }

    fn shard(&self, user: &str) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.hasher.hash_one(user) as usize % SHARDS])
    }
}

/// Whether it names a user; clients without a user have the empty name.
pub fn is_somebody(user: &str) -> bool {
    !tenant::bare(user).is_empty()
}

fn total(counts: &[(u8, u32)]) -> u32 {
    counts.iter().map(|(_, count)| count).sum()
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // Nothing that runs under the lock can panic half-way.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(user: &str, connections: u32, let_in_by: &[u8]) -> UserCount {
        UserCount { user: user.into(), connections, let_in_by: let_in_by.into() }
    }

    #[test]
    fn workers_let_in_as_many_as_there_may_be_together() {
        let table = UserConnections::default();
        let let_in = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|worker| {
                    let table = &table;
                    scope.spawn(move || {
                        (0..100).filter(|_| table.admit("ann", worker, 50)).count() as u32
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap_or(0)).collect::<Vec<_>>()
        });
        assert_eq!(let_in.iter().sum::<u32>(), 50, "{let_in:?}");
        assert!(table.admit("bob", 0, 1) && !table.admit("bob", 1, 1));
        // What was counted and came to nothing, and what has closed.
        table.set("bob", 0, 0);
        assert!(table.admit("bob", 1, 1));
        (0..4).for_each(|worker| _ = table.set("ann", worker, 1));
        assert!(table.admit("ann", 0, 5) && !table.admit("ann", 0, 5));
        table.forget(2);
        assert!(table.admit("ann", 0, 5) && !table.admit("ann", 0, 5));
    }

    #[test]
    fn user_without_connections_is_not_kept() {
        let table = UserConnections::default();
        assert!(table.admit("ann", 0, 2));
        assert!(!table.set("ann", 0, 1), "there is no cluster");
        table.set("ann", 0, 0);
        table.set("bob", 3, 0);
        assert!(table.all().is_empty());
    }

    #[test]
    fn user_is_not_absent_before_all_workers_have_counted() {
        let table = UserConnections::default();
        table.set_counted(0);
        assert!(table.may_have("ann", 2));
        table.set_counted(1);
        assert!(
            !table.may_have("ann", 2) && table.may_have("", 2),
            "who has no name may be anybody"
        );
        assert!(table.admit("ann", 1, 0) && table.admit("ann", 1, 0), "there is no bound");
        assert!(table.may_have("ann", 2), "before there is a session");
        table.set("ann", 1, 0);
        assert!(!table.may_have("ann", 2));
    }

    #[test]
    fn change_is_reported_once_with_the_workers_that_admitted_the_user() {
        let table = UserConnections::default();
        table.share(true);
        assert!(table.admit("ann", 1, 9) && table.set("ann", 1, 1));
        assert!(table.admit("ann", 2, 9) && !table.set("ann", 2, 1), "it is notified already");
        assert!(table.admit("bob", 1, 9));
        table.set("bob", 1, 0);
        let mut changed = table.take_changed().unwrap_or_default();
        changed.sort_by(|a, b| a.user.cmp(&b.user));
        assert_eq!(changed, [count("ann", 2, &[1, 2]), count("bob", 0, &[])]);
        assert_eq!(table.take_changed(), Some(vec![]));
        assert!(table.set("ann", 2, 0));
        assert_eq!(table.take_changed(), Some(vec![count("ann", 1, &[])]));
    }

    #[test]
    fn of_too_many_changes_all_counts_take_the_place() {
        let table = UserConnections::default();
        table.share(true);
        let users = SHARDS * CHANGED_MAX * 2;
        for user in 0..users {
            let user = user.to_string();
            table.admit(&user, 0, 1);
            table.set(&user, 0, 1);
        }
        assert_eq!(table.take_changed(), None);
        assert_eq!(table.all().len(), users);
        assert_eq!(table.take_changed(), Some(vec![]));
    }
}
