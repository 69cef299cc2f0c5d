//! A counter that one thread writes and any thread reads. No algorithm depends on it, so it uses
//! `std`'s atomics even under loom.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds one. Not a read-modify-write, because the caller is the only writer.
    #[inline]
    pub(crate) fn increment(&self) {
        self.0.store(self.0.load(Relaxed) + 1, Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
