//! A protocol of the program's own: messages of its clients become commands, and what the server sends becomes its messages.

use std::fmt;
use std::rc::Rc;

/// Translates between a protocol over WebSocket and the client protocol in JSON, whose commands, replies and pushes stand in
/// `docs/reference/client-protocol.md`. One of each worker, called on its thread; it keeps nothing of a client.
pub trait Codec: 'static {
    /// Appends the commands that a client's message means, one JSON object a line. Without any the message only shows that the
    /// client is there.
    fn decode(&self, message: &[u8], commands: &mut Vec<u8>);

    /// Appends the message that a reply or a push means, one JSON object. Nothing: the client is sent nothing.
    ///
    /// Called once for a publication, however many of the worker's clients get it.
    fn encode(&self, said: &[u8], message: &mut Vec<u8>);

    /// Whether its messages are binary; else they are text, and `encode` appends UTF-8.
    fn is_binary(&self) -> bool {
        false
    }

    /// The names that clients may ask for it by (`Sec-WebSocket-Protocol`, RFC 6455 §11.3.4).
    fn subprotocols(&self) -> &'static [&'static str] {
        &[]
    }
}

/// The codec of a worker, if the program brings one along.
#[derive(Clone, Default)]
pub(crate) struct Own(pub(crate) Option<Rc<dyn Codec>>);

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Own({})", self.0.is_some())
    }
}
