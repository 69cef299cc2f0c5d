//! A part of the key space, and a connection.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dunlin_wire::resp::ServerError;
use foldhash::fast::RandomState;

use super::Subscription;
use super::operation::{Opening, Operation, Queued};
use super::put_off::SlotMigration;
use super::replica_reads::{FollowingReplicas, ReplicaReads};
use super::replicas::Unreplicated;
use crate::links::{Server, ShardId};
use crate::status::{RefusalReason, ShardState};

/// A part of the key space that one server has.
#[derive(Debug, Default)]
pub(crate) struct Partition {
    /// The connection to its server, once that is known.
    pub(crate) link: Option<ShardId>,
    pub(crate) state: PartitionState,
    /// Of the server's data, as it was read last.
    pub(crate) generation: String,
    /// How many generations were met. What was learned in another than the last may be wrong.
    pub(crate) generations: u32,
    /// Refused before, and not carried out: to be sent first.
    pub(crate) retry: VecDeque<Queued>,
    pub(crate) queue: VecDeque<Queued>,
    /// Histories that wait for room on the connection, see [`history`](super::history).
    pub(crate) histories: VecDeque<Queued>,
    /// How many left the queue: a position in it is this and its index.
    popped: u64,
    /// Where in the queue a publication of a channel can be joined by the next.
    joinable: HashMap<Arc<str>, u64, RandomState>,
    /// Commands out.
    pub(crate) in_flight: usize,
    /// Commands that were out and are answered, or lost.
    pub(crate) answered: u64,
    /// What is put off while the slot moves to another server.
    pub(super) moving: Option<Box<SlotMigration>>,
    /// Streams whose position is to be read.
    pub(crate) opening: Vec<Opening>,
    /// How often the positions of all channels that are heard were asked for.
    pub(super) syncs: u32,
    /// Channels that are heard.
    pub(super) subscriptions: HashMap<Arc<str>, Subscription, RandomState>,
    /// How many of the commands out read positions.
    pub(crate) opens_in_flight: usize,
    /// The server may have ended subscriptions of its channels.
    pub(crate) resubscribe: bool,
    /// Something is to be sent for it.
    pub(crate) dirty: bool,
    /// When its server's data were known last to be of this generation.
    pub(crate) good_ms: u64,
}

/// How far a partition is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum PartitionState {
    /// No connection.
    #[default]
    Down,
    /// The generation is to be asked for, once no command is out.
    Draining,
    /// It was asked for.
    Greeting,
    Ready,
    /// The server does not do what it is asked; it is asked again then.
    Refused {
        retry_ms: u64,
    },
}

impl Partition {
    pub(crate) fn push(&mut self, queued: Queued) {
        match &queued.operation {
            Operation::History(_) => return self.histories.push_back(queued),
            Operation::Publish(batch) if batch.check.is_none() => {
                let at = self.popped + self.queue.len() as u64;
                self.joinable.insert(batch.channel.clone(), at);
            }
            // What follows in the channel stays behind it.
            Operation::Publish(batch) => _ = self.joinable.remove(&batch.channel),
            _ => {}
        }
        self.queue.push_back(queued);
    }

    /// The operation that the next publication of a channel may join.
    pub(crate) fn joinable(&mut self, channel: &str) -> Option<&mut Queued> {
        let index = self.joinable.get(channel)?.checked_sub(self.popped)?;
        self.queue.get_mut(index as usize)
    }

    pub(crate) fn pop(&mut self) -> Option<Queued> {
        if let Some(queued) = self.retry.pop_front() {
            return Some(queued);
        }
        let queued = self.queue.pop_front()?;
        self.popped += 1;
        if self.queue.is_empty() {
            self.joinable.clear();
        }
        Some(queued)
    }

    /// Pops an operation that has waited since this time, or before.
    pub(crate) fn pop_since(&mut self, since_ms: u64) -> Option<Queued> {
        let is_over = |queued: &Queued| queued.since_ms <= since_ms;
        if self.histories.front().is_some_and(is_over) {
            return self.histories.pop_front();
        }
        let fronts = [self.retry.front(), self.queue.front()];
        if fronts.into_iter().flatten().any(is_over) { self.pop() } else { None }
    }

    /// An operation that was not carried out goes before all that were not sent.
    pub(crate) fn again(&mut self, queued: Queued) {
        match queued.operation {
            Operation::History(_) => self.histories.push_back(queued),
            _ => self.retry.push_back(queued),
        }
    }

    /// As [`Partition::again`], for the one that was popped last.
    pub(crate) fn unpop(&mut self, queued: Queued) {
        match queued.operation {
            Operation::History(_) => self.histories.push_front(queued),
            _ => self.retry.push_front(queued),
        }
    }

    /// When the oldest operation that waits began to.
    pub(crate) fn waits_since_ms(&self) -> Option<u64> {
        let oldest = |queue: &VecDeque<Queued>| queue.front().map(|queued| queued.since_ms);
        [&self.retry, &self.queue, &self.histories].into_iter().filter_map(oldest).min()
    }
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct ServerLink {
    pub(crate) server: Server,
    pub(crate) state: ShardState,
    pub(crate) since_ms: u64,
    pub(crate) detail: String,
    pub(crate) version: String,
    pub(crate) eviction: String,
    /// What it refused last of what was published, until it takes something again.
    pub(crate) refusing: Option<RefusalReason>,
    /// It is to be opened, or opened to another server.
    pub(crate) open: bool,
    /// It is to be made anew.
    pub(crate) reconnect: bool,
    /// Not used any more.
    pub(crate) closed: bool,
    /// Commands can be sent.
    pub(crate) is_up: bool,
    /// Its server has to be given the scripts.
    pub(crate) load: bool,
    pub(crate) probe: Probe,
    pub(super) unreplicated: Unreplicated,
    /// Bytes of the pages of histories that are out, at most, and whether others wait for them.
    pub(super) pages_bytes: usize,
    pub(super) pages_wait: bool,
    /// Of a primary: who follows it.
    pub(super) following: FollowingReplicas,
    /// Of a replica: what it is asked.
    pub(super) reads: ReplicaReads,
}

/// Messages of a connection to itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probe {
    /// The partition whose channel is used, and subscribed to.
    pub(crate) partition: Option<usize>,
    pub(crate) next_ms: u64,
    /// When the first was sent that has not come back.
    pub(crate) since_ms: Option<u64>,
    pub(crate) wanted: bool,
}

impl ServerLink {
    pub(crate) fn new(server: Server, now_ms: u64) -> ServerLink {
        ServerLink {
            server,
            state: ShardState::Connecting,
            since_ms: now_ms,
            detail: String::new(),
            version: String::new(),
            eviction: String::new(),
            refusing: None,
            open: true,
            reconnect: false,
            closed: false,
            is_up: false,
            load: false,
            probe: Probe { next_ms: now_ms + super::GREETING_MS, ..Probe::default() },
            unreplicated: Unreplicated::default(),
            pages_bytes: 0,
            pages_wait: false,
            following: FollowingReplicas::default(),
            reads: ReplicaReads::default(),
        }
    }

    pub(crate) fn enter(&mut self, now_ms: u64, state: ShardState) {
        if self.state != state {
            (self.state, self.since_ms) = (state, now_ms);
        }
    }

    pub(crate) fn refuse(&mut self, now_ms: u64, error: ServerError, text: &str) {
        self.enter(now_ms, ShardState::Refused(error.into()));
        text.clone_into(&mut self.detail);
    }
}
