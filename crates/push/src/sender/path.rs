//! How many requests the path can carry: its delivery rate times its shortest round trip.
//!
//! A model in the manner of BBR, but of requests: an answer is a delivery. More in flight than rate × round
//! trip only waits, in the kernel or at the peer, and every answer waits with it. The windows and the stream
//! limit of the peer often bind long before; then the model has nothing to say, and keeps out of the way.
//!
//! The kernel's own account (`TCP_INFO`) is left alone. Its round trip is to whoever acknowledges bytes, a proxy perhaps,
//! and without the time that the service itself takes, which is what requests have to cover too. Its count of unsent
//! bytes would guard against a queue in the kernel, which `TCP_NOTSENT_LOWAT` bounds already where the connection is
//! made (`dial`): beyond that the socket takes no more, and that binds as [`Binding::Socket`](super::Binding::Socket).

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// In flight on a new connection before anything is known of its path.
const IN_FLIGHT_FIRST: f64 = 128.0;
/// In flight at least, so that the model can learn at all.
const IN_FLIGHT_MIN: f64 = 4.0;
/// Growth per round trip while the path has not been full yet: 2/ln 2.
const GAIN_STARTUP: f64 = 2.89;
/// What is in flight beyond rate × round trip in between probes: answers come unevenly.
const GAIN_CRUISE: f64 = 1.1;
/// A round trip of asking whether there is more, and one of giving back what it queued.
const GAIN_PROBE: f64 = 1.35;
const GAIN_REPAY: f64 = 0.95;
/// Rounds from probe to probe.
const PROBE_ROUNDS: u64 = 8;
/// A rate is believed for so many rounds in which the path was full.
const RATE_ROUNDS: u64 = 10;
/// A shortest round trip is believed for so long, and as long again.
const RTT_BELIEVED: Duration = Duration::from_secs(10);
/// Work that may always wait at the peer, so that short paths are not starved by their own jitter.
const QUANTUM: Duration = Duration::from_millis(2);

/// The model of one connection's path.
#[derive(Debug)]
pub struct Path {
    phase: Phase,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    /// The shortest round trip now and in the period before.
    rtt_min: Option<Duration>,
    rtt_min_before: Option<Duration>,
    rtt_since: Instant,
    /// The highest rates, each with its round, falling; requests a second.
    rates: VecDeque<(u64, f64)>,
    /// Rounds in which the path was full; others say nothing of it.
    full_rounds: u64,
    round_end: u64,
    /// In this round something waited for the path.
    bound: bool,
    /// The rate when it last grew by a quarter, and the rounds since.
    startup_rate: f64,
    startup_rounds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The path has not been full yet.
    Startup,
    /// It has; give back what that queued.
    Drain,
    Cruise,
    Probe {
        rate_before: f64,
    },
    /// Which also shows the round trip without a queue.
    Repay,
}

/// What is to be remembered of a request until its answer.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    sent_at: Instant,
}

impl Mark {
    /// When the request was sent.
    pub fn sent_at(&self) -> Instant {
        self.sent_at
    }
}

impl Path {
    /// A path nothing is known of.
    pub fn new(now: Instant) -> Path {
        Path {
            phase: Phase::Startup,
            delivered: 0,
            delivered_at: now,
            first_sent_at: now,
            rtt_min: None,
            rtt_min_before: None,
            rtt_since: now,
            rates: VecDeque::new(),
            full_rounds: 0,
            round_end: 0,
            bound: false,
            startup_rate: 0.0,
            startup_rounds: 0,
        }
    }

    /// Requests a second that were delivered at best, of late.
    pub fn rate(&self) -> Option<f64> {
        self.rates.front().map(|(_, rate)| *rate)
    }

    /// The shortest round trip of late, from request to answer.
    pub fn rtt_min(&self) -> Option<Duration> {
        match (self.rtt_min, self.rtt_min_before) {
            (Some(now), Some(before)) => Some(now.min(before)),
            (now, before) => now.or(before),
        }
    }

    /// How many requests may be in flight.
    pub fn in_flight_max(&self) -> u32 {
        let (Some(rate), Some(rtt)) = (self.rate(), self.rtt_min()) else {
            return IN_FLIGHT_FIRST as u32;
        };
        let carried = rate * rtt.as_secs_f64();
        let gain = match self.phase {
            Phase::Startup => GAIN_STARTUP,
            Phase::Drain => 1.0,
            Phase::Cruise => GAIN_CRUISE,
            Phase::Probe { .. } => GAIN_PROBE,
            Phase::Repay => GAIN_REPAY,
        };
        let quantum = rate * QUANTUM.as_secs_f64();
        let mut max = (gain * carried + quantum + 1.0).max(IN_FLIGHT_MIN);
        if self.phase == Phase::Startup {
            // One answer says little of the rate.
            max = max.max(IN_FLIGHT_FIRST);
        }
        max.min(f64::from(u32::MAX)) as u32
    }

    /// A request leaves, while `in_flight` others are.
    #[inline]
    pub fn handle_sent(&mut self, in_flight: u32, now: Instant) -> Mark {
        if in_flight == 0 {
            // The time without work is no time of the path.
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        Mark {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            sent_at: now,
        }
    }

    /// Something waits though windows and stream limit would let it go: [`in_flight_max`] binds.
    ///
    /// [`in_flight_max`]: Path::in_flight_max
    pub fn handle_bound(&mut self) {
        self.bound = true;
    }

    /// An answer came.
    #[inline]
    pub fn handle_answer(&mut self, mark: &Mark, now: Instant) {
        self.delivered += 1;
        self.delivered_at = now;
        self.first_sent_at = mark.sent_at;
        let rtt = now - mark.sent_at;
        if now - self.rtt_since > RTT_BELIEVED {
            self.rtt_min_before = self.rtt_min.take();
            self.rtt_since = now;
        }
        self.rtt_min = Some(self.rtt_min.map_or(rtt, |min| min.min(rtt)));

        let sending = mark.sent_at - mark.first_sent_at;
        let answering = now - mark.delivered_at;
        let interval = sending.max(answering);
        if !interval.is_zero() {
            let rate = (self.delivered - mark.delivered) as f64 / interval.as_secs_f64();
            while self.rates.back().is_some_and(|(_, lower)| *lower <= rate) {
                self.rates.pop_back();
            }
            self.rates.push_back((self.full_rounds, rate));
            if self.rates.len() > 64 {
                self.rates.remove(1);
            }
        }
        if mark.delivered >= self.round_end {
            self.round_end = self.delivered;
            self.handle_round();
        }
    }

    /// A round trip ended.
    fn handle_round(&mut self) {
        let bound = std::mem::take(&mut self.bound);
        if !bound {
            // The peer's limits or a want of requests kept the path from being full: nothing was learnt.
            self.startup_rounds = 0;
            if matches!(self.phase, Phase::Drain | Phase::Repay) {
                self.phase = Phase::Cruise;
            }
            return;
        }
        self.full_rounds += 1;
        while self.rates.len() > 1
            && self.rates.front().is_some_and(|(round, _)| round + RATE_ROUNDS < self.full_rounds)
        {
            self.rates.pop_front();
        }
        let rate = self.rate().unwrap_or(0.0);
        self.phase = match self.phase {
            Phase::Startup => {
                if rate >= self.startup_rate * 1.25 {
                    self.startup_rate = rate;
                    self.startup_rounds = 0;
                } else {
                    self.startup_rounds += 1;
                }
                if self.startup_rounds < 3 { Phase::Startup } else { Phase::Drain }
            }
            Phase::Drain | Phase::Repay => Phase::Cruise,
            Phase::Cruise if self.full_rounds.is_multiple_of(PROBE_ROUNDS) => {
                Phase::Probe { rate_before: rate }
            }
            Phase::Cruise => Phase::Cruise,
            Phase::Probe { rate_before } if rate > rate_before * 1.15 => {
                // There is more, perhaps much more.
                self.startup_rate = rate;
                self.startup_rounds = 0;
                Phase::Startup
            }
            Phase::Probe { .. } => Phase::Repay,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;

    /// A peer that answers `rate` requests a second, one behind the other, `rtt` away, plays until
    /// `seconds` have passed; the stream limit changes as told. Returns answers per second of the last
    /// second, and the median answer time of it.
    fn play(
        rtt: Duration,
        rate: f64,
        streams: impl Fn(f64) -> u32,
        seconds: f64,
    ) -> (f64, Duration) {
        let begin = Instant::now();
        let mut path = Path::new(begin);
        let mut now = begin;
        let mut in_flight = 0;
        let mut server_free = begin;
        let mut answers: BinaryHeap<Reverse<(Instant, u64)>> = BinaryHeap::new();
        let mut marks = std::collections::HashMap::new();
        let mut number = 0;
        let mut times = Vec::new();
        let end = begin + Duration::from_secs_f64(seconds);
        while now < end {
            let limit = streams((now - begin).as_secs_f64());
            while in_flight < limit {
                if in_flight >= path.in_flight_max() {
                    path.handle_bound();
                    break;
                }
                let mark = path.handle_sent(in_flight, now);
                in_flight += 1;
                let arrives = now + rtt / 2;
                server_free = server_free.max(arrives) + Duration::from_secs_f64(1.0 / rate);
                marks.insert(number, mark);
                answers.push(Reverse((server_free + rtt / 2, number)));
                number += 1;
            }
            let Some(Reverse((at, answered))) = answers.pop() else { break };
            now = at;
            in_flight -= 1;
            let mark = marks.remove(&answered).expect("it was sent");
            path.handle_answer(&mark, now);
            if end - now < Duration::from_secs(1) {
                times.push(now - mark.sent_at());
            }
        }
        times.sort_unstable();
        (times.len() as f64, times[times.len() / 2])
    }

    const RTT: Duration = Duration::from_millis(250);

    #[test]
    fn a_slow_peer_is_kept_busy_without_a_queue() {
        for rate in [40.0, 400.0, 2_000.0] {
            let (answered, median) = play(RTT, rate, |_| u32::MAX, 30.0);
            assert!(answered >= 0.95 * rate, "{answered} of {rate}");
            let alone = RTT + Duration::from_secs_f64(1.0 / rate);
            assert!(median <= alone.mul_f64(1.2), "{median:?} at {rate}");
        }
    }

    #[test]
    fn the_stream_limit_is_used_wholly_within_two_seconds() {
        let (answered, median) = play(RTT, 1e6, |_| 1_000, 2.5);
        assert!(answered >= 0.95 * 4_000.0, "{answered}");
        assert!(median <= RTT.mul_f64(1.05));
    }

    #[test]
    fn a_limit_of_one_that_rises_is_followed_and_remembered() {
        let rises = |second: f64| if second < 5.0 { 1 } else { 1_000 };
        let (answered, _) = play(RTT, 1e6, rises, 8.0);
        assert!(answered >= 0.95 * 4_000.0, "{answered}");
        let falls = |second: f64| if (4.0..60.0).contains(&second) { 1 } else { 1_000 };
        let (answered, _) = play(RTT, 1e6, falls, 61.6);
        assert!(answered >= 0.9 * 4_000.0, "{answered}");
    }

    #[test]
    fn a_short_path_is_not_starved() {
        let rtt = Duration::from_micros(100);
        let (answered, _) = play(rtt, 100_000.0, |_| u32::MAX, 2.0);
        assert!(answered >= 95_000.0, "{answered}");
    }
}
