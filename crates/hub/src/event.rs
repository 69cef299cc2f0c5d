//! Events of a hub for its caller.

use std::sync::Arc;

use crate::error::Error;
use crate::position::StreamPosition;
use crate::publication::{ClientInfo, Publication};
use crate::session_id::SessionId;

/// An outcome, or something to do. Every operation with a token ends in exactly one event with that
/// token. The hub does not interpret tokens.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// Ends [`Hub::handle_subscribe`](crate::Hub::handle_subscribe).
    Subscribed {
        /// The caller's token.
        token: u64,
        /// The session; stale if it was closed meanwhile.
        session: SessionId,
        /// The channel.
        channel: Arc<str>,
        /// Its position, or why it failed.
        result: Result<Subscribed, Error>,
    },
    /// Ends [`Hub::handle_publish`](crate::Hub::handle_publish).
    Published {
        /// The caller's token.
        token: u64,
        /// Its position in the stream.
        result: Result<Published, Error>,
    },
    /// Ends [`Hub::handle_history`](crate::Hub::handle_history).
    History {
        /// The caller's token.
        token: u64,
        /// The publications.
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
    /// Ends a user-wide operation such as
    /// [`Hub::handle_disconnect_user`](crate::Hub::handle_disconnect_user): sessions affected, over
    /// all workers.
    Affected {
        /// The caller's token.
        token: u64,
        /// How many sessions.
        result: Result<u64, Error>,
    },
    /// Ends [`Hub::handle_send_to_user`](crate::Hub::handle_send_to_user).
    Sent {
        /// The caller's token.
        token: u64,
        /// In how many sessions' outboxes the message is.
        result: Result<u64, Error>,
    },
    /// By [`Hub::handle_refresh_user`](crate::Hub::handle_refresh_user): the session expires at another time.
    Refreshed {
        /// The session.
        session: SessionId,
        /// The caller's name for it.
        tag: u64,
        /// Unix seconds; `None`: never.
        expire_at_s: Option<u64>,
    },
    /// By [`Hub::handle_subscribe_user`](crate::Hub::handle_subscribe_user): the subscription expires.
    Expires {
        /// The session.
        session: SessionId,
        /// The channel.
        channel: Arc<str>,
        /// Unix seconds.
        expire_at_s: u64,
    },
    /// The session must end. It has no subscriptions any more; its outbox ends with an
    /// [`Outgoing::Disconnect`](crate::Outgoing). Send what the socket takes, close the connection,
    /// call [`Hub::close_session`](crate::Hub::close_session).
    Disconnect {
        /// The session.
        session: SessionId,
        /// The caller's name for it.
        tag: u64,
        /// Disconnect code.
        code: u32,
        /// For people.
        reason: Arc<str>,
        /// By [`Hub::handle_disconnect_user`](crate::Hub::handle_disconnect_user).
        by_server_api: bool,
    },
    /// The hub ended a subscription by itself (a user-wide operation, a gap). The client has an
    /// [`Outgoing::Unsubscribe`](crate::Outgoing) in its outbox.
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

/// An established subscription.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Subscribed {
    /// The stream's position at this instant: later publications are pushed, earlier ones are not.
    /// Offset 0 and no epoch when the channel has no stream.
    pub position: StreamPosition,
    /// The request had a position to recover from.
    pub was_recovering: bool,
    /// `publications` is complete from that position up to `position`. Also true in a channel
    /// without a stream, from offset 0 without epoch.
    pub recovered: bool,
    /// Oldest first; empty unless `recovered`.
    pub publications: Vec<Publication>,
    /// Offsets have a meaning for the client.
    pub positioned: bool,
    /// The client may come back and recover.
    pub recoverable: bool,
    /// Differences between publications are sent, and in JSON payloads are texts.
    pub delta: bool,
    /// Who is present, this session among them, as far as later join and leave pushes do not say, each user once: for a
    /// subscription that [lists them](crate::SubscribeOptions::list_members), in no particular order.
    pub members: Vec<Arc<ClientInfo>>,
}

/// A publication that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Published {
    /// Its position; offset 0 and no epoch when the channel keeps no history. If suppressed: of the
    /// first publication with the same idempotency key, or the stream's top.
    pub position: StreamPosition,
    /// Not published: the idempotency key is known, or the version is not newer.
    pub suppressed: bool,
}

/// A part of a channel's history.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// In the order asked for.
    pub publications: Vec<Publication>,
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
