//! Replays the seed corpus of every fuzz target, and whatever a fuzzer has found beside it.

#![allow(missing_docs, unreachable_pub)]

mod fuzz_targets;

use std::fs;
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

#[test]
fn every_seed_passes_and_every_target_has_some() {
    for (name, _) in fuzz_targets::TARGETS {
        let seeds = fs::read_dir(corpus().join(name));
        let seeds = seeds.unwrap_or_else(|error| panic!("fuzz/corpus/{name}: {error}"));
        let mut count = 0;
        for seed in seeds {
            let path = seed.expect("a directory entry").path();
            let data = fs::read(&path).expect("a readable seed");
            println!("{}", path.display());
            fuzz_targets::run(name, &data);
            count += 1;
        }
        assert!(count > 0, "{name} has no seed");
    }
}

/// Only of the seeds: a fuzzer has tried the cuts and flips of what it found.
#[test]
fn every_cut_and_every_flipped_byte_of_a_seed_passes() {
    for (name, _) in fuzz_targets::TARGETS {
        for seed in fs::read_dir(corpus().join(name)).into_iter().flatten().flatten() {
            if !seed.file_name().to_string_lossy().starts_with("seed_") {
                continue;
            }
            let mut data = fs::read(seed.path()).expect("a readable seed");
            data.truncate(2048);
            for index in 0..data.len() {
                fuzz_targets::run(name, &data[..index]);
                for flip in [0x01, 0x20, 0x80, 0xff] {
                    data[index] ^= flip;
                    fuzz_targets::run(name, &data);
                    data[index] ^= flip;
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
