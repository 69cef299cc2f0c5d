//! Exponential back-off with jitter: how long to wait before the next attempt if the peer does not
//! specify it.

use crate::random;

/// The bounds of a back-off. The delay begins at `min_ms` and doubles with each attempt up to `max_ms`.
///
/// ```
/// use dunlin_wire::backoff::{Backoff, Jitter};
///
/// const RETRY: Backoff = Backoff { min_ms: 100, max_ms: 30_000 };
/// assert_eq!([1, 2, 3, 99].map(|attempt| RETRY.delay_ms(attempt)), [100, 200, 400, 30_000]);
/// let mut jitter = Jitter::new(7);
/// assert!((200..=400).contains(&RETRY.jittered_ms(3, &mut jitter)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failed attempt, in milliseconds.
    pub min_ms: u64,
    /// The maximum delay in milliseconds.
    pub max_ms: u64,
}

impl Backoff {
    /// Returns the delay in milliseconds after this number of consecutive failed attempts, at least
    /// one.
    pub const fn delay_ms(self, attempts: u32) -> u64 {
        let doublings = attempts.saturating_sub(1);
        let doublings = if doublings > 32 { 32 } else { doublings };
        let delay_ms = self.min_ms.saturating_mul(1 << doublings);
        if delay_ms < self.max_ms { delay_ms } else { self.max_ms }
    }

    /// Returns the delay minus a random part of up to a half of it, so that attempts that failed
    /// together do not retry together.
    pub fn jittered_ms(self, attempts: u32, jitter: &mut Jitter) -> u64 {
        let delay_ms = self.delay_ms(attempts);
        delay_ms - jitter.below(delay_ms / 2 + 1)
    }
}

/// Random numbers to spread events in time. They are predictable: not for secrets.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// Creates a generator; `seed` is any number.
    pub const fn new(seed: u64) -> Jitter {
        Jitter(seed)
    }

    /// Returns the next number, less than `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        random::next(&mut self.0) % bound.max(1)
    }
}
