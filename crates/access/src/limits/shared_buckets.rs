//! The token buckets of users, addresses, namespaces and API keys.
//!
//! They belong to the process, because the kernel spreads connections over the workers. Only commands that are charged to such a
//! budget take a lock.
//!
//! In a cluster, each node periodically announces by how much time it has advanced its buckets, and the others advance theirs by
//! the same time. So each node admits what is left, and together they admit the rate of the budget; what a node admits before it
//! receives the announcements of the others is the overshoot. A bucket is identified by a keyed hash of its name; the nodes share
//! the key, and no client knows it.

use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

use crate::limits::admission::CountedAddress;
use crate::limits::budget::{Buckets, BudgetKey, Rates, Work};

/// The number of parts of the buckets, each with its own lock.
const SHARDS: usize = 64;
/// The most keys of a shard whose use is remembered until it is announced; the use of further keys is not announced.
const USED_MAX: usize = 1_024;
/// The most keys in one announcement; the others wait for the next.
const ANNOUNCED_MAX: usize = 4_096;
/// The part of a burst, or of one second if that is shorter, from which use is announced.
const WORTH: u64 = 32;

/// The buckets of the process.
pub struct SharedBuckets {
    /// The key of the hash of names: that of the cluster, once the node knows it.
    key: [AtomicU64; 2],
    /// Use is announced to other nodes.
    is_shared: AtomicBool,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    buckets: Buckets,
    /// What was used since the last announcement.
    used: HashMap<BudgetKey, Used, RandomState>,
    /// Charges of keys whose use was not remembered.
    forgotten: u64,
}

#[derive(Default)]
struct Used {
    ns: u64,
    /// From this value on the use is announced.
    worth_ns: u64,
}

/// What a node has used of its budgets since its last announcement.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BudgetUse {
    /// Keys and nanoseconds, the largest first.
    pub used: Vec<(u64, u64)>,
    /// Charges not included, because there were too many keys at once.
    pub forgotten: u64,
}

impl Default for SharedBuckets {
    fn default() -> SharedBuckets {
        let mut key = [0; 16];
        // If this fails, clients may know the key, and can then choose names that share a budget with another.
        let _ = getrandom::fill(&mut key);
        let buckets = SharedBuckets {
            key: std::array::from_fn(|_| AtomicU64::new(0)),
            is_shared: AtomicBool::new(false),
            shards: std::array::from_fn(|_| Mutex::default()),
        };
        buckets.set_key(key);
        buckets
    }
}

impl SharedBuckets {
    /// Returns the key of an address, shared by all its clients.
    pub fn address(&self, address: CountedAddress) -> BudgetKey {
        match address.key() {
            IpAddr::V4(address) => self.named(1, &address.octets()),
            IpAddr::V6(address) => self.named(1, &address.octets()),
        }
    }

    /// Returns the key of a user.
    pub fn user(&self, name: &str) -> BudgetKey {
        self.named(2, name.as_bytes())
    }

    /// Returns the key of a namespace's clients.
    pub fn namespace(&self, name: &str) -> BudgetKey {
        self.named(3, name.as_bytes())
    }

    /// Returns the key of an API key's calls, by the API key's name.
    pub fn api_key(&self, name: &str) -> BudgetKey {
        self.named(4, name.as_bytes())
    }

    /// Names with the same hash share a budget, which happens to one pair among billions.
    fn named(&self, kind: u64, name: &[u8]) -> BudgetKey {
        BudgetKey::named(kind, self.hash(name))
    }

    fn hash(&self, name: &[u8]) -> u64 {
        let [low, high] = &self.key;
        let (low, high) = (low.load(Ordering::Relaxed), high.load(Ordering::Relaxed));
        let mut hasher = SipHasher13::new_with_keys(low, high);
        hasher.write(name);
        hasher.finish()
    }

    /// Charges a key. Returns how long the next command has to wait, in milliseconds. `now_ms` is the uptime of the process.
    pub fn charge(&self, key: BudgetKey, rates: &Rates, work: Work, now_ms: u64) -> u64 {
        if !rates.is_limited() {
            return 0;
        }
        let mut shard = self.shard(key);
        if self.is_shared.load(Ordering::Relaxed) {
            shard.remember(key, rates, work);
        }
        shard.buckets.charge(key, rates, work, now_ms)
    }

    /// Removes the buckets that are not ahead of the clock, in one worker's share of the shards.
    pub fn sweep(&self, worker: usize, workers: usize, now_ms: u64) {
        for shard in self.shards.iter().skip(worker).step_by(workers) {
            lock(shard).buckets.sweep(now_ms);
        }
    }

    /// Sets the key of the hash of names, which all nodes share. Use under the former key is forgotten.
    pub fn set_key(&self, key: [u8; 16]) {
        let (low, high) = key.split_at(8);
        for (cell, half) in self.key.iter().zip([low, high]) {
            let half = half.iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
            cell.store(half, Ordering::Relaxed);
        }
        self.forget_use();
    }

    /// Returns a check value: equal on nodes with the same key, and it does not reveal the key.
    pub fn key_check(&self) -> u64 {
        self.hash(b"which key is it?")
    }

    /// Sets whether use is remembered for [`take_used`](Self::take_used).
    pub fn share(&self, is_shared: bool) {
        if self.is_shared.swap(is_shared, Ordering::Relaxed) && !is_shared {
            self.forget_use();
        }
    }

    /// Returns the use since the last call that is worth announcing.
    pub fn take_used(&self, now_ms: u64) -> BudgetUse {
        let mut of = BudgetUse::default();
        for shard in &self.shards {
            let Shard { buckets, used, forgotten } = &mut *lock(shard);
            of.forgotten += std::mem::take(forgotten);
            used.retain(|key, use_of| {
                let is_worth = use_of.ns >= use_of.worth_ns;
                if is_worth {
                    of.used.push((key.to_u64(), use_of.ns));
                }
                // A small use that time has already paid for does not matter to other nodes.
                !is_worth && buckets.is_ahead(*key, now_ms)
            });
            if used.is_empty() {
                *used = HashMap::default();
            }
        }
        of.used.sort_unstable_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        if of.used.len() > ANNOUNCED_MAX {
            for (key, ns) in of.used.split_off(ANNOUNCED_MAX) {
                let key = BudgetKey::of_u64(key);
                self.shard(key).used.entry(key).or_default().ns += ns;
            }
        }
        of
    }

    /// Adds what another node has used.
    pub fn add_used(&self, used: &[(u64, u64)], now_ms: u64) {
        for (key, ns) in used {
            let key = BudgetKey::of_u64(*key);
            self.shard(key).buckets.advance(key, *ns, now_ms);
        }
    }

    fn forget_use(&self) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            (shard.used, shard.forgotten) = (HashMap::default(), 0);
        }
    }

    fn shard(&self, key: BudgetKey) -> MutexGuard<'_, Shard> {
        lock(&self.shards[key.to_u64() as usize % SHARDS])
    }
}

impl Shard {
    fn remember(&mut self, key: BudgetKey, rates: &Rates, work: Work) {
        let ns = rates.time_ns(work);
        if ns == 0 {
            return;
        }
        if self.used.len() >= USED_MAX && !self.used.contains_key(&key) {
            self.forgotten += 1;
            return;
        }
        let used = self.used.entry(key).or_default();
        used.ns = used.ns.saturating_add(ns);
        used.worth_ns = u64::from(rates.burst_ms().min(1_000)) * 1_000_000 / WORTH;
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // Nothing that runs under the lock can panic half-way.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use dunlin_hub::SessionId;

    use super::*;

    const COMMAND: Work = Work { commands: 1, kind: None, bytes: 0, deliveries: 0, spent_ns: 0 };

    #[test]
    fn keys_of_different_kinds_are_not_taken_for_each_other() {
        let budgets = SharedBuckets::default();
        let session = SessionId::pack(u16::MAX, u8::MAX, u8::MAX, u32::MAX, u8::MAX);
        let keys = [
            BudgetKey::session(session),
            budgets.address(CountedAddress::of([255; 4].into(), 128)),
            budgets.address(CountedAddress::of([255; 16].into(), 128)),
            budgets.user("a"),
            budgets.user("b"),
            budgets.namespace("a"),
            budgets.api_key("a"),
        ];
        assert_eq!(keys.iter().filter(|key| key.is_session()).count(), 1);
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{key:?}");
        }
    }

    /// Regression test: on N workers a user had N budgets.
    #[test]
    fn user_on_several_workers_has_one_budget() {
        let shared = SharedBuckets::default();
        let rates = Rates::per_second(100);
        let ada = shared.user("ada");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|_| _ = shared.charge(ada, &rates, COMMAND, 0)));
            }
        });
        assert_eq!(shared.charge(ada, &rates, COMMAND, 0), 10);
        assert_eq!(shared.charge(shared.user("bob"), &rates, COMMAND, 0), 0);
        (0..3).for_each(|worker| shared.sweep(worker, 3, 2_000));
        let held = |shard: &Mutex<Shard>| lock(shard).buckets.len();
        assert_eq!(
            shared.shards.iter().map(held).sum::<usize>(),
            0,
            "three workers have swept all"
        );
    }

    /// Creates nodes that have the same key and share their use.
    fn nodes(count: usize) -> Vec<SharedBuckets> {
        let nodes: Vec<_> = (0..count).map(|_| SharedBuckets::default()).collect();
        for node in &nodes {
            node.set_key([7; 16]);
            node.share(true);
        }
        nodes
    }

    /// Each node tells the others what it has used.
    fn announce(nodes: &[SharedBuckets], now_ms: u64) -> usize {
        let used: Vec<_> = nodes.iter().map(|node| node.take_used(now_ms).used).collect();
        for (to, node) in nodes.iter().enumerate() {
            let others = used.iter().enumerate().filter(|(from, _)| *from != to);
            others.for_each(|(_, used)| node.add_used(used, now_ms));
        }
        used.iter().map(Vec::len).sum()
    }

    /// Commands of one user that nodes carry out in a minute, where as many as `offered` come to each in a second: a command that has
    /// to wait lets those behind it wait.
    fn carried_out_in_a_minute(nodes: &[SharedBuckets], offered: &[u32], rates: &Rates) -> u32 {
        let mut free_at = vec![0; nodes.len()];
        let (mut waiting, mut carried_out) = (vec![0.0; nodes.len()], 0);
        for now_ms in 0..60_000 {
            for (at, node) in nodes.iter().enumerate() {
                waiting[at] += f64::from(offered[at]) / 1_000.0;
                while waiting[at] >= 1.0 && free_at[at] <= now_ms {
                    free_at[at] = now_ms + node.charge(node.user("ada"), rates, COMMAND, now_ms);
                    waiting[at] -= 1.0;
                    carried_out += 1;
                }
            }
            if now_ms % 1_000 == 999 {
                announce(nodes, now_ms);
            }
        }
        carried_out
    }

    /// On N nodes a user had N budgets.
    #[test]
    fn nodes_together_admit_what_one_would_however_commands_are_spread() {
        let rates = Rates::per_second(100);
        let one = carried_out_in_a_minute(&nodes(1), &[1_000], &rates);
        assert!((6_000..=6_110).contains(&one), "{one}: a minute's and one burst");
        for offered in
            [[1_000, 0, 0], [1_000, 1_000, 1_000], [900, 90, 10], [50, 50, 50], [99, 60, 1]]
        {
            let all = carried_out_in_a_minute(&nodes(3), &offered, &rates);
            // A burst and an interval of each node is what they admit before they hear of each other, and a waiting
            // client looks again only when its time has come.
            assert!((5_400..=6_000 + 3 * 200).contains(&all), "{offered:?}: {all}");
        }
        let apart = nodes(3);
        apart.iter().for_each(|node| node.share(false));
        let all = carried_out_in_a_minute(&apart, &[1_000; 3], &rates);
        assert!(all > 18_000, "{all}: each goes by its own where they do not hear of each other");
        // A small request is admitted completely.
        let all = carried_out_in_a_minute(&nodes(3), &[30, 30, 30], &rates);
        assert!(all >= 5_390, "{all}");
    }

    #[test]
    fn small_or_old_use_is_not_announced_and_idle_budgets_send_nothing() {
        let nodes = nodes(2);
        let rates = Rates::per_second(100);
        let ada = nodes[0].user("ada");
        assert_eq!(ada, nodes[1].user("ada"));
        assert_eq!(nodes[0].key_check(), nodes[1].key_check());
        assert_eq!(announce(&nodes, 0), 0);
        (0..3).for_each(|_| _ = nodes[0].charge(ada, &rates, COMMAND, 0));
        assert_eq!(announce(&nodes, 10), 0, "30 ms of a burst of a second");
        nodes[0].charge(ada, &rates, COMMAND, 20);
        assert_eq!(announce(&nodes, 30), 1, "with those before");
        assert!(lock(&nodes[1].shards[ada.to_u64() as usize % SHARDS]).buckets.is_ahead(ada, 69));
        nodes[0].charge(ada, &rates, COMMAND, 100);
        assert_eq!(announce(&nodes, 1_000), 0);
        assert!(nodes[0].shards.iter().all(|shard| lock(shard).used.is_empty()), "it was paid for");
        let other = SharedBuckets::default();
        assert_ne!(other.key_check(), nodes[0].key_check());
        assert_ne!(other.user("ada"), ada);
    }

    #[test]
    fn an_announcement_has_those_with_the_most_and_the_others_come_with_the_next() {
        let nodes = nodes(1);
        let rates = Rates::per_second(10);
        let users = ANNOUNCED_MAX + 100;
        for user in 0..users {
            let key = nodes[0].user(&user.to_string());
            let commands = if user < 100 { 1 } else { 2 };
            nodes[0].charge(key, &rates, Work { commands, ..COMMAND }, 0);
        }
        let first = nodes[0].take_used(0);
        assert_eq!((first.used.len(), first.forgotten), (ANNOUNCED_MAX, 0));
        assert!(first.used.iter().all(|(_, ns)| *ns == 200_000_000));
        assert_eq!(nodes[0].take_used(0).used.len(), 100);
        for user in 0..SHARDS * USED_MAX * 2 {
            let key = nodes[0].user(&user.to_string());
            nodes[0].charge(key, &rates, COMMAND, 0);
        }
        assert!(nodes[0].take_used(0).forgotten >= (SHARDS * USED_MAX) as u64 / 2);
    }
}
