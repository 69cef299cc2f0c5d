//! How this node stands in its cluster: which condition is shown after an operation failed, or after the lease was renewed.

use std::time::Duration;

use tokio::time::Instant;

use super::agent::Agent;
use super::condition::Condition;
use super::facts::tokens_of;
use super::log_position::LogPosition;

/// How long a condition stays visible after it has passed, so that a periodic check sees it.
const PASSED_SHOWN: Duration = Duration::from_secs(60);

/// A condition that stays visible although it has passed.
pub(super) struct Passed {
    condition: Condition,
    why: String,
    since: Instant,
    /// `None`: until the process ends.
    until: Option<Instant>,
}

impl Agent {
    /// Shows a condition for some time after it has passed.
    pub(super) fn show(&mut self, condition: Condition, why: &str) {
        let since = Instant::now();
        let until = Some(since + PASSED_SHOWN);
        self.passed = Some(Passed { condition, why: why.to_owned(), since, until });
        self.set_condition(condition, why);
    }

    /// Shows a condition that only a restart ends.
    pub(super) fn show_until_restart(&mut self, condition: Condition, why: String) {
        self.set_condition(condition, &why);
        self.passed = Some(Passed { condition, why, since: Instant::now(), until: None });
    }

    pub(super) fn set_condition(&self, condition: Condition, detail: &str) {
        if !self.node.cluster().set_condition(condition, detail) {
            return;
        }
        let (name, fix) = (condition.name(), condition.fix(self.address.kind()));
        match condition {
            Condition::Member | Condition::Joining => {
                tracing::info!(condition = name, "this node in its cluster");
            }
            _ => tracing::warn!(condition = name, fix, "this node in its cluster: {detail}"),
        }
    }

    /// Shows the condition that follows from a renewed lease. `log`: the position of the log of shared settings.
    pub(super) fn show_standing(&mut self, log: LogPosition) {
        let now = Instant::now();
        let unrun = self.unrun_changes(log);
        let name_conflict =
            self.name_conflict.find(now, &self.lease.uid, &self.node.name(), self.nodes.values());
        let tokens = tokens_of(&self.node.snapshot().config);
        let other = self.nodes.values().find(|node| {
            node.is_alive() && node.facts.tokens != tokens && node.uid != self.lease.uid
        });
        if let Some(node) = other {
            let facts = &node.facts;
            let why = format!("{} at {} verifies other tokens", facts.name, facts.client_addr);
            return self.set_condition(Condition::OtherCluster, &why);
        }
        self.passed.take_if(|passed| passed.until.is_some_and(|until| until <= now));
        match &self.passed {
            Some(Passed { condition, why, until: None, .. }) => {
                return self.set_condition(*condition, why);
            }
            Some(Passed { condition, why, since, .. }) => {
                let why = format!("{why}, {} s ago", (now - *since).as_secs());
                return self.set_condition(*condition, &why);
            }
            None => {}
        }
        if let Some(fault) = unrun {
            let (condition, why) = Condition::of_settings(&fault);
            return self.set_condition(condition, why);
        }
        match name_conflict {
            Some(why) => self.set_condition(Condition::NameTaken, &why),
            None => self.set_condition(Condition::Member, ""),
        }
    }
}
