//! The loop and its protocols over real sockets, and every example.

mod examples;
#[path = "../fuzz_targets/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the fuzz targets")]
mod fuzz_targets;
mod http;
mod library;
mod redis;
#[path = "../../../../fuzz/replay.rs"]
#[allow(dead_code, unreachable_pub, reason = "each crate uses its part")]
mod replay;
mod starttls;
#[path = "../support/mod.rs"]
mod support;
mod tcp;
mod threads;
mod tls;
mod websocket;

// The seed corpus of every fuzz target of this crate, and whatever a fuzzer has found beside it.
replay::tests!(fuzz_targets::TARGETS, 300);
