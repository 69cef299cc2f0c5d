//! A pipelining HTTP/1.1 client: requests leave while answers to others come, over few connections, and a
//! server that closes one of them loses nothing.
//!
//! [`Connection`] is the protocol without a socket: which requests are out, where in the answers it is, and, when
//! the connection ends, what may be done with each request that got none (RFC 9112 §9.3.2, §9.6). What it needs of
//! a request in flight is a record a *batch*, and an answer whose head repeats the one before costs a comparison.
//!
//! - [`Sink`] takes answers; [`Kind`] is what must be known of a request; [`ReplayDecision`] is what becomes of one.
//! - [`Window`] finds the depth by itself; [`Budget`] learns how many requests a server takes on a connection.
//! - [`Client`] asks many hosts on one event loop of `net`: names, several addresses, TLS, unix sockets, queues,
//!   time-outs, and each request's [`Outcome`], once.
//! - [`ThreadedClient`] is a client in a thread of its own, for programs without a loop.
//! - [`Copies`] are one request many times over, to be written at once.

#![forbid(unsafe_code)]

mod budget;
mod client;
mod connection;
mod copies;
mod head;
mod in_flight;
mod kind;
mod protocol_error;
mod window;

pub use budget::Budget;
pub use client::{
    Answer, BadUrl, BodyMode, Caller, Client, ClientConfig, Delivery, Depth, ErrorKind, HostConfig,
    HostId, Outcome, Prepared, Refused, Request, RequestError, RequestId, Requests, ThreadedClient,
};
pub use connection::{Close, Connection, ConnectionLimits, Progress, ReplayDecision, Sink};
pub use copies::Copies;
pub use head::Head;
pub use in_flight::InFlight;
pub use kind::Kind;
pub use protocol_error::ProtocolError;
pub use window::{Window, WindowConfig};
