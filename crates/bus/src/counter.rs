//! A counter that one thread writes and any thread reads. Not part of any protocol, so it stays
//! `std`'s under loom.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Not a read-modify-write: the caller is the only writer.
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
