//! What an engine knows of streams, so that the common publication asks nothing.

use std::collections::HashMap;
use std::sync::Arc;

use dunlin_hub::Epoch;
use foldhash::fast::RandomState;

/// Streams that are remembered without a subscription: between so many and twice as many.
const REMEMBERED_MAX: usize = 1 << 15;

/// What is known of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) epoch: Epoch,
    /// The highest offset that was seen or acknowledged.
    pub(crate) top: u64,
    /// The partition's life in which it was learned: of an earlier one the epoch is not used any more.
    pub(crate) life: u32,
    /// When the times of its keys were renewed by us.
    pub(crate) renewed_ms: u64,
    /// When it was learned.
    pub(crate) seen_ms: u64,
    pub(crate) meta_ttl_ms: u64,
}

/// Streams published to without being subscribed to. Of those not used for long some are forgotten.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    recent: HashMap<Arc<str>, Known, RandomState>,
    before: HashMap<Arc<str>, Known, RandomState>,
}

impl Remembered {
    pub(crate) fn get(&self, channel: &str) -> Option<Known> {
        self.recent.get(channel).or_else(|| self.before.get(channel)).copied()
    }

    pub(crate) fn set(&mut self, channel: &Arc<str>, known: Known) {
        if let Some(place) = self.recent.get_mut(channel) {
            *place = known;
            return;
        }
        if self.recent.len() >= REMEMBERED_MAX {
            self.before = std::mem::take(&mut self.recent);
        }
        self.recent.insert(channel.clone(), known);
    }

    pub(crate) fn remove(&mut self, channel: &str) {
        self.recent.remove(channel);
        self.before.remove(channel);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Known)> {
        let older = self.before.iter().filter(|(channel, _)| !self.recent.contains_key(*channel));
        self.recent.iter().chain(older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_remembered_and_the_rest_is_bounded() {
        let known = Known {
            epoch: Epoch::from_u64(1),
            top: 0,
            life: 1,
            renewed_ms: 0,
            seen_ms: 0,
            meta_ttl_ms: 0,
        };
        let used: Arc<str> = "used".into();
        let mut remembered = Remembered::default();
        for number in 0..3 * REMEMBERED_MAX as u64 {
            remembered.set(&used, Known { top: number, ..known });
            remembered.set(&number.to_string().into(), known);
        }
        assert_eq!(
            remembered.get("used").map(|known| known.top),
            Some(3 * REMEMBERED_MAX as u64 - 1)
        );
        assert_eq!(remembered.get("0"), None);
        assert!(remembered.iter().count() <= 2 * REMEMBERED_MAX);
        remembered.remove("used");
        assert_eq!(remembered.get("used"), None);
    }
}
