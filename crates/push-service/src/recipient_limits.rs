//! Rate limits of pushes per user and per device, with a burst of one minute's worth.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::local_node::PushNode;

/// Most users and devices that are tracked, each for at most a minute after its last push. Further ones are not limited.
const SUBJECTS_MAX: usize = 1_000_000;
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// The pushes to users and devices within the last minute.
pub(super) struct RecipientLimits {
    node: Arc<dyn PushNode>,
    spent: Mutex<Spent>,
}

/// Virtual scheduling (GCRA): by the hash of a user or device, the time until which its pushes count, each for the
/// interval of its rate.
#[derive(Default)]
struct Spent {
    until: HashMap<u64, Instant>,
    hasher: RandomState,
    /// Number of entries at which expired ones are removed, at most once per [`SWEEP_EVERY`].
    sweep_at: usize,
    swept: Option<Instant>,
}

impl fmt::Debug for RecipientLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecipientLimits").finish_non_exhaustive()
    }
}

impl RecipientLimits {
    pub(super) fn new(node: Arc<dyn PushNode>) -> RecipientLimits {
        RecipientLimits { node, spent: Mutex::default() }
    }

    /// Counts a notification to a user. Returns `false` if it exceeds the limit.
    pub(super) fn take_user(&self, user: &str) -> bool {
        let max = self.node.snapshot().config.limits.pushes_per_user_per_min_max;
        self.take(("user", user), max)
    }

    /// Counts a push to a device, identified by credential and token. Returns `false` if it exceeds the limit.
    pub(super) fn take_device(&self, app: &str, token: &str) -> bool {
        let max = self.node.snapshot().config.limits.pushes_per_device_per_min_max;
        self.take((app, token), max)
    }

    fn take(&self, subject: impl Hash, per_min_max: u32) -> bool {
        if per_min_max == 0 {
            return true;
        }
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.take(subject, per_min_max, Instant::now())
    }
}

impl Spent {
    fn take(&mut self, subject: impl Hash, per_min_max: u32, now: Instant) -> bool {
        // The interval keeps a full table from being scanned for each push.
        let is_due = self.swept.is_none_or(|swept| now >= swept + SWEEP_EVERY);
        if self.until.len() >= self.sweep_at && is_due {
            self.swept = Some(now);
            self.until.retain(|_, until| *until > now);
            self.sweep_at = (2 * self.until.len()).clamp(1_024, SUBJECTS_MAX);
        }
        let subject = self.hasher.hash_one(subject);
        let known = self.until.get(&subject);
        if known.is_none() && self.until.len() >= SUBJECTS_MAX {
            return true;
        }
        let until = known.map_or(now, |until| *until.max(&now)) + MINUTE / per_min_max;
        let fits = until <= now + MINUTE;
        if fits {
            self.until.insert(subject, until);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minutes_worth_may_come_at_once_and_then_one_at_a_time() {
        let (mut spent, begin) = (Spent::default(), Instant::now());
        let mut takes = |subject, at_s| spent.take(subject, 7, begin + Duration::from_secs(at_s));
        assert_eq!((0..10).filter(|_| takes("ada", 0)).count(), 7);
        assert!(takes("bob", 0), "each has its own");
        assert!(!takes("ada", 8));
        assert!(takes("ada", 9) && !takes("ada", 9), "the seventh part of a minute later");
        assert_eq!((0..10).filter(|_| takes("ada", 200)).count(), 7);
        assert_eq!(spent.until.len(), 2);
        spent.sweep_at = 0;
        let later = begin + Duration::from_secs(300);
        assert!(spent.take("eve", 60_000, later));
        assert_eq!(spent.until.len(), 1, "what counts no more is forgotten");
        spent.sweep_at = 0;
        let soon = later + SWEEP_EVERY / 2;
        assert!(spent.take("mia", 1, soon) && spent.take("kim", 1, soon));
        assert_eq!(spent.until.len(), 3, "a full table is not gone through for each push");
        spent.sweep_at = 0;
        assert!(spent.take("zoe", 1, later + SWEEP_EVERY));
        assert_eq!(spent.until.len(), 3, "it is when a second has passed");
    }
}
