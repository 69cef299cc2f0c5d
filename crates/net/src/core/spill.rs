//! Buffers for incomplete input and unsent output: half a frame, half a head, unsent bytes.
//! Borrowed from a pool of the loop and returned as soon as they are empty.

use super::proxy::Arrival;
use super::tls::Session;
use super::upper::{Kept, Upper, UpperLayer};

/// Unsent bytes: appended at the end, sent from the front.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    sent: usize,
}

impl Output {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Returns the vector to append to. The caller must not remove bytes from it.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        // Otherwise the buffer of a slow reader would keep the bytes that were already sent.
        if self.sent > 0 && self.sent >= self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.bytes
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        debug_assert!(self.sent <= self.bytes.len());
        if self.sent == self.bytes.len() {
            self.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
    }
}

/// The buffers that a connection borrows.
#[derive(Debug, Default)]
pub(crate) struct Spill {
    /// Received bytes that were not consumed: incomplete input.
    pub(crate) input: Vec<u8>,
    pub(crate) output: Output,
    /// State of a connection that waits for its proxy header.
    pub(crate) arrival: Option<Box<Arrival>>,
    /// State of the protocol.
    pub(crate) upper: <Upper as UpperLayer>::Kept,
    /// The TLS session, kept for the lifetime of the connection.
    pub(crate) tls: Option<Box<Session>>,
}

impl Spill {
    pub(crate) fn is_empty(&self) -> bool {
        self.input.is_empty()
            && self.output.is_empty()
            && self.arrival.is_none()
            && self.upper.is_empty()
            && self.tls.is_none()
    }

    /// Returns the bytes of peers held here, for the loop's memory limit.
    pub(crate) fn bytes(&self) -> usize {
        self.input.len()
            + self.output.len()
            + self.upper.bytes()
            + self.tls.as_ref().map_or(0, |session| session.bytes())
    }
}

/// Unused spills for reuse.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "they move between pool and records as pointers")]
pub(crate) struct Pool {
    spare: Vec<Box<Spill>>,
    spare_max: usize,
}

/// Buffers larger than this are shrunk when they return to the pool.
pub(crate) const SPARE_BYTES_MAX: usize = 16 << 10;

impl Pool {
    pub(crate) fn new(spare_max: usize) -> Pool {
        Pool { spare: Vec::new(), spare_max }
    }

    pub(crate) fn borrow(&mut self) -> Box<Spill> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back a spill whose protocol state was released.
    pub(crate) fn give_back(&mut self, mut spill: Box<Spill>) {
        debug_assert!(spill.upper.is_empty(), "what a protocol kept is released first");
        spill.arrival = None;
        spill.tls = None;
        if self.spare.len() >= self.spare_max {
            return;
        }
        spill.input.clear();
        spill.input.shrink_to(SPARE_BYTES_MAX);
        spill.output.clear();
        spill.output.bytes.shrink_to(SPARE_BYTES_MAX);
        self.spare.push(spill);
    }

    /// Returns the spill of a connection to the pool if it is empty.
    pub(crate) fn settle(&mut self, spill: &mut Option<Box<Spill>>) {
        if let Some(empty) = spill.take_if(|spill| spill.is_empty()) {
            self.give_back(empty);
        } else if let Some(spill) = spill
            && spill.input.is_empty()
            && spill.output.is_empty()
        {
            // A spill that is kept for longer, as for TLS, keeps no buffers.
            (spill.input, spill.output) = Default::default();
        }
    }
}
