//! The Centrifugal client protocol in Protobuf. Field numbers are those of client.proto in centrifugal/protocol.
//!
//! This module only translates: it reads the same command types as the JSON parser, and writes the same replies and
//! pushes.

mod command;
mod push;
mod reply;
#[cfg(test)]
mod tests;

pub(crate) use command::{MessageReader, parse_command};
pub(crate) use push::{write_push, write_refresh_push};
pub(crate) use reply::write_reply;
