//! Channels with more publications than can be written to their subscribers; their publishers have to wait.
//!
//! Each worker reports which of its broadcasts are [behind](dunlin_hub::Hub::channels_behind). When there are none, a check costs
//! any worker one load.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foldhash::fast::RandomState;

/// Most channels that a worker reports at a time; publications to further ones do not wait.
const CHANNELS_MAX: usize = 8;

/// The channels of all workers that are behind.
#[derive(Debug)]
pub(crate) struct Pressure {
    hasher: RandomState,
    /// The number of reported channels.
    count: AtomicU64,
    workers: Vec<Slots>,
}

/// Hashes of one worker's channels; 0 is none.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slots([AtomicU64; CHANNELS_MAX]);

impl Pressure {
    pub(crate) fn new(workers: usize) -> Pressure {
        Pressure {
            hasher: RandomState::default(),
            count: AtomicU64::new(0),
            workers: (0..workers).map(|_| Slots::default()).collect(),
        }
    }

    /// Replaces the reported channels of one worker. Returns how many are reported; `before` is what the last call returned.
    pub(crate) fn set<'c>(
        &self,
        worker: usize,
        before: usize,
        channels: impl Iterator<Item = &'c str>,
    ) -> usize {
        let Slots(slots) = &self.workers[worker];
        let mut named = 0;
        for (slot, channel) in slots.iter().zip(channels) {
            slot.store(self.hash(channel), Relaxed);
            named += 1;
        }
        for slot in &slots[named..before.max(named)] {
            slot.store(0, Relaxed);
        }
        self.count.fetch_add((named as u64).wrapping_sub(before as u64), Relaxed);
        named
    }

    /// Returns the hash of a channel if it is behind.
    pub(crate) fn of(&self, channel: &str) -> Option<u64> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let hash = self.hash(channel);
        self.holds(hash).then_some(hash)
    }

    /// Whether the channel of this hash is behind.
    pub(crate) fn holds(&self, hash: u64) -> bool {
        self.count.load(Relaxed) > 0
            && self.workers.iter().flat_map(|slots| &slots.0).any(|slot| slot.load(Relaxed) == hash)
    }

    fn hash(&self, channel: &str) -> u64 {
        self.hasher.hash_one(channel) | 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_behind_as_long_as_some_worker_says_so() {
        let pressure = Pressure::new(2);
        assert_eq!(pressure.of("a"), None);
        let first = pressure.set(0, 0, ["a", "b"].into_iter());
        let second = pressure.set(1, 0, ["a"].into_iter());
        let hash = pressure.of("a").unwrap();
        assert!(pressure.of("b").is_some() && pressure.of("c").is_none());
        let first = pressure.set(0, first, ["b"].into_iter());
        assert!(pressure.holds(hash), "the other worker is not done");
        assert_eq!(pressure.set(1, second, [].into_iter()), 0);
        assert!(!pressure.holds(hash) && pressure.of("b").is_some());
        assert_eq!(pressure.set(0, first, [].into_iter()), 0);
        assert_eq!(pressure.of("b"), None);
    }

    #[test]
    fn a_worker_names_so_many() {
        let pressure = Pressure::new(1);
        let names: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        let named = pressure.set(0, 0, names.iter().map(String::as_str));
        assert_eq!(named, CHANNELS_MAX);
        assert_eq!(names.iter().filter(|name| pressure.of(name).is_some()).count(), named);
        assert_eq!(pressure.set(0, named, [].into_iter()), 0);
        assert_eq!(pressure.of("0"), None);
    }
}
