#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod address;
mod agent;
#[cfg(test)]
mod agent_tests;
mod answers;
mod budgets;
mod byte_stream;
mod calls;
mod changes;
mod completeness;
mod condition;
#[cfg(test)]
mod contract_tests;
mod facts;
mod forwarding;
mod handle;
mod inbox;
mod kept;
mod lease;
mod local_node;
mod log_position;
mod member_writes;
mod members;
#[cfg(test)]
mod memory;
pub mod message;
mod name_conflict;
mod nats;
#[cfg(test)]
mod nats_tests;
mod newcomers;
mod node_message;
mod occupancy;
mod online;
mod ordered;
mod outbox;
mod presence;
mod presence_reads;
mod recent_changes;
mod records;
mod redis;
mod standing;
mod state;
mod status;
mod store;
#[cfg(test)]
mod test_servers;
mod user_counts;

pub use handle::ClusterHandle;
pub use local_node::LocalNode;
pub use outbox::{Outbox, OutboxReader, outbox};
pub use state::ClusterState;
