//! Counts the bytes of an engine's unanswered operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of all operations of an engine: queued, deferred or in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueBytes(Arc<AtomicUsize>);

/// The bytes of one operation; released when it is dropped.
#[derive(Debug)]
pub(crate) struct QueueShare {
    of: QueueBytes,
    bytes: usize,
}

impl QueueBytes {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self, bytes: usize) -> QueueShare {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        QueueShare { of: self.clone(), bytes }
    }
}

impl QueueShare {
    /// Adds bytes to the operation.
    pub(crate) fn grow(&mut self, bytes: usize) {
        self.of.0.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }
}

impl Drop for QueueShare {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
