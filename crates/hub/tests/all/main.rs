//! Hubs wired together, their clients and their engines, in virtual time.

mod channel_events;
mod channels;
mod delivery;
mod engines;
mod forms;
#[path = "../kit/mod.rs"]
mod kit;
mod members;
mod outboxes;
mod pacing;
mod recorded_members;
mod remote_members;
#[path = "../../../../fuzz/replay.rs"]
#[allow(dead_code, unreachable_pub, reason = "each crate uses its part")]
mod replay;
mod shares;
mod users;
mod walks;
