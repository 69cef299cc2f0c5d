//! The client against scripted servers, nginx and every sequence of answers.

mod client;
mod flows;
#[path = "../fuzz_targets/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the fuzz targets")]
mod fuzz_targets;
mod gateway;
mod nginx;
mod properties;
mod removal;
#[path = "../../../../fuzz/replay.rs"]
#[allow(dead_code, unreachable_pub, reason = "each crate uses its part")]
mod replay;
mod stories;
#[path = "../support/mod.rs"]
mod support;

// The seed corpus of every fuzz target of this crate, and whatever a fuzzer has found beside it.
replay::tests!(fuzz_targets::TARGETS, 2048);
