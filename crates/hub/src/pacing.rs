//! How fast broadcasts may leave.

use std::num::{NonZeroU32, NonZeroU64};

/// Rates and the quantum of a namespace's broadcasts, or of a whole worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pacing {
    /// Messages a second that leave a worker, a message to two clients counted twice; `None`: no limit.
    pub messages_per_s: Option<NonZeroU64>,
    /// Bytes a second that leave a worker; `None`: no limit.
    pub bytes_per_s: Option<NonZeroU64>,
    /// How much of both rates may leave at once after a pause, in milliseconds of them; one message in any case.
    pub burst_ms: u32,
    /// Sessions of one broadcast flushed in a turn, at most; `None`: as many as the turn allows.
    pub sessions_per_turn: Option<NonZeroU32>,
}

impl Default for Pacing {
    /// No limit.
    fn default() -> Pacing {
        Pacing {
            messages_per_s: None,
            bytes_per_s: None,
            burst_ms: BURST_MS,
            sessions_per_turn: None,
        }
    }
}

/// Default of [`Pacing::burst_ms`].
pub const BURST_MS: u32 = 100;

impl Pacing {
    /// Sessions of one broadcast flushed in a turn.
    pub(crate) fn turn_budget(&self) -> u32 {
        self.sessions_per_turn.map_or(u32::MAX, NonZeroU32::get)
    }

    /// True when it holds anything back.
    pub fn is_limited(&self) -> bool {
        self.messages_per_s.is_some()
            || self.bytes_per_s.is_some()
            || self.sessions_per_turn.is_some()
    }
}

/// Two token buckets, of messages and of bytes, in thousandths of a token: a rate a second times
/// milliseconds.
///
/// A message may overdraw the buckets once, so that one larger than the bucket can leave.
#[derive(Debug, Clone)]
pub(crate) struct RateLimiter {
    pacing: Pacing,
    messages: i128,
    bytes: i128,
    refilled_ms: u64,
}

const THOUSAND: i128 = 1000;

impl RateLimiter {
    /// Full buckets.
    pub(crate) fn new(pacing: Pacing, now_ms: u64) -> Self {
        let mut limiter = Self { pacing, messages: 0, bytes: 0, refilled_ms: now_ms };
        limiter.messages = limiter.capacity(pacing.messages_per_s);
        limiter.bytes = limiter.capacity(pacing.bytes_per_s);
        limiter
    }

    pub(crate) fn pacing(&self) -> Pacing {
        self.pacing
    }

    /// Changes the rates. Saved tokens stay as far as the new buckets hold them; so does a debt.
    pub(crate) fn change(&mut self, pacing: Pacing, now_ms: u64) {
        self.refill(now_ms);
        let was = std::mem::replace(&mut self.pacing, pacing);
        // A limit that was not there has nothing saved up and no debt.
        let full = |was: Option<NonZeroU64>, saved: i128, capacity: i128| {
            if was.is_none() { capacity } else { saved.min(capacity) }
        };
        self.messages =
            full(was.messages_per_s, self.messages, self.capacity(pacing.messages_per_s));
        self.bytes = full(was.bytes_per_s, self.bytes, self.capacity(pacing.bytes_per_s));
    }

    pub(crate) fn refill(&mut self, now_ms: u64) {
        let passed = i128::from(now_ms.saturating_sub(self.refilled_ms));
        self.refilled_ms = self.refilled_ms.max(now_ms);
        let Pacing { messages_per_s, bytes_per_s, .. } = self.pacing;
        let more = |tokens: i128, rate: Option<NonZeroU64>, capacity: i128| {
            (tokens + tokens_per_ms(rate) * passed).min(capacity)
        };
        self.messages = more(self.messages, messages_per_s, self.capacity(messages_per_s));
        self.bytes = more(self.bytes, bytes_per_s, self.capacity(bytes_per_s));
    }

    /// When something may leave: now when `<=` the time of the last refill.
    pub(crate) fn ready_ms(&self) -> u64 {
        let wait = |tokens: i128, rate: Option<NonZeroU64>| match rate {
            Some(rate) if tokens <= 0 => {
                // Until there is a thousandth of a token.
                let rate = i128::from(rate.get());
                u64::try_from((rate - tokens) / rate).unwrap_or(u64::MAX)
            }
            _ => 0,
        };
        let Pacing { messages_per_s, bytes_per_s, .. } = self.pacing;
        let wait_ms = wait(self.messages, messages_per_s).max(wait(self.bytes, bytes_per_s));
        self.refilled_ms.saturating_add(wait_ms)
    }

    pub(crate) fn take(&mut self, messages: u64, bytes: u64) {
        if self.pacing.messages_per_s.is_some() {
            self.messages -= i128::from(messages) * THOUSAND;
        }
        if self.pacing.bytes_per_s.is_some() {
            self.bytes -= i128::from(bytes) * THOUSAND;
        }
    }

    fn capacity(&self, rate: Option<NonZeroU64>) -> i128 {
        (tokens_per_ms(rate) * i128::from(self.pacing.burst_ms)).max(THOUSAND)
    }
}

/// In thousandths.
fn tokens_per_ms(rate: Option<NonZeroU64>) -> i128 {
    rate.map_or(0, |rate| i128::from(rate.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(per_s: u64) -> Pacing {
        Pacing { messages_per_s: NonZeroU64::new(per_s), ..Pacing::default() }
    }

    /// Takes one message whenever the limiter says so, from `from_ms` to `to_ms`.
    fn spend(limiter: &mut RateLimiter, from_ms: u64, to_ms: u64, bytes: u64) -> u64 {
        let mut taken = 0;
        for now_ms in from_ms..to_ms {
            limiter.refill(now_ms);
            while limiter.ready_ms() <= now_ms && taken < 1_000_000 {
                limiter.take(1, bytes);
                taken += 1;
            }
        }
        taken
    }

    #[test]
    fn a_rate_holds_over_time_after_its_burst() {
        let mut limiter = RateLimiter::new(messages(1000), 0);
        let taken = spend(&mut limiter, 0, 10_000, 1);
        assert!((10_000..=10_101).contains(&taken), "{taken}");
    }

    #[test]
    fn a_slow_rate_lets_one_through_at_a_time() {
        let mut limiter = RateLimiter::new(messages(1), 0);
        let taken = spend(&mut limiter, 0, 10_000, 1);
        assert!((10..=11).contains(&taken), "{taken}");
    }

    #[test]
    fn a_message_larger_than_the_bucket_leaves_and_is_paid_for_afterwards() {
        let pacing = Pacing { bytes_per_s: NonZeroU64::new(1000), ..Pacing::default() };
        let mut limiter = RateLimiter::new(pacing, 0);
        assert_eq!(limiter.ready_ms(), 0);
        limiter.take(1, 5000);
        // 100 bytes were there; 4,900 are owed, at one a millisecond.
        assert_eq!(limiter.ready_ms(), 4_901);
        limiter.refill(4_901);
        assert!(limiter.ready_ms() <= 4_901);
    }

    #[test]
    fn a_changed_rate_holds_at_once() {
        let mut limiter = RateLimiter::new(messages(1), 0);
        spend(&mut limiter, 0, 1000, 1);
        limiter.change(messages(1000), 1000);
        let taken = spend(&mut limiter, 1000, 2000, 1);
        assert!((990..=1101).contains(&taken), "{taken}");
        limiter.change(Pacing::default(), 2000);
        assert!(limiter.ready_ms() <= 2000, "no limit, nothing to wait for");
    }
}
