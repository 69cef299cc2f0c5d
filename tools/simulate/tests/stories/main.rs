//! Tests with a third-party sender (the `h2` crate).
#![allow(clippy::unwrap_used, reason = "a peer that does not play its part fails the test")]

mod faults;
mod rules;
mod sender;
mod tokens;
