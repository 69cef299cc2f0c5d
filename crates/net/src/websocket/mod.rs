//! WebSocket on the loop: what a handler is given, and what it sends.

mod handshake;
mod mask;
mod messages;

pub use dunlin_wire::websocket::deflate::DeflateConfig;
pub use dunlin_wire::websocket::handshake::{ClientHandshakeError, HandshakeError};
pub use dunlin_wire::websocket::{
    CLOSE_REASON_BYTES_MAX, CONTROL_PAYLOAD_BYTES_MAX, Error, Limits, Message, Opcode, close_code,
    encode_close, encode_frame, is_close_code,
};

pub(crate) use handshake::Handshake;
pub use handshake::{NewHandshake, UpgradeError};
pub(crate) use mask::Masks;
pub(crate) use messages::Contexts;

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
    /// Closed after so many milliseconds in which nothing arrived. 0: never.
    pub idle_timeout_ms: u64,
}
