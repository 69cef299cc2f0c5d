#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod alarm;
pub mod apns;
mod certificate;
mod connection;
mod control;
mod error;
mod flood;
mod http2;
mod line;
mod serve;
mod transport;

pub use certificate::Authority;
pub use error::StartError;

/// The fuzz targets of this crate, for `cargo fuzz`.
#[cfg(feature = "fuzz")]
pub const FUZZ_TARGETS: &[(&str, fn(&[u8]))] = http2::fuzz_targets::TARGETS;
