//! What a client asks for in its opening handshake.

use dunlin_wire::websocket::handshake::ClientHandshake;

use super::{DeflateConfig, Limits};
use crate::timeout::TimeoutMs;

/// A client's handshake.
#[derive(Clone, Copy, Debug)]
pub struct NewHandshake<'a> {
    /// Path and query, percent-encoded.
    pub target: &'a str,
    /// The authority for the `Host` header.
    pub host: &'a str,
    /// Names and values of further headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// Subprotocols to offer, best first.
    pub protocols: &'a [&'a str],
    /// Terms for permessage-deflate; `None` does not offer it.
    pub deflate: Option<DeflateConfig>,
    /// Bounds on frames and messages received.
    pub limits: Limits,
    /// Closed after so many milliseconds in which nothing arrived.
    pub idle_timeout_ms: TimeoutMs,
}

impl Default for NewHandshake<'_> {
    fn default() -> Self {
        NewHandshake::new("/", "")
    }
}

impl<'a> NewHandshake<'a> {
    /// A handshake without extras.
    pub fn new(target: &'a str, host: &'a str) -> NewHandshake<'a> {
        NewHandshake {
            target,
            host,
            headers: &[],
            protocols: &[],
            deflate: None,
            limits: Limits::default(),
            idle_timeout_ms: None,
        }
    }
}

/// A client's handshake that waits for its answer.
#[derive(Debug)]
pub(crate) struct Handshake {
    pub(crate) handshake: ClientHandshake,
    pub(crate) protocols: Vec<String>,
    pub(crate) deflate: Option<DeflateConfig>,
    pub(crate) limits: Limits,
    pub(crate) idle_timeout_ms: TimeoutMs,
}
