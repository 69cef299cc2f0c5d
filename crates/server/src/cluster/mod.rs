//! The nodes of a cluster: who is one, calls that hold on all of them, and presence over all of them.
//!
//! A task of the control thread ([`Agent`](agent)) is this node's part in it. It holds one connection to where the nodes meet
//! ([`store`]): to Redis ([`redis`]) or to NATS ([`nats`]). Workers reach it over the bus by [`crate::message::cluster`]; without
//! `cluster.engine` there is no such task, and workers send it no requests.

mod address;
mod agent;
mod answers;
mod budgets;
mod byte_stream;
mod calls;
mod changes;
mod condition;
mod facts;
mod forwarding;
mod handle;
mod inbox;
mod kept;
mod lease;
mod log_position;
mod member_writes;
mod members;
mod message;
mod name_conflict;
mod nats;
mod newcomers;
mod online;
mod presence;
mod presence_reads;
mod redis;
mod state;
mod status;
mod store;
mod user_counts;

pub(crate) use handle::ClusterHandle;
pub(crate) use state::ClusterState;
