//! Why an operation on a connection was refused, and why a connection ended.

use std::{fmt, io};

/// Why bytes were not taken for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// No such connection any more, or it is being closed. Its `on_close` has been or will be called.
    #[error("the connection is closed; let go of its id")]
    Stale,
    /// The bytes would exceed `output_bytes_max` of the connection or `buffered_bytes_max` of the loop.
    /// Nothing was taken; `on_writable` follows when what is buffered has left.
    #[error(
        "the output buffer is full; wait for on_writable, or raise output_bytes_max or buffered_bytes_max"
    )]
    Full,
    /// The connection's protocol does not allow it now: a response without an outstanding request, or a WebSocket message on a
    /// connection that is not a WebSocket.
    #[error(
        "the connection's protocol does not allow this now; answer each request once, and send messages by a WebSocket"
    )]
    OutOfTurn,
    /// The loop's handler does not speak the protocol.
    #[error("the handler does not speak this protocol; name it in its `type Protocols`")]
    NotPlugged,
}

/// Why a connection does not begin TLS; see [`Context::begin_tls`](crate::Context::begin_tls). The connection is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BeginTlsError {
    /// No such connection any more, or it is being closed. Its `on_close` has been or will be called.
    #[error("the connection is closed; let go of its id")]
    Stale,
    /// It does not speak raw TCP, or TLS has begun already.
    #[error("TLS cannot begin now; it begins once, on a connection of raw TCP")]
    OutOfTurn,
    /// Plain text has arrived behind the peer's request to begin TLS. It may come from an attacker and must not be taken for
    /// input that follows the handshake. Close the connection.
    #[error("{0} unencrypted bytes came where TLS is to begin; close the connection")]
    Unread(usize),
    /// Bytes written before still wait for the socket. Begin when they have left.
    #[error("unencrypted bytes wait to be sent; begin when they have left")]
    Unsent,
    /// `rustls` rejects the configuration.
    #[error("TLS: {0}")]
    Invalid(io::Error),
}

/// Why a connection ended. Handed to `on_close`, once for every connection that had its `on_open` or
/// `on_connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed it: by FIN, or by a WebSocket closing handshake that it began.
    Peer,
    /// The handler closed it, and everything buffered was sent.
    Local,
    /// The handler aborted it, or the loop was dropped.
    Aborted,
    /// A timeout of the loop passed: a request was not complete in time, nothing arrived for the idle time, or the last bytes
    /// could not be sent.
    TimedOut,
    /// The peer broke the protocol; `on_http_error` or `on_websocket_error` was called before.
    ProtocolError,
    /// The peer's buffered input would have exceeded `buffered_bytes_max` of the loop.
    OutOfMemory,
    /// It was not authenticated, and as the oldest of these it made room for a newer one; see
    /// [`unauthenticated_max`](crate::LoopConfig::unauthenticated_max).
    Displaced,
    /// The kernel reported an error: a reset, an unreachable peer.
    Io(io::ErrorKind),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Peer => f.write_str("closed by the peer"),
            CloseReason::Local => f.write_str("closed here"),
            CloseReason::Aborted => f.write_str("aborted here"),
            CloseReason::TimedOut => f.write_str("timed out"),
            CloseReason::ProtocolError => f.write_str("protocol violated by the peer"),
            CloseReason::OutOfMemory => f.write_str("out of buffer memory"),
            CloseReason::Displaced => f.write_str("displaced by a newer connection"),
            CloseReason::Io(kind) => write!(f, "{kind}"),
        }
    }
}
