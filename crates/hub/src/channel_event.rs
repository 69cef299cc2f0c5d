//! Channel events for webhooks: subscriptions and publications.

use std::sync::Arc;

use crate::position::Epoch;
use crate::publication::Publication;
use crate::session_id::SessionId;

/// The channel events a hub records. None by default; then each costs a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChannelEventFilter {
    /// Begin and end of subscriptions of this worker's sessions.
    pub subscriptions: bool,
    /// Publications to channels at home on this worker.
    pub publications: bool,
    /// The first and the last subscriber of channels at home on this worker, and the first and the last session of
    /// users if [users are counted](crate::ChannelOptions::presence_users_max).
    pub occupancy: bool,
}

/// A change of a subscription, or a publication, of any cause: an operation, another worker, or a limit. Subscriptions of long-polls are not recorded: they last for one response.
///
/// The events of one session are recorded in order, and so are those of one channel's publications.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ChannelEvent {
    /// A session is subscribed.
    Subscribed {
        /// Who.
        session: SessionId,
        /// The session's user; empty: anonymous.
        user: Box<str>,
        /// The channel.
        channel: Arc<str>,
    },
    /// A session's subscription ended.
    Unsubscribed {
        /// The session.
        session: SessionId,
        /// The session's user; empty: anonymous.
        user: Box<str>,
        /// The channel.
        channel: Arc<str>,
        /// The cause.
        cause: UnsubscribeCause,
    },
    /// A channel at home here got its first subscriber, on any worker, or lost its last one.
    Occupied {
        /// The channel.
        channel: Arc<str>,
        /// Whether it has a subscriber.
        occupied: bool,
    },
    /// A user joined a channel at home here with the first session, or left it with the last one.
    Member {
        /// The channel.
        channel: Arc<str>,
        /// The user.
        user: Box<str>,
        /// Whether the user joined.
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
