use std::os::fd::OwnedFd;

use super::order::Expected;

/// A connection of the swarm: plain data, no buffer.
#[derive(Debug)]
pub(crate) struct Client {
    /// Descriptor in the table of the thread that owns the client; `None` before the connect and after the close.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) expected: Expected,
    /// Second of the run in which something last arrived.
    pub(crate) heard_s: u32,
    /// Number of the buffer that holds a cut message, from 1; 0: none.
    pub(crate) carry: u16,
    /// Pings of the server, up to 65,535.
    pub(crate) pings: u16,
    pub(crate) state: State,
    /// Bits of the answers seen, `protocol::ANSWERED_*`.
    pub(crate) answered: u8,
    pub(crate) attempts: u8,
    pub(crate) silent: bool,
}

// A million clients take 24 MB.
const _: () = assert!(size_of::<Client>() <= 24);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Not connected yet, or waiting to reconnect.
    Waiting,
    /// TCP handshake under way.
    Connecting,
    /// The HTTP opening is sent; its response head is incomplete.
    Opening,
    /// Greeted; some answer is missing.
    Greeting,
    Ready,
    /// Closed by the server, or not retried any more.
    Gone,
}

impl Client {
    pub(crate) const WAITING: Self = Self {
        socket: None,
        expected: Expected::FIRST,
        heard_s: 0,
        carry: 0,
        pings: 0,
        state: State::Waiting,
        answered: 0,
        attempts: 0,
        silent: false,
    };

    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.state, State::Connecting | State::Opening | State::Greeting)
    }
}
