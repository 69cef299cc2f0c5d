//! How fast this worker accepts: its share of the rate that holds for all workers together.

use crate::limits::admission::TokenBucket;

/// How long accepting rests at least when the rate is used up.
const PAUSE_MS: u64 = 10;

/// One worker's share of `limits.accepts_per_s_max`.
#[derive(Debug)]
pub(crate) struct AcceptGate {
    bucket: TokenBucket,
    workers: usize,
}

impl AcceptGate {
    pub(crate) fn new(rate_per_s: u32, workers: usize) -> AcceptGate {
        AcceptGate { bucket: TokenBucket::new(0, share(rate_per_s, workers)), workers }
    }

    /// A connection comes. `Some`: it and all after it wait in the backlogs for so many milliseconds.
    pub(crate) fn handle_accept(&mut self, now_ms: u64, rate_per_s: u32) -> Option<u64> {
        let wait_ms = self.bucket.take(now_ms, share(rate_per_s, self.workers))?;
        Some(wait_ms.max(PAUSE_MS))
    }

    /// The pause is over. `Some`: it is not, for so many milliseconds more.
    pub(crate) fn handle_timer(&mut self, now_ms: u64, rate_per_s: u32) -> Option<u64> {
        self.bucket.wait_ms(now_ms, share(rate_per_s, self.workers))
    }
}

/// At least 1; 0 stays "no limit".
fn share(total: u32, workers: usize) -> u64 {
    u64::from(total).div_ceil(workers as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_pauses_when_its_share_is_used_up_and_accepts_again() {
        let mut gate = AcceptGate::new(7, 3);
        assert_eq!(gate.handle_accept(0, 7), None);
        assert_eq!(gate.handle_accept(0, 7), None);
        // The third is accepted on credit.
        let pause_ms =
            std::iter::repeat_with(|| gate.handle_accept(0, 7)).flatten().next().unwrap();
        assert!((PAUSE_MS..=1000).contains(&pause_ms));
        assert!(gate.handle_timer(0, 7).is_some());
        assert_eq!(gate.handle_timer(pause_ms, 7), None);
        assert_eq!(gate.handle_timer(0, 0), None, "the limit was lifted");
    }
}
