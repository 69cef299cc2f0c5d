#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod auth;
pub mod limits;
pub mod namespace;
pub mod tenants;
