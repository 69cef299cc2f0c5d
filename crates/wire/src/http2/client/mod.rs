//! A client's end of a connection: requests in, whole responses out.
//!
//! [`Connection`] is a state machine without I/O and clock. The owner
//!
//! 1. passes what it read to [`handle_bytes`](Connection::handle_bytes),
//! 2. takes events with [`poll_event`](Connection::poll_event) until there is none,
//! 3. opens streams with [`open`](Connection::open) while [`capacity`](Connection::capacity) allows,
//! 4. writes [`transmit`](Connection::transmit) and says with
//!    [`handle_transmitted`](Connection::handle_transmitted) how much of it left,
//! 5. calls [`handle_second`](Connection::handle_second) about once a second.
//!
//! An error of `handle_bytes` ends the connection: the bytes to transmit then end with a GOAWAY,
//! and the owner decides about the streams still open ([`open_streams`](Connection::open_streams)).

mod connection;
mod receive;
mod response;
mod stream;

pub use connection::{Capacity, Config, Connection, Event, OpenError, SendProgress};
pub use response::{Fields, Response};
