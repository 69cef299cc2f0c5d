//! What is known of streams without a subscription.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// The number of streams that are remembered without a subscription: at least this many, at most twice as many.
const REMEMBERED_MAX: usize = 1 << 15;

/// Streams that were published to without a subscription. The least recently used are forgotten first.
#[derive(Debug)]
pub(crate) struct RecentStreams<K> {
    recent: HashMap<Arc<str>, K, RandomState>,
    before: HashMap<Arc<str>, K, RandomState>,
}

impl<K> Default for RecentStreams<K> {
    fn default() -> RecentStreams<K> {
        RecentStreams { recent: HashMap::default(), before: HashMap::default() }
    }
}

impl<K: Clone> RecentStreams<K> {
    pub(crate) fn get(&self, channel: &str) -> Option<K> {
        self.recent.get(channel).or_else(|| self.before.get(channel)).cloned()
    }

    pub(crate) fn set(&mut self, channel: &Arc<str>, known: K) {
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

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &K)> {
        let older = self.before.iter().filter(|(channel, _)| !self.recent.contains_key(*channel));
        self.recent.iter().chain(older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recently_used_entries_are_kept_and_the_rest_is_bounded() {
        let used: Arc<str> = "used".into();
        let mut remembered = RecentStreams::default();
        for number in 0..3 * REMEMBERED_MAX as u64 {
            remembered.set(&used, number);
            remembered.set(&number.to_string().into(), 0);
        }
        assert_eq!(remembered.get("used"), Some(3 * REMEMBERED_MAX as u64 - 1));
        assert_eq!(remembered.get("0"), None);
        assert!(remembered.iter().count() <= 2 * REMEMBERED_MAX);
        remembered.remove("used");
        assert_eq!(remembered.get("used"), None);
    }
}
