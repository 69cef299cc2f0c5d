#![doc = include_str!("../README.md")]
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

pub mod centrifuge;
mod codec;
pub mod emulation;
mod encode;
mod encoding;
pub mod json;
pub mod long_poll;
mod payload;
pub mod pusher;
pub mod stream;

pub use codec::Codec;
pub use encode::{FrameEncoder, device_of, end_of_stream, ping};
pub use encoding::{Encoding, Format};
pub use json::{Json, ProtocolError};
pub use payload::Payload;
