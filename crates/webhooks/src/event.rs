//! Events of clients and channels that a hook selects.

use std::hash::BuildHasher;
use std::sync::Arc;

use dunlin_config::HookEventKind;
use dunlin_hub::{Epoch, Publication, SessionId, UnsubscribeCause, tenant};

use crate::owner::{EventOwner, Owner};

/// Number of queues over which push outcomes are distributed.
const PUSH_QUEUES: u64 = 16;

/// An event that at least one hook selects.
#[derive(Debug)]
pub struct HookEvent {
    /// Time of the event in milliseconds since 1970.
    pub unix_ms: u64,
    /// The kind of the event and its data.
    pub body: HookEventBody,
}

/// The kind of an event and its data.
#[derive(Debug)]
pub enum HookEventBody {
    /// A client has connected.
    Connect {
        /// Its session.
        session: SessionId,
        /// Its user; empty if anonymous.
        user: Box<str>,
        /// The transport: `websocket`, `sse` and so on.
        transport: &'static str,
    },
    /// A session has ended.
    Disconnect {
        /// The session.
        session: SessionId,
        /// Its user.
        user: Box<str>,
        /// The disconnect code.
        code: u32,
        /// The reason for the code.
        reason: Box<str>,
    },
    /// A session has subscribed.
    Subscribe {
        /// The session.
        session: SessionId,
        /// Its user.
        user: Box<str>,
        /// The channel.
        channel: Arc<str>,
    },
    /// A subscription has ended.
    Unsubscribe {
        /// The session.
        session: SessionId,
        /// Its user.
        user: Box<str>,
        /// The channel.
        channel: Arc<str>,
        /// The cause.
        cause: UnsubscribeCause,
    },
    /// A channel has a publication.
    Publish {
        /// The channel.
        channel: Arc<str>,
        /// The epoch of the publication's offset.
        epoch: Epoch,
        /// The publication.
        publication: Publication,
    },
    /// A channel got its first subscriber, or lost its last one.
    Occupied {
        /// The channel.
        channel: Arc<str>,
        /// Whether it has a subscriber.
        occupied: bool,
    },
    /// A user joined or left a presence channel.
    Member {
        /// The channel.
        channel: Arc<str>,
        /// The user.
        user: Box<str>,
        /// Whether the user joined.
        added: bool,
    },
    /// A client sent an event to the other subscribers of a channel.
    ClientEvent {
        /// The channel.
        channel: Arc<str>,
        /// The publication, with a client and an event name.
        publication: Publication,
    },
    /// A push has ended.
    PushOutcome {
        /// A line of the outcome feed, as JSON.
        outcome: Box<[u8]>,
    },
    /// The producer dropped events.
    Missed {
        /// Their number.
        count: u64,
        /// Who caused them, if it was one owner.
        owner: Option<Box<EventOwner>>,
    },
}

impl HookEventBody {
    /// Returns the kind by which hooks select the event; `None` for an event that every hook
    /// receives.
    pub fn kind(&self) -> Option<HookEventKind> {
        Some(match self {
            HookEventBody::Connect { .. } => HookEventKind::Connect,
            HookEventBody::Disconnect { .. } => HookEventKind::Disconnect,
            HookEventBody::Subscribe { .. } => HookEventKind::Subscribe,
            HookEventBody::Unsubscribe { .. } => HookEventKind::Unsubscribe,
            HookEventBody::Publish { .. } => HookEventKind::Publish,
            HookEventBody::Occupied { occupied: true, .. } => HookEventKind::ChannelOccupied,
            HookEventBody::Occupied { occupied: false, .. } => HookEventKind::ChannelVacated,
            HookEventBody::Member { added: true, .. } => HookEventKind::MemberAdded,
            HookEventBody::Member { added: false, .. } => HookEventKind::MemberRemoved,
            HookEventBody::ClientEvent { .. } => HookEventKind::ClientEvent,
            HookEventBody::PushOutcome { .. } => HookEventKind::PushOutcome,
            HookEventBody::Missed { .. } => return None,
        })
    }

    /// Returns the channel, if the event has one.
    pub(crate) fn channel(&self) -> Option<&Arc<str>> {
        match self {
            HookEventBody::Subscribe { channel, .. }
            | HookEventBody::Unsubscribe { channel, .. }
            | HookEventBody::Publish { channel, .. }
            | HookEventBody::Occupied { channel, .. }
            | HookEventBody::Member { channel, .. }
            | HookEventBody::ClientEvent { channel, .. } => Some(channel),
            _ => None,
        }
    }

    /// Returns the tenant of the event.
    pub(crate) fn tenant(&self) -> Option<&str> {
        match self {
            HookEventBody::Connect { user, .. } | HookEventBody::Disconnect { user, .. } => {
                tenant::split(user).0
            }
            body => tenant::split(body.channel()?).0,
        }
    }

    pub(crate) fn ordering_key(&self) -> u64 {
        // The same in every process, so that tests know which events share a queue.
        let hasher = foldhash::fast::FixedState::default();
        match self {
            HookEventBody::Connect { session, .. }
            | HookEventBody::Disconnect { session, .. }
            | HookEventBody::Subscribe { session, .. }
            | HookEventBody::Unsubscribe { session, .. } => hasher.hash_one(session.to_u64()),
            HookEventBody::Publish { channel, .. }
            | HookEventBody::Occupied { channel, .. }
            | HookEventBody::Member { channel, .. }
            | HookEventBody::ClientEvent { channel, .. } => hasher.hash_one(&**channel),
            // Outcomes are not ordered, so a few queues suffice.
            HookEventBody::PushOutcome { outcome } => hasher.hash_one(outcome) % PUSH_QUEUES,
            HookEventBody::Missed { .. } => 0,
        }
    }

    /// Returns the flow of the event: that of the user, the anonymous session or the channel that it is about. Flows share the
    /// way to the dispatcher as they share its queues.
    pub fn flow(&self) -> u64 {
        Owner::of(self).map_or(0, Owner::flow)
    }

    /// Returns who causes the event, for a [`Missed`](HookEventBody::Missed) one.
    pub fn owner(&self) -> Option<EventOwner> {
        Owner::of(self).map(EventOwner::from)
    }

    /// Returns the bytes to account for until the dispatcher handles the event.
    pub fn cost_bytes(&self) -> u64 {
        const RECORD: usize = 128;
        let own = match self {
            HookEventBody::Connect { user, .. } => user.len(),
            HookEventBody::Disconnect { user, reason, .. } => user.len() + reason.len(),
            HookEventBody::Subscribe { user, .. } | HookEventBody::Unsubscribe { user, .. } => {
                user.len()
            }
            HookEventBody::Publish { publication, .. }
            | HookEventBody::ClientEvent { publication, .. } => publication.data().len(),
            HookEventBody::Member { user, .. } => user.len(),
            HookEventBody::PushOutcome { outcome } => outcome.len(),
            HookEventBody::Occupied { .. } | HookEventBody::Missed { .. } => 0,
        };
        (RECORD + own) as u64
    }
}
