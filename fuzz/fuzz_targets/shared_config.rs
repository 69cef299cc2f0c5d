//! The bodies of the targets, as `cargo test` runs them too.

#[path = "../../crates/config/tests/fuzz_targets/mod.rs"]
mod fuzz_targets;

pub use fuzz_targets::run;
