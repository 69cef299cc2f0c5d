//! The client end of a connection: sends requests, returns complete responses.
//!
//! [`Connection`] is a state machine without I/O and clock. Its owner
//!
//! 1. passes received bytes to [`handle_bytes`](Connection::handle_bytes),
//! 2. takes events from [`poll_event`](Connection::poll_event) until there is none,
//! 3. opens streams by [`open`](Connection::open) while [`capacity`](Connection::capacity) allows,
//! 4. writes [`transmit`](Connection::transmit) and reports
//!    the written bytes by [`handle_transmitted`](Connection::handle_transmitted),
//! 5. calls [`handle_second`](Connection::handle_second) about once a second.
//!
//! An error of `handle_bytes` ends the connection: the bytes to transmit then end with a GOAWAY,
//! and the owner decides what to do about open streams
//! ([`open_streams`](Connection::open_streams)).

mod connection;
mod receive;
mod response;
mod stream;

pub use connection::{Capacity, Config, Connection, Event, OpenError, SendProgress};
pub use response::{Fields, Response};
