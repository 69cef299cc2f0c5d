//! Bytes of events between a worker and the webhooks thread.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of one worker's events that may be in transit. More is an overflow.
const BYTES_MAX: u64 = 16 << 20;

/// Bytes in transit of one worker. Each end writes a counter of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct InTransit {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl InTransit {
    /// Counts an event as sent, unless there is no room. For the worker alone.
    pub(crate) fn try_send(&self, bytes: u64) -> bool {
        let sent = self.sent_bytes.load(Relaxed);
        let room = sent.wrapping_sub(self.received_bytes.load(Relaxed)) < BYTES_MAX;
        if room {
            self.sent_bytes.store(sent.wrapping_add(bytes), Relaxed);
        }
        room
    }

    /// Takes back an event that was counted and not sent. For the worker alone.
    pub(crate) fn cancel_send(&self, bytes: u64) {
        self.sent_bytes.store(self.sent_bytes.load(Relaxed).wrapping_sub(bytes), Relaxed);
    }

    /// Counts an event as received. For the webhooks thread alone.
    pub(crate) fn received(&self, bytes: u64) {
        let received = self.received_bytes.load(Relaxed);
        self.received_bytes.store(received.wrapping_add(bytes), Relaxed);
    }
}
