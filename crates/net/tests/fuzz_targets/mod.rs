//! What the fuzzer feeds, and what must hold whatever it feeds.
//!
//! Shared by `fuzz/`, which explores, and by `tests/fuzz_corpus.rs`, which replays the seeds.

mod http;
mod redis;
mod websocket;

/// A target by the name of its corpus.
pub type Target = fn(&[u8]);

/// All targets: `fuzz/corpus/NAME` holds the seeds of each.
pub const TARGETS: &[(&str, Target)] = &[
    ("net_http_server", http::server),
    ("net_redis", redis::connection),
    ("net_websocket", websocket::connection),
];

/// Numbers that follow from the first byte of the input alone.
struct Choices(u64);

impl Choices {
    fn new(seed: u8) -> Choices {
        Choices(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// The input in pieces: all of it, one byte after another, or as it comes.
fn pieces(data: &[u8], way: u64) -> Vec<&[u8]> {
    match way {
        0 => vec![data],
        1 => data.chunks(1).collect(),
        way => data.chunks(1 + (way as usize % 61)).collect(),
    }
}
