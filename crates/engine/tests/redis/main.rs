//! The engine on Redis against real servers, in each arrangement that it knows: one set of tests for all of them, and what
//! goes wrong with each.
#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]
#![allow(unreachable_pub, reason = "a module of tests has no outside")]

mod failover;
mod failures;
mod nodes;
mod servers;
mod streams;
