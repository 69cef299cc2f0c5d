//! Replays the seeds of a crate's fuzz targets, whatever a fuzzer has found beside them, and every cut and flip of the seeds.
//!
//! A part of the tests of each crate that has targets: `#[path = "../../../fuzz/replay.rs"] mod replay;` and
//! `replay::tests!(TARGETS, 2048);`.

use std::fs;
use std::path::{Path, PathBuf};

/// A target by the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

/// The tests of some targets; of each seed so many bytes are cut and flipped.
macro_rules! tests {
    ($targets:expr, $bytes_max:expr) => {
        #[test]
        fn every_seed_passes_and_every_target_has_some() {
            replay::all($targets);
        }

        #[test]
        fn every_cut_and_every_flipped_byte_of_a_seed_passes() {
            replay::cut_and_flipped($targets, $bytes_max);
        }

        #[test]
        fn every_target_is_one_of_cargo_fuzz() {
            replay::are_known($targets);
        }
    };
}
pub(crate) use tests;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

/// Every file of each target's corpus, of which there must be one at least.
pub fn all(targets: &[Target]) {
    for (name, run) in targets {
        let seeds = fs::read_dir(corpus().join(name));
        let seeds = seeds.unwrap_or_else(|error| panic!("fuzz/corpus/{name}: {error}"));
        let mut count = 0;
        for seed in seeds {
            let path = seed.expect("a directory entry").path();
            let data = fs::read(&path).expect("a readable seed");
            println!("{}", path.display());
            run(&data);
            count += 1;
        }
        assert!(count > 0, "{name} has no seed");
    }
}

/// Every cut and every flipped byte of each seed's first `bytes_max`. A fuzzer has tried those of what it found itself.
pub fn cut_and_flipped(targets: &[Target], bytes_max: usize) {
    for (name, run) in targets {
        for seed in fs::read_dir(corpus().join(name)).into_iter().flatten().flatten() {
            if is_found(&seed.file_name().to_string_lossy()) {
                continue;
            }
            let mut data = fs::read(seed.path()).expect("a readable seed");
            data.truncate(bytes_max);
            for index in 0..data.len() {
                run(&data[..index]);
                for flip in [0x01, 0x20, 0x80, 0xff] {
                    data[index] ^= flip;
                    run(&data);
                    data[index] ^= flip;
                }
            }
        }
    }
}

/// A fuzzer names what it finds by its hash.
fn is_found(name: &str) -> bool {
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Each target is known to `cargo fuzz`.
pub fn are_known(targets: &[Target]) {
    let manifest = fs::read_to_string(corpus().join("../Cargo.toml")).expect("fuzz/Cargo.toml");
    for (name, _) in targets {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} in fuzz/Cargo.toml");
    }
}
