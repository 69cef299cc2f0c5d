//! What a worker tells of its loop: how long its turns take, whether one lasts too long, how far off the
//! other workers are.
//!
//! A worker writes its own [`LoopStats`] with plain stores; anyone reads it, `GET /status/workers` above all.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Sub-buckets to each power of two: a value is told to within an eighth of itself.
const SUB_BITS: u32 = 2;
const BUCKETS: usize = 64 << SUB_BITS;

/// The loop of one worker, seen from outside.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct LoopStats {
    origin: Instant,
    /// Revision of the settings it runs.
    revision: AtomicU64,
    /// When the turn under way began, in nanoseconds since `origin`; 0 while the worker sleeps.
    turn_began_ns: AtomicU64,
    busy_ns: AtomicU64,
    sleeps: AtomicU64,
    /// Length of its turns, from waking (or the end of the turn before) to the end of the turn.
    pub(crate) turn_times: Histogram,
    /// From another worker's send to this one's receive, its waking included.
    pub(crate) hop_times: Histogram,
}

impl LoopStats {
    pub(crate) fn new(origin: Instant) -> Self {
        Self {
            origin,
            revision: AtomicU64::new(0),
            turn_began_ns: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            turn_times: Histogram::default(),
            hop_times: Histogram::default(),
        }
    }

    /// The worker begins to work, after sleep or at its start.
    pub(crate) fn wakes(&self) {
        self.turn_began_ns.store(self.now_ns(), Relaxed);
    }

    /// A turn ends, and the next begins unless the worker sleeps.
    pub(crate) fn turn_ends(&self) {
        let now_ns = self.now_ns();
        let began_ns = self.turn_began_ns.load(Relaxed);
        let took_ns = if began_ns == 0 { 0 } else { now_ns.saturating_sub(began_ns) };
        self.turn_times.record(took_ns);
        add(&self.busy_ns, took_ns);
        self.turn_began_ns.store(now_ns, Relaxed);
    }

    /// The worker is about to block.
    pub(crate) fn sleeps(&self) {
        self.turn_began_ns.store(0, Relaxed);
        add(&self.sleeps, 1);
    }

    pub(crate) fn runs(&self, revision: u64) {
        self.revision.store(revision, Relaxed);
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Relaxed)
    }

    /// Turns that ended with the worker asleep.
    pub(crate) fn sleep_count(&self) -> u64 {
        self.sleeps.load(Relaxed)
    }

    /// How long the turn under way has lasted, in milliseconds; 0 when the worker sleeps.
    pub(crate) fn lag_ms(&self) -> u64 {
        match self.turn_began_ns.load(Relaxed) {
            0 => 0,
            began_ns => self.now_ns().saturating_sub(began_ns) / 1_000_000,
        }
    }

    /// Millionths of its life that it was at work.
    pub(crate) fn busy_ppm(&self) -> u64 {
        let life_ns = self.now_ns().max(1);
        let busy_ns = self.busy_ns.load(Relaxed);
        (u128::from(busy_ns) * 1_000_000 / u128::from(life_ns)) as u64
    }

    /// Nanoseconds since the process's origin, never 0.
    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64 | 1
    }
}

/// A histogram of nanoseconds that one thread writes.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| AtomicU64::new(0)), max: AtomicU64::new(0) }
    }
}

impl Histogram {
    pub(crate) fn record(&self, ns: u64) {
        add(&self.buckets[bucket(ns)], 1);
        if ns > self.max.load(Relaxed) {
            self.max.store(ns, Relaxed);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    pub(crate) fn max_ns(&self) -> u64 {
        self.max.load(Relaxed)
    }
}

/// The value below which this share of all histograms' values lies, to within an eighth; 0 when there is none.
pub(crate) fn quantile_ns(histograms: &[&Histogram], quantile: f64) -> u64 {
    let total: u64 = histograms.iter().map(|histograms| histograms.count()).sum();
    let wanted = ((total as f64 * quantile).ceil() as u64).max(1);
    let mut seen = 0;
    for at in 0..BUCKETS {
        seen +=
            histograms.iter().map(|histograms| histograms.buckets[at].load(Relaxed)).sum::<u64>();
        if seen >= wanted {
            return middle(at);
        }
    }
    0
}

/// Two bits below the leading one, and where that one is.
fn bucket(ns: u64) -> usize {
    let magnitude = 63 - (ns | 1).leading_zeros();
    let sub = if magnitude >= SUB_BITS { ns >> (magnitude - SUB_BITS) } else { 0 };
    (magnitude << SUB_BITS) as usize | (sub & ((1 << SUB_BITS) - 1)) as usize
}

fn middle(bucket: usize) -> u64 {
    let magnitude = (bucket >> SUB_BITS) as u32;
    let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
    if magnitude < SUB_BITS {
        return 1 << magnitude;
    }
    let width = 1_u64 << (magnitude - SUB_BITS);
    (1 << magnitude) + sub * width + width / 2
}

/// Only the owning worker writes: no locked instruction.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_told_to_within_an_eighth() {
        for value in (4..2_000).chain([u64::MAX / 3, 1 << 40, (1 << 40) - 1]) {
            let told = middle(bucket(value));
            assert!(told.abs_diff(value) <= value / 8 + 1, "{value} is told as {told}");
        }
    }

    #[test]
    fn quantiles_are_of_all_spreads_together() {
        let (one, other) = (Histogram::default(), Histogram::default());
        assert_eq!(quantile_ns(&[&one, &other], 0.5), 0);
        (0..99).for_each(|_| one.record(1_000));
        other.record(1_000_000);
        let at = |quantile| quantile_ns(&[&one, &other], quantile);
        assert!(at(0.5).abs_diff(1_000) <= 125, "{}", at(0.5));
        assert!(at(0.999).abs_diff(1_000_000) <= 125_000, "{}", at(0.999));
        assert_eq!((one.count(), other.max_ns()), (99, 1_000_000));
    }

    #[test]
    fn a_sleeper_has_no_lag() {
        let stats = LoopStats::new(Instant::now());
        stats.wakes();
        stats.turn_ends();
        stats.sleeps();
        assert_eq!((stats.lag_ms(), stats.turn_times.count(), stats.sleep_count()), (0, 1, 1));
    }
}
