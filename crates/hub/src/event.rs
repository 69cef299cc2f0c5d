//! Events of a hub for its caller.

use std::sync::Arc;

use crate::cursor::{CursorOwner, CursorState};
use crate::error::Error;
use crate::position::StreamPosition;
use crate::publication::{ClientInfo, Durability, Publication};
use crate::session_id::SessionId;

/// A result, or an action for the caller. Every operation with a token ends with exactly one event with that token.
/// The hub does not interpret tokens.
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
        /// The subscription, or the error.
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
    /// Ends [`Hub::handle_cursor`](crate::Hub::handle_cursor).
    Cursor {
        /// The caller's token.
        token: u64,
        /// Where the cursor stands. An acknowledgement that was stored survives what a publication survives.
        result: Result<CursorState, Error>,
    },
    /// A message was delivered to a device as often as [it may be](crate::AckOptions::deliveries_max), and was not acknowledged.
    /// The caller keeps it elsewhere and then acknowledges up to it; until then the event comes again.
    Undeliverable {
        /// The channel.
        channel: Arc<str>,
        /// Whose cursor stands before it.
        owner: CursorOwner,
        /// Its position.
        position: StreamPosition,
        /// How often it would have been delivered.
        deliveries: u8,
    },
    /// Ends [`Hub::handle_history_remove`](crate::Hub::handle_history_remove).
    HistoryRemoved {
        /// The caller's token.
        token: u64,
        /// The result.
        result: Result<(), Error>,
    },
    /// Ends [`Hub::handle_presence`](crate::Hub::handle_presence).
    Presence {
        /// The caller's token.
        token: u64,
        /// All present clients, in no particular order.
        result: Result<Vec<Arc<ClientInfo>>, Error>,
    },
    /// Ends [`Hub::handle_presence_stats`](crate::Hub::handle_presence_stats).
    PresenceStats {
        /// The caller's token.
        token: u64,
        /// The counts.
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
    /// Ends a user-wide operation such as [`Hub::handle_disconnect_user`](crate::Hub::handle_disconnect_user).
    /// Reports the number of affected sessions on all workers.
    Affected {
        /// The caller's token.
        token: u64,
        /// The number of sessions.
        result: Result<u64, Error>,
    },
    /// Ends [`Hub::handle_send_to_user`](crate::Hub::handle_send_to_user).
    Sent {
        /// The caller's token.
        token: u64,
        /// The number of sessions with the message in their outboxes.
        result: Result<u64, Error>,
    },
    /// The expiry of a session changed, by [`Hub::handle_refresh_user`](crate::Hub::handle_refresh_user).
    Refreshed {
        /// The session.
        session: SessionId,
        /// The caller's id of the session.
        tag: u64,
        /// Expiry in Unix seconds; `None`: never.
        expire_at_s: Option<u64>,
    },
    /// A subscription by [`Hub::handle_subscribe_user`](crate::Hub::handle_subscribe_user) has an expiry.
    Expires {
        /// The session.
        session: SessionId,
        /// The channel.
        channel: Arc<str>,
        /// Expiry in Unix seconds.
        expire_at_s: u64,
    },
    /// The session must end. It has no subscriptions any more; its outbox ends with an
    /// [`Outgoing::Disconnect`](crate::Outgoing). Send what the socket accepts, close the connection, and call
    /// [`Hub::close_session`](crate::Hub::close_session).
    Disconnect {
        /// The session.
        session: SessionId,
        /// The caller's id of the session.
        tag: u64,
        /// Disconnect code.
        code: u32,
        /// The reason as text.
        reason: Arc<str>,
        /// Caused by [`Hub::handle_disconnect_user`](crate::Hub::handle_disconnect_user).
        by_server_api: bool,
    },
    /// The server ended an established subscription: a command did, a withdrawal, or a gap. The outbox of the client has an
    /// [`Outgoing::Unsubscribe`](crate::Outgoing).
    Unsubscribed {
        /// The session.
        session: SessionId,
        /// The caller's id of the session.
        tag: u64,
        /// The channel.
        channel: Arc<str>,
        /// Unsubscribe code.
        code: u32,
        /// The position of the subscription when it ended: publications up to it were received, or are in the outbox.
        position: StreamPosition,
        /// The server had made it.
        server_side: bool,
    },
}

/// An established subscription.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Subscribed {
    /// The stream's position at this moment: later publications are pushed, earlier ones are not. Offset 0 and no
    /// epoch if the channel has no stream.
    pub position: StreamPosition,
    /// The request had a position to recover from.
    pub was_recovering: bool,
    /// `publications` is complete from that position up to `position`. Also true in a channel
    /// without a stream, from offset 0 without epoch.
    pub recovered: bool,
    /// Oldest first; empty unless `recovered`.
    pub publications: Vec<Publication>,
    /// The client can use offsets.
    pub positioned: bool,
    /// The client may reconnect and recover.
    pub recoverable: bool,
    /// Deltas are sent; in JSON, payloads are then strings.
    pub delta: bool,
    /// The present clients, including this session, each user once, if
    /// [requested](crate::SubscribeOptions::list_members). Later changes are sent as join and leave pushes. In no
    /// particular order.
    pub members: Vec<Arc<ClientInfo>>,
    /// Where the subscription's cursor stands, if it [began](crate::SubscribeOptions::cursor) there.
    pub cursor: Option<Box<CursorState>>,
}

/// A publication that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Published {
    /// Its position; offset 0 and no epoch if the channel has no history. If suppressed: the position of the first
    /// publication with the same idempotency key, or the top of the stream.
    pub position: StreamPosition,
    /// Not published: the idempotency key is known, or the version is not newer.
    pub suppressed: bool,
    /// What it survives; `None` if the engine cannot tell.
    pub durability: Option<Durability>,
}

/// A part of a channel's history.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// In the requested order.
    pub publications: Vec<Publication>,
    /// The stream's top.
    pub position: StreamPosition,
}

/// The number of present clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PresenceStats {
    /// Sessions.
    pub clients: u64,
    /// Distinct users.
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
    /// Distinct named users, counted once for each worker.
    pub users: u64,
    /// Channels with subscribers, each once.
    pub channels: u64,
    /// Subscriptions.
    pub subscriptions: u64,
}
