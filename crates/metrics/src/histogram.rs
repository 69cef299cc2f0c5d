//! A histogram of durations with fixed, log-scaled buckets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of powers of two in a `u64`.
const POWERS: usize = 64;

/// Durations in nanoseconds, in `BUCKETS / 64` buckets per power of two: with 256 buckets the relative error is at most
/// an eighth, with 4,096 at most 0.8 %. It takes 8 bytes per bucket and never grows.
#[derive(Debug)]
pub struct Histogram<const BUCKETS: usize = 256> {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl<const BUCKETS: usize> Default for Histogram<BUCKETS> {
    fn default() -> Self {
        const { assert!(BUCKETS.is_power_of_two() && BUCKETS >= POWERS) };
        Self {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

impl<const BUCKETS: usize> Histogram<BUCKETS> {
    /// Counts a value with plain stores. Only the owning thread may call this.
    pub fn record(&self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Counts a value that has occurred `times` times. Only the owning thread may call this.
    pub fn record_many(&self, ns: u64, times: u64) {
        let add = |cell: &AtomicU64, n| cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
        add(&self.buckets[bucket_of(ns, BUCKETS)], times);
        add(&self.sum_ns, ns.wrapping_mul(times));
        if ns > self.max_ns.load(Relaxed) {
            self.max_ns.store(ns, Relaxed);
        }
    }

    /// Counts a value when several threads record.
    pub fn record_shared(&self, ns: u64) {
        self.buckets[bucket_of(ns, BUCKETS)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
        self.max_ns.fetch_max(ns, Relaxed);
    }

    /// Returns the sum of all values.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns.load(Relaxed)
    }

    /// Returns a copy of the current state.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            buckets: self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect(),
            sum_ns: self.sum_ns(),
            max_ns: self.max_ns.load(Relaxed),
        }
    }
}

/// A copy of a histogram. Copies of several histograms can be added.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    buckets: Vec<u64>,
    sum_ns: u64,
    max_ns: u64,
}

impl Snapshot {
    /// Adds the values of another histogram with the same number of buckets.
    pub fn merge(&mut self, other: &Snapshot) {
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        for (own, other) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += other;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Returns what was recorded after an earlier snapshot of the same histogram; its maximum is still that of all
    /// values.
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let mut later = self.clone();
        for (own, before) in later.buckets.iter_mut().zip(&earlier.buckets) {
            *own = own.wrapping_sub(*before);
        }
        later.sum_ns = later.sum_ns.wrapping_sub(earlier.sum_ns);
        later
    }

    /// Returns the number of values recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of all values.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns the largest value; 0 if there is none.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Returns the value that a `share` of all values does not exceed, assuming that the values of a bucket are spread
    /// evenly over its width. `None` if there are no values.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        let (from, width) = range_of(bucket, self.buckets.len());
        let count = self.buckets[bucket] as f64;
        let before = (rank - (seen - self.buckets[bucket])) as f64 - 0.5;
        Some(from + (width as f64 * before / count) as u64)
    }

    /// Returns upper limit in seconds and count of each exposed bucket; the last one has no limit.
    pub(crate) fn buckets_s(&self, bounds: std::ops::Range<u32>) -> Vec<(f64, u64)> {
        let per_power = self.buckets.len() / POWERS;
        let mut from = 0;
        let mut below = |to: usize| {
            let count = self.buckets.get(from..to).map_or(0, |buckets| buckets.iter().sum());
            from = to;
            count
        };
        let mut exposed: Vec<(f64, u64)> = bounds
            .map(|power| ((1_u64 << power) as f64 / 1e9, below(power as usize * per_power)))
            .collect();
        exposed.push((f64::INFINITY, below(self.buckets.len())));
        exposed
    }
}

/// Returns the bucket of a value: the position of its leading one, and the bits after it.
fn bucket_of(ns: u64, buckets: usize) -> usize {
    let sub_bits = (buckets / POWERS).ilog2();
    let power = (ns | 1).ilog2();
    let sub = if power >= sub_bits { ns >> (power - sub_bits) } else { 0 };
    (power << sub_bits) as usize | (sub & ((1 << sub_bits) - 1)) as usize
}

/// Returns the least value of a bucket, and how many values it covers.
fn range_of(bucket: usize, buckets: usize) -> (u64, u64) {
    let sub_bits = (buckets / POWERS).ilog2();
    let power = bucket as u32 >> sub_bits;
    if power < sub_bits {
        return (1 << power, 1);
    }
    let width = 1_u64 << (power - sub_bits);
    ((1 << power) + (bucket as u64 & ((1 << sub_bits) - 1)) * width, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_to_within_an_eighth_or_three_percent() {
        for (buckets, share) in [(256, 8), (1_024, 31)] {
            for value in (16..2_000).chain([u64::MAX / 3, 1 << 40, (1 << 40) - 1]) {
                let (from, width) = range_of(bucket_of(value, buckets), buckets);
                let middle = from + width / 2;
                assert!(middle.abs_diff(value) <= value / share + 1, "{value} becomes {middle}");
                assert!((from..from + width).contains(&value), "{value} is not from {from} on");
            }
        }
    }

    #[test]
    fn quantiles_are_of_all_histograms_together() {
        let (one, other) = (Histogram::<256>::default(), Histogram::<256>::default());
        assert_eq!(one.snapshot().quantile_ns(0.5), None);
        (0..99).for_each(|_| one.record(1_000));
        other.record_shared(1_000_000);
        let mut all = Snapshot::default();
        all.merge(&one.snapshot());
        all.merge(&other.snapshot());
        let at = |share| all.quantile_ns(share).unwrap();
        assert!(at(0.5).abs_diff(1_000) <= 125, "{}", at(0.5));
        assert!(at(0.999).abs_diff(1_000_000) <= 125_000, "{}", at(0.999));
        assert_eq!((all.count(), all.max_ns(), all.sum_ns()), (100, 1_000_000, 1_099_000));
    }

    #[test]
    fn values_after_a_snapshot_are_distinguished() {
        let times = Histogram::<256>::default();
        (0..10).for_each(|_| times.record(1_000_000));
        let earlier = times.snapshot();
        (0..3).for_each(|_| times.record(1_000));
        let later = times.snapshot().since(&earlier);
        assert_eq!((later.count(), later.sum_ns()), (3, 3_000));
        assert!(later.quantile_ns(1.0).unwrap() < 2_000);
    }

    #[test]
    fn a_quantile_lies_in_its_bucket_where_its_rank_does() {
        let times = Histogram::<256>::default();
        // All values in one bucket.
        (1_024..1_280).for_each(|ns| times.record(ns));
        let at = |share| times.snapshot().quantile_ns(share).unwrap();
        assert!((1_086..=1_090).contains(&at(0.25)) && (1_214..=1_218).contains(&at(0.75)));
    }

    #[test]
    fn exposed_buckets_hold_every_value_once() {
        let times = Histogram::<256>::default();
        [0, 1_000, 1 << 20, (1 << 21) - 1, u64::MAX >> 1].iter().for_each(|&ns| times.record(ns));
        let counts: Vec<u64> =
            times.snapshot().buckets_s(20..23).iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 2, 0, 1]);
        assert_eq!(
            Snapshot::default().buckets_s(20..22),
            [(0.001048576, 0), (0.002097152, 0), (f64::INFINITY, 0)]
        );
    }
}
