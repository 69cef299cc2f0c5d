//! The configuration of an engine on Redis.

use std::num::NonZeroU8;

use dunlin_hub::{ClientInfo, NewPublication};

use super::centrifugo_message;
use crate::frame;
use crate::links::Server;

/// The configuration of an engine on Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// The servers.
    pub topology: Topology,
    /// The prefix of all keys and channels, without braces. Fleets that share a server need different ones.
    pub prefix: String,
    /// The layout of keys and messages.
    pub layout: Layout,
    /// The database of the connections. Publish/subscribe ignores databases, so any but 0 becomes part of the prefix.
    pub database: u32,
    /// Milliseconds that requests wait for a connection before they fail.
    pub hold_ms: u64,
    /// Maximum bytes of unanswered requests of all servers together; further ones fail at once. A connection also buffers what
    /// it has sent until the server reads it, so twice as much may be in memory.
    pub queue_bytes_max: usize,
    /// Milliseconds between two probes, messages through each connection to itself.
    pub probe_interval_ms: u64,
    /// Milliseconds without a returned probe after which a connection is closed.
    pub probe_timeout_ms: u64,
    /// The number of replicas that must have a publication with history before it is acknowledged; `None`: no wait.
    pub wait_replicas: Option<NonZeroU8>,
    /// Milliseconds to wait for the replicas; after that the publication is uncertain.
    pub wait_timeout_ms: u64,
    /// The servers that histories are read from.
    pub read_from: ReadFrom,
}

/// The servers that histories are read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFrom {
    /// The primaries.
    #[default]
    Primary,
    /// A replica if it has the requested part, otherwise the primary. Only in Dunlin's own layout.
    ReplicaPreferred,
}

/// The layout of keys and messages in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Dunlin's own: the fastest, and the only one that always detects a server that lost data.
    #[default]
    Dunlin,
    /// The layout of Centrifugo 6, which allows its nodes and Dunlin's to share channels. In a cluster, that of sharded
    /// publish/subscribe.
    Centrifugo,
}

impl Layout {
    /// Appends a publication in the encoding of a batch.
    pub(crate) fn encode(self, out: &mut Vec<u8>, publication: &NewPublication, time_ms: u64) {
        match self {
            Layout::Dunlin => frame::encode(out, publication, time_ms),
            Layout::Centrifugo => centrifugo_message::encode(out, publication, time_ms),
        }
    }

    /// Encodes a join or a leave. Dunlin's own layout has none: its nodes are notified by the cluster.
    pub(crate) fn encode_member(self, info: &ClientInfo, joined: bool) -> Box<[u8]> {
        match self {
            Layout::Dunlin => Box::default(),
            Layout::Centrifugo => centrifugo_message::encode_member(info, joined),
        }
    }
}

/// The servers of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Independent servers: each channel lives on one, chosen by a hash of its name (jump consistent hashing of FNV-1a, 64
    /// bits).
    Servers(Vec<Server>),
    /// Primaries with these names, whose addresses the Sentinels know; channels are distributed as above.
    Sentinel {
        /// Addresses of Sentinels; one of them is asked.
        sentinels: Vec<Server>,
        /// The names of the primaries.
        primaries: Vec<String>,
    },
    /// A Redis Cluster (Redis 7 or later).
    Cluster {
        /// Addresses of some nodes, which know the others.
        seeds: Vec<Server>,
        /// The number of partitions of the key space. Each is one slot, so that the keys of a channel are on one node. All
        /// nodes of a fleet must have the same number.
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
