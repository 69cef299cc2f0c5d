//! Protocol violations by the peer of a WebSocket.

use dunlin_wire::http1;

use super::{ClientHandshakeError, Error};

/// A protocol violation by the peer, on an open WebSocket or in the opening handshake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame or message that is not allowed, with the close code for it.
    #[error("{0}")]
    Frame(Error),
    /// The response to a client's handshake is not valid.
    #[error("{0}")]
    Handshake(ClientHandshakeError),
    /// The response to a client's handshake is not HTTP/1.1.
    #[error("{0}")]
    Response(http1::Error),
}
