//! Nodes that this one does not know yet. A message from one causes the leases to be read immediately.
//!
//! A node that joins sends a message to all. Without it the others would discover the node only with their next lease renewal,
//! and leave it out of cluster-wide calls until then.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The most processes for which leases are read between two renewals.
const ASKED_MAX: usize = 64;

/// Processes for which the leases were read. Each is looked up once until the table is cleared.
#[derive(Default)]
pub(super) struct Newcomers {
    asked: HashSet<Arc<str>>,
    /// When the table is cleared.
    until: Option<Instant>,
}

impl Newcomers {
    /// Returns whether the leases must be read to find this unknown process.
    pub(super) fn is_due(&mut self, uid: &str) -> bool {
        self.asked.len() < ASKED_MAX && self.asked.insert(uid.into())
    }

    /// Records that the leases are being read. A process that is not found may be looked up again after `every`.
    pub(super) fn handle_read(&mut self, now: Instant, every: Duration) {
        if self.until.is_none_or(|until| now >= until) {
            self.asked.clear();
            self.until = Some(now + every);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_read_once_for_each_newcomer_in_a_while_and_not_for_any_number() {
        let mut newcomers = Newcomers::default();
        let (now, every) = (Instant::now(), Duration::from_secs(3));
        newcomers.handle_read(now, every);
        assert!(newcomers.is_due("a"));
        // After that read, more messages of a process whose lease has ended cause no further read.
        newcomers.handle_read(now, every);
        assert!(!newcomers.is_due("a"));
        assert!(newcomers.is_due("b"));
        for number in 0..100 {
            newcomers.is_due(&number.to_string());
        }
        assert!(!newcomers.is_due("one too many"));
        newcomers.handle_read(now + every, every);
        assert!(newcomers.is_due("a"));
    }
}
