//! Replays the seeds of the fuzz target of framing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails may panic")]

#[path = "../fuzz_targets/mod.rs"]
#[allow(unreachable_pub, reason = "shared with the fuzz targets")]
mod fuzz_targets;
#[path = "../../../../fuzz/replay.rs"]
#[allow(unreachable_pub, reason = "the tests of other crates are crates of their own")]
mod replay;

replay::tests!(fuzz_targets::TARGETS, 2048);
