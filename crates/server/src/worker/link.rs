//! The worker's data of each connection, stored in `net`'s connection record.

use dunlin_hub::SessionId;
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::ProtocolState;

/// The worker's data of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// The session id in the lower 53 bits, the index of its params in the eleven above; all bits set without a session. An
    /// `Option` would take eight bytes more.
    session: u64,
    pub(crate) peer: Peer,
    pub(crate) role: Role,
    /// The protocol state of a bidirectional client.
    pub(crate) protocol_state: ProtocolState,
    /// Nothing more is queued: the connection closes when the outbox is empty.
    pub(crate) closing: bool,
}

/// The peer: the place of its address in the worker's table, and flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(u32);

impl Peer {
    const AUTHENTICATED: u32 = 1 << 31;
    const PROXY: u32 = 1 << 30;
    /// A peer whose address was never looked up.
    pub(crate) const UNKNOWN: Peer = Peer(Peer::PROXY - 1);

    /// Creates an unauthenticated peer with its place in the table of addresses. `is_proxy`: it may name the address it acts for.
    pub(crate) fn new(place: u32, is_proxy: bool) -> Peer {
        Peer(place & Peer::UNKNOWN.0 | if is_proxy { Peer::PROXY } else { 0 })
    }

    pub(crate) fn place(self) -> u32 {
        self.0 & Peer::UNKNOWN.0
    }

    pub(crate) fn is_authenticated(self) -> bool {
        self.0 & Peer::AUTHENTICATED != 0
    }

    pub(crate) fn is_proxy(self) -> bool {
        self.0 & Peer::PROXY != 0
    }

    pub(crate) fn authenticated(self) -> Peer {
        Peer(self.0 | Peer::AUTHENTICATED)
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// HTTP requests, one after another; also while one of them waits for its answer.
    #[default]
    Http,
    /// A long-poll waits for its response.
    Poll,
    /// The push thread handles the request.
    Push,
    /// A connection to a backend.
    Backend,
    /// A connection to a server of an engine.
    Engine,
    /// A client with a session, or about to get one.
    Client(Encoding),
}

impl Role {
    /// A client of any transport.
    pub(crate) fn is_client(self) -> bool {
        matches!(self, Role::Client(_) | Role::Poll)
    }
}

const NO_SESSION: u64 = u64::MAX;
const PARAMS_SHIFT: u32 = 53;
/// The params of sessions without any, such as that of a long-poll.
pub(super) const NO_PARAMS: u16 = (1 << 11) - 2;

// A million of these.
const _: () = assert!(size_of::<Link>() == 16);

impl Default for Link {
    fn default() -> Self {
        Self {
            session: NO_SESSION,
            peer: Peer::UNKNOWN,
            role: Role::Http,
            protocol_state: ProtocolState::default(),
            closing: false,
        }
    }
}

impl Link {
    /// Returns the session, if there is one; while a poll waits, its hub session.
    pub(crate) fn session(&self) -> Option<SessionId> {
        if self.session == NO_SESSION {
            return None;
        }
        SessionId::from_u64(self.session & ((1 << PARAMS_SHIFT) - 1))
    }

    /// Returns the encoding, if the connection is a client's.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        match self.role {
            Role::Client(encoding) => Some(encoding),
            Role::Http | Role::Poll | Role::Push | Role::Backend | Role::Engine => None,
        }
    }

    /// Sets the session and its params, or clears them.
    pub(super) fn set_session(&mut self, session: Option<SessionId>, params: u16) {
        self.session = session
            .map_or(NO_SESSION, |session| session.to_u64() | u64::from(params) << PARAMS_SHIFT);
    }

    /// Returns the index of the session's params in the worker's table.
    pub(super) fn params(&self) -> u16 {
        if self.session == NO_SESSION { NO_PARAMS } else { (self.session >> PARAMS_SHIFT) as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_and_its_params_share_a_number() {
        let mut link = Link::default();
        assert_eq!((link.session(), link.params()), (None, NO_PARAMS));
        let largest = SessionId::pack(u16::MAX, u8::MAX, u8::MAX, u32::MAX, u8::MAX);
        for (session, params) in [(largest, NO_PARAMS), (SessionId::pack(0, 0, 0, 0, 0), 0)] {
            link.set_session(Some(session), params);
            assert_eq!((link.session(), link.params()), (Some(session), params));
        }
        link.set_session(None, NO_PARAMS);
        assert_eq!(link.session(), None);
    }
}
