//! WebSocket, client and server side: messages and parameters of a [`WebSocketHandler`](crate::WebSocketHandler), and
//! its state machine [`Connection`].

mod connection;
mod handshake;
mod protocol_error;

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
pub use protocol_error::ProtocolError;

use crate::timeout::TimeoutMs;

/// The parameters of a server that upgrades a connection to WebSocket.
#[derive(Clone, Copy, Debug, Default)]
pub struct WebSocketConfig<'a> {
    /// Limits of received frames and messages.
    pub limits: Limits,
    /// Supported subprotocols. The first one in the client's list that is supported is chosen.
    pub protocols: &'a [&'a str],
    /// Parameters to accept for permessage-deflate; `None` declines it. Connections without context takeover share one
    /// compressor per loop. A connection with context takeover uses about 340 KiB of its own after its first message.
    pub deflate: Option<DeflateConfig>,
    /// Milliseconds without input after which the connection is closed.
    pub idle_timeout_ms: TimeoutMs,
}
