//! Nodes that share their channels, clients and settings through Redis or NATS.

mod acks;
#[path = "../kit/mod.rs"]
mod kit;
mod losses;
mod nats_cluster;
mod nats_states;
mod nodes;
mod pusher;
mod settings;
mod users;
