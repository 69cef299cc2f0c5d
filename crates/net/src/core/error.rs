//! Errors of operations on a connection, and reasons why a connection ends.

use std::{fmt, io};

/// Why bytes were not accepted for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The connection has ended or is being closed. Its `on_close` was or will be called.
    #[error("the connection is closed; let go of its id")]
    Stale,
    /// The bytes would exceed `output_bytes_max` of the connection or `buffered_bytes_max` of the loop. Nothing was
    /// accepted; `on_writable` follows when the buffered output has been sent.
    #[error(
        "the output buffer is full; wait for on_writable, or raise output_bytes_max or buffered_bytes_max"
    )]
    Full,
    /// The connection's protocol does not allow it now: a response without an outstanding request, or a WebSocket
    /// message on a connection that is not a WebSocket.
    #[error(
        "the connection's protocol does not allow this now; answer each request once, and send messages by a WebSocket"
    )]
    OutOfTurn,
    /// The loop's handler does not support the protocol.
    #[error("the handler does not speak this protocol; name it in its `type Protocols`")]
    NotPlugged,
}

/// Why TLS was not started; see [`Context::begin_tls`](crate::Context::begin_tls). The connection is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BeginTlsError {
    /// The connection has ended or is being closed. Its `on_close` was or will be called.
    #[error("the connection is closed; let go of its id")]
    Stale,
    /// The connection is not raw TCP, or TLS was already started.
    #[error("TLS cannot begin now; it begins once, on a connection of raw TCP")]
    OutOfTurn,
    /// Plain text arrived after the peer's request to begin TLS. It may come from an attacker and must not be used as
    /// input after the handshake. Close the connection.
    #[error("{0} unencrypted bytes came where TLS is to begin; close the connection")]
    Unread(usize),
    /// Earlier output waits for the socket. Begin TLS when it has been sent.
    #[error("unencrypted bytes wait to be sent; begin when they have left")]
    Unsent,
    /// `rustls` rejects the configuration.
    #[error("TLS: {0}")]
    Invalid(io::Error),
}

/// Why a connection ended. Passed to `on_close`, once for every connection that had its `on_open` or `on_connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed it: by FIN, or by starting a WebSocket closing handshake.
    Peer,
    /// The handler closed it, and all buffered output was sent.
    Local,
    /// The handler aborted it, or the loop was dropped.
    Aborted,
    /// A timeout of the loop passed: a request was not complete in time, nothing arrived during the idle timeout, or
    /// the last bytes could not be sent.
    TimedOut,
    /// The peer violated the protocol; `on_http_error` or `on_websocket_error` was called before.
    ProtocolError,
    /// The peer's buffered input would have exceeded `buffered_bytes_max` of the loop.
    OutOfMemory,
    /// It was the oldest unauthenticated connection, and was closed for a newer one; see
    /// [`unauthenticated_max`](crate::LoopConfig::unauthenticated_max).
    Displaced,
    /// The kernel reported an error: a reset, an unreachable peer.
    Io(io::ErrorKind),
}

impl CloseReason {
    /// Returns the reason as one word, for a label.
    pub const fn name(&self) -> &'static str {
        match self {
            CloseReason::Peer => "peer",
            CloseReason::Local => "local",
            CloseReason::Aborted => "aborted",
            CloseReason::TimedOut => "timed_out",
            CloseReason::ProtocolError => "protocol_error",
            CloseReason::OutOfMemory => "out_of_memory",
            CloseReason::Displaced => "displaced",
            CloseReason::Io(_) => "io",
        }
    }
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
