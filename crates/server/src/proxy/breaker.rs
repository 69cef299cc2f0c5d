//! A circuit breaker: a backend that does not answer is not asked for a while, so that nobody waits for it.

use dunlin_wire::backoff::Backoff;

/// How long the circuit is open.
const OPEN: Backoff = Backoff { min_ms: 1_000, max_ms: 30_000 };

/// Counts failures in a row. Those of one connection count once: a client whose own requests fail must not close the
/// backend to others.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures: u32,
    /// The connection whose request failed last.
    failed: Option<u64>,
    open_until_ms: u64,
    /// Times in a row that it was opened.
    opened: u32,
    /// After its time one request tries.
    trying: bool,
}

impl Breaker {
    /// Whether the backend may be asked.
    pub(crate) fn admit(&mut self, now_ms: u64) -> bool {
        if self.opened == 0 {
            return true;
        }
        now_ms >= self.open_until_ms && !std::mem::replace(&mut self.trying, true)
    }

    /// The backend has answered, whatever it was.
    pub(crate) fn handle_answer(&mut self) {
        *self = Breaker::default();
    }

    /// A request that had been admitted did not reach the backend: nothing is known of it.
    pub(crate) fn handle_nothing(&mut self) {
        self.trying = false;
    }

    /// The backend was not reached, or has not answered in time. Opens after `failures_max` of these in a row, 0: never.
    pub(crate) fn handle_failure(&mut self, now_ms: u64, of: u64, failures_max: u32) {
        let tried = std::mem::take(&mut self.trying);
        if failures_max == 0 {
            return;
        }
        if self.failed.replace(of) != Some(of) || tried {
            self.failures = self.failures.saturating_add(1);
        }
        let is_open = self.opened > 0 && !tried;
        if self.failures >= failures_max && !is_open {
            self.opened = self.opened.saturating_add(1);
            self.open_until_ms = now_ms + OPEN.delay_ms(self.opened);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_longer_each_time() {
        let mut breaker = Breaker::default();
        breaker.handle_failure(0, 1, 2);
        breaker.handle_answer();
        breaker.handle_failure(0, 1, 2);
        assert!(breaker.admit(0), "they were not in a row");
        breaker.handle_failure(0, 2, 2);
        assert!(!breaker.admit(999));
        breaker.handle_failure(900, 3, 2);
        assert!(breaker.admit(1_000), "what was under way already does not prolong it");
        assert!(!breaker.admit(1_000), "one tries");
        breaker.handle_failure(1_500, 4, 2);
        assert!(!breaker.admit(3_499), "twice as long");
        assert!(breaker.admit(3_500));
        breaker.handle_answer();
        assert!(breaker.admit(3_500) && breaker.admit(3_500));
    }

    #[test]
    fn one_client_alone_does_not_open_it() {
        let mut breaker = Breaker::default();
        (0..100).for_each(|at_ms| breaker.handle_failure(at_ms, 7, 2));
        assert!(breaker.admit(100));
        (0..100).for_each(|of| breaker.handle_failure(100, of, 0));
        assert!(breaker.admit(100), "it is off");
    }

    #[test]
    fn a_try_that_did_not_leave_is_followed_by_another() {
        let mut breaker = Breaker::default();
        breaker.handle_failure(0, 1, 1);
        assert!(breaker.admit(1_000) && !breaker.admit(1_000));
        breaker.handle_nothing();
        assert!(breaker.admit(1_000));
    }
}
