//! WebSocket, either end: what a [`Handler`](crate::Handler) is given and what it sends, and the machine behind both,
//! [`Connection`].

mod connection;
mod handshake;
mod mask;

pub use dunlin_wire::websocket::deflate::{DeflateConfig, DeflateParams};
pub use dunlin_wire::websocket::handshake::{ClientHandshakeError, HandshakeError};
pub use dunlin_wire::websocket::{
    CLOSE_REASON_BYTES_MAX, CONTROL_PAYLOAD_BYTES_MAX, Error, Limits, Message, MessageAssembly,
    Opcode, Role, close_code, encode_close, encode_frame, is_close_code,
};

pub use connection::{Agreed, CloseSent, Connection, Event, OutgoingMessage, SharedCompression};
pub(crate) use connection::{Contexts, State};
pub(crate) use handshake::Handshake;
pub use handshake::NewHandshake;
pub(crate) use mask::Masks;

use crate::timeout::TimeoutMs;

/// How a server speaks WebSocket on a connection it upgrades.
#[derive(Clone, Copy, Debug, Default)]
pub struct WebSocketConfig<'a> {
    /// Bounds on frames and messages received.
    pub limits: Limits,
    /// Subprotocols spoken here. Of those a client offers, its first that is here is chosen.
    pub protocols: &'a [&'a str],
    /// Terms for permessage-deflate; `None` declines it. Without context takeover all connections of the
    /// loop share one compressor; each that negotiated it holds some 340 KiB of its own once used.
    pub deflate: Option<DeflateConfig>,
    /// Closed after so many milliseconds in which nothing arrived.
    pub idle_timeout_ms: TimeoutMs,
}
