//! Engines: where channels live that several nodes share, without I/O and without a clock.
//!
//! A hub is the node's agent of a channel that has an engine. It asks by [`EngineRequest`] and learns by [`EngineEvent`].
//! An engine is a machine between the two and its servers: each is a type with these methods.
//!
//! | method | what it does |
//! |---|---|
//! | `handle_request(now, EngineRequest)` | takes a request of the hub |
//! | `flush(now, &mut impl Links)` | at the end of a turn, after any of the others: sends what they ask for, joined |
//! | `handle_ready(now, ShardId)`, `handle_closed(now, ShardId, reason)` | a connection was greeted, was lost or not made |
//! | `handle_reply(now, ShardId, token, &Value)`, `handle_lost(now, ShardId, token, sent)` | how a command ended; whether it had left |
//! | `handle_push(now, ShardId, &Value)`, `handle_message(now, ShardId, channel, payload)` | what a server says unasked |
//! | `poll_event()` | what to tell the hub; call until `None` |
//! | `poll_timeout()`, `handle_timeout(now)` | time |
//!
//! A channel without an engine lives in its hub's memory and meets none of this.
#![forbid(unsafe_code)]

mod links;
pub mod redis;

pub use dunlin_hub::engine::{
    EngineConfig, EngineEvent, EngineId, EnginePosition, EnginePublish, EngineRequest, Lineage,
    POSITIONS_MAX, Retention,
};
pub use links::{LinkFull, Links, Server, ServerRole, ShardId};
