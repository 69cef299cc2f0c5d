//! The parameters of a client's opening handshake.

use dunlin_wire::websocket::handshake::ClientHandshake;

use super::{DeflateConfig, Limits};
use crate::timeout::TimeoutMs;

/// A client's opening handshake.
#[derive(Clone, Copy, Debug)]
pub struct NewHandshake<'a> {
    /// Path and query, percent-encoded.
    pub target: &'a str,
    /// The authority for the `Host` header.
    pub host: &'a str,
    /// Names and values of additional headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// Subprotocols to offer, preferred ones first.
    pub protocols: &'a [&'a str],
    /// Parameters to offer for permessage-deflate; `None` does not offer it.
    pub deflate: Option<DeflateConfig>,
    /// Limits of received frames and messages.
    pub limits: Limits,
    /// Milliseconds without input after which the connection is closed.
    pub idle_timeout_ms: TimeoutMs,
}

impl Default for NewHandshake<'_> {
    fn default() -> Self {
        NewHandshake::new("/", "")
    }
}

impl<'a> NewHandshake<'a> {
    /// Creates a handshake without additional headers, subprotocols or compression.
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

/// A client's handshake whose response has not arrived.
#[derive(Debug)]
pub(crate) struct Handshake {
    pub(crate) handshake: ClientHandshake,
    pub(crate) protocols: Vec<String>,
    pub(crate) deflate: Option<DeflateConfig>,
    pub(crate) limits: Limits,
    pub(crate) idle_timeout_ms: TimeoutMs,
}
