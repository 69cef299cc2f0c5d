#![doc = include_str!("../README.md")]
//!
//! A hub is the node's agent of a channel that has an engine. It asks by [`EngineRequest`] and learns by [`EngineEvent`].
//! An engine is a machine between the two and its servers: each is a type with these methods.
//!
//! | method | what it does |
//! |---|---|
//! | `handle_request(now, EngineRequest)` | takes a request of the hub |
//! | `flush(now, &mut …)` | at the end of a turn, after any of the others: sends what they ask for, joined |
//! | `poll_event()` | what to tell the hub; call until `None` |
//! | `poll_timeout()`, `handle_timeout(now)` | time |
//! | `stats()`, `shards()`, `is_ready()` | how it is |
//!
//! How it reaches its servers differs. [`redis::RedisEngine`] says commands to connections that others keep ([`Links`]);
//! [`nats::NatsEngine`] speaks the protocol itself, and is lent a connection for bytes ([`nats::Pipe`]).
//!
//! A channel without an engine lives in its hub's memory and meets none of this.
#![forbid(unsafe_code)]

mod frame;
mod links;
pub mod nats;
pub mod redis;
mod remembered;
mod select;
mod status;

pub use dunlin_hub::engine::{
    EngineConfig, EngineEvent, EngineId, EnginePosition, EnginePublish, EngineRequest, Lineage,
    POSITIONS_MAX, Retention,
};
pub use frame::FrameError;
pub use links::{LinkFull, Links, Server, ServerRole, ShardId};
pub use status::{RefusalReason, ShardState, ShardStatus, Stats};
