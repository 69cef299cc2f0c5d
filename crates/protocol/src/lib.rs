//! Client protocols as state machines: bytes and facts in, commands and bytes out; no I/O, no clock.
//!
//! - [`centrifuge`]: the Centrifugal client protocol v2 in JSON, over WebSocket and, with [`emulation`], over
//!   server-sent events and HTTP streams; its unidirectional variants.
//! - [`stream`]: how the transports over HTTP are opened.
//! - [`long_poll`]: requests, answers and the cursor of the long-poll.
//! - [`FrameEncoder`]: everything that is sent, spelled for each [`Encoding`]; the hub's seam.
//!
//! One offset space: whatever the transport, a publication carries the same `offset` in the same epoch.

#![forbid(unsafe_code)]

pub mod centrifuge;
pub mod emulation;
mod encode;
mod encoding;
pub mod json;
pub mod long_poll;
pub mod stream;

pub use encode::{FrameEncoder, end_of_stream, ping};
pub use encoding::Encoding;
pub use json::{Json, ProtocolError};
