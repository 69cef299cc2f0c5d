//! State of a protocol that is needed while input is incomplete.

use dunlin_wire::websocket::MessageAssembly;

use crate::core::upper;
use crate::http::PartialRequest;
use crate::websocket::{Contexts, Handshake};

/// Incomplete input of a connection, and its compression contexts.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// An HTTP request with an incomplete body.
    pub(crate) request: Option<Box<PartialRequest>>,
    /// A client's WebSocket handshake that waits for its response.
    pub(crate) handshake: Option<Box<Handshake>>,
    /// A WebSocket message that is fragmented or incomplete.
    pub(crate) assembly: Option<Box<MessageAssembly>>,
    /// Compression contexts that survive between messages.
    pub(crate) contexts: Option<Box<Contexts>>,
}

impl upper::Kept for Kept {
    fn is_empty(&self) -> bool {
        self.request.is_none()
            && self.handshake.is_none()
            && self.assembly.is_none()
            && self.contexts.is_none()
    }

    fn bytes(&self) -> usize {
        self.request.as_ref().map_or(0, |request| request.bytes())
            + self.assembly.as_ref().map_or(0, |assembly| assembly.memory_bytes())
    }
}
