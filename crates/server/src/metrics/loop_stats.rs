//! What a worker publishes of its loop: how long its turns take, whether one lasts too long, how far off the
//! other workers are.
//!
//! A worker writes its own [`LoopStats`] with plain stores; anyone reads it, `GET /status/workers` above all.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use dunlin_metrics::Histogram;

/// The loop of one worker, seen from outside.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct LoopStats {
    origin: Instant,
    /// Revision of the settings it runs.
    revision: AtomicU64,
    /// When the turn under way began, in nanoseconds since `origin`; 0 while the worker sleeps.
    turn_began_ns: AtomicU64,
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

    /// Millionths of its uptime that it was at work.
    pub(crate) fn busy_ppm(&self) -> u64 {
        let uptime_ns = self.now_ns().max(1);
        let busy_ns = self.turn_times.sum_ns();
        (u128::from(busy_ns) * 1_000_000 / u128::from(uptime_ns)) as u64
    }

    /// Nanoseconds since the process's origin, never 0.
    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64 | 1
    }
}

/// Only the owning worker writes: no locked instruction.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_has_no_lag() {
        let stats = LoopStats::new(Instant::now());
        stats.wakes();
        stats.turn_ends();
        stats.sleeps();
        assert_eq!(
            (stats.lag_ms(), stats.turn_times.snapshot().count(), stats.sleep_count()),
            (0, 1, 1)
        );
    }
}
