//! How fast one address may do what costs much: a bucket for each, in a table that does not grow.
//!
//! Addresses share buckets by a hash that nobody outside can foresee: one that is refused takes few others along, and not
//! those it chooses.

use std::hash::BuildHasher;

use crate::limits::admission::{CountedAddress, TokenBucket};

/// Buckets of a worker: 64 KiB.
const BUCKETS: usize = 4096;

/// Rates by address. Empty until somebody is counted.
#[derive(Debug)]
pub(crate) struct AddressRates {
    buckets: Vec<TokenBucket>,
    hasher: foldhash::fast::FixedState,
    workers: usize,
}

impl AddressRates {
    pub(crate) fn new(seed: u64, workers: usize) -> AddressRates {
        let hasher = foldhash::fast::FixedState::with_seed(seed);
        AddressRates { buckets: Vec::new(), hasher, workers }
    }

    /// Counts one of `address`. False: it is more than this worker's share of `rate_per_s`, of which 0 means no bound.
    pub(crate) fn take(&mut self, address: CountedAddress, now_ms: u64, rate_per_s: u32) -> bool {
        let share = u64::from(rate_per_s).div_ceil(self.workers as u64);
        if share == 0 {
            return true;
        }
        if self.buckets.is_empty() {
            self.buckets.resize_with(BUCKETS, || TokenBucket::new(now_ms, share));
        }
        let bucket = self.hasher.hash_one(address) as usize % BUCKETS;
        let bucket = &mut self.buckets[bucket];
        // Who is refused pays nothing, so that he is served again as soon as his rate allows it.
        bucket.wait_ms(now_ms, share).is_none() && {
            bucket.take(now_ms, share);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_its_rate_and_another_has_its_own() {
        let mut rates = AddressRates::new(7, 2);
        let [one, other] = [1, 2].map(|last| CountedAddress::of([192, 0, 2, last].into(), 64));
        let taken = |rates: &mut AddressRates, address, now_ms| {
            (0..100).filter(|_| rates.take(address, now_ms, 20)).count()
        };
        assert_eq!(taken(&mut rates, one, 0), 10, "this worker's half of a second's worth");
        assert_eq!(taken(&mut rates, other, 0), 10);
        assert_eq!(taken(&mut rates, one, 500), 5);
        assert!(rates.take(one, 500, 0), "the limit was lifted");
    }
}
