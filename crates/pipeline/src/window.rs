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

/// Adapts the number of requests in flight on one connection: the measured rate of answers times the least mean
/// response time, plus a quarter. With fewer the server waits for requests; more would only wait in a queue and delay
/// every answer.
///
/// It measures in rounds. A round ends with the answer to a request that was sent after the round began; the rate at a depth
/// is that of all rounds but the first. While the rate grows with the depth, the depth doubles. When the rate stops
/// growing, the product is known, and an occasional greater depth checks whether more is possible. A lower depth is kept only if
/// it costs no rate: a server may work on many requests at once, and its answers, which come in order, wait for the
/// slowest before them. The state has about a hundred bytes.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    config: WindowConfig,
    depth: u32,
    /// The least mean response time at a depth, which is the depth divided by its rate (Little's law). A single answer
    /// may be quick for reasons of its own.
    response_min_ns: u64,
    round_began_ns: u64,
    round_answers: u64,
    /// Whether in this round the window was the limit, and not a lack of requests.
    filled: bool,
    /// The rounds at this depth that were filled, their answers and their time. The first one is not among them: it is that
    /// of the depth before.
    rounds: u32,
    answers: u64,
    took_ns: u64,
    /// The depth was changed within this round.
    settling: bool,
    /// The depth that this one is compared with, and its rate: the one that was doubled, or a higher one that has the rate.
    before: Option<(u32, u64)>,
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
            response_min_ns: u64::MAX,
            round_began_ns: 0,
            round_answers: 0,
            filled: false,
            rounds: 0,
            answers: 0,
            took_ns: 0,
            settling: false,
            before: Some((0, 0)),
        }
    }

    /// Creates a window for another connection to the same server, with the depth of this one.
    #[must_use]
    pub fn next(&self) -> Window {
        Window { round_began_ns: 0, round_answers: 0, filled: false, settling: true, ..*self }
    }

    /// Returns the number of requests to keep in flight.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Records that `count` answers were read at once, the last of them to a request sent at `sent_ns`, and that
    /// `in_flight` requests remain. Times are nanoseconds of one monotonic clock.
    pub fn handle_answers(&mut self, count: u32, sent_ns: u64, now_ns: u64, in_flight: u32) {
        self.filled |= in_flight.saturating_add(count) >= self.depth;
        if self.round_began_ns == 0 {
            self.begin_round(now_ns);
            return;
        }
        self.round_answers += u64::from(count);
        if sent_ns < self.round_began_ns {
            return;
        }
        if !std::mem::take(&mut self.settling) && self.filled {
            self.rounds += 1;
            self.answers += self.round_answers;
            self.took_ns += now_ns.saturating_sub(self.round_began_ns).max(1);
            self.handle_round();
        }
        self.begin_round(now_ns);
    }

    fn handle_round(&mut self) {
        // Answers per 2^40 ns.
        let rate = (u128::from(self.answers) << 40) / u128::from(self.took_ns);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        match self.before {
            // Doubled: does it pay?
            Some((lower, rate_below)) if lower < self.depth => {
                if rate > rate_below.saturating_add(rate_below / 8) {
                    self.response_min_ns = self.response_min_ns.min(response_ns(self.depth, rate));
                    self.set(self.depth.saturating_mul(2), rate);
                } else if self.rounds >= LEVEL_ROUNDS {
                    self.lower(lower, rate);
                }
            }
            // Lowered: has it cost rate?
            Some((higher, rate_above)) if self.rounds >= LEVEL_ROUNDS => {
                if rate < rate_above - rate_above / 8 {
                    // Answers take that long without a queue.
                    self.response_min_ns = response_ns(higher - higher / 5, rate_above);
                    self.set(higher, rate);
                }
                self.before = None;
            }
            None if self.rounds >= PROBE_ROUNDS => {
                self.response_min_ns = self.response_min_ns.min(response_ns(self.depth, rate));
                self.set(self.depth.saturating_mul(2), rate);
            }
            _ => {}
        }
    }

    /// Goes to the depth that the rate needs; `known` had the same rate.
    fn lower(&mut self, known: u32, rate: u64) {
        // Rate and response time vary with the load; their product is the capacity of the path.
        let product = (u128::from(rate) * u128::from(self.response_min_ns)) >> 40;
        let held = u32::try_from(product).unwrap_or(u32::MAX).saturating_add(1);
        let depth = held.saturating_add(held.div_ceil(4));
        if depth < self.depth {
            self.set(depth, rate);
        }
        self.before = (self.depth < known).then_some((known, rate));
    }

    /// Changes the depth; `rate` is that of the depth so far.
    fn set(&mut self, depth: u32, rate: u64) {
        let before = self.depth;
        self.depth = depth.clamp(self.config.min, self.config.max);
        self.before = (self.depth != before).then_some((before, rate));
        (self.rounds, self.answers, self.took_ns) = (0, 0, 0);
        self.settling = self.depth != before;
    }

    fn begin_round(&mut self, now_ns: u64) {
        self.round_began_ns = now_ns;
        self.round_answers = 0;
        self.filled = false;
    }
}

/// Returns the mean response time of so many requests in flight at a rate.
fn response_ns(in_flight: u32, rate: u64) -> u64 {
    let ns = (u128::from(in_flight) << 40) / u128::from(rate);
    u64::try_from(ns).unwrap_or(u64::MAX).max(1)
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

    /// Simulates a server that works on all requests at once and answers in order, for `seconds`. Returns the answers per second of
    /// the second half, with the window's depth or a fixed one.
    fn at_once(
        fixed: Option<u32>,
        service_ns: &mut dyn FnMut() -> u64,
        each_ns: u64,
        seconds: u64,
    ) -> f64 {
        let mut window = Window::new(WindowConfig::default());
        let (mut now_ns, mut free_at_ns, mut last_ns, mut answers) = (1, 0u64, 0u64, 0u64);
        let mut out: VecDeque<(u64, u64)> = VecDeque::new();
        let end_ns = seconds * 1_000_000_000;
        while now_ns < end_ns {
            while (out.len() as u32) < fixed.unwrap_or(window.depth()) {
                free_at_ns = free_at_ns.max(now_ns) + each_ns;
                last_ns = last_ns.max(free_at_ns + service_ns());
                out.push_back((now_ns, last_ns));
            }
            let (sent_ns, arrives_ns) = out.pop_front().expect("the depth is at least one");
            now_ns = now_ns.max(arrives_ns);
            answers += u64::from(now_ns > end_ns / 2);
            window.handle_answers(1, sent_ns, now_ns, out.len() as u32);
        }
        answers as f64 * 2.0 / seconds as f64
    }

    #[test]
    fn answers_that_vary_are_no_queue() {
        for seed in 1..=10u64 {
            let random = || {
                let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                move || {
                    state ^= state >> 12;
                    state ^= state << 25;
                    state ^= state >> 27;
                    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
                }
            };
            let bimodal = |uniform: f64| if uniform < 0.05 { 1e6 } else { 30e6 };
            let exponential = |uniform: f64| 5e6 - 25e6 * (1.0 - uniform).ln();
            // A server that could do more than a depth of 1,000 asks for, and one that is full before.
            for each_ns in [1_000, 50_000] {
                for service in [&bimodal as &dyn Fn(f64) -> f64, &exponential] {
                    let run = |fixed| {
                        let mut uniform = random();
                        at_once(fixed, &mut || service(uniform()) as u64, each_ns, 20)
                    };
                    let best = run(Some(1_000));
                    let ours = run(None);
                    assert!(ours >= 0.9 * best, "seed {seed}, {each_ns} ns: {ours} of {best}");
                }
            }
        }
    }

    #[test]
    fn the_bounds_hold() {
        let mut window = Window::new(WindowConfig { min: 4, max: 16 });
        assert_eq!(window.depth(), 4);
        let (depth, _) = converse(&mut window, 50_000_000, 1000, 100);
        assert_eq!(depth, 16);
    }
}
