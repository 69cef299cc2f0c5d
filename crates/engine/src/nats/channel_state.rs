//! A channel, as the engine sees it.

use std::collections::VecDeque;
use std::sync::Arc;

use dunlin_hub::engine::Retention;
use dunlin_hub::{HistoryFilter, StreamPosition};

use super::message::State;

/// Publications joined in one message at most, and bytes beyond which none is added.
const JOINED_MAX: usize = 64;
const JOINED_BYTES_MAX: usize = 64 << 10;

/// A channel with a subscription, or with something under way.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) subscription: Option<Subscription>,
    pub(super) known: Option<KnownTail>,
    /// What is known can be continued as far as anybody here knows; JetStream refuses if not.
    pub(super) is_fresh: bool,
    /// Its last message was read just now.
    pub(super) was_read: bool,
    /// Something that changes the stream, or reads its end, is under way. One at a time.
    pub(super) busy: bool,
    /// The subscription is to be notified of the position.
    pub(super) opening: bool,
    /// What is to be done, in this order.
    pub(super) work: VecDeque<Work>,
    /// Reads that wait for the position.
    pub(super) reads: Vec<StreamRead>,
    /// It is among those for which something is to be sent.
    pub(super) dirty: bool,
}

/// A channel that is heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subscription {
    pub(super) token: u64,
    pub(super) retention: Retention,
    /// Its number in the protocol.
    pub(super) sid: u64,
    /// It hears all channels that the name matches.
    pub(super) is_wildcard: bool,
    /// The connection on which it was asked for.
    pub(super) connection: u32,
    /// Its position on this connection has been said.
    pub(super) synced: bool,
    /// The last message heard before that.
    pub(super) heard: u64,
    /// The stream's last message when the position was last found to be what is known; 0: never.
    pub(super) verified: u64,
}

/// What is known of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownTail {
    pub(super) position: StreamPosition,
    /// Of the channel's last message; 0 if there is none.
    pub(super) sequence: u64,
    pub(super) state: State,
    /// The stream has it. If not, the next message begins the epoch.
    pub(super) written: bool,
}

#[derive(Debug)]
pub(super) enum Work {
    Publish(Box<Batch>),
    Remove { token: u64, since_ms: u64 },
}

impl Work {
    pub(super) fn since_ms(&self) -> u64 {
        match self {
            Work::Publish(batch) => batch.since_ms,
            Work::Remove { since_ms, .. } => *since_ms,
        }
    }
}

/// Publications of one channel that leave in one message.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) tokens: Vec<u64>,
    pub(super) encoded: Vec<u8>,
    pub(super) key: Option<Box<str>>,
    pub(super) version: u64,
    pub(super) version_epoch: Box<str>,
    pub(super) since_ms: u64,
    /// By which its message is found again.
    pub(super) nonce: u64,
    /// It was sent behind the message of this sequence, and nobody knows whether it was stored.
    pub(super) sent_after: Option<u64>,
    /// It was sent, and no answer came.
    pub(super) is_sought: bool,
}

impl Batch {
    pub(super) fn takes_more(&self) -> bool {
        self.key.is_none()
            && self.version == 0
            && self.sent_after.is_none()
            && self.tokens.len() < JOINED_MAX
            && self.encoded.len() < JOINED_BYTES_MAX
    }

    /// Whether it is suppressed by what was published last.
    pub(super) fn is_older_than(&self, state: &State) -> bool {
        self.version > 0
            && self.version <= state.version
            && (self.version_epoch.is_empty() || *self.version_epoch == *state.version_epoch)
    }
}

/// A request for a part of a stream.
#[derive(Debug)]
pub(super) struct StreamRead {
    pub(super) token: u64,
    pub(super) retention: Retention,
    pub(super) filter: HistoryFilter,
    pub(super) since_ms: u64,
}

/// A publication that is not kept.
#[derive(Debug)]
pub(super) struct UnstoredPublication {
    pub(super) token: u64,
    pub(super) channel: Arc<str>,
    pub(super) encoded: Vec<u8>,
    pub(super) key: Option<Box<str>>,
    pub(super) since_ms: u64,
}

impl Lane {
    /// Whether nothing is lost when it is forgotten.
    pub(super) fn is_idle(&self) -> bool {
        self.subscription.is_none() && !self.busy && self.work.is_empty() && self.reads.is_empty()
    }

    /// Whether the stream has to be asked for something.
    pub(super) fn wants_stream(&self) -> bool {
        self.opening || !self.work.is_empty() || !self.reads.is_empty()
    }
}
