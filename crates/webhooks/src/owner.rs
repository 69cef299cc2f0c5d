//! Who causes events: their user, their session if it is anonymous, or their channel.

use std::hash::BuildHasher;
use std::sync::LazyLock;

use dunlin_hub::{SessionId, tenant};
use foldhash::fast::RandomState;

use crate::encoder;
use crate::event::HookEventBody;

/// Different in each process, so that nobody finds a name that shares another's queue.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// The owner of an event. Owners of a hook's events take turns, and the one with the most queued loses events first.
///
/// The events of one session, and those of one channel, have one owner, so that both keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner<'a> {
    User(&'a str),
    /// An anonymous session, and its tenant.
    Session(SessionId, Option<&'a str>),
    Channel(&'a str),
    Push,
}

/// The two kinds of owners share the queues by halves, so that events of ever new channels leave room for those of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerKind {
    Session,
    Channel,
}

impl<'a> Owner<'a> {
    /// Returns the owner of an event; `None` for one that is not queued.
    pub(crate) fn of(body: &'a HookEventBody) -> Option<Owner<'a>> {
        match body {
            HookEventBody::Connect { session, user, .. }
            | HookEventBody::Disconnect { session, user, .. }
            | HookEventBody::Subscribe { session, user, .. }
            | HookEventBody::Unsubscribe { session, user, .. } => Some(match tenant::split(user) {
                (tenant, "") => Owner::Session(*session, tenant),
                _ => Owner::User(user),
            }),
            HookEventBody::Publish { channel, .. }
            | HookEventBody::Occupied { channel, .. }
            | HookEventBody::Member { channel, .. }
            | HookEventBody::ClientEvent { channel, .. } => Some(Owner::Channel(channel)),
            HookEventBody::PushOutcome { .. } => Some(Owner::Push),
            HookEventBody::Missed { .. } => None,
        }
    }

    /// Returns the flow of the owner's events. Two owners have the same one with a probability of 2⁻⁶³.
    pub(crate) fn flow(self) -> u64 {
        let kind = match self.kind() {
            OwnerKind::Session => 0,
            OwnerKind::Channel => CHANNEL_BIT,
        };
        HASHER.hash_one(self) & !CHANNEL_BIT | kind
    }

    pub(crate) fn kind(self) -> OwnerKind {
        match self {
            Owner::User(_) | Owner::Session(..) => OwnerKind::Session,
            Owner::Channel(_) | Owner::Push => OwnerKind::Channel,
        }
    }
}

/// Set in the flows of channels.
const CHANNEL_BIT: u64 = 1 << 63;

impl OwnerKind {
    pub(crate) fn of_flow(flow: u64) -> OwnerKind {
        if flow & CHANNEL_BIT == 0 { OwnerKind::Session } else { OwnerKind::Channel }
    }

    pub(crate) fn other(self) -> OwnerKind {
        match self {
            OwnerKind::Session => OwnerKind::Channel,
            OwnerKind::Channel => OwnerKind::Session,
        }
    }
}

/// Who caused events that were dropped: named in a `missed` event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventOwner {
    /// A member that follows another one, as in `,"user":"ada"`. Empty for pushes.
    pub(crate) json: Box<[u8]>,
    /// Its tenant, whose hooks alone may read its name.
    pub(crate) tenant: Option<Box<str>>,
}

impl From<Owner<'_>> for EventOwner {
    fn from(owner: Owner<'_>) -> EventOwner {
        let mut json = Vec::new();
        let tenant = match owner {
            Owner::User(name) => {
                let (tenant, user) = tenant::split(name);
                encoder::text(&mut json, "user", user);
                tenant
            }
            Owner::Session(session, tenant) => {
                encoder::text(&mut json, "client", &session.to_string());
                tenant
            }
            Owner::Channel(name) => {
                let (tenant, channel) = tenant::split(name);
                encoder::text(&mut json, "channel", channel);
                tenant
            }
            Owner::Push => None,
        };
        EventOwner { json: json.into(), tenant: tenant.map(Into::into) }
    }
}
