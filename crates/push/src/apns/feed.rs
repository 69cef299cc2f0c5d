//! A feed of invalid device tokens.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::broadcast;

use super::Reason;

/// Most entries that a follower may lag behind; beyond it, it learns how many it missed.
const BEHIND_MAX: usize = 4_096;
/// Maximum number of suspects in each of two sets: the newer and the older ones.
const SUSPECTS_MAX: usize = 65_536;

/// A device token that Apple does not accept any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadToken {
    /// Its digits.
    pub token: String,
    /// The text that Apple uses.
    pub reason: Reason,
    /// When Apple last knew that it was invalid, in milliseconds since 1970 (410 only). A later registration is
    /// valid: the app was installed again.
    pub timestamp_ms: Option<u64>,
}

/// A follower of the invalid tokens of a sender.
pub type Feed = broadcast::Receiver<DeadToken>;

/// The invalid tokens, and the recent ones as suspects.
#[derive(Debug)]
pub(super) struct Dead {
    feed: broadcast::Sender<DeadToken>,
    suspects: Mutex<[HashSet<u64>; 2]>,
}

impl Dead {
    pub(super) fn new() -> Dead {
        Dead { feed: broadcast::Sender::new(BEHIND_MAX), suspects: Mutex::default() }
    }

    pub(super) fn follow(&self) -> Feed {
        self.feed.subscribe()
    }

    pub(super) fn handle_dead(&self, subject: u64, dead: DeadToken) {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        if suspects[0].len() >= SUSPECTS_MAX {
            suspects.swap(0, 1);
            suspects[0].clear();
        }
        suspects[0].insert(subject);
        drop(suspects);
        // There may be no followers.
        let _ = self.feed.send(dead);
    }

    pub(super) fn handle_alive(&self, subject: u64) {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        for half in suspects.iter_mut().filter(|half| !half.is_empty()) {
            half.remove(&subject);
        }
    }

    pub(super) fn is_suspect(&self, subject: u64) -> bool {
        let suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.iter().any(|half| half.contains(&subject))
    }
}
