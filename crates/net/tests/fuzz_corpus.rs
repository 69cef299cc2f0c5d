//! Replays the seed corpus of every fuzz target of this crate, and whatever a fuzzer has found beside it.

#![allow(missing_docs, unreachable_pub)]

mod fuzz_targets;
#[path = "../../../fuzz/replay.rs"]
mod replay;

use fuzz_targets::{TARGETS, run};

#[test]
fn every_seed_passes_and_every_target_has_some() {
    replay::all(TARGETS, run);
}

#[test]
fn every_cut_and_every_flipped_byte_of_a_seed_passes() {
    replay::cut_and_flipped(TARGETS, run, 300);
}

#[test]
fn every_target_is_one_of_cargo_fuzz() {
    replay::are_known(TARGETS);
}
