//! The server's side of HTTP/2 (RFC 9113) as a state machine on the frames of [`dunlin_wire::http2`].

mod connection;
mod head;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use connection::{Connection, Limits, Request};
pub(crate) use head::Head;
