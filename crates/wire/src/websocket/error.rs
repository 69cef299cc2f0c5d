//! Errors in a WebSocket stream, and their close codes.

use super::close_code;

/// Why a connection must be failed (RFC 6455 §7.1.7): send a close frame with
/// [`close_code`](Error::close_code) and close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
#[error("{}", self.message())]
pub enum Error {
    /// A reserved bit is set that no negotiated extension defines for this frame (§5.2).
    ReservedBits,
    /// An opcode that RFC 6455 reserves.
    #[error("reserved opcode {0:#x}")]
    ReservedOpcode(u8),
    /// A client's frame without a mask (§5.1).
    MaskMissing,
    /// A server's frame with a mask (§5.1).
    MaskUnexpected,
    /// A length that is not in its shortest form, or exceeds 63 bits (§5.2).
    Length,
    /// A control frame that is fragmented (§5.4).
    ControlFragmented,
    /// A control frame with more than 125 bytes (§5.5).
    ControlTooLong,
    /// A continuation without a message to continue (§5.4).
    ContinuationUnexpected,
    /// A new message before the current one has ended (§5.4).
    ContinuationMissing,
    /// A frame longer than [`Limits::frame_bytes_max`](super::Limits).
    FrameTooLong,
    /// A message longer than [`Limits::message_bytes_max`](super::Limits), as sent or as inflated.
    MessageTooLong,
    /// Text that is not UTF-8 (§8.1).
    Utf8,
    /// A close frame of one byte (§5.5.1).
    CloseLength,
    /// A close code that is not allowed in a frame (§7.4).
    #[error("invalid close code {0}")]
    CloseCode(u16),
    /// A close reason that is not UTF-8.
    CloseReason,
    /// A compressed message that does not inflate (RFC 7692 §7.2.2).
    Inflate,
}

impl Error {
    /// Returns the code for the close frame (RFC 6455 §7.4.1).
    pub fn close_code(self) -> u16 {
        match self {
            Error::FrameTooLong | Error::MessageTooLong => close_code::TOO_BIG,
            Error::Utf8 | Error::CloseReason | Error::Inflate => close_code::INVALID_DATA,
            _ => close_code::PROTOCOL,
        }
    }

    /// Returns a short reason for the close frame, at most 123 bytes.
    pub fn message(self) -> &'static str {
        match self {
            Error::ReservedBits => "reserved bit set",
            Error::ReservedOpcode(_) => "reserved opcode",
            Error::MaskMissing => "frame from client is not masked",
            Error::MaskUnexpected => "frame from server is masked",
            Error::Length => "malformed frame length",
            Error::ControlFragmented => "fragmented control frame",
            Error::ControlTooLong => "control frame too long",
            Error::ContinuationUnexpected => "continuation without message",
            Error::ContinuationMissing => "new message before the end of the last one",
            Error::FrameTooLong => "frame too long",
            Error::MessageTooLong => "message too long",
            Error::Utf8 => "text is not UTF-8",
            Error::CloseLength => "close frame of one byte",
            Error::CloseCode(_) => "invalid close code",
            Error::CloseReason => "close reason is not UTF-8",
            Error::Inflate => "compressed message is corrupt",
        }
    }
}
