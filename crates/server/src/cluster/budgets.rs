//! What nodes tell each other of the budgets that they share: see [`crate::limits::shared_buckets`].

use std::time::Duration;

use tokio::time::Instant;

use super::agent::{Agent, TaskResult};
use super::message::{BudgetsUsed, NodeMessage};
use super::state::ClusterMetric;
use super::store::{Destination, StoreError};

/// Between two announcements of a node.
const EVERY: Duration = Duration::from_secs(1);

/// What the agent knows of the budgets that are shared.
pub(super) struct BudgetsShared {
    /// The key of names is the cluster's.
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

    /// The key may be another by now.
    pub(super) fn lose_key(&mut self) {
        self.has_key = false;
    }
}

impl Agent {
    /// Whether there are other nodes to notify.
    fn shares_budgets(&self) -> bool {
        let others = self.nodes.values().filter(|node| node.uid != self.lease.uid);
        self.budgets.has_key
            && self.store.is_some()
            && self.state.settings.load().config.cluster.budgets_shared
            && others.filter(|node| node.is_alive()).count() > 0
    }

    /// With each sign of life: reads the key of names, if this node does not have it, and begins or ends to remember what is used.
    pub(super) fn follow_budgets(&mut self) {
        if let Some(store) = self.store.as_ref().filter(|_| !self.budgets.has_key)
            && !std::mem::replace(&mut self.budgets.is_reading, true)
        {
            let mut made = [0; 16];
            // Without randomness it is a key that a client may know: then he can share a budget with another.
            let _ = getrandom::fill(&mut made);
            let key = store.budgets_key(made);
            self.jobs.spawn(async move { TaskResult::BudgetsKey(key.await) });
        }
        self.state.budgets.share(self.shares_budgets());
    }

    pub(super) fn handle_budgets_key(&mut self, read: Result<Option<[u8; 16]>, StoreError>) {
        self.budgets.is_reading = false;
        match read {
            Ok(None) => {}
            Ok(Some(key)) => {
                self.state.budgets.set_key(key);
                self.budgets.has_key = true;
                self.budgets.next = Instant::now() + EVERY;
                self.state.budgets.share(self.shares_budgets());
            }
            Err(error) => self.handle_failure(&error),
        }
    }

    /// Tells the others what was used since the last time, if anything was.
    pub(super) fn announce_budgets(&mut self, now: Instant) {
        if self.budgets.deadline().is_none_or(|next| now < next) {
            return;
        }
        self.budgets.next = now + EVERY;
        let is_shared = self.shares_budgets();
        self.state.budgets.share(is_shared);
        let of = self.state.budgets.take_used(self.state.uptime_ms());
        self.state.cluster.counters.add(ClusterMetric::BudgetsForgotten, of.forgotten);
        if !is_shared || of.used.is_empty() {
            return;
        }
        let budgets = BudgetsUsed { check: self.state.budgets.key_check(), used: of.used };
        let message = NodeMessage { budgets: Some(budgets), ..NodeMessage::from(&self.lease.uid) };
        let message = message.encode();
        self.say(vec![(Destination::All, message)]);
    }

    /// Another node has used something.
    pub(super) fn handle_budgets(&mut self, BudgetsUsed { check, used }: &BudgetsUsed) {
        if *check != self.state.budgets.key_check() {
            // Redis has lost the key since one of the two has read it.
            return self.budgets.lose_key();
        }
        if self.state.settings.load().config.cluster.budgets_shared {
            self.state.budgets.add_used(used, self.state.uptime_ms());
        }
    }
}
