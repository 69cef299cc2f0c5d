//! Events: what happens to clients and in channels, as some hook wants to know it.

use std::hash::BuildHasher;
use std::sync::Arc;

use dunlin_config::HookEventKind;
use dunlin_hub::{Epoch, Publication, SessionId, UnsubscribeCause, tenant};

/// Queues that outcomes of pushes are spread over, by their content.
const PUSH_QUEUES: u64 = 16;

/// An event that some hook wants.
#[derive(Debug)]
pub struct HookEvent {
    /// When it happened, in milliseconds since 1970.
    pub unix_ms: u64,
    /// What happened.
    pub body: HookEventBody,
}

/// What happened.
#[derive(Debug)]
pub enum HookEventBody {
    /// A client has connected.
    Connect {
        /// Its session.
        session: SessionId,
        /// Its user; empty for an anonymous one.
        user: Box<str>,
        /// How it is connected: `websocket`, `sse` and so on.
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
        /// The reason that belongs to the code.
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
        /// Why.
        cause: UnsubscribeCause,
    },
    /// A channel has a publication.
    Publish {
        /// The channel.
        channel: Arc<str>,
        /// The epoch that the publication's offset belongs to.
        epoch: Epoch,
        /// The publication.
        publication: Publication,
    },
    /// A channel has its first subscriber, or has none any more.
    Occupied {
        /// The channel.
        channel: Arc<str>,
        /// It has one.
        occupied: bool,
    },
    /// A user is in a presence channel, or has left it.
    Member {
        /// The channel.
        channel: Arc<str>,
        /// Who.
        user: Box<str>,
        /// He is in it.
        added: bool,
    },
    /// A client sent an event to the others in a channel.
    ClientEvent {
        /// The channel.
        channel: Arc<str>,
        /// The publication, which has a client and an event's name.
        publication: Publication,
    },
    /// A push has its outcome.
    PushOutcome {
        /// The line of the feed of outcomes, JSON.
        outcome: Box<[u8]>,
    },
    /// The producer had no room for so many events.
    Missed(u64),
}

impl HookEventBody {
    /// The kind that a hook asks for; `None` for an event that every hook gets.
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
            HookEventBody::Missed(_) => return None,
        })
    }

    /// The channel it happened in, if in one.
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

    /// Events with the same key keep their order: those of a session, and the publications of a channel.
    /// The tenant that it happened in.
    pub(crate) fn tenant(&self) -> Option<&str> {
        match self {
            HookEventBody::Connect { user, .. } | HookEventBody::Disconnect { user, .. } => {
                tenant::split(user).0
            }
            body => tenant::split(body.channel()?).0,
        }
    }

    pub(crate) fn ordering_key(&self) -> u64 {
        // The same in every process, so that a test knows which events share a queue.
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
            // In no order, and so a few queues share them.
            HookEventBody::PushOutcome { outcome } => hasher.hash_one(outcome) % PUSH_QUEUES,
            HookEventBody::Missed(_) => 0,
        }
    }

    /// Bytes to account for while the event is on its way to the dispatcher.
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
            HookEventBody::Occupied { .. } | HookEventBody::Missed(_) => 0,
        };
        (RECORD + own) as u64
    }
}
