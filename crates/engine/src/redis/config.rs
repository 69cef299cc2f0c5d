//! How an engine reaches Redis.

use std::num::NonZeroU8;

use dunlin_hub::{ClientInfo, NewPublication};

use super::centrifugo_message;
use crate::frame;
use crate::links::Server;

/// How an engine reaches Redis, and what it does there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// Which servers there are.
    pub topology: Topology,
    /// What all keys and channels begin with; without braces. Of fleets that share a server, each has its own.
    pub prefix: String,
    /// How keys and messages look.
    pub layout: Layout,
    /// The database of the connections. Publish/subscribe knows nothing of databases: any but 0 becomes part of the prefix.
    pub database: u32,
    /// Milliseconds that requests wait for a connection before they fail.
    pub hold_ms: u64,
    /// Bytes of requests that wait or are not answered, of all servers together; beyond it they fail at once. What has left is held by a
    /// connection for as long as the server does not read it, so twice as much may be in memory.
    pub queue_bytes_max: usize,
    /// Milliseconds between two messages through each connection to itself, which show that it is alive.
    pub probe_interval_ms: u64,
    /// Milliseconds without such a message after which a connection is given up.
    pub probe_timeout_ms: u64,
    /// Replicas that have a publication with history before it is acknowledged; `None`: none is waited for.
    pub wait_replicas: Option<NonZeroU8>,
    /// Milliseconds that they have for it; then it is uncertain.
    pub wait_timeout_ms: u64,
    /// Which servers histories are read from.
    pub read_from: ReadFrom,
}

/// Which servers histories are read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFrom {
    /// Those that are written to.
    #[default]
    Primary,
    /// One of their replicas, as far as it has what is wanted, and else the primary. In Dunlin's own layout.
    ReplicaPreferred,
}

/// How keys and messages of an engine look in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Dunlin's own: the fastest, and the one in which a server that lost data is always noticed.
    #[default]
    Dunlin,
    /// That of Centrifugo 6, so that its nodes and Dunlin's share channels. In a cluster, that of sharded publish/subscribe.
    Centrifugo,
}

impl Layout {
    /// Appends a publication, as a batch has it.
    pub(crate) fn encode(self, out: &mut Vec<u8>, publication: &NewPublication, time_ms: u64) {
        match self {
            Layout::Dunlin => frame::encode(out, publication, time_ms),
            Layout::Centrifugo => centrifugo_message::encode(out, publication, time_ms),
        }
    }

    /// A join or a leave. Dunlin's own layout has none: its nodes learn of them by the cluster.
    pub(crate) fn encode_member(self, info: &ClientInfo, joined: bool) -> Box<[u8]> {
        match self {
            Layout::Dunlin => Box::default(),
            Layout::Centrifugo => centrifugo_message::encode_member(info, joined),
        }
    }
}

/// Which servers an engine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// These: each channel lives at one of them, by a hash of its name (jump consistent hashing of FNV-1a, 64 bits).
    Servers(Vec<Server>),
    /// The primaries of these names, whose addresses the Sentinels know; each channel lives at one of them, as above.
    Sentinel {
        /// Sentinels: one of them is asked.
        sentinels: Vec<Server>,
        /// What they call the primaries.
        primaries: Vec<String>,
    },
    /// A Redis Cluster (Redis 7 or later), of which some nodes are named here.
    Cluster {
        /// Nodes to ask about the others.
        seeds: Vec<Server>,
        /// Parts of the key space; each is one slot, so that what belongs together lives together. All nodes of a fleet
        /// must have the same number.
        partitions: u16,
    },
}

impl RedisConfig {
    /// The defaults: prefix `dunlin`, database 0.
    pub fn new(topology: Topology) -> RedisConfig {
        RedisConfig {
            topology,
            prefix: "dunlin".to_owned(),
            layout: Layout::Dunlin,
            database: 0,
            hold_ms: 1000,
            queue_bytes_max: 16 << 20,
            probe_interval_ms: 2000,
            probe_timeout_ms: 5000,
            wait_replicas: None,
            wait_timeout_ms: 500,
            read_from: ReadFrom::Primary,
        }
    }
}
