//! Idempotency keys of publications.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::position::StreamPosition;

/// Default time to live of a key, as in Centrifugo.
pub(crate) const DEFAULT_TTL_MS: u32 = 5 * 60 * 1000;

/// Positions by channel and idempotency key. Bounded in number: of the namespace that has most of them, the key that would
/// expire first is evicted.
pub(crate) struct Idempotency {
    results: HashMap<Arc<str>, IdempotencyEntry, RandomState>,
    /// Of each namespace, by its index, the keys in the order in which they expire.
    expiries: Vec<Expiries>,
    /// When the first key of each namespace expires that has one.
    firsts: BTreeSet<(u64, u32)>,
    max: usize,
}

/// Keys, the first of which expires first.
type Expiries = BinaryHeap<Reverse<(u64, Arc<str>)>>;

/// The publication that was made with a key, and when the key expires.
pub(crate) struct IdempotencyEntry {
    pub(crate) position: StreamPosition,
    pub(crate) expires_ms: u64,
}

impl Idempotency {
    pub(crate) fn new(max: usize) -> Self {
        Self { results: HashMap::default(), expiries: Vec::new(), firsts: BTreeSet::new(), max }
    }

    /// Changes the bound, effective with the next key.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    pub(crate) fn find(&self, channel: &str, key: &str, now_ms: u64) -> Option<StreamPosition> {
        let remembered = self.results.get(joined(channel, key).as_str())?;
        (remembered.expires_ms > now_ms).then_some(remembered.position)
    }

    /// Stores a key that is not stored or has expired. Returns the number of evicted keys.
    pub(crate) fn remember(
        &mut self,
        namespace: u32,
        channel: &str,
        key: &str,
        result: IdempotencyEntry,
        now_ms: u64,
    ) -> u64 {
        self.expire(now_ms);
        let mut evicted = 0;
        while self.results.len() >= self.max.max(1) {
            let counts = (0..).zip(self.expiries.iter().map(BinaryHeap::len));
            let most = counts.max_by_key(|&(_, keys)| keys).map_or(0, |(at, _)| at);
            if !self.evict_first(most) {
                break;
            }
            evicted += 1;
        }
        let name: Arc<str> = joined(channel, key).into();
        let expires_ms = result.expires_ms;
        self.results.insert(Arc::clone(&name), result);
        if self.expiries.len() <= namespace as usize {
            self.expiries.resize_with(namespace as usize + 1, BinaryHeap::new);
        }
        let before = self.first_of(namespace);
        self.expiries[namespace as usize].push(Reverse((expires_ms, name)));
        self.first_changed(namespace, before);
        evicted
    }

    pub(crate) fn expire(&mut self, now_ms: u64) {
        while let Some(&(at, namespace)) = self.firsts.first()
            && at <= now_ms
        {
            self.evict_first(namespace);
        }
    }

    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.firsts.first().map(|&(at, _)| at)
    }

    fn first_of(&self, namespace: u32) -> Option<u64> {
        self.expiries[namespace as usize].peek().map(|Reverse((at, _))| *at)
    }

    fn first_changed(&mut self, namespace: u32, before: Option<u64>) {
        let now = self.first_of(namespace);
        if before != now {
            if let Some(at) = before {
                self.firsts.remove(&(at, namespace));
            }
            if let Some(at) = now {
                self.firsts.insert((at, namespace));
            }
        }
    }

    /// Forgets some keys of a namespace. True when it has no more.
    pub(crate) fn forget(&mut self, namespace: u32, keys_max: u32) -> bool {
        (0..keys_max).any(|_| !self.evict_first(namespace))
    }

    fn evict_first(&mut self, namespace: u32) -> bool {
        let Some(keys) = self.expiries.get_mut(namespace as usize) else { return false };
        let Some(Reverse((at, name))) = keys.pop() else { return false };
        self.results.remove(&name);
        self.first_changed(namespace, Some(at));
        true
    }
}

/// The length prefix keeps two pairs of channel and key from having the same text.
fn joined(channel: &str, key: &str) -> String {
    format!("{}:{channel}{key}", channel.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Epoch;

    fn until(expires_ms: u64) -> IdempotencyEntry {
        IdempotencyEntry { position: StreamPosition::default(), expires_ms }
    }

    #[test]
    fn a_key_holds_in_its_channel_until_it_expires() {
        let mut keys = Idempotency::new(10);
        let position = StreamPosition { offset: 3, epoch: Epoch::from_u64(1) };
        assert_eq!(keys.find("ab", "c", 0), None);
        keys.remember(0, "ab", "c", IdempotencyEntry { position, expires_ms: 1500 }, 1000);
        assert_eq!(keys.find("ab", "c", 1499), Some(position));
        assert_eq!(keys.find("a", "bc", 1200), None, "another channel");
        assert_eq!(keys.find("ab", "c", 1500), None, "expired");
        keys.expire(1500);
        assert_eq!((keys.results.len(), keys.next_ms()), (0, None));
    }

    #[test]
    fn the_key_that_would_go_first_gives_way() {
        let mut keys = Idempotency::new(2);
        keys.remember(0, "c", "long", until(1000), 0);
        keys.remember(0, "c", "short", until(500), 0);
        assert_eq!(keys.remember(0, "c", "new", until(700), 0), 1);
        assert_eq!(keys.find("c", "short", 0), None);
        assert!(keys.find("c", "long", 0).is_some() && keys.find("c", "new", 0).is_some());
    }

    #[test]
    fn a_namespace_that_has_most_keys_gives_way_to_another() {
        let mut keys = Idempotency::new(4);
        keys.remember(1, "b:1", "first", until(500), 0);
        for number in 0..40 {
            keys.remember(0, "a:1", &number.to_string(), until(1_000), 0);
        }
        assert!(keys.find("b:1", "first", 0).is_some());
        assert_eq!((keys.results.len(), keys.next_ms()), (4, Some(500)));
        keys.expire(500);
        assert_eq!((keys.results.len(), keys.next_ms()), (3, Some(1_000)));
        keys.expire(1_000);
        assert_eq!((keys.results.len(), keys.next_ms()), (0, None));
    }
}
