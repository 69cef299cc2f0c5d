//! Links in virtual time: handshakes, two peers with cuts and crashes against a ledger, hostile peers, and the codec.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

mod fuzz_targets;
mod handshakes;
mod hostile;
mod kit;
#[path = "../../../../fuzz/replay.rs"]
mod replay;
mod simulation;

replay::tests!(fuzz_targets::TARGETS, 400);
