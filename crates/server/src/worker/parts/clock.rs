//! The time of one worker: its loop's milliseconds and Unix time, as fresh as the turn.

use dunlin_hub::Now;

/// Loop time and, by its offset, Unix time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// Unix time at which the loop's clock was 0, in milliseconds.
    unix_origin_ms: u64,
    now_ms: u64,
}

impl Clock {
    /// The loop's clock stands at `now_ms`.
    pub(crate) fn set(&mut self, now_ms: u64) -> Now {
        self.now_ms = now_ms;
        self.now()
    }

    /// Follows the system's clock, which may be set.
    pub(crate) fn sync(&mut self, now_ms: u64, unix_ms: u64) {
        self.now_ms = now_ms;
        self.unix_origin_ms = unix_ms.saturating_sub(now_ms);
    }

    /// The time of the last [`Clock::set`].
    pub(crate) fn now(&self) -> Now {
        Now { ms: self.now_ms, unix_ms: self.unix_origin_ms + self.now_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_time_goes_with_the_loop_until_the_system_clock_is_set() {
        let mut clock = Clock::default();
        clock.sync(100, 1_000_100);
        assert_eq!(clock.now(), Now { ms: 100, unix_ms: 1_000_100 });
        assert_eq!(clock.set(350), Now { ms: 350, unix_ms: 1_000_350 });
        assert_eq!(clock.now(), clock.set(350), "as of the turn");
        clock.sync(400, 900_000);
        assert_eq!(clock.set(450), Now { ms: 450, unix_ms: 900_050 }, "it was set back");
    }
}
