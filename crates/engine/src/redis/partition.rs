//! Parts of the key space, and connections.

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

/// A part of the key space that is on one server.
#[derive(Debug, Default)]
pub(crate) struct Partition {
    /// The connection to its server, once known.
    pub(crate) link: Option<ShardId>,
    pub(crate) state: PartitionState,
    /// The generation of the server's data when it was last read.
    pub(crate) generation: String,
    /// The number of generations seen. What was learned in an earlier one may be wrong.
    pub(crate) generations: u32,
    /// Operations that were refused and not carried out; they are sent first.
    pub(crate) retry: VecDeque<Queued>,
    pub(crate) queue: VecDeque<Queued>,
    /// Histories that wait for space on the connection; see [`history`](super::history).
    pub(crate) histories: VecDeque<Queued>,
    /// The number of operations that have left the queue; added to an index it gives a stable position.
    popped: u64,
    /// The position in the queue where the next publication of a channel can be joined.
    joinable: HashMap<Arc<str>, u64, RandomState>,
    /// The number of unanswered commands.
    pub(crate) in_flight: usize,
    /// The number of commands that were answered or lost.
    pub(crate) answered: u64,
    /// The operations deferred while the slot moves to another server.
    pub(super) moving: Option<Box<SlotMigration>>,
    /// Streams whose position is to be read.
    pub(crate) opening: Vec<Opening>,
    /// The number of requests for the positions of all subscribed channels.
    pub(super) syncs: u32,
    /// Subscribed channels whose streams the server does not have any more. They are opened again once it is known whether its
    /// data are of another generation.
    pub(super) vanished: Vec<Arc<str>>,
    pub(super) doubt: Doubt,
    /// Another partition of the server was of a new generation, and the others know.
    pub(super) doubted_by_other: bool,
    /// Subscribed channels.
    pub(super) subscriptions: HashMap<Arc<str>, Subscription, RandomState>,
    /// The number of unanswered commands that read positions.
    pub(crate) opens_in_flight: usize,
    /// The server may have ended subscriptions of its channels.
    pub(crate) resubscribe: bool,
    /// Something is to be sent for it.
    pub(crate) dirty: bool,
    /// When the server's data were last known to be of this generation.
    pub(crate) good_ms: u64,
}

/// The state of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum PartitionState {
    /// No connection.
    #[default]
    Down,
    /// The generation has to be requested, once no command is in flight.
    Draining,
    /// The generation was requested.
    Greeting,
    Ready,
    /// The server refuses requests; it is asked again at this time.
    Refused {
        retry_ms: u64,
    },
}

/// Whether the generation of the data is asked for though the partition is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Doubt {
    #[default]
    None,
    /// It is to be asked for.
    Raised,
    /// It was asked for.
    Asked,
}

impl Partition {
    pub(crate) fn push(&mut self, queued: Queued) {
        match &queued.operation {
            Operation::History(_) => return self.histories.push_back(queued),
            Operation::Publish(batch) if batch.check.is_none() => {
                let at = self.popped + self.queue.len() as u64;
                self.joinable.insert(batch.channel.clone(), at);
            }
            // Later operations of the channel must stay after this one.
            Operation::Publish(batch) => _ = self.joinable.remove(&batch.channel),
            _ => {}
        }
        self.queue.push_back(queued);
    }

    /// Returns the operation that the next publication of a channel may join.
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

    /// Removes an operation if one has waited since this time or longer.
    pub(crate) fn pop_since(&mut self, since_ms: u64) -> Option<Queued> {
        let is_over = |queued: &Queued| queued.since_ms <= since_ms;
        if self.histories.front().is_some_and(is_over) {
            return self.histories.pop_front();
        }
        let fronts = [self.retry.front(), self.queue.front()];
        if fronts.into_iter().flatten().any(is_over) { self.pop() } else { None }
    }

    /// Queues an operation that was not carried out before those that were not sent; a history goes behind the other histories.
    pub(crate) fn again(&mut self, queued: Queued) {
        match queued.operation {
            Operation::History(_) => self.histories.push_back(queued),
            _ => self.retry.push_back(queued),
        }
    }

    /// Like [`Partition::again`], for the operation that was popped last.
    pub(crate) fn unpop(&mut self, queued: Queued) {
        match queued.operation {
            Operation::History(_) => self.histories.push_front(queued),
            _ => self.retry.push_front(queued),
        }
    }

    /// Returns since when the oldest operation has waited.
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
    /// Why it refused the last publication; cleared when it accepts one.
    pub(crate) refusing: Option<RefusalReason>,
    /// It has to be opened, or opened to another server.
    pub(crate) open: bool,
    /// It has to be reopened.
    pub(crate) reconnect: bool,
    /// Not used any more.
    pub(crate) closed: bool,
    /// Commands can be sent.
    pub(crate) is_up: bool,
    /// The scripts have to be loaded.
    pub(crate) load: bool,
    pub(crate) probe: Probe,
    pub(super) unreplicated: Unreplicated,
    /// Maximum bytes of the history pages in flight, and whether others wait for space.
    pub(super) pages_bytes: usize,
    pub(super) pages_wait: bool,
    /// Of a primary: its replicas.
    pub(super) following: FollowingReplicas,
    /// Of a replica: its reads.
    pub(super) reads: ReplicaReads,
}

/// The probes of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probe {
    /// The partition whose channel carries the probes, and is subscribed to.
    pub(crate) partition: Option<usize>,
    pub(crate) next_ms: u64,
    /// When the oldest outstanding probe was sent.
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
