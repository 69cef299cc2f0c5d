//! `dunlin-bench` as a person at a shell runs it, against itself and against the server of this build.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

mod broadcast;
mod cluster;
mod comparison;
mod help;
mod http;
mod pushes;
mod webhooks;

/// The program that is tested.
const BENCH: &str = env!("CARGO_BIN_EXE_dunlin-bench");
