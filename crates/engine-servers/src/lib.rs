#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod file;
pub mod login;
pub mod servers;
pub mod tls;
