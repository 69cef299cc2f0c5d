#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod addresses;
mod program;

pub use addresses::Addresses;
pub use program::server_beside;
