//! Settings, their changes and their log, as the server uses them.

mod change;
mod damage;
mod directory;
mod environment;
mod file;
#[path = "../fuzz_targets/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the fuzz targets")]
mod fuzz_targets;
mod import;
mod import_files;
mod kit;
mod nats;
#[path = "../../../../fuzz/replay.rs"]
#[allow(dead_code, unreachable_pub, reason = "each crate uses its part")]
mod replay;
mod store;
mod values;

// The seed corpus of every fuzz target of this crate, and whatever a fuzzer has found beside it.
replay::tests!(fuzz_targets::TARGETS, 400);
