//! The state of an engine's connections.

use dunlin_hub::engine::EngineEvent;
use dunlin_hub::{Error, Published};
use dunlin_wire::resp::ServerError;

use crate::links::{Server, ShardId};

/// The state of one connection.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardStatus {
    /// The number of the connection.
    pub shard: ShardId,
    /// The server.
    pub server: Server,
    /// The state.
    pub state: ShardState,
    /// The time of the last change of state, in the caller's monotonic milliseconds.
    pub since_ms: u64,
    /// The last error of the server or the kernel; empty if there is none.
    pub detail: String,
    /// The server's version; empty if unknown.
    pub version: String,
    /// The `maxmemory-policy` of a server that may evict keys, so that streams begin again and cannot be
    /// recovered; empty if it does not evict.
    pub eviction: String,
    /// Why it refused the last publication although it accepts other requests, for example because it is out
    /// of memory.
    pub refusing: Option<RefusalReason>,
    /// Why it answers reads that its replicas are to answer.
    pub replica: Option<RefusalReason>,
    /// The number of key space partitions on this server; `partitions_ready` of them accept requests.
    pub partitions: u16,
    /// See [`partitions`](Self::partitions).
    pub partitions_ready: u16,
    /// Slots of a cluster that are being migrated from this server.
    pub slots_moving: u16,
    /// Channels with operations that wait because their keys have moved, or are moving.
    pub channels_put_off: u32,
}

/// Slots are being migrated to another server.
const SLOT_MOVING: RefusalReason = RefusalReason {
    name: "slot_moving",
    fix: "channels whose keys have moved wait or are asked where they are; if nobody moves the slot, end it: redis-cli --cluster fix, or CLUSTER SETSLOT",
};

/// The server may evict the keys of streams.
const MAY_EVICT: RefusalReason = RefusalReason {
    name: "may_evict",
    fix: "set `maxmemory-policy noeviction` of Redis: a server that evicts keys ends streams, and whoever recovers there has lost what they held",
};

impl ShardStatus {
    /// The state of the connection, or the problem of one that accepts requests. The fix is empty if nothing
    /// has to be done.
    pub fn condition(&self) -> RefusalReason {
        match self.refusing {
            Some(refusal) => refusal,
            None if self.state == ShardState::Ready && self.slots_moving > 0 => SLOT_MOVING,
            None if self.state == ShardState::Ready && !self.eviction.is_empty() => MAY_EVICT,
            None if self.state == ShardState::Ready
                && let Some(reason) = self.replica =>
            {
                reason
            }
            None => RefusalReason { name: self.state.name(), fix: self.state.fix() },
        }
    }
}

/// The state of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardState {
    /// It is being opened, repeatedly if necessary.
    Connecting,
    /// It is open, and the generation of the server's data has been requested.
    Greeting,
    /// It accepts requests.
    Ready,
    /// The messages that it sends to itself did not return; it is opened again.
    Silent,
    /// The server refuses requests.
    Refused(RefusalReason),
}

impl ShardState {
    /// A name for metrics and health, in snake case.
    pub fn name(&self) -> &'static str {
        match self {
            ShardState::Connecting => "connecting",
            ShardState::Greeting => "greeting",
            ShardState::Ready => "ready",
            ShardState::Silent => "silent",
            ShardState::Refused(refusal) => refusal.name,
        }
    }

    /// The fix; empty if nothing has to be done.
    pub fn fix(&self) -> &'static str {
        match self {
            ShardState::Connecting => "is the server running, and does this address reach it?",
            ShardState::Greeting | ShardState::Ready => "",
            ShardState::Silent => {
                "the connection takes commands and delivers no messages; see the server's log and its memory"
            }
            ShardState::Refused(refusal) => refusal.fix,
        }
    }
}

/// Why a server refuses requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalReason {
    /// A name for metrics and health, in snake case.
    pub name: &'static str,
    /// The fix.
    pub fix: &'static str,
}

impl From<ServerError> for RefusalReason {
    fn from(error: ServerError) -> RefusalReason {
        RefusalReason { name: error.name(), fix: error.fix() }
    }
}

/// Counters of an engine since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Publications acknowledged.
    pub published: u64,
    /// Commands used to send them.
    pub publish_commands: u64,
    /// Publications that were refused and not stored.
    pub refused: u64,
    /// Publications that may or may not have been stored.
    pub uncertain: u64,
    /// Commands that were repeated because a script was missing or a connection broke.
    pub retried: u64,
    /// Operations delayed because the keys of their channel were being migrated between nodes of a cluster.
    pub put_off: u64,
    /// Operations sent to the importing node of a slot.
    pub asked: u64,
    /// Pages of histories that replicas have answered.
    pub replica_reads: u64,
    /// Pages that replicas were asked for, and primaries have answered in their place.
    pub replica_misses: u64,
    /// Messages received.
    pub messages: u64,
    /// Messages that could not be read: of another version, or of another program.
    pub unreadable: u64,
    /// Connections closed because their messages to themselves did not return.
    pub silences: u64,
    /// How often the data of a server were found to be of another generation.
    pub generations: u64,
    /// Streams that lost publications with a server; their subscribers were notified.
    pub streams_cut: u64,
}

impl Stats {
    /// Counts publications that have ended together, and reports each. `position` is that of the last one.
    pub(crate) fn finish_publish<'a>(
        &mut self,
        tokens: &'a [u64],
        result: Result<Published, Error>,
    ) -> impl Iterator<Item = EngineEvent> + use<'a> {
        let count = match result {
            Ok(_) => &mut self.published,
            Err(Error::EngineUncertain) => &mut self.uncertain,
            Err(_) => &mut self.refused,
        };
        *count += tokens.len() as u64;
        (0..).zip(tokens).map(move |(index, &token)| {
            let behind = tokens.len() as u64 - 1 - index;
            let result = result.map(|mut published| {
                let offset = &mut published.position.offset;
                *offset = offset.saturating_sub(behind);
                published
            });
            EngineEvent::Published { token, result }
        })
    }
}
