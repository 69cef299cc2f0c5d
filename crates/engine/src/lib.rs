#![doc = include_str!("../README.md")]
//!
//! An engine stores the channels of a namespace in external servers. The hub sends it [`EngineRequest`]s and
//! receives [`EngineEvent`]s. Each engine is a state machine with these methods:
//!
//! | method | purpose |
//! |---|---|
//! | `handle_request(now, EngineRequest)` | handles a request of the hub |
//! | `flush(now, &mut …)` | sends the pending commands together; call at the end of a turn |
//! | `poll_event()` | returns the next event for the hub; call until `None` |
//! | `poll_timeout()`, `handle_timeout(now)` | the next timeout, and its handling |
//! | `stats()`, `shards()`, `is_ready()` | counters and state |
//!
//! The engines reach their servers in different ways. [`redis::RedisEngine`] sends commands through
//! connections of the caller ([`Links`]). [`nats::NatsEngine`] implements the protocol itself and uses a byte
//! stream of the caller ([`nats::Pipe`]).
//!
//! [`disk::DiskEngine`] has no servers: it appends to a log of this machine, whose threads do the I/O.
//!
//! A channel without an engine is stored in the memory of its hub and is not affected.
#![forbid(unsafe_code)]

pub mod disk;
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
