//! A custom protocol: a codec translates between its messages and the client protocol.

use std::fmt;
use std::rc::Rc;

/// Translates between a custom protocol over WebSocket and the client protocol in JSON
/// (`docs/reference/client-protocol.md`). Each worker has one codec and calls it on its own thread. A codec has no
/// state of a client.
pub trait Codec: 'static {
    /// Appends the commands for a client's message, one JSON object per line. A message without commands only keeps
    /// the connection alive.
    fn decode(&self, message: &[u8], commands: &mut Vec<u8>);

    /// Appends the message for a reply or a push, which is one JSON object. If nothing is appended, nothing is sent.
    ///
    /// Called once for a publication, for all clients of the worker.
    fn encode(&self, said: &[u8], message: &mut Vec<u8>);

    /// Whether messages are binary. If not, `encode` must append UTF-8.
    fn is_binary(&self) -> bool {
        false
    }

    /// The subprotocol names of the protocol (`Sec-WebSocket-Protocol`, RFC 6455 §11.3.4).
    fn subprotocols(&self) -> &'static [&'static str] {
        &[]
    }
}

/// The codec of a worker, if the program has one.
#[derive(Clone, Default)]
pub(crate) struct Own(pub(crate) Option<Rc<dyn Codec>>);

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Own({})", self.0.is_some())
    }
}
