//! Announcements of shared budgets between nodes; see [`dunlin_access::limits::shared_buckets`].

use std::time::Duration;

use tokio::time::Instant;

use super::agent::{Agent, TaskResult};
use super::node_message::{BudgetsUsed, NodeMessage};
use super::state::ClusterMetric;
use super::store::{Destination, StoreError};

/// The interval of a node's announcements.
const EVERY: Duration = Duration::from_secs(1);

/// The agent's state of the shared budgets.
pub(super) struct BudgetsShared {
    /// The key that hashes names is the one of the cluster.
    has_key: bool,
    is_reading: bool,
    next: Instant,
}

impl Default for BudgetsShared {
    fn default() -> BudgetsShared {
        BudgetsShared { has_key: false, is_reading: false, next: Instant::now() + EVERY }
    }
}

impl BudgetsShared {
    /// When the next announcement is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.has_key.then_some(self.next)
    }

    /// Marks the key as unknown, because the store may have another one.
    pub(super) fn lose_key(&mut self) {
        self.has_key = false;
    }
}

impl Agent {
    /// Whether there are other nodes to announce to.
    fn shares_budgets(&self) -> bool {
        let others = self.nodes.values().filter(|node| node.uid != self.lease.uid);
        self.budgets.has_key
            && self.store.is_some()
            && self.node.snapshot().config.cluster.budgets_shared
            && others.filter(|node| node.is_alive()).count() > 0
    }

    /// Called with each lease renewal: reads the key that hashes names if it is missing, and starts or stops recording usage.
    pub(super) fn follow_budgets(&mut self) {
        if let Some(store) = self.store.as_ref().filter(|_| !self.budgets.has_key)
            && !std::mem::replace(&mut self.budgets.is_reading, true)
        {
            let mut made = [0; 16];
            // Without randomness a client could guess the key, and choose a name whose hash collides with that of another budget.
            let _ = getrandom::fill(&mut made);
            let key = store.budgets_key(made);
            self.jobs.spawn(async move { TaskResult::BudgetsKey(key.await) });
        }
        self.node.budgets().share(self.shares_budgets());
    }

    pub(super) fn handle_budgets_key(&mut self, read: Result<[u8; 16], StoreError>) {
        self.budgets.is_reading = false;
        match read {
            Ok(key) => {
                self.node.budgets().set_key(key);
                self.budgets.has_key = true;
                self.budgets.next = Instant::now() + EVERY;
                self.node.budgets().share(self.shares_budgets());
            }
            Err(error) => self.handle_failure(&error),
        }
    }

    /// Announces the usage since the last announcement, if there is any.
    pub(super) fn announce_budgets(&mut self, now: Instant) {
        if self.budgets.deadline().is_none_or(|next| now < next) {
            return;
        }
        self.budgets.next = now + EVERY;
        let is_shared = self.shares_budgets();
        self.node.budgets().share(is_shared);
        let of = self.node.budgets().take_used(self.node.uptime_ms());
        self.node.cluster().counters.add(ClusterMetric::BudgetsForgotten, of.forgotten);
        if !is_shared || of.used.is_empty() {
            return;
        }
        let budgets = BudgetsUsed { check: self.node.budgets().key_check(), used: of.used };
        let message = NodeMessage { budgets: Some(budgets), ..NodeMessage::from(&self.lease.uid) };
        let message = message.encode();
        self.say(vec![(Destination::All, message)]);
    }

    /// Applies the announced usage of another node.
    pub(super) fn handle_budgets(&mut self, BudgetsUsed { check, used }: &BudgetsUsed) {
        if *check != self.node.budgets().key_check() {
            // One of the two nodes has read a key that the store has lost since.
            return self.budgets.lose_key();
        }
        if self.node.snapshot().config.cluster.budgets_shared {
            self.node.budgets().add_used(used, self.node.uptime_ms());
        }
    }
}
