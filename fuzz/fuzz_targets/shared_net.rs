//! The bodies of the targets, as `cargo test` runs them too.

#[path = "../../crates/net/tests/fuzz_targets/mod.rs"]
#[allow(dead_code, reason = "its other users are tests")]
mod fuzz_targets;

pub use fuzz_targets::run;
