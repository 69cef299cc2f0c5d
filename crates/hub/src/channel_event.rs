//! What happened to subscriptions and channels, for whoever tells others of it.

use std::sync::Arc;

use crate::position::Epoch;
use crate::publication::Publication;
use crate::session_id::SessionId;

/// Which notices a hub writes. None by default: then each place where one would be written costs a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChannelEventFilter {
    /// Subscriptions of this worker's sessions that begin and end.
    pub subscriptions: bool,
    /// Publications into channels at home on this worker.
    pub publications: bool,
}

/// Something that happened, whoever caused it: an operation, another worker, a limit. Long-polls write none but
/// publications: they are requests, whose subscriptions last for one answer.
///
/// RecordedEvents of one session come in their order, and so do those of one channel's publications.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ChannelEvent {
    /// A session is subscribed.
    Subscribed {
        /// Who.
        session: SessionId,
        /// Whose session; empty: nobody's.
        user: Box<str>,
        /// To what.
        channel: Arc<str>,
    },
    /// A session that was subscribed is not any backlog.
    Unsubscribed {
        /// Who.
        session: SessionId,
        /// Whose session; empty: nobody's.
        user: Box<str>,
        /// From what.
        channel: Arc<str>,
        /// Why.
        cause: UnsubscribeCause,
    },
    /// A channel at home here took a publication.
    Published {
        /// The channel.
        channel: Arc<str>,
        /// Of the channel's stream; none when it keeps no history.
        epoch: Epoch,
        /// What was published, numbered.
        publication: Arc<Publication>,
    },
}

/// Why a subscription ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsubscribeCause {
    /// The client asked for it.
    Client,
    /// The server did: a call of its API.
    Server,
    /// The session ended.
    Disconnect,
    /// The stream cannot be vouched for; the client subscribes again and recovers.
    InsufficientState,
}
