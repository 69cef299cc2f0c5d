//! The clock of a measurement, and latency histograms.

use std::time::Instant;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A monotonic clock. All who record or compare times of one measurement share a copy.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// Returns a clock that starts now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the nanoseconds since the start.
    pub fn now_ns(self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Returns an empty histogram of nanoseconds, from 1 µs to 100 s with three significant digits.
pub fn new_histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1_000, 100_000_000_000, 3) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("constant bounds: {error}"),
    }
}

/// Percentiles of a histogram, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The minimum.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// Exceeded by one in 10.
    pub p90: f64,
    /// Exceeded by one in 100.
    pub p99: f64,
    /// Exceeded by one in 1,000.
    pub p999: f64,
    /// The maximum.
    pub max: f64,
    /// The arithmetic mean.
    pub mean: f64,
}

impl Percentiles {
    /// Computes the percentiles of a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(histogram.value_at_quantile(quantile));
        Self {
            min: us(histogram.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: us(histogram.max()),
            mean: histogram.mean() / 1e3,
        }
    }
}
