//! The Centrifugal client protocol in Protobuf: field numbers are those of client.proto in centrifugal/protocol.
//!
//! Nothing here decides anything: commands are read into the types that JSON is read into, replies and pushes are written
//! from the types that JSON is written from.

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
