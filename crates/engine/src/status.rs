//! What is known of the connections of an engine.

use dunlin_hub::engine::EngineEvent;
use dunlin_hub::{Error, Published};
use dunlin_wire::resp::ServerError;

use crate::links::{Server, ShardId};

/// What is known of one connection.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardStatus {
    /// Its number.
    pub shard: ShardId,
    /// Where it leads.
    pub server: Server,
    /// How it is.
    pub state: ShardState,
    /// Since when, in the caller's monotonic milliseconds.
    pub since_ms: u64,
    /// What the server or the kernel said last against it; empty if nothing.
    pub detail: String,
    /// The server's version; empty while it is not known.
    pub version: String,
    /// The server may evict keys: streams then begin anew, and nobody recovers. Its `maxmemory-policy`; empty if it does not.
    pub eviction: String,
    /// Why it refused what was published last, while it takes requests otherwise: it is out of memory, for instance.
    pub refusing: Option<RefusalReason>,
    /// Parts of the key space that are served by it, and how many of them take requests.
    pub partitions: u16,
    /// See [`partitions`](Self::partitions).
    pub partitions_ready: u16,
    /// Slots of a cluster that move from this server to another, key by key.
    pub slots_moving: u16,
    /// Their channels of which something waits because the keys have moved, or not all of them.
    pub channels_put_off: u32,
}

/// Slots move from a server to another.
const SLOT_MOVING: RefusalReason = RefusalReason {
    name: "slot_moving",
    fix: "channels whose keys have moved wait or are asked where they are; if nobody moves the slot, end it: redis-cli --cluster fix, or CLUSTER SETSLOT",
};

/// A server may evict the keys of streams.
const MAY_EVICT: RefusalReason = RefusalReason {
    name: "may_evict",
    fix: "set `maxmemory-policy noeviction` of Redis: a server that evicts keys ends streams, and whoever recovers there has lost what they held",
};

impl ShardStatus {
    /// What there is to say of the connection: its state, or what is wrong while it takes requests. The fix is empty where there is
    /// nothing to do.
    pub fn condition(&self) -> RefusalReason {
        match self.refusing {
            Some(refusal) => refusal,
            None if self.state == ShardState::Ready && self.slots_moving > 0 => SLOT_MOVING,
            None if self.state == ShardState::Ready && !self.eviction.is_empty() => MAY_EVICT,
            None => RefusalReason { name: self.state.name(), fix: self.state.fix() },
        }
    }
}

/// How a connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardState {
    /// It is being made, again and again.
    Connecting,
    /// It is there, and the server's generation is being asked for.
    Greeting,
    /// It takes requests.
    Ready,
    /// The messages that it sends to itself did not come back; it is made anew.
    Silent,
    /// The server refuses.
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

    /// What to do about it; empty where there is nothing.
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

/// Why a server refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalReason {
    /// A name for metrics and health, in snake case.
    pub name: &'static str,
    /// What to do about it.
    pub fix: &'static str,
}

impl From<ServerError> for RefusalReason {
    fn from(error: ServerError) -> RefusalReason {
        RefusalReason { name: error.name(), fix: error.fix() }
    }
}

/// What an engine has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Publications acknowledged.
    pub published: u64,
    /// Commands by which they were sent.
    pub publish_commands: u64,
    /// Publications that were refused and not stored.
    pub refused: u64,
    /// Publications of which nobody knows whether they were stored.
    pub uncertain: u64,
    /// Commands sent once more, after a script was gone or a connection broke.
    pub retried: u64,
    /// Operations put off because the keys of their channel were moving from one node of a cluster to another.
    pub put_off: u64,
    /// Operations sent to the node of a cluster that imports a slot.
    pub asked: u64,
    /// Messages received.
    pub messages: u64,
    /// Messages that could not be read: of another version, or somebody else's.
    pub unreadable: u64,
    /// Connections given up because their messages to themselves did not come back.
    pub silences: u64,
    /// Times that a server's data were found to be of another generation than before.
    pub generations: u64,
    /// Streams of which publications were lost with a server; their subscribers were notified.
    pub streams_cut: u64,
}

impl Stats {
    /// Counts publications that have ended together, and says of each how. The position is that of the last.
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
