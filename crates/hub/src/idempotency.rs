//! Idempotency keys of publications.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::position::StreamPosition;

/// Default time to live of a key, as in Centrifugo.
pub(crate) const DEFAULT_TTL_MS: u32 = 5 * 60 * 1000;

/// Positions by channel and idempotency key. Bounded in number: the key that would expire first is
/// evicted.
pub(crate) struct Idempotency {
    results: HashMap<Arc<str>, Remembered, RandomState>,
    expiries: BinaryHeap<Reverse<(u64, Arc<str>)>>,
    max: usize,
}

struct Remembered {
    position: StreamPosition,
    expires_ms: u64,
}

impl Idempotency {
    pub(crate) fn new(max: usize) -> Self {
        Self { results: HashMap::default(), expiries: BinaryHeap::new(), max }
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
        channel: &str,
        key: &str,
        position: StreamPosition,
        now_ms: u64,
        ttl_ms: u32,
    ) -> u64 {
        self.expire(now_ms);
        let mut evicted = 0;
        while self.results.len() >= self.max.max(1) {
            if !self.evict_first() {
                break;
            }
            evicted += 1;
        }
        let name: Arc<str> = joined(channel, key).into();
        let expires_ms = now_ms + u64::from(ttl_ms);
        self.results.insert(Arc::clone(&name), Remembered { position, expires_ms });
        self.expiries.push(Reverse((expires_ms, name)));
        evicted
    }

    pub(crate) fn expire(&mut self, now_ms: u64) {
        while self.next_ms().is_some_and(|at| at <= now_ms) {
            self.evict_first();
        }
    }

    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.expiries.peek().map(|Reverse((at, _))| *at)
    }

    fn evict_first(&mut self) -> bool {
        let Some(Reverse((_, name))) = self.expiries.pop() else { return false };
        self.results.remove(&name);
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

    #[test]
    fn a_key_holds_in_its_channel_until_it_expires() {
        let mut keys = Idempotency::new(10);
        let position = StreamPosition { offset: 3, epoch: Epoch::from_u64(1) };
        assert_eq!(keys.find("ab", "c", 0), None);
        keys.remember("ab", "c", position, 1000, 500);
        assert_eq!(keys.find("ab", "c", 1499), Some(position));
        assert_eq!(keys.find("a", "bc", 1200), None, "another channel");
        assert_eq!(keys.find("ab", "c", 1500), None, "expired");
        keys.expire(1500);
        assert_eq!((keys.results.len(), keys.next_ms()), (0, None));
    }

    #[test]
    fn the_key_that_would_go_first_gives_way() {
        let mut keys = Idempotency::new(2);
        keys.remember("c", "long", StreamPosition::default(), 0, 1000);
        keys.remember("c", "short", StreamPosition::default(), 0, 500);
        assert_eq!(keys.remember("c", "new", StreamPosition::default(), 0, 700), 1);
        assert_eq!(keys.find("c", "short", 0), None);
        assert!(keys.find("c", "long", 0).is_some() && keys.find("c", "new", 0).is_some());
    }
}
