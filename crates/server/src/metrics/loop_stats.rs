//! Statistics of a worker's loop: durations of its turns, a turn that lasts too long, latency of messages from other
//! workers.
//!
//! A worker writes its own [`LoopStats`] with plain stores; any thread may read them, mainly for `GET /status/workers`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use dunlin_metrics::Histogram;

/// The statistics of one worker's loop.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct LoopStats {
    origin: Instant,
    /// Revision that the worker has adopted.
    revision: AtomicU64,
    /// Start of the current turn in nanoseconds since `origin`; 0 while the worker sleeps.
    turn_began_ns: AtomicU64,
    sleeps: AtomicU64,
    /// Durations of turns, from waking (or the end of the previous turn) to the end of the turn.
    pub(crate) turn_times: Histogram,
    /// Latency from another worker's send to the receive here, including the time to wake.
    pub(crate) hop_times: Histogram,
    /// From the times of publications to the ends of the turns in which they were written to clients.
    pub(crate) delivery_times: Histogram,
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
            delivery_times: Histogram::default(),
        }
    }

    /// Handles that the worker begins to work, after a sleep or at its start.
    pub(crate) fn wakes(&self) {
        self.turn_began_ns.store(self.now_ns(), Relaxed);
    }

    /// Handles that a turn ends. The next one begins immediately, unless `sleeps` is called.
    pub(crate) fn turn_ends(&self) {
        let now_ns = self.now_ns();
        let began_ns = self.turn_began_ns.load(Relaxed);
        let took_ns = if began_ns == 0 { 0 } else { now_ns.saturating_sub(began_ns) };
        self.turn_times.record(took_ns);
        self.turn_began_ns.store(now_ns, Relaxed);
    }

    /// Handles that the worker is about to block.
    pub(crate) fn sleeps(&self) {
        self.turn_began_ns.store(0, Relaxed);
        add(&self.sleeps, 1);
    }

    pub(crate) fn adopted(&self, revision: u64) {
        self.revision.store(revision, Relaxed);
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Relaxed)
    }

    /// Returns how often the worker has slept.
    pub(crate) fn sleep_count(&self) -> u64 {
        self.sleeps.load(Relaxed)
    }

    /// Returns how long the current turn has lasted, in milliseconds; 0 while the worker sleeps.
    pub(crate) fn lag_ms(&self) -> u64 {
        match self.turn_began_ns.load(Relaxed) {
            0 => 0,
            began_ns => self.now_ns().saturating_sub(began_ns) / 1_000_000,
        }
    }

    /// Returns the share of its uptime that the worker was busy, in parts per million.
    pub(crate) fn busy_ppm(&self) -> u64 {
        let uptime_ns = self.now_ns().max(1);
        let busy_ns = self.turn_times.sum_ns();
        (u128::from(busy_ns) * 1_000_000 / u128::from(uptime_ns)) as u64
    }

    /// Returns nanoseconds since `origin`, never 0.
    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64 | 1
    }
}

/// Adds without a locked instruction: only the owning worker writes.
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
