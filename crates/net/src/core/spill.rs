//! What a connection needs only while something is cut short: half a frame, half a head, unsent bytes.
//! Borrowed from a pool of the loop and given back as soon as it is empty.

use super::proxy::Arrival;
use super::tls::Session;
use super::upper::{Kept, Upper, UpperLayer};

/// Bytes waiting to be sent: appended at the end, sent from the front.
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

    /// The vector to append to. Nothing may be taken from it.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        // A slow reader's buffer would otherwise grow by what it has already been sent.
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

/// The buffers a connection borrows.
#[derive(Debug, Default)]
pub(crate) struct Spill {
    /// Received and not yet consumed: the beginning of something.
    pub(crate) input: Vec<u8>,
    pub(crate) output: Output,
    /// A proxy's header is awaited, and with it whose the connection is.
    pub(crate) arrival: Option<Box<Arrival>>,
    /// What the protocol keeps.
    pub(crate) upper: <Upper as UpperLayer>::Kept,
    /// The TLS session, for as long as the connection lives.
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

    /// Bytes of peers held here, for the account of the loop.
    pub(crate) fn bytes(&self) -> usize {
        self.input.len()
            + self.output.len()
            + self.upper.bytes()
            + self.tls.as_ref().map_or(0, |session| session.bytes())
    }
}

/// Spills at rest, ready to be borrowed again.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "they move between pool and records as pointers")]
pub(crate) struct Pool {
    spare: Vec<Box<Spill>>,
    spare_max: usize,
}

/// A buffer that grew beyond this is given back to the allocator, not to the pool.
pub(crate) const SPARE_BYTES_MAX: usize = 16 << 10;

impl Pool {
    pub(crate) fn new(spare_max: usize) -> Pool {
        Pool { spare: Vec::new(), spare_max }
    }

    pub(crate) fn borrow(&mut self) -> Box<Spill> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a spill back of which the protocol has kept nothing.
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

    /// Gives the spill of a connection back if nothing is in it.
    pub(crate) fn settle(&mut self, spill: &mut Option<Box<Spill>>) {
        if let Some(empty) = spill.take_if(|spill| spill.is_empty()) {
            self.give_back(empty);
        } else if let Some(spill) = spill
            && spill.input.is_empty()
            && spill.output.is_empty()
        {
            // What stays for longer, as TLS does, keeps no buffers.
            (spill.input, spill.output) = Default::default();
        }
    }
}
