//! The protocol of a connection.

use crate::core::config::{Limits, Role};
use crate::core::upper::Spoken;
use crate::http::ServerState;
use crate::timeout::TimeoutMs;
use crate::websocket;

/// The current protocol of a connection, and its state while the connection is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Http(ServerState),
    /// A response has begun whose body the caller writes; further input of the peer is dropped.
    Stream,
    /// A client's upgrade request was sent; its response is awaited.
    WebSocketHandshake,
    WebSocket(websocket::State),
}

const _: () = assert!(size_of::<Protocol>() == 2);

/// The response to a client that speaks HTTP where TLS is expected.
const TLS_EXPECTED: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\
    Content-Length: 42\r\n\r\nThis port speaks TLS: ask with https://.\r\n";

impl Spoken for Protocol {
    const RAW: Protocol = Protocol::Tcp;

    fn of(role: Role) -> Protocol {
        match role {
            Role::Tcp => Protocol::Tcp,
            Role::Http => Protocol::Http(ServerState::default()),
        }
    }

    /// Input after a request waits for its response, and for the socket to take earlier responses.
    fn holds_input(self, is_blocked: bool) -> bool {
        matches!(self, Protocol::Http(state) if state.is_awaiting_response() || is_blocked)
    }

    fn input_timeout_ms(self, limits: &Limits) -> TimeoutMs {
        matches!(self, Protocol::Http(_)).then_some(limits.head_timeout_ms).flatten()
    }

    fn progress_timeout_ms(self, limits: &Limits) -> Option<TimeoutMs> {
        matches!(self, Protocol::Http(_)).then_some(limits.keep_alive_timeout_ms)
    }

    fn answer_in_plain_text(self) -> Option<&'static [u8]> {
        matches!(self, Protocol::Http(_)).then_some(TLS_EXPECTED)
    }
}
