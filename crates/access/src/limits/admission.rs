//! Admission: the limits that apply before a client has sent a byte.
//!
//! Total and per-address counts are shared by all workers, since the kernel spreads the connections of one
//! address over all of them. The accept rate is each worker's own token bucket.

use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dunlin_config::Limits;
use hashbrown::HashMap;

const SHARDS: usize = 64;

/// The outcome of asking for one more connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Counted; give it back with [`Admissions::release`].
    Granted,
    /// `limits.connections_max` is reached.
    TotalReached,
    /// `limits.connections_per_address_max` is reached for this address.
    AddressReached,
    /// `limits.unauthenticated_per_address_max` is.
    UnauthenticatedReached,
}

/// Connection counts of the whole process.
pub struct Admissions {
    total: AtomicU64,
    hasher: foldhash::fast::RandomState,
    addresses: [Mutex<HashMap<CountedAddress, AddressCount>>; SHARDS],
}

/// What counts as one address in limits, shares and budgets: an IPv4 address, or the network of an IPv6 address
/// (`limits.ipv6_prefix_bits`). It is never shown; whatever is shown, logged or filtered by is the peer's [`IpAddr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CountedAddress(IpAddr);

impl CountedAddress {
    /// Returns what an address counts as.
    pub fn of(address: IpAddr, ipv6_prefix_bits: u8) -> CountedAddress {
        CountedAddress(match address.to_canonical() {
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix_bits.min(128)));
                Ipv6Addr::from_bits(address.to_bits() & mask.unwrap_or(0)).into()
            }
            v4 => v4,
        })
    }

    /// Returns the first address of the network, for keys of limits alone.
    pub fn key(self) -> IpAddr {
        self.0
    }
}

/// Connections of one address.
#[derive(Clone, Copy, Default)]
struct AddressCount {
    connections: u32,
    /// Those of them that are not authenticated yet.
    unauthenticated: u32,
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
    /// Counts one connection of `address`, unauthenticated, if the limits allow it; `unbounded`, if that in all does.
    pub fn admit(&self, address: CountedAddress, limits: &Limits, unbounded: bool) -> Admission {
        if self.total.fetch_add(1, Relaxed) >= u64::from(limits.connections_max) {
            self.total.fetch_sub(1, Relaxed);
            return Admission::TotalReached;
        }
        let reached = |count: u32, max: u32| max > 0 && count >= max && !unbounded;
        let mut shard = self.shard(address);
        let count = shard.get(&address).copied().unwrap_or_default();
        let refused = if reached(count.connections, limits.connections_per_address_max) {
            Admission::AddressReached
        } else if reached(count.unauthenticated, limits.unauthenticated_per_address_max) {
            Admission::UnauthenticatedReached
        } else {
            let AddressCount { connections, unauthenticated } = count;
            let count =
                AddressCount { connections: connections + 1, unauthenticated: unauthenticated + 1 };
            shard.insert(address, count);
            return Admission::Granted;
        };
        drop(shard);
        self.total.fetch_sub(1, Relaxed);
        refused
    }

    /// Marks one connection of `address` as authenticated.
    pub fn authenticate(&self, address: CountedAddress) {
        if let Some(count) = self.shard(address).get_mut(&address) {
            count.unauthenticated -= 1;
        }
    }

    /// Releases a connection that [`admit`](Self::admit) granted.
    pub fn release(&self, address: CountedAddress, authenticated: bool) {
        self.total.fetch_sub(1, Relaxed);
        let mut shard = self.shard(address);
        if let Some(count) = shard.get_mut(&address) {
            count.connections -= 1;
            count.unauthenticated -= u32::from(!authenticated);
            if count.connections == 0 {
                shard.remove(&address);
            }
        }
    }

    /// Returns the number of open connections.
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    fn shard(
        &self,
        address: CountedAddress,
    ) -> std::sync::MutexGuard<'_, HashMap<CountedAddress, AddressCount>> {
        let index = self.hasher.hash_one(address) as usize % SHARDS;
        // A worker that panicked between lock and unlock leaves a count at most one too high.
        self.addresses[index].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A bucket that refills at `rate_per_s` and holds one second's worth.
#[derive(Debug)]
pub struct TokenBucket {
    /// Thousandths of a token, so that a millisecond's refill of a slow bucket is not rounded away. Below 0: taken on
    /// credit.
    milli_tokens: i64,
    refilled_ms: u64,
}

const TOKEN: i64 = 1000;

impl TokenBucket {
    /// A full bucket.
    pub fn new(now_ms: u64, rate_per_s: u64) -> Self {
        Self { milli_tokens: capacity(rate_per_s), refilled_ms: now_ms }
    }

    /// Takes one token, on credit if there is none. `Some`: there is no other for so many milliseconds. A rate of 0
    /// means no limit.
    pub fn take(&mut self, now_ms: u64, rate_per_s: u64) -> Option<u64> {
        self.refill(now_ms, rate_per_s);
        if rate_per_s > 0 {
            self.milli_tokens = self.milli_tokens.saturating_sub(TOKEN);
        }
        self.wait_ms(now_ms, rate_per_s)
    }

    /// Returns how long there is no token; `None` if there is one, or no limit.
    pub fn wait_ms(&mut self, now_ms: u64, rate_per_s: u64) -> Option<u64> {
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

    const A: CountedAddress = CountedAddress(IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 1)));
    const B: CountedAddress = CountedAddress(IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2)));

    fn limits(total: u32, per_address: u32, unauthenticated: u32) -> Limits {
        Limits {
            connections_max: total,
            connections_per_address_max: per_address,
            unauthenticated_per_address_max: unauthenticated,
            ..Limits::default()
        }
    }

    #[test]
    fn one_address_reaches_its_limit_and_another_does_not() {
        let (admissions, limits) = (Admissions::default(), limits(10, 2, 0));
        assert_eq!(admissions.admit(A, &limits, false), Admission::Granted);
        assert_eq!(admissions.admit(A, &limits, false), Admission::Granted);
        assert_eq!(admissions.admit(A, &limits, false), Admission::AddressReached);
        assert_eq!(admissions.admit(B, &limits, false), Admission::Granted);
        assert_eq!(admissions.total(), 3);
        admissions.release(A, false);
        assert_eq!(admissions.admit(A, &limits, false), Admission::Granted);
    }

    #[test]
    fn the_total_holds_over_all_addresses() {
        let (admissions, limits) = (Admissions::default(), limits(1, 0, 0));
        assert_eq!(admissions.admit(A, &limits, false), Admission::Granted);
        assert_eq!(admissions.admit(B, &limits, false), Admission::TotalReached);
        admissions.release(A, false);
        assert_eq!(admissions.total(), 0);
        assert_eq!(admissions.admit(B, &limits, false), Admission::Granted);
    }

    #[test]
    fn authenticated_connection_makes_room_for_others_of_its_address() {
        let (admissions, limits) = (Admissions::default(), limits(10, 3, 1));
        assert_eq!(admissions.admit(A, &limits, false), Admission::Granted);
        assert_eq!(admissions.admit(A, &limits, false), Admission::UnauthenticatedReached);
        admissions.authenticate(A);
        assert_eq!(admissions.admit(A, &limits, false), Admission::Granted);
        admissions.release(A, true);
        assert_eq!(admissions.admit(A, &limits, false), Admission::UnauthenticatedReached);
        admissions.release(A, false);
        assert_eq!(admissions.admit(A, &limits, false), Admission::Granted);
        assert_eq!(admissions.total(), 1);
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let counted = |address: &str, bits| {
            CountedAddress::of(address.parse().unwrap(), bits).key().to_string()
        };
        assert_eq!(counted("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::");
        assert_eq!(counted("2001:db8:1:2:3:4:5:6", 48), "2001:db8:1::");
        assert_eq!(counted("2001:db8:1:2:3:4:5:6", 128), "2001:db8:1:2:3:4:5:6");
        assert_eq!(counted("::ffff:192.0.2.7", 64), "192.0.2.7");
        assert_eq!(counted("192.0.2.7", 64), "192.0.2.7");
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
    fn credit_is_paid_back_first() {
        let mut bucket = TokenBucket::new(0, 1);
        let waits: Vec<Option<u64>> = (0..3).map(|_| bucket.take(0, 1)).collect();
        assert_eq!(waits, [Some(1000), Some(2000), Some(3000)]);
        assert_eq!(bucket.wait_ms(2999, 1), Some(1));
        assert_eq!(bucket.wait_ms(3000, 1), None);
        assert_eq!(bucket.wait_ms(3000, 0), None, "the limit was lifted");
    }
}
