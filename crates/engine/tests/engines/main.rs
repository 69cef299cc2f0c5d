//! Engines against real servers, in each arrangement that they know: one set of tests for all of them, and what goes wrong
//! with each.
#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]
#![allow(unreachable_pub, dead_code, reason = "shared with the benchmark, and each uses its part")]

mod centrifugo;
mod disk;
mod failover;
mod failures;
mod moving;
mod nats;
mod nats_keys;
mod nats_server;
mod nats_tls;
mod nodes;
mod replica_reads;
mod replicas;
mod servers;
mod streams;
