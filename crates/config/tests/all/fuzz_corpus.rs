//! Replays the seed corpus of every fuzz target of this crate, and whatever a fuzzer has found beside it.

#![allow(missing_docs, unreachable_pub)]

mod fuzz_targets;
#[path = "../../../fuzz/replay.rs"]
mod replay;

replay::tests!(fuzz_targets::TARGETS, 400);
