//! What the worker keeps of each connection, inside `net`'s connection record.

use dunlin_hub::SessionId;
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::Conversation;

/// Plain data of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// The session's number; not an `Option` of it, which would take eight bytes more.
    session: u64,
    /// Where the peer's address is in the worker's table.
    pub(crate) address: u32,
    pub(crate) role: Role,
    /// How far a bidirectional client has come.
    pub(crate) conversation: Conversation,
    /// The last word has been said: the connection closes when the outbox is empty.
    pub(crate) closing: bool,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// HTTP requests, one after another; also while one of them waits for its answer.
    #[default]
    Http,
    /// A long-poll waits for its answer.
    Poll,
    /// A client's session, or about to become one.
    Client(Encoding),
}

const NO_SESSION: u64 = u64::MAX;

// A million of these.
const _: () = assert!(size_of::<Link>() == 16);

impl Default for Link {
    fn default() -> Self {
        Self {
            session: NO_SESSION,
            address: super::addresses::UNKNOWN,
            role: Role::Http,
            conversation: Conversation::default(),
            closing: false,
        }
    }
}

impl Link {
    /// The session, once there is one. For a poll its hub session, while one waits.
    pub(crate) fn session(&self) -> Option<SessionId> {
        SessionId::from_u64(self.session)
    }

    pub(crate) fn set_session(&mut self, session: Option<SessionId>) {
        self.session = session.map_or(NO_SESSION, SessionId::to_u64);
    }
}
