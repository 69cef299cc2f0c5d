//! WebSocket (RFC 6455): handshake, frames, messages, and permessage-deflate (RFC 7692).
//!
//! [`Decoder`] is plain configuration, which all connections of a worker can share. A frame that is
//! complete in the receive buffer is unmasked in place and yielded as a slice of that buffer. A
//! connection needs state only while a message is incomplete: the caller lends it a
//! [`MessageAssembly`] and takes it back when it is [idle](MessageAssembly::is_idle).

mod assembly;
mod close;
mod decoder;
pub mod deflate;
mod error;
mod frame;
pub mod handshake;
mod mask;

pub use assembly::MessageAssembly;
pub use close::{CLOSE_REASON_BYTES_MAX, CloseFrame, close_code, is_close_code};
pub use decoder::{Decoded, Decoder, Event, Limits, Message, Role};
pub use error::Error;
pub use frame::{
    CONTROL_PAYLOAD_BYTES_MAX, FrameHeader, HEADER_BYTES_MAX, Opcode, encode_close,
    encode_close_masked, encode_frame, encode_frame_masked,
};
pub use mask::{Mask, apply_mask};
