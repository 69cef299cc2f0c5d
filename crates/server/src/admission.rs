//! Who may connect: the limits that hold before a client has said a byte.
//!
//! Total and per-address counts are shared by all workers, since the kernel spreads the connections of one
//! address over all of them. The accept rate is each worker's own token bucket.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashbrown::HashMap;

const SHARDS: usize = 64;

/// The outcome of asking for one more connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Counted; give it back with [`Admissions::release`].
    Granted,
    /// `limits.connections_max` is reached.
    TotalReached,
    /// `limits.connections_per_address_max` is reached for this address.
    AddressReached,
}

/// Connection counts of the whole process.
pub(crate) struct Admissions {
    total: AtomicU64,
    hasher: foldhash::fast::RandomState,
    addresses: [Mutex<HashMap<IpAddr, u32>>; SHARDS],
}

impl Default for Admissions {
    fn default() -> Self {
        Self {
            total: AtomicU64::new(0),
            hasher: foldhash::fast::RandomState::default(),
            addresses: std::array::from_fn(|_| Mutex::new(HashMap::new())),
        }
    }
}

impl Admissions {
    /// Counts one connection of `address` if both limits allow it. A limit of 0 means none.
    pub(crate) fn admit(&self, address: IpAddr, total_max: u64, per_address_max: u32) -> Admission {
        if total_max > 0 && self.total.fetch_add(1, Relaxed) >= total_max {
            self.total.fetch_sub(1, Relaxed);
            return Admission::TotalReached;
        } else if total_max == 0 {
            self.total.fetch_add(1, Relaxed);
        }
        let mut shard = self.shard(address);
        let count = shard.entry(address).or_insert(0);
        if per_address_max > 0 && *count >= per_address_max {
            drop(shard);
            self.total.fetch_sub(1, Relaxed);
            return Admission::AddressReached;
        }
        *count += 1;
        Admission::Granted
    }

    /// Gives back what [`admit`](Self::admit) granted.
    pub(crate) fn release(&self, address: IpAddr) {
        self.total.fetch_sub(1, Relaxed);
        let mut shard = self.shard(address);
        if let Some(count) = shard.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                shard.remove(&address);
            }
        }
    }

    /// Connections open now.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    fn shard(&self, address: IpAddr) -> std::sync::MutexGuard<'_, HashMap<IpAddr, u32>> {
        let index = self.hasher.hash_one(address) as usize % SHARDS;
        // A worker that panicked between lock and unlock leaves a count at most one too high.
        self.addresses[index].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A bucket that refills at `rate_per_s` and holds one second's worth.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// Thousandths of a token, so that a millisecond's refill of a slow bucket is not rounded away.
    milli_tokens: u64,
    refilled_ms: u64,
}

impl TokenBucket {
    /// A full bucket.
    pub(crate) fn new(now_ms: u64, rate_per_s: u64) -> Self {
        Self { milli_tokens: rate_per_s * 1000, refilled_ms: now_ms }
    }

    /// Takes one token if there is one. A rate of 0 means no limit.
    pub(crate) fn take(&mut self, now_ms: u64, rate_per_s: u64) -> bool {
        if rate_per_s == 0 {
            return true;
        }
        let earned = now_ms.saturating_sub(self.refilled_ms).saturating_mul(rate_per_s);
        self.milli_tokens = self.milli_tokens.saturating_add(earned).min(rate_per_s * 1000);
        self.refilled_ms = now_ms;
        let granted = self.milli_tokens >= 1000;
        if granted {
            self.milli_tokens -= 1000;
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));

    #[test]
    fn one_address_reaches_its_limit_and_another_does_not() {
        let admissions = Admissions::default();
        assert_eq!(admissions.admit(A, 10, 2), Admission::Granted);
        assert_eq!(admissions.admit(A, 10, 2), Admission::Granted);
        assert_eq!(admissions.admit(A, 10, 2), Admission::AddressReached);
        assert_eq!(admissions.admit(B, 10, 2), Admission::Granted);
        assert_eq!(admissions.total(), 3);
        admissions.release(A);
        assert_eq!(admissions.admit(A, 10, 2), Admission::Granted);
    }

    #[test]
    fn the_total_holds_over_all_addresses() {
        let admissions = Admissions::default();
        assert_eq!(admissions.admit(A, 1, 0), Admission::Granted);
        assert_eq!(admissions.admit(B, 1, 0), Admission::TotalReached);
        admissions.release(A);
        assert_eq!(admissions.total(), 0);
        assert_eq!(admissions.admit(B, 1, 0), Admission::Granted);
    }

    #[test]
    fn a_bucket_gives_its_rate_and_no_more() {
        let mut bucket = TokenBucket::new(0, 10);
        let granted = (0..100).filter(|_| bucket.take(0, 10)).count();
        assert_eq!(granted, 10);
        let granted = (0..1000).filter(|ms| bucket.take(*ms, 10)).count();
        assert_eq!(granted, 9, "999 ms refill nine whole tokens");
        assert!(TokenBucket::new(0, 0).take(0, 0), "no limit");
    }
}
