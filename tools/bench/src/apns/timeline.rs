//! Arrival times of answers, and rates computed from them.
//!
//! With flow-control windows, answers arrive in bursts, one per round trip, and the number of bursts in a span depends
//! on where it begins. So a rate is the mean over spans of whole round trips, with every start within one round trip.

use std::time::Duration;

/// Number of answers in each millisecond since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline(Vec<u32>);

impl Timeline {
    pub(super) fn record(&mut self, at: Duration, answers: u32) {
        let ms = at.as_millis() as usize;
        if self.0.len() <= ms {
            self.0.resize(ms + 1, 0);
        }
        self.0[ms] += answers;
    }

    /// Returns the answers per second from `from` to `to`.
    pub(super) fn rate(&self, from: Duration, to: Duration, rtt: Duration) -> f64 {
        let (from, to) = (from.as_millis() as usize, to.as_millis() as usize);
        let rtt = rtt.as_millis().max(1) as usize;
        let trips = (to.saturating_sub(from) / rtt).saturating_sub(1);
        if trips == 0 {
            return self.count(from, to) as f64 * 1e3 / to.saturating_sub(from).max(1) as f64;
        }
        let sums = self.sums(to);
        let span = trips * rtt;
        let counted: u64 = (0..rtt).map(|at| sums[from + at + span] - sums[from + at]).sum();
        counted as f64 / rtt as f64 / span as f64 * 1e3
    }

    /// Returns the start of the first round trip (of at least 100 ms) in which the rate reached `wanted`.
    pub(super) fn reached(&self, wanted: f64, rtt: Duration) -> Option<Duration> {
        let span = (rtt.as_millis() as usize).max(100);
        let sums = self.sums(self.0.len());
        let last = self.0.len().checked_sub(span)?;
        let per_span = wanted * span as f64 / 1e3;
        let at = (0..=last).find(|&at| (sums[at + span] - sums[at]) as f64 >= per_span)?;
        Some(Duration::from_millis(at as u64))
    }

    fn count(&self, from: usize, to: usize) -> u64 {
        let to = to.min(self.0.len());
        self.0[from.min(to)..to].iter().map(|&count| u64::from(count)).sum()
    }

    /// Returns the number of answers before each millisecond up to `end`.
    fn sums(&self, end: usize) -> Vec<u64> {
        let mut sums = vec![0; end + 1];
        for ms in 0..end {
            sums[ms + 1] = sums[ms] + u64::from(self.0.get(ms).copied().unwrap_or(0));
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(250);

    #[test]
    fn bursts_count_for_what_they_are_wherever_the_span_begins() {
        for begin_ms in [600, 601, 700, 800, 849] {
            let mut timeline = Timeline::default();
            for burst in 0..30 {
                timeline.record(Duration::from_millis(begin_ms + 252 * burst), 150);
            }
            let rate = timeline.rate(Duration::from_secs(2), Duration::from_secs(6), RTT);
            let wanted = 150.0 / 0.252;
            assert!((rate / wanted - 1.0).abs() < 0.01, "{rate} of {wanted}");
            let reached = timeline.reached(0.95 * wanted, RTT).expect("it is");
            assert!(reached <= Duration::from_millis(begin_ms), "{reached:?}");
            assert_eq!(timeline.reached(1.1 * wanted, RTT), None);
        }
    }

    #[test]
    fn a_span_shorter_than_a_round_trip_is_counted_as_it_is() {
        let mut timeline = Timeline::default();
        timeline.record(Duration::from_millis(10), 5);
        let rate = timeline.rate(Duration::ZERO, Duration::from_millis(100), RTT);
        assert!((rate - 50.0).abs() < 1e-9, "{rate}");
    }
}
