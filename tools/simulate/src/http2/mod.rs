//! The server's side of HTTP/2 (RFC 9113) as a state machine on the frames of [`dunlin_wire::http2`].

mod connection;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz_targets;
mod head;
#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
#[allow(unreachable_pub, reason = "the tests of other crates are crates of their own")]
mod replay;
mod stream;
#[cfg(test)]
mod tests;
mod window_return;

pub(crate) use connection::{Connection, Limits, Request};
pub(crate) use head::Head;
pub use window_return::WindowReturn;
