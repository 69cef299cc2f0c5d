//! What a hub tells its caller.

use std::sync::Arc;

use crate::error::Error;
use crate::position::StreamPosition;
use crate::publication::{ClientInfo, Publication};
use crate::session_id::SessionId;

/// An outcome or a demand. Every operation that took a token ends in exactly one event with that
/// token; tokens mean nothing to the hub.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// Ends [`Hub::handle_subscribe`](crate::Hub::handle_subscribe).
    Subscribed {
        /// The caller's token.
        token: u64,
        /// Who subscribed; stale when the session was closed meanwhile.
        session: SessionId,
        /// To what.
        channel: Arc<str>,
        /// Where it stands, or why not.
        result: Result<Subscribed, Error>,
    },
    /// Ends [`Hub::handle_publish`](crate::Hub::handle_publish).
    Published {
        /// The caller's token.
        token: u64,
        /// Its place in the stream.
        result: Result<Published, Error>,
    },
    /// Ends [`Hub::handle_history`](crate::Hub::handle_history).
    History {
        /// The caller's token.
        token: u64,
        /// The part asked for.
        result: Result<History, Error>,
    },
    /// Ends [`Hub::handle_history_remove`](crate::Hub::handle_history_remove).
    HistoryRemoved {
        /// The caller's token.
        token: u64,
        /// Done, or why not.
        result: Result<(), Error>,
    },
    /// Ends [`Hub::handle_presence`](crate::Hub::handle_presence).
    Presence {
        /// The caller's token.
        token: u64,
        /// Everyone present, in no particular order.
        result: Result<Vec<Arc<ClientInfo>>, Error>,
    },
    /// Ends [`Hub::handle_presence_stats`](crate::Hub::handle_presence_stats).
    PresenceStats {
        /// The caller's token.
        token: u64,
        /// How many.
        result: Result<PresenceStats, Error>,
    },
    /// Ends [`Hub::handle_channels`](crate::Hub::handle_channels).
    Channels {
        /// The caller's token.
        token: u64,
        /// Channels with subscribers, sorted by name.
        result: Result<Vec<ChannelSummary>, Error>,
    },
    /// Ends [`Hub::handle_info`](crate::Hub::handle_info).
    Info {
        /// The caller's token.
        token: u64,
        /// Counts over all workers that answered.
        result: Result<Info, Error>,
    },
    /// Ends a user-wide operation ([`Hub::handle_disconnect_user`](crate::Hub::handle_disconnect_user)
    /// and its like): sessions it met, over all workers.
    Affected {
        /// The caller's token.
        token: u64,
        /// How many sessions.
        result: Result<u64, Error>,
    },
    /// The session is to end. It is subscribed to nothing any more; its outbox holds what may
    /// still be sent, a [`Outgoing::Disconnect`](crate::Outgoing) last. Send what goes, close the
    /// connection, call [`Hub::close_session`](crate::Hub::close_session).
    Disconnect {
        /// The session.
        session: SessionId,
        /// The caller's name for it.
        tag: u64,
        /// Disconnect code.
        code: u32,
        /// For people.
        reason: Arc<str>,
    },
    /// The hub ended a subscription by itself (user-wide operation, or a gap) and has told the
    /// client.
    Unsubscribed {
        /// The session.
        session: SessionId,
        /// The caller's name for it.
        tag: u64,
        /// The channel.
        channel: Arc<str>,
        /// Unsubscribe code.
        code: u32,
    },
}

/// A subscription that came to be.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Subscribed {
    /// The stream's position at this instant: whatever is published later is pushed, nothing up
    /// to here is. Offset 0 and no epoch when the channel has no stream.
    pub position: StreamPosition,
    /// A position to recover from was given.
    pub was_recovering: bool,
    /// `publications` is everything from that position up to `position`, without a hole. In a
    /// channel without a stream, from offset 0 without epoch: true, though nobody knows.
    pub recovered: bool,
    /// Oldest first; empty unless `recovered`.
    pub publications: Vec<Arc<Publication>>,
    /// Offsets have a meaning for the client.
    pub positioned: bool,
    /// The client may come back and recover.
    pub recoverable: bool,
}

/// A publication that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Published {
    /// Its place; offset 0 and no epoch when the channel keeps no history. When suppressed: of the
    /// first publication with the same idempotency key, or the stream's top.
    pub position: StreamPosition,
    /// Not published again: same idempotency key, or a version not newer.
    pub suppressed: bool,
}

/// A part of a channel's history.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// In the order asked for.
    pub publications: Vec<Arc<Publication>>,
    /// The stream's top.
    pub position: StreamPosition,
}

/// How many are present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PresenceStats {
    /// Sessions.
    pub clients: u64,
    /// Different users among them.
    pub users: u64,
}

/// A channel with subscribers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelSummary {
    /// Its name.
    pub name: Arc<str>,
    /// Subscribed sessions, over all workers.
    pub clients: u64,
}

/// Counts over workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Info {
    /// Sessions.
    pub clients: u64,
    /// Different named users, counted once per worker they are on.
    pub users: u64,
    /// Channels with subscribers, each once.
    pub channels: u64,
    /// Subscriptions.
    pub subscriptions: u64,
}
