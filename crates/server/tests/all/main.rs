//! Programs that are built on this crate, and expressions as namespaces use them.

mod expressions;
#[path = "../fuzz_targets/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the fuzz targets")]
mod fuzz_targets;
mod program;
mod protocol;
#[path = "../../../../fuzz/replay.rs"]
#[allow(dead_code, unreachable_pub, reason = "each crate uses its part")]
mod replay;

// The seed corpus of every fuzz target of this crate, and whatever a fuzzer has found beside it.
replay::tests!(fuzz_targets::TARGETS, 700);
