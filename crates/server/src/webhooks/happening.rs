//! What workers tell the webhooks thread: that something happened, as it was.

use std::hash::BuildHasher;
use std::sync::Arc;

use dunlin_config::HookEventKind;
use dunlin_hub::{Epoch, Publication, SessionId, UnsubscribeCause};

/// Something that some hook wants to hear of.
#[derive(Debug)]
pub(crate) struct Happening {
    /// When, in milliseconds since 1970.
    pub(crate) unix_ms: u64,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Connect {
        session: SessionId,
        user: Box<str>,
        transport: &'static str,
    },
    Disconnect {
        session: SessionId,
        user: Box<str>,
        code: u32,
        reason: Box<str>,
    },
    Subscribe {
        session: SessionId,
        user: Box<str>,
        channel: Arc<str>,
    },
    Unsubscribe {
        session: SessionId,
        user: Box<str>,
        channel: Arc<str>,
        cause: UnsubscribeCause,
    },
    Publish {
        channel: Arc<str>,
        epoch: Epoch,
        publication: Arc<Publication>,
    },
    /// The worker had no room for so many.
    Missed(u64),
}

impl What {
    /// Which kind of event it is; `None` for one that every hook is told.
    pub(crate) fn event(&self) -> Option<HookEventKind> {
        Some(match self {
            What::Connect { .. } => HookEventKind::Connect,
            What::Disconnect { .. } => HookEventKind::Disconnect,
            What::Subscribe { .. } => HookEventKind::Subscribe,
            What::Unsubscribe { .. } => HookEventKind::Unsubscribe,
            What::Publish { .. } => HookEventKind::Publish,
            What::Missed(_) => return None,
        })
    }

    /// The channel it happened in, if in one.
    pub(crate) fn channel(&self) -> Option<&Arc<str>> {
        match self {
            What::Subscribe { channel, .. }
            | What::Unsubscribe { channel, .. }
            | What::Publish { channel, .. } => Some(channel),
            What::Connect { .. } | What::Disconnect { .. } | What::Missed(_) => None,
        }
    }

    /// What it must keep its order with: that of the session, or that of the channel's publications.
    pub(crate) fn order(&self) -> u64 {
        // The same in every process, so that a test can tell which share a lane.
        let hasher = foldhash::fast::FixedState::default();
        match self {
            What::Connect { session, .. }
            | What::Disconnect { session, .. }
            | What::Subscribe { session, .. }
            | What::Unsubscribe { session, .. } => hasher.hash_one(session.to_u64()),
            What::Publish { channel, .. } => hasher.hash_one(&**channel),
            What::Missed(_) => 0,
        }
    }

    /// Bytes it stands for on its way to the webhooks thread.
    pub(crate) fn cost(&self) -> u64 {
        const RECORD: usize = 128;
        let own = match self {
            What::Connect { user, .. } => user.len(),
            What::Disconnect { user, reason, .. } => user.len() + reason.len(),
            What::Subscribe { user, .. } | What::Unsubscribe { user, .. } => user.len(),
            What::Publish { publication, .. } => publication.data.len(),
            What::Missed(_) => 0,
        };
        (RECORD + own) as u64
    }
}
