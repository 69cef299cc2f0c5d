//! Replays the seed corpus of every fuzz target of this crate, and whatever a fuzzer has found beside it.

#![allow(missing_docs, unreachable_pub)]

mod fuzz_targets;

use std::fs;
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let seeds = fs::read_dir(corpus().join(name));
    let seeds = seeds.unwrap_or_else(|error| panic!("fuzz/corpus/{name}: {error}"));
    seeds
        .map(|seed| fs::read(seed.expect("a directory entry").path()).expect("a readable seed"))
        .collect()
}

#[test]
fn every_seed_passes_and_so_does_every_cut_and_flip_of_it() {
    for (name, _) in fuzz_targets::TARGETS {
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name} has no seed");
        for mut seed in seeds {
            fuzz_targets::run(name, &seed);
            seed.truncate(400);
            for index in 0..seed.len() {
                fuzz_targets::run(name, &seed[..index]);
                for flip in [0x01, 0x80] {
                    seed[index] ^= flip;
                    fuzz_targets::run(name, &seed);
                    seed[index] ^= flip;
                }
            }
        }
    }
}

#[test]
fn every_target_is_one_of_cargo_fuzz() {
    let manifest = fs::read_to_string(corpus().join("../Cargo.toml")).expect("fuzz/Cargo.toml");
    for (name, _) in fuzz_targets::TARGETS {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} in fuzz/Cargo.toml");
        assert!(corpus().join(format!("../fuzz_targets/{name}.rs")).exists(), "{name}.rs");
    }
}
