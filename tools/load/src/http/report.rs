//! The result of a run, as printed by `--json` and read by `--report`.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::tally::{EndCounts, EventCounts, Tally};
use crate::clock::Percentiles;
use crate::host::Host;

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HttpReport {
    pub(crate) benchmark: String,
    pub(crate) name: String,
    pub(crate) host: Host,
    pub(crate) url: String,
    pub(crate) protocol: String,
    pub(crate) connections: u32,
    /// Requests in flight on a connection, or `auto`.
    pub(crate) pipeline: String,
    /// With `auto`: the largest number of requests in flight on one connection.
    #[serde(default)]
    pub(crate) depth_most: Option<u32>,
    pub(crate) threads: u32,
    /// Ended by Ctrl-C.
    #[serde(default)]
    pub(crate) interrupted: bool,
    /// Requests per second of the schedule, in an open model.
    pub(crate) rate_asked: Option<f64>,
    /// From the beginning, or from the end of the warm-up, to the end of the last answer.
    pub(crate) seconds: f64,
    /// Answers per second.
    pub(crate) requests_per_second: f64,
    /// CPU time of the generator, and answers per second of it.
    pub(crate) generator_cpu_seconds: f64,
    pub(crate) requests_per_cpu_second: f64,
    pub(crate) server: Option<ServerShare>,
    #[serde(flatten)]
    pub(crate) ends: EndCounts,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Errors by kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Some errors in full: request, host and advice.
    pub(crate) error_samples: Vec<String>,
    pub(crate) connection_events: EventCounts,
    /// From when a request was first sent (in an open model: was due) to the end of its answer.
    pub(crate) latency_us: Percentiles,
    /// The same, to the first byte of the answer.
    pub(crate) first_byte_us: Percentiles,
    /// Time for which the request was the oldest of its connection: latency without the wait behind others.
    pub(crate) service_us: Percentiles,
    /// How late requests left, in an open model.
    pub(crate) late_us: Option<Percentiles>,
    /// The latency distribution: upper bound in microseconds and count of each step.
    pub(crate) histogram: Vec<(f64, u64)>,
    /// The distribution of times to the first byte.
    #[serde(default)]
    pub(crate) first_byte_histogram: Vec<(f64, u64)>,
    /// Latency by quantile, denser towards 1.
    pub(crate) quantiles: Vec<(f64, f64)>,
    pub(crate) timeline: Vec<TimelineSpan>,
    /// Resident memory of the generator: when the first answers had arrived, at the end, and the maximum.
    pub(crate) memory: Memory,
}

/// CPU use of the server's process during the run.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ServerShare {
    pub(crate) cpu_seconds: f64,
    /// Idle share of one core; negative if the server used more than one core.
    pub(crate) idle_share: f64,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) first_bytes: u64,
    pub(crate) last_bytes: u64,
    pub(crate) most_bytes: u64,
}

/// A span of the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct TimelineSpan {
    /// End of the span, seconds from the beginning.
    pub(crate) at_s: f64,
    pub(crate) span_s: f64,
    pub(crate) answered: u64,
    /// Answers that were wrong, and requests that failed or are uncertain.
    pub(crate) errors: u64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    pub(crate) opened: u64,
    /// Connections that ended for any reason.
    pub(crate) closed: u64,
    pub(crate) resent: u64,
    /// Resident memory of the generator at the end of the span.
    #[serde(default)]
    pub(crate) resident_bytes: u64,
}

impl TimelineSpan {
    pub(super) fn of(tally: &Tally, at_s: f64, span_s: f64) -> Self {
        let at = |quantile| tally.latency.value_at_quantile(quantile) as f64 / 1e3;
        let events = &tally.events;
        Self {
            at_s,
            span_s,
            answered: tally.ends.answered,
            errors: tally.ends.wrong + tally.ends.failed + tally.ends.uncertain,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            max_us: tally.latency.max() as f64 / 1e3,
            opened: events.opened,
            closed: events.closed_with_notice
                + events.closed_at_budget
                + events.closed_in_flight
                + events.closed_idle
                + events.reset
                + events.timed_out
                + events.violated,
            resent: tally.ends.resent,
            resident_bytes: 0,
        }
    }
}

impl HttpReport {
    /// Returns whether every request was answered correctly and the run was not interrupted.
    pub(crate) fn is_clean(&self) -> bool {
        let ends = &self.ends;
        let bad = ends.wrong + ends.failed + ends.uncertain + ends.unanswered;
        bad + self.connection_events.violated == 0 && ends.answered > 0 && !self.interrupted
    }
}

/// Reduces a distribution to four steps per doubling.
pub(super) fn steps(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let mut steps: Vec<(f64, u64)> = Vec::new();
    let first_ns = histogram.min().max(1_000) as f64;
    for value in histogram.iter_recorded() {
        let ns = value.value_iterated_to() as f64;
        let step = ((ns / first_ns).log2() * 4.0).ceil().max(0.0);
        let upper_us = first_ns * (step / 4.0).exp2() / 1e3;
        match steps.last_mut() {
            Some((last_us, count)) if (*last_us - upper_us).abs() < upper_us * 1e-9 => {
                *count += value.count_since_last_iteration();
            }
            _ => steps.push((upper_us, value.count_since_last_iteration())),
        }
    }
    steps
}

/// Returns quantiles with their latencies in microseconds: four for each halving of the distance to 1, until all values
/// are covered.
pub(super) fn quantiles(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let mut quantiles = Vec::new();
    let mut distance = 1.0;
    while distance * histogram.len() as f64 >= 0.5 {
        for part in [1.0, 0.84, 0.71, 0.59] {
            let quantile = 1.0 - distance * part;
            quantiles.push((quantile, histogram.value_at_quantile(quantile) as f64 / 1e3));
        }
        distance /= 2.0;
    }
    quantiles.push((1.0, histogram.max() as f64 / 1e3));
    quantiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::new_histogram;

    #[test]
    fn steps_and_quantiles_hold_every_value() {
        let mut histogram = new_histogram();
        for us in 1..=10_000 {
            histogram.record(us * 1_000).unwrap();
        }
        let steps = steps(&histogram);
        assert_eq!(steps.iter().map(|(_, count)| count).sum::<u64>(), 10_000);
        assert!(steps.windows(2).all(|pair| pair[0].0 < pair[1].0), "{steps:?}");
        let quantiles = quantiles(&histogram);
        assert!(quantiles.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
        assert!((quantiles.last().unwrap().1 - 10_000.0).abs() < 10.0);
        assert!(super::steps(&new_histogram()).is_empty());
    }
}
