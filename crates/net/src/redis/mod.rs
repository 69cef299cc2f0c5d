//! A Redis client (RESP3, Redis 6 or later). [`Connection`] is the protocol state of one connection, without a
//! socket. [`Client`] connects, reconnects and restores subscriptions; it uses only the public API of the loop.

mod client;
mod connection;
mod forward;

pub use client::{Client, ClientConfig, CommandError, LostCommand, PubSubMessage, Received};
pub use connection::{Connection, Event, InvalidCommand};
pub use dunlin_wire::resp::{Error, Limits, ServerError, Value};
