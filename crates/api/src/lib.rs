#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod online;
pub mod proxy;
pub mod pusher;
pub mod server_api;
