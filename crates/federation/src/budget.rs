//! How much a peer's users may send here.

use foldhash::quality::FixedState;
use hashbrown::HashMap;
use std::hash::BuildHasher;

/// The most remote users whose budget is remembered at a time. One more is refused until another's budget is whole again.
const USERS_MAX: usize = 1 << 16;
/// The most pairs of sender and recipient that are remembered; the oldest is forgotten, and counts as new again.
const PAIRS_MAX: usize = 1 << 16;
const MINUTE_MS: u64 = 60_000;
/// A full table is swept at most this often, so that endless names cost a look each.
const SWEEP_MS: u64 = 1_000;

/// The budgets of one peer. 0: unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetConfig {
    /// Messages a minute of each remote user, as many at once.
    pub user_per_minute: u32,
    /// Pairs a minute of a sender and a recipient that have not been seen before, as many at once.
    pub new_pairs_per_minute: u32,
}

/// What of a budget is used: the instant up to which its time is taken.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    until_us: u64,
}

impl Bucket {
    /// Takes one of so many a minute.
    fn take(&mut self, now_ms: u64, per_minute: u32) -> bool {
        if per_minute == 0 {
            return true;
        }
        let now_us = now_ms * 1_000;
        let cost_us = MINUTE_MS * 1_000 / u64::from(per_minute);
        let until_us = self.until_us.max(now_us) + cost_us;
        let is_in = until_us <= now_us + MINUTE_MS * 1_000;
        if is_in {
            self.until_us = until_us;
        }
        is_in
    }
}

/// Admits the messages of one peer's users.
#[derive(Debug)]
pub struct Admission {
    config: BudgetConfig,
    users: HashMap<u64, Bucket, foldhash::fast::RandomState>,
    swept_ms: u64,
    new_pairs: Bucket,
    /// Pairs that were seen, in two generations.
    pairs: [hashbrown::HashSet<u64, foldhash::fast::RandomState>; 2],
    hasher: FixedState,
}

impl Admission {
    /// Creates the budgets of a peer. `seed` is random, so that nobody can choose names that collide.
    pub fn new(config: BudgetConfig, seed: u64) -> Admission {
        Admission {
            config,
            users: HashMap::default(),
            swept_ms: 0,
            new_pairs: Bucket::default(),
            pairs: Default::default(),
            hasher: FixedState::with_seed(seed),
        }
    }

    /// Applies other settings.
    pub fn set_config(&mut self, config: BudgetConfig) {
        self.config = config;
    }

    /// Charges a message; whether it may be delivered.
    pub fn admit(&mut self, now_ms: u64, from: &str, to: &str) -> bool {
        let user = self.hasher.hash_one(from);
        if self.config.user_per_minute > 0 {
            if self.users.len() >= USERS_MAX && !self.users.contains_key(&user) {
                if now_ms < self.swept_ms.saturating_add(SWEEP_MS) {
                    return false;
                }
                self.swept_ms = now_ms;
                self.users.retain(|_, bucket| bucket.until_us > now_ms * 1_000);
                if self.users.len() >= USERS_MAX {
                    return false;
                }
            }
            if !self.users.entry(user).or_default().take(now_ms, self.config.user_per_minute) {
                return false;
            }
        }
        if self.config.new_pairs_per_minute == 0 {
            return true;
        }
        let pair = self.hasher.hash_one((from, to));
        if self.pairs.iter().any(|pairs| pairs.contains(&pair)) {
            return true;
        }
        if !self.new_pairs.take(now_ms, self.config.new_pairs_per_minute) {
            return false;
        }
        if self.pairs[0].len() >= PAIRS_MAX / 2 {
            self.pairs.swap(0, 1);
            self.pairs[0].clear();
        }
        self.pairs[0].insert(pair);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_over_budget_is_refused_and_others_are_not() {
        let config = BudgetConfig { user_per_minute: 3, new_pairs_per_minute: 0 };
        let mut admission = Admission::new(config, 1);
        let sent = (0..10).filter(|_| admission.admit(0, "mallory", "bob")).count();
        assert_eq!(sent, 3);
        assert!(admission.admit(0, "alice", "bob"));
        assert!(!admission.admit(10_000, "mallory", "bob"));
        assert!(admission.admit(20_000, "mallory", "bob"), "a third of a minute is one message");
    }

    #[test]
    fn known_pairs_go_on_while_new_ones_are_refused() {
        let config = BudgetConfig { user_per_minute: 0, new_pairs_per_minute: 2 };
        let mut admission = Admission::new(config, 1);
        assert!(admission.admit(0, "alice", "bob"));
        let strangers = (0..100).filter(|i| admission.admit(0, "alice", &format!("u{i}"))).count();
        assert_eq!(strangers, 1);
        assert!(admission.admit(0, "alice", "bob"));
    }

    #[test]
    fn endless_names_of_a_peer_take_bounded_memory() {
        let config = BudgetConfig { user_per_minute: 10, new_pairs_per_minute: 1_000_000_000 };
        let mut admission = Admission::new(config, 1);
        for i in 0..200_000 {
            admission.admit(0, &format!("u{i}"), "bob");
        }
        assert!(admission.users.len() <= USERS_MAX);
        assert!(admission.pairs.iter().map(|pairs| pairs.len()).sum::<usize>() <= PAIRS_MAX);
        assert!(admission.admit(120_000, "late", "bob"), "what is whole again makes room");
    }
}
