//! The Centrifugal client protocol in Protobuf. Field numbers are those of client.proto in centrifugal/protocol.
//!
//! This module only translates: commands are read into the same types as from JSON, and replies and pushes are
//! written from the same types.

mod command;
mod emulation;
mod push;
mod reply;
#[cfg(test)]
mod tests;

pub(crate) use command::parse_command;
pub(crate) use emulation::parse_emulation;
pub(crate) use push::{write_push, write_refresh_push};
pub(crate) use reply::write_reply;
