//! What is to be asked of a server: one command each.

use std::sync::Arc;

use dunlin_hub::engine::Retention;
use dunlin_hub::{Epoch, NewPublication, StreamPosition};

use super::history::HistoryRead;
use super::queue_bytes::{QueueBytes, QueueShare};

/// Publications joined in one command at most, and bytes beyond which none is added.
const JOINED_MAX: usize = 64;
const JOINED_BYTES_MAX: usize = 64 << 10;

/// Milliseconds that an idempotency key is remembered if its publisher does not say.
const IDEMPOTENCY_TTL_MS: u32 = 5 * 60 * 1000;

/// Channels in one command that opens streams.
pub(crate) const OPENED_MAX: usize = 64;

/// An operation, from when it was asked for until it is answered.
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
    /// Positions of streams that are subscribed to, or of which more was seen than the server may have.
    Open(Vec<Opening>),
    /// Is answered behind the subscriptions to channels that keep nothing.
    Confirm(Vec<Opening>),
    History(Box<HistoryRead>),
    Remove {
        token: u64,
        channel: Arc<str>,
    },
    /// A join or a leave, encoded, in a layout that has them.
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
    /// What was seen of it before its server's data became another generation.
    pub(crate) seen: Option<StreamPosition>,
}

/// A request for positions, or the part of one that a partition answers.
#[derive(Debug)]
pub(crate) struct Positions {
    /// Of the request: which of those under way.
    pub(crate) gathering: u64,
    /// Where each channel stood in the request.
    pub(crate) indices: Vec<u32>,
    pub(crate) channels: Vec<Arc<str>>,
}

/// Publications of one channel that leave in one command.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) channel: Arc<str>,
    pub(crate) retention: Retention,
    pub(crate) tokens: Vec<u64>,
    pub(crate) encoded: Vec<u8>,
    pub(crate) check: Option<Check>,
    /// The epoch it was sent with.
    pub(crate) epoch: Epoch,
    /// A connection broke on which it was sent: it may have been carried out, and is sent again because that does no harm.
    pub(crate) uncertain: bool,
}

/// What is looked at before a publication.
#[derive(Debug)]
pub(crate) struct Check {
    /// Idempotency key, and milliseconds that it is remembered.
    pub(crate) key: Option<(Box<str>, u32)>,
    pub(crate) version: u64,
    pub(crate) version_epoch: Box<str>,
}

impl Check {
    /// What has to be looked at before this is published.
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
    /// About how many bytes it holds.
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

    /// The channel, of an operation that concerns one.
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
            // It goes by the channel alone, and concerns no key.
            Operation::Announce { .. } => None,
        }
    }

    /// Whether its command names all keys of the channel.
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

    /// Its connection broke; `sent`: it had left, and may have been carried out. Whether it is to be sent again.
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
