//! Redis, the asking side (RESP3, so Redis 6 or later): [`Connection`] is one conversation without its socket,
//! [`Client`] keeps one connected and stands on what the loop offers to everybody.

mod client;
mod connection;
mod forward;

pub use client::{Client, ClientConfig, CommandError, LostCommand, PubSubMessage, Received};
pub use connection::{Connection, Event, InvalidCommand};
pub use dunlin_wire::resp::{Error, Limits, ServerError, Value};
