//! Nodes that this one does not know yet: a message from one has the leases read at once, out of turn.
//!
//! A node that has joined, or has joined anew, sends a message to all. Without it the others would learn of the node with their next signs
//! of life only, and would leave it out of what holds on all nodes meanwhile.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Processes for which leases are read between two signs of life.
const ASKED_MAX: usize = 64;

/// For whom the leases were read: once for each, until it is forgotten.
#[derive(Default)]
pub(super) struct Newcomers {
    asked: HashSet<Arc<str>>,
    /// When they are forgotten.
    until: Option<Instant>,
}

impl Newcomers {
    /// Whether the leases are to be read for this process, of which nothing is known.
    pub(super) fn is_due(&mut self, uid: &str) -> bool {
        self.asked.len() < ASKED_MAX && self.asked.insert(uid.into())
    }

    /// The leases are being read. Who is not among them may be looked for again after `every`.
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
        // The read that follows from it, and more messages of a process whose lease has ended.
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
