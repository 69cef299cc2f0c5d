//! A sender of other people's making (the `h2` crate) says a line, the simulator answers a line.
#![allow(clippy::unwrap_used, reason = "a peer that does not play its part fails the test")]

mod faults;
mod rules;
mod sender;
mod tokens;
