//! Operations deferred while a slot moves; see [`moving`](super::moving).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dunlin_wire::backoff::Backoff;
use foldhash::fast::RandomState;

use super::operation::{Opening, Operation, Queued};
use crate::links::ShardId;

/// Delay before a channel is tried again.
const RETRY: Backoff = Backoff { min_ms: 10, max_ms: 250 };

/// Milliseconds without a deferred operation after which the migration of a slot counts as over.
pub(super) const QUIET_MS: u64 = 5_000;

/// The operations of one partition that are deferred while its slot moves.
#[derive(Debug)]
pub(super) struct SlotMigration {
    /// The connection to the node that imports the slot, once the source has named it.
    pub(super) importer: Option<ShardId>,
    /// When an operation was last deferred.
    pub(super) last_ms: u64,
    /// When the next action is due.
    pub(super) due_ms: u64,
    pub(super) channels: HashMap<Arc<str>, DeferredChannel, RandomState>,
    /// Bytes of the deferred operations.
    pub(super) bytes: usize,
    /// The number of the next operation, in order of arrival.
    pub(super) sequence: u64,
    /// The key with the generation is no longer at the source.
    pub(super) generation_is_away: bool,
    /// Publications at the importing node that are also to be published at the source, with the channel's name there.
    pub(super) echoes: Vec<(ShardId, Vec<u8>, Vec<u8>)>,
}

/// The deferred operations of one channel.
#[derive(Debug)]
pub(super) struct DeferredChannel {
    pub(super) opening: Option<Opening>,
    /// The source does not have the key that the opening names.
    pub(super) opening_is_away: bool,
    /// Operations that a node has refused, by number.
    pub(super) refused: VecDeque<DeferredOperation>,
    /// Operations that were not sent.
    pub(super) held: VecDeque<Queued>,
    /// The number of commands in flight.
    pub(super) out: usize,
    /// The number of source answers to wait for before anything is sent: the commands in flight may be refused, too.
    pub(super) barrier: u64,
    /// The source has none of the channel's keys.
    pub(super) is_away: bool,
    pub(super) next_ms: u64,
    attempts: u32,
}

/// An operation that one node has refused.
#[derive(Debug)]
pub(super) struct DeferredOperation {
    pub(super) number: u64,
    /// The source has none of the keys that it names.
    pub(super) is_away: bool,
    pub(super) queued: Queued,
}

/// A deferred operation that was sent again to one of the two nodes.
#[derive(Debug)]
pub(super) struct DeferredAttempt {
    pub(super) partition: usize,
    pub(super) number: u64,
    pub(super) queued: Queued,
}

impl DeferredAttempt {
    pub(super) fn operation(&self) -> &Operation {
        &self.queued.operation
    }
}

impl SlotMigration {
    pub(super) fn new(now_ms: u64) -> SlotMigration {
        SlotMigration {
            importer: None,
            last_ms: now_ms,
            due_ms: now_ms + QUIET_MS,
            channels: HashMap::default(),
            bytes: 0,
            sequence: 0,
            generation_is_away: false,
            echoes: Vec::new(),
        }
    }

    /// Returns the number of channels with deferred operations.
    pub(super) fn channels(&self) -> usize {
        self.channels.len()
    }

    pub(super) fn importer(&self) -> Option<ShardId> {
        self.importer
    }

    /// Returns when to call [`RedisEngine::moving_timeout`].
    pub(super) fn due_ms(&self) -> u64 {
        self.due_ms
    }

    /// Returns the channel, deferring it from now on. An operation whose keys are not all away is retried later.
    pub(super) fn put_off(
        &mut self,
        now_ms: u64,
        barrier: u64,
        channel: &Arc<str>,
        is_away: bool,
    ) -> &mut DeferredChannel {
        self.last_ms = now_ms;
        let entry = self.channels.entry(Arc::clone(channel)).or_insert_with(|| DeferredChannel {
            opening: None,
            opening_is_away: false,
            refused: VecDeque::new(),
            held: VecDeque::new(),
            out: 0,
            barrier,
            is_away: false,
            next_ms: now_ms,
            attempts: 0,
        });
        if !is_away && entry.next_ms <= now_ms {
            entry.attempts = entry.attempts.saturating_add(1);
            entry.next_ms = now_ms + RETRY.delay_ms(entry.attempts);
        }
        self.due_ms = self.due_ms.min(entry.next_ms);
        entry
    }

    /// Removes everything deferred, in order: openings, and the other operations.
    pub(super) fn take(&mut self) -> (Vec<Opening>, Vec<Queued>) {
        let (mut openings, mut others) = (Vec::new(), Vec::new());
        for (_, entry) in self.channels.drain() {
            openings.extend(entry.opening);
            others.extend(entry.refused.into_iter().map(|held| held.queued));
            others.extend(entry.held);
        }
        (openings, others)
    }

    /// Returns when the next action is due, once all due ones are done.
    pub(super) fn next_due_ms(&self, now_ms: u64, answered: u64, hold_ms: u64) -> u64 {
        let entry_ms = |entry: &DeferredChannel| {
            let expires_ms = entry.since_ms().map(|since_ms| since_ms + hold_ms);
            let waits = entry.out > 0 || answered < entry.barrier;
            let retry_ms = (!waits).then_some(entry.next_ms.max(now_ms + RETRY.min_ms));
            expires_ms.into_iter().chain(retry_ms).min()
        };
        let due_ms = self.channels.values().filter_map(entry_ms).min();
        due_ms.unwrap_or(self.last_ms + QUIET_MS).max(now_ms + 1)
    }
}

impl DeferredChannel {
    pub(super) fn open(&mut self, opening: Opening) {
        // The evidence of the replaced opening is kept.
        let seen = self.opening.take().and_then(|before| before.seen);
        self.opening = Some(Opening { seen: opening.seen.or(seen), ..opening });
    }

    pub(super) fn refuse(&mut self, held: DeferredOperation) {
        let place = self.refused.partition_point(|other| other.number <= held.number);
        self.refused.insert(place, held);
    }

    /// Returns the time since which the oldest unsent operation has waited.
    pub(super) fn since_ms(&self) -> Option<u64> {
        let refused = self.refused.front().map(|held| held.queued.since_ms);
        refused.into_iter().chain(self.held.front().map(|queued| queued.since_ms)).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.out == 0 && self.opening.is_none() && self.refused.is_empty() && self.held.is_empty()
    }
}
