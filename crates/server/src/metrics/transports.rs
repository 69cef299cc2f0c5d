//! The number of a worker's sessions on each transport.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use dunlin_hub::{ENCODINGS_MAX, EncodingId};
use dunlin_protocol::Encoding;

/// The gauges of one worker: written by that worker once a second, read by anyone.
#[derive(Debug, Default)]
pub(crate) struct TransportGauges([AtomicU32; ENCODINGS_MAX]);

impl TransportGauges {
    /// Publishes the number of sessions by the index of their encoding.
    pub(crate) fn set(&self, sessions: &[u32; ENCODINGS_MAX]) {
        self.0.iter().zip(sessions).for_each(|(cell, count)| cell.store(*count, Relaxed));
    }

    /// Returns transport and protocol of each encoding, with its sessions; several encodings share them.
    pub(crate) fn by_protocol(&self) -> impl Iterator<Item = ((&'static str, &'static str), u64)> {
        self.0.iter().enumerate().filter_map(|(index, cell)| {
            let encoding = Encoding::of(EncodingId(index as u8))?;
            let labels = (encoding.transport(), encoding.format().name());
            Some((labels, u64::from(cell.load(Relaxed))))
        })
    }

    /// Returns the transports that have sessions, with the number of these; several encodings share a transport.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().enumerate().filter_map(|(index, cell)| {
            let encoding = Encoding::of(EncodingId(index as u8))?;
            let count = cell.load(Relaxed);
            (count > 0).then(|| (encoding.transport(), u64::from(count)))
        })
    }
}
