//! The cluster: membership of nodes, calls that all nodes execute, and presence across nodes.
//!
//! A task of the control thread, the [`Agent`](agent), represents this node. It holds one connection to the [`store`] that the
//! nodes share, in Redis ([`redis`]) or NATS ([`nats`]). Workers reach it over the bus ([`crate::message::cluster`]). Without
//! `cluster.engine` there is no agent, and workers send no requests to it.

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
mod message;
mod name_conflict;
mod nats;
#[cfg(test)]
mod nats_tests;
mod newcomers;
mod occupancy;
mod online;
mod ordered;
pub(crate) mod outbox;
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

pub(crate) use handle::ClusterHandle;
pub(crate) use local_node::LocalNode;
pub(crate) use state::ClusterState;
