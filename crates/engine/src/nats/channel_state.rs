//! The state of a channel in the engine.

use std::collections::VecDeque;
use std::sync::Arc;

use dunlin_hub::engine::Retention;
use dunlin_hub::{HistoryFilter, StreamPosition};

use super::message::State;

/// Maximum number of publications joined in one message, and the size in bytes beyond which none is added.
const JOINED_MAX: usize = 64;
const JOINED_BYTES_MAX: usize = 64 << 10;

/// A channel with a subscription or with pending work.
#[derive(Debug, Default)]
pub(super) struct ChannelState {
    pub(super) subscription: Option<Subscription>,
    pub(super) known: Option<KnownTail>,
    /// The known end can be continued; if that is wrong, JetStream refuses.
    pub(super) is_fresh: bool,
    /// The last message was just read.
    pub(super) was_read: bool,
    /// A request that changes the stream or reads its end is in flight. At most one is.
    pub(super) busy: bool,
    /// The subscription has to be notified of the position.
    pub(super) opening: bool,
    /// Pending work, in order.
    pub(super) work: VecDeque<Work>,
    /// Reads that wait for the position.
    pub(super) reads: Vec<StreamRead>,
    /// The channel is in the engine's list of channels with something to send.
    pub(super) dirty: bool,
}

/// The subscription to a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subscription {
    pub(super) token: u64,
    pub(super) retention: Retention,
    /// The subscription's id in the protocol.
    pub(super) sid: u64,
    /// The name is a wildcard.
    pub(super) is_wildcard: bool,
    /// The number of the connection on which it was sent.
    pub(super) connection: u32,
    /// Its position on this connection has been reported.
    pub(super) synced: bool,
    /// The sequence of the last message received before that.
    pub(super) heard: u64,
    /// The stream's last sequence when the known position was last verified; 0: never.
    pub(super) verified: u64,
}

/// The known end of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownTail {
    pub(super) position: StreamPosition,
    /// The sequence of the channel's last message; 0 if there is none.
    pub(super) sequence: u64,
    pub(super) state: State,
    /// The epoch is stored in the stream. Otherwise the next message begins it.
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

/// Publications of one channel that are sent in one message.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) tokens: Vec<u64>,
    pub(super) encoded: Vec<u8>,
    pub(super) key: Option<Box<str>>,
    pub(super) version: u64,
    pub(super) version_epoch: Box<str>,
    pub(super) since_ms: u64,
    /// The nonce by which its message is found again.
    pub(super) nonce: u64,
    /// The sequence of the message that it was sent after, if it is unknown whether it was stored.
    pub(super) sent_after: Option<u64>,
    /// It was sent and not answered, and has to be searched for.
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

    /// Returns whether the last publication has an equal or newer version, which suppresses this one.
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

impl ChannelState {
    /// Whether nothing is lost when it is forgotten.
    pub(super) fn is_idle(&self) -> bool {
        self.subscription.is_none() && !self.busy && self.work.is_empty() && self.reads.is_empty()
    }

    /// Whether the stream has to be asked for something.
    pub(super) fn wants_stream(&self) -> bool {
        self.opening || !self.work.is_empty() || !self.reads.is_empty()
    }
}
