//! Subscriptions and publications as they happen, for hooks.

use std::sync::Arc;

use crate::position::Epoch;
use crate::publication::Publication;
use crate::session_id::SessionId;

/// The channel events a hub records. None by default; then each costs a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChannelEventFilter {
    /// Subscriptions of this worker's sessions that begin and end.
    pub subscriptions: bool,
    /// Publications into channels at home on this worker.
    pub publications: bool,
    /// The first subscriber and the last of channels at home on this worker, and the first session and the last of users where
    /// [they are counted](crate::ChannelOptions::presence_users_max).
    pub occupancy: bool,
}

/// A change of a subscription, or a publication, whatever its cause: an operation, another worker,
/// a limit. Subscriptions of long-polls are not recorded: they last for one response.
///
/// RecordedEvents of one session come in their order, and so do those of one channel's publications.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ChannelEvent {
    /// A session is subscribed.
    Subscribed {
        /// Who.
        session: SessionId,
        /// The session's user; empty: anonymous.
        user: Box<str>,
        /// To what.
        channel: Arc<str>,
    },
    /// A session's subscription ended.
    Unsubscribed {
        /// Who.
        session: SessionId,
        /// The session's user; empty: anonymous.
        user: Box<str>,
        /// From what.
        channel: Arc<str>,
        /// Why.
        cause: UnsubscribeCause,
    },
    /// A channel at home here has its first subscriber, on any worker, or has none any more.
    Occupied {
        /// The channel.
        channel: Arc<str>,
        /// It has one.
        occupied: bool,
    },
    /// A user is in a channel at home here, or has left it with his last session.
    Member {
        /// The channel.
        channel: Arc<str>,
        /// Who.
        user: Box<str>,
        /// He is in it.
        added: bool,
    },
    /// A channel at home here accepted a publication.
    Published {
        /// The channel.
        channel: Arc<str>,
        /// The stream's epoch; none when the channel keeps no history.
        epoch: Epoch,
        /// The publication with its offset.
        publication: Publication,
    },
}

/// Why a subscription ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsubscribeCause {
    /// The client unsubscribed.
    Client,
    /// A call of the server API.
    Server,
    /// The session ended.
    Disconnect,
    /// The stream has a gap; the client subscribes again and recovers.
    InsufficientState,
}
