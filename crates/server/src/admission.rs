//! Admission: the limits that apply before a client has sent a byte.
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
    /// Thousandths of a token, so that a millisecond's refill of a slow bucket is not rounded away. Below 0: taken on
    /// credit.
    milli_tokens: i64,
    refilled_ms: u64,
}

const TOKEN: i64 = 1000;

impl TokenBucket {
    /// A full bucket.
    pub(crate) fn new(now_ms: u64, rate_per_s: u64) -> Self {
        Self { milli_tokens: capacity(rate_per_s), refilled_ms: now_ms }
    }

    /// Takes one token, on credit if there is none. `Some`: there is no other for so many milliseconds. A rate of 0
    /// means no limit.
    pub(crate) fn take(&mut self, now_ms: u64, rate_per_s: u64) -> Option<u64> {
        self.refill(now_ms, rate_per_s);
        if rate_per_s > 0 {
            self.milli_tokens = self.milli_tokens.saturating_sub(TOKEN);
        }
        self.wait_ms(now_ms, rate_per_s)
    }

    /// How long there is no token; `None` when there is one, or no limit.
    pub(crate) fn wait_ms(&mut self, now_ms: u64, rate_per_s: u64) -> Option<u64> {
        self.refill(now_ms, rate_per_s);
        let missing = TOKEN.saturating_sub(self.milli_tokens);
        (rate_per_s > 0 && missing > 0).then(|| missing.unsigned_abs().div_ceil(rate_per_s))
    }

    fn refill(&mut self, now_ms: u64, rate_per_s: u64) {
        let earned = now_ms.saturating_sub(self.refilled_ms).saturating_mul(rate_per_s);
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        self.milli_tokens = self.milli_tokens.saturating_add(earned).min(capacity(rate_per_s));
        self.refilled_ms = now_ms;
    }
}

fn capacity(rate_per_s: u64) -> i64 {
    i64::try_from(rate_per_s).unwrap_or(i64::MAX).saturating_mul(TOKEN)
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

    /// Takes tokens as a worker does, which pauses as long as the bucket says, but no less than `rest_ms`.
    fn taken(rate_per_s: u64, until_ms: u64, rest_ms: u64) -> u64 {
        let mut bucket = TokenBucket::new(0, rate_per_s);
        let (mut now_ms, mut taken) = (0, 0);
        while now_ms < until_ms {
            taken += 1;
            if let Some(wait_ms) = bucket.take(now_ms, rate_per_s) {
                now_ms += wait_ms.max(rest_ms);
            }
        }
        taken
    }

    #[test]
    fn a_bucket_gives_its_rate_and_no_more() {
        for rate_per_s in [1, 10, 1000, 33_333] {
            let taken = taken(rate_per_s, 10_000, 10);
            assert!(
                (10 * rate_per_s..=11 * rate_per_s + 1).contains(&taken),
                "{rate_per_s}: {taken}"
            );
        }
        assert_eq!(TokenBucket::new(0, 0).take(0, 0), None, "no limit");
    }

    #[test]
    fn what_is_taken_on_credit_is_paid_back_first() {
        let mut bucket = TokenBucket::new(0, 1);
        let waits: Vec<Option<u64>> = (0..3).map(|_| bucket.take(0, 1)).collect();
        assert_eq!(waits, [Some(1000), Some(2000), Some(3000)]);
        assert_eq!(bucket.wait_ms(2999, 1), Some(1));
        assert_eq!(bucket.wait_ms(3000, 1), None);
        assert_eq!(bucket.wait_ms(3000, 0), None, "the limit was lifted");
    }
}
