//! Operations on a server; each is one command.

use std::sync::Arc;

use dunlin_hub::engine::Retention;
use dunlin_hub::{Epoch, NewPublication, StreamPosition};

use super::history::HistoryRead;
use super::queue_bytes::{QueueBytes, QueueShare};

/// Maximum number of publications joined in one command, and the size in bytes beyond which none is added.
const JOINED_MAX: usize = 64;
const JOINED_BYTES_MAX: usize = 64 << 10;

/// Milliseconds that an idempotency key is kept if the publisher does not set them.
const IDEMPOTENCY_TTL_MS: u32 = 5 * 60 * 1000;

/// Maximum number of channels in one command that opens streams.
pub(crate) const OPENED_MAX: usize = 64;

/// An operation, from its request to its answer.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) operation: Operation,
    pub(crate) since_ms: u64,
    pub(super) share: QueueShare,
}

impl Queued {
    pub(crate) fn new(operation: Operation, since_ms: u64, bytes: &QueueBytes) -> Queued {
        let share = bytes.take(operation.bytes());
        Queued { operation, since_ms, share }
    }
}

#[derive(Debug)]
pub(crate) enum Operation {
    Publish(Box<Batch>),
    /// Reads positions of streams that are subscribed to, or of which more was seen than the server may have.
    Open(Vec<Opening>),
    /// Is answered after the subscriptions to channels without history.
    Confirm(Vec<Opening>),
    History(Box<HistoryRead>),
    Remove {
        token: u64,
        channel: Arc<str>,
    },
    /// An encoded join or leave, in a layout that has them.
    Announce {
        channel: Arc<str>,
        message: Box<[u8]>,
    },
    Positions(Box<Positions>),
}

/// A stream whose position is to be read.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    pub(crate) channel: Arc<str>,
    /// The last position seen before the server's data changed generation.
    pub(crate) seen: Option<StreamPosition>,
}

/// A request for positions, or one partition's part of it.
#[derive(Debug)]
pub(crate) struct Positions {
    /// The id of the request.
    pub(crate) gathering: u64,
    /// The index of each channel in the request.
    pub(crate) indices: Vec<u32>,
    pub(crate) channels: Vec<Arc<str>>,
}

/// Publications of one channel that are sent in one command.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) channel: Arc<str>,
    pub(crate) retention: Retention,
    pub(crate) tokens: Vec<u64>,
    pub(crate) encoded: Vec<u8>,
    pub(crate) check: Option<Check>,
    /// The epoch sent with them.
    pub(crate) epoch: Epoch,
    /// A connection broke after they were sent: they may have been stored, and are sent again because that is idempotent.
    pub(crate) uncertain: bool,
}

/// The checks before a publication.
#[derive(Debug)]
pub(crate) struct Check {
    /// The idempotency key, and its time to live in milliseconds.
    pub(crate) key: Option<(Box<str>, u32)>,
    pub(crate) version: u64,
    pub(crate) version_epoch: Box<str>,
}

impl Check {
    /// Returns the checks that this publication needs.
    pub(crate) fn of(publish: &NewPublication, retention: Retention) -> Option<Check> {
        let version = if retention.keeps() { publish.version } else { 0 };
        if publish.idempotency_key.is_none() && version == 0 {
            return None;
        }
        let ttl_ms = publish.idempotency_ttl_ms.unwrap_or(IDEMPOTENCY_TTL_MS).max(1);
        let key = publish.idempotency_key.clone().map(|key| (key, ttl_ms));
        Some(Check { key, version, version_epoch: publish.version_epoch.clone() })
    }
}

impl Batch {
    pub(crate) fn takes(&self, retention: Retention) -> bool {
        self.check.is_none()
            && self.retention == retention
            && self.tokens.len() < JOINED_MAX
            && self.encoded.len() < JOINED_BYTES_MAX
    }
}

impl Operation {
    /// Returns the approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        const RECORD: usize = 200;
        RECORD
            + match self {
                Operation::Publish(batch) => batch.encoded.len(),
                Operation::Open(openings) | Operation::Confirm(openings) => openings.len() * 40,
                Operation::Positions(positions) => positions.channels.len() * 20,
                Operation::Announce { message, .. } => message.len(),
                Operation::History(_) | Operation::Remove { .. } => 0,
            }
    }

    /// Returns the channel of an operation that concerns one.
    pub(crate) fn channel(&self) -> Option<&Arc<str>> {
        match self {
            Operation::Publish(batch) => Some(&batch.channel),
            Operation::History(read) => Some(&read.channel),
            Operation::Remove { channel, .. } => Some(channel),
            Operation::Open(openings) | Operation::Confirm(openings) => match &openings[..] {
                [opening] => Some(&opening.channel),
                _ => None,
            },
            Operation::Positions(positions) => match &positions.channels[..] {
                [channel] => Some(channel),
                _ => None,
            },
            // It is only published to the channel, and concerns no key.
            Operation::Announce { .. } => None,
        }
    }

    /// Returns whether its command names all keys of the channel.
    pub(crate) fn names_all_keys(&self) -> bool {
        match self {
            Operation::Publish(batch) => batch.retention.keeps(),
            Operation::History(_) | Operation::Remove { .. } => true,
            Operation::Open(_)
            | Operation::Confirm(_)
            | Operation::Announce { .. }
            | Operation::Positions(_) => false,
        }
    }

    pub(crate) fn has_idempotency_key(&self) -> bool {
        match self {
            Operation::Publish(batch) => {
                batch.check.as_ref().is_some_and(|check| check.key.is_some())
            }
            _ => false,
        }
    }

    /// Returns whether to send the operation again after its connection broke. `sent`: it had been written, and may have been
    /// carried out.
    pub(crate) fn repeats(&mut self, sent: bool) -> bool {
        match self {
            _ if !sent => true,
            Operation::Publish(batch) => {
                batch.uncertain = true;
                self.has_idempotency_key()
            }
            Operation::Announce { .. } => false,
            Operation::History(read) => read.repeat_smaller(),
            _ => true,
        }
    }
}
