//! What waits for an answer of the hub: who asked, and in which words to answer.

use std::sync::Arc;

use dunlin_hub::SessionId;

use super::api::CallId;

/// The asker behind a token given to the hub.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    /// A command of a client; answered with a reply.
    Command {
        /// Whose session.
        session: SessionId,
        /// The command's id.
        id: u32,
    },
    /// A subscription that belongs to a connect; the connect is answered with the last of them.
    Connect {
        /// Whose session.
        session: SessionId,
    },
    /// A command of a server API call.
    Api {
        /// The call.
        call: CallId,
        /// Which of its commands.
        at: u32,
        /// Which part of a broadcast, from 1; 0 for the whole of any other command.
        part: u32,
    },
    /// A subscription of a long-poll, or the page of history that takes its place.
    Poll {
        /// The poll's session.
        session: SessionId,
        /// Which of its channels.
        channel: Arc<str>,
    },
}
