//! Chooses the number of requests in flight on a connection.

/// Limits of a [`Window`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// The initial and least number of requests in flight; at least 1.
    pub min: u32,
    /// The greatest number of requests in flight.
    pub max: u32,
}

impl Default for WindowConfig {
    /// From 1 to 1,000.
    fn default() -> WindowConfig {
        WindowConfig { min: 1, max: 1000 }
    }
}

/// Adapts the number of requests in flight on one connection: the measured rate of answers times the shortest
/// response time, plus a quarter. With fewer the server waits for requests; more would only wait in a queue and delay
/// every answer.
///
/// It measures in rounds. A round ends with the answer to a request that was sent after the round began. While the
/// rate grows with the depth, the depth doubles. When the rate stops growing, their product is known, and an
/// occasional deeper round checks whether more is possible. The state has about sixty bytes.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    config: WindowConfig,
    depth: u32,
    /// The shortest response time.
    rtt_min_ns: u64,
    /// The highest rate of a round, answers per 2^40 ns.
    rate_max: u64,
    round_began_ns: u64,
    round_answers: u64,
    /// Whether in this round the window was the limit, and not a lack of requests.
    filled: bool,
    /// Rounds since the rate last grew.
    level_rounds: u32,
}

/// Rounds without growth until the rate counts as found. A single one can be a coincidence.
const LEVEL_ROUNDS: u32 = 3;
/// Rounds between two checks for a higher rate.
const PROBE_ROUNDS: u32 = 16;

impl Window {
    /// Creates a window without measurements.
    pub fn new(config: WindowConfig) -> Window {
        let min = config.min.max(1);
        let config = WindowConfig { min, max: config.max.max(min) };
        Window {
            config,
            depth: min,
            rtt_min_ns: u64::MAX,
            rate_max: 0,
            round_began_ns: 0,
            round_answers: 0,
            filled: false,
            level_rounds: 0,
        }
    }

    /// Creates a window for another connection to the same server, with the depth of this one.
    #[must_use]
    pub fn next(&self) -> Window {
        Window { round_began_ns: 0, round_answers: 0, filled: false, ..*self }
    }

    /// Returns the number of requests to keep in flight.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Records that `count` answers were read at once, the last of them to a request sent at `sent_ns`, and that
    /// `in_flight` requests remain. Times are nanoseconds of one monotonic clock.
    pub fn handle_answers(&mut self, count: u32, sent_ns: u64, now_ns: u64, in_flight: u32) {
        self.rtt_min_ns = self.rtt_min_ns.min(now_ns.saturating_sub(sent_ns).max(1));
        self.filled |= in_flight.saturating_add(count) >= self.depth;
        if self.round_began_ns == 0 {
            self.begin_round(now_ns);
            return;
        }
        self.round_answers += u64::from(count);
        if sent_ns < self.round_began_ns {
            return;
        }
        let took_ns = now_ns.saturating_sub(self.round_began_ns).max(1);
        let rate = (u128::from(self.round_answers) << 40) / u128::from(took_ns);
        self.judge(u64::try_from(rate).unwrap_or(u64::MAX));
        self.begin_round(now_ns);
    }

    fn judge(&mut self, rate: u64) {
        let grown = rate > self.rate_max.saturating_add(self.rate_max / 8);
        self.rate_max = self.rate_max.max(rate);
        if !self.filled {
            return;
        }
        self.level_rounds = if grown { 0 } else { self.level_rounds + 1 };
        if self.level_rounds < LEVEL_ROUNDS {
            if grown {
                self.depth = self.depth.saturating_mul(2);
            }
        } else {
            // Rate and response time vary with the load; their product is the capacity of the path.
            let product = (u128::from(self.rate_max) * u128::from(self.rtt_min_ns)) >> 40;
            let held = u32::try_from(product).unwrap_or(u32::MAX).saturating_add(1);
            self.depth = held.saturating_add(held.div_ceil(4));
            if self.level_rounds.is_multiple_of(PROBE_ROUNDS) {
                self.depth = self.depth.saturating_mul(2);
                // An old maximum may no longer be reachable.
                self.rate_max -= self.rate_max / 8;
            }
        }
        self.depth = self.depth.clamp(self.config.min, self.config.max);
    }

    fn begin_round(&mut self, now_ns: u64) {
        self.round_began_ns = now_ns;
        self.round_answers = 0;
        self.filled = false;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Simulates a distant server that answers one request after another, in virtual time. Returns the depth after
    /// `rounds` round trips, and the share of the second half in which the server was busy.
    fn converse(window: &mut Window, rtt_ns: u64, service_ns: u64, rounds: u64) -> (u32, f64) {
        let (mut now_ns, mut free_at_ns, mut busy_ns) = (1, 0u64, 0);
        let mut out: VecDeque<(u64, u64)> = VecDeque::new();
        let end_ns = rounds * rtt_ns.max(service_ns);
        while now_ns < end_ns {
            while (out.len() as u32) < window.depth() {
                free_at_ns = free_at_ns.max(now_ns + rtt_ns / 2) + service_ns;
                out.push_back((now_ns, free_at_ns + rtt_ns / 2));
            }
            let (sent_ns, arrives_ns) = out.pop_front().expect("the depth is at least one");
            now_ns = now_ns.max(arrives_ns);
            if now_ns > end_ns / 2 {
                busy_ns += service_ns;
            }
            window.handle_answers(1, sent_ns, now_ns, out.len() as u32);
        }
        (window.depth(), busy_ns as f64 / (end_ns / 2) as f64)
    }

    #[test]
    fn the_depth_finds_rate_times_round_trip() {
        // With a round trip of 50 ms and 1 ms per answer, about fifty in flight keep the server busy.
        let mut window = Window::new(WindowConfig::default());
        let (depth, busy) = converse(&mut window, 50_000_000, 1_000_000, 100);
        assert!((50..=140).contains(&depth), "{depth}");
        assert!(busy > 0.95, "{busy}");
    }

    #[test]
    fn a_server_next_door_that_is_slow_is_not_flooded() {
        let mut window = Window::new(WindowConfig::default());
        let (depth, busy) = converse(&mut window, 100_000, 10_000_000, 200);
        assert!(depth <= 6, "{depth}");
        assert!(busy > 0.95, "{busy}");
    }

    #[test]
    fn the_bounds_hold() {
        let mut window = Window::new(WindowConfig { min: 4, max: 16 });
        assert_eq!(window.depth(), 4);
        let (depth, _) = converse(&mut window, 50_000_000, 1000, 100);
        assert_eq!(depth, 16);
    }
}
