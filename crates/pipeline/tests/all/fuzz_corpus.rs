//! Replays the seed corpus of every fuzz target of this crate, and inputs that a fuzzer has added to it.

#![allow(missing_docs, unreachable_pub)]

mod fuzz_targets;
#[path = "../../../fuzz/replay.rs"]
mod replay;

replay::tests!(fuzz_targets::TARGETS, 2048);
