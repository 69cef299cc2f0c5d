//! What an engine is, and how it keeps channels.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum EngineKind {
    /// Redis (6.2 or later) or Valkey.
    #[default]
    Redis,
    /// NATS (2.9 or later), with JetStream for histories.
    Nats,
    /// A directory on a disk of this machine, for one node.
    Disk,
}

/// What a publication in an engine on a disk survives before it is acknowledged and delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum EngineDurability {
    /// The end of the process.
    Written,
    /// A loss of power.
    #[default]
    Synced,
}

/// What a publication in a namespace survives before it is acknowledged and delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ChannelDurability {
    /// What its engine says.
    #[default]
    Engine,
    /// The end of the process.
    Written,
    /// A loss of power.
    Synced,
}

impl ChannelDurability {
    /// Returns what the namespace says; `None`: its engine says it.
    pub const fn of_namespace(self) -> Option<EngineDurability> {
        match self {
            ChannelDurability::Engine => None,
            ChannelDurability::Written => Some(EngineDurability::Written),
            ChannelDurability::Synced => Some(EngineDurability::Synced),
        }
    }
}

/// What an engine on a disk does when it has reached `bytes_max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum EngineWhenFull {
    /// Refuses publications until messages have expired.
    #[default]
    Refuse,
    /// Drops the oldest messages, expired or not.
    DropOldest,
}

/// The layout of keys and messages of an engine in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum EngineLayout {
    /// The layout of Dunlin.
    #[default]
    Dunlin,
    /// The layout of Centrifugo 6.
    Centrifugo,
}

/// Which servers histories are read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum EngineReadFrom {
    /// Those that are written to.
    #[default]
    Primary,
    /// One of their replicas, as far as it has what is wanted.
    ReplicaPreferred,
}

/// The kind of servers at the addresses of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum EngineTopology {
    /// Servers. The channels are distributed over several by number and order of the addresses.
    #[default]
    Servers,
    /// Sentinels, which know the addresses of the primaries.
    Sentinel,
    /// Nodes of a Redis Cluster (Redis 7 or later), which know the other nodes. There are no databases.
    Cluster,
}
