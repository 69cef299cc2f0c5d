#![doc = include_str!("../README.md")]
#![warn(clippy::missing_errors_doc)]
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
    BodyMode, Call, Caller, Client, ClientConfig, Depth, Effect, ErrorKind, HostConfig, HostError,
    HostId, Outcome, Prepared, Request, RequestError, RequestId, Requests, Response, ResponseView,
    Result, SendError, ThreadedClient, UrlError,
};
pub use connection::{Close, Connection, ConnectionLimits, Progress, ReplayDecision, Sink};
pub use copies::Copies;
pub use head::Head;
pub use in_flight::InFlight;
pub use kind::Kind;
pub use protocol_error::ProtocolError;
pub use window::{Window, WindowConfig};

/// The version of the event loop that a [`Client`] runs on.
pub use dunlin_net as net;
