//! How much an engine holds of what it was asked and has not answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of all operations of an engine, wherever they are: in a queue, put off, or out on a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueBytes(Arc<AtomicUsize>);

/// What one operation has of them, until it is dropped.
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
    /// Something was added to the operation.
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
