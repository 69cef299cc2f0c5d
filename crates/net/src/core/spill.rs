//! What a connection needs only while something is cut short: half a frame, half a head, unsent bytes.
//! Borrowed from a pool of the loop and given back as soon as it is empty.

use dunlin_wire::websocket::MessageAssembly;

use super::proxy::Arrival;
use super::tls::Session;
use crate::http::PartialRequest;
use crate::websocket::{Contexts, Handshake};

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
    /// An HTTP request whose body is under way.
    pub(crate) request: Option<Box<PartialRequest>>,
    /// A client's WebSocket handshake that waits for its answer.
    pub(crate) handshake: Option<Box<Handshake>>,
    /// A WebSocket message that is fragmented or cut.
    pub(crate) assembly: Option<Box<MessageAssembly>>,
    /// Compression contexts taken over from message to message.
    pub(crate) contexts: Option<Box<Contexts>>,
    /// The TLS session, for as long as the connection lives.
    pub(crate) tls: Option<Box<Session>>,
}

impl Spill {
    pub(crate) fn is_empty(&self) -> bool {
        self.input.is_empty()
            && self.output.is_empty()
            && self.arrival.is_none()
            && self.request.is_none()
            && self.handshake.is_none()
            && self.assembly.is_none()
            && self.contexts.is_none()
            && self.tls.is_none()
    }

    /// Bytes of peers held here, for the account of the loop.
    pub(crate) fn bytes(&self) -> usize {
        self.input.len()
            + self.output.len()
            + self.request.as_ref().map_or(0, |request| request.bytes())
            + self.tls.as_ref().map_or(0, |session| session.bytes())
            + self.assembly.as_ref().map_or(0, |assembly| assembly.memory_bytes())
    }
}

/// Spills at rest, ready to be borrowed again.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "they move between pool and records as pointers")]
pub(crate) struct Pool {
    spare: Vec<Box<Spill>>,
    assemblies: Vec<Box<MessageAssembly>>,
    spare_max: usize,
}

/// A buffer that grew beyond this is given back to the allocator, not to the pool.
const SPARE_BYTES_MAX: usize = 16 << 10;

impl Pool {
    pub(crate) fn new(spare_max: usize) -> Pool {
        Pool { spare: Vec::new(), assemblies: Vec::new(), spare_max }
    }

    pub(crate) fn borrow(&mut self) -> Box<Spill> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&mut self, mut spill: Box<Spill>) {
        spill.arrival = None;
        spill.request = None;
        spill.handshake = None;
        spill.contexts = None;
        spill.tls = None;
        if let Some(assembly) = spill.assembly.take() {
            self.give_back_assembly(assembly);
        }
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

    pub(crate) fn borrow_assembly(&mut self) -> Box<MessageAssembly> {
        self.assemblies.pop().unwrap_or_default()
    }

    pub(crate) fn give_back_assembly(&mut self, mut assembly: Box<MessageAssembly>) {
        if self.assemblies.len() < self.spare_max {
            assembly.reset(SPARE_BYTES_MAX);
            self.assemblies.push(assembly);
        }
    }
}
