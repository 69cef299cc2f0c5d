//! Bytes of events between a worker and the webhooks thread.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Most bytes of one worker's events in transit. Further events are an overflow.
const BYTES_MAX: u64 = 16 << 20;

/// The bytes in transit from one worker. Each end writes its own counter.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct InTransit {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl InTransit {
    /// Counts an event as sent. Returns `false` if there is no room. Only called by the worker.
    pub(crate) fn try_send(&self, bytes: u64) -> bool {
        let sent = self.sent_bytes.load(Relaxed);
        let room = sent.wrapping_sub(self.received_bytes.load(Relaxed)) < BYTES_MAX;
        if room {
            self.sent_bytes.store(sent.wrapping_add(bytes), Relaxed);
        }
        room
    }

    /// Reverts the count of an event that was not sent. Only called by the worker.
    pub(crate) fn cancel_send(&self, bytes: u64) {
        self.sent_bytes.store(self.sent_bytes.load(Relaxed).wrapping_sub(bytes), Relaxed);
    }

    /// Counts an event as received. Only called by the webhooks thread.
    pub(crate) fn received(&self, bytes: u64) {
        let received = self.received_bytes.load(Relaxed);
        self.received_bytes.store(received.wrapping_add(bytes), Relaxed);
    }
}
