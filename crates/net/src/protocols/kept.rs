//! What a protocol keeps of a connection while something is cut short.

use dunlin_wire::websocket::MessageAssembly;

use crate::core::upper;
use crate::http::PartialRequest;
use crate::websocket::{Contexts, Handshake};

/// Beginnings of something, of a connection that has them.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// An HTTP request whose body is under way.
    pub(crate) request: Option<Box<PartialRequest>>,
    /// A client's WebSocket handshake that waits for its answer.
    pub(crate) handshake: Option<Box<Handshake>>,
    /// A WebSocket message that is fragmented or cut.
    pub(crate) assembly: Option<Box<MessageAssembly>>,
    /// Compression contexts taken over from message to message.
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
