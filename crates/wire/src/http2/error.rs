//! Connection errors and their codes.

use std::fmt;

/// An error code of GOAWAY or RST_STREAM (§7), known or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: ErrorCode = ErrorCode($value);)*

            /// Returns the name of the code in RFC 9113, if it has one.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// No error: a graceful end.
    NO_ERROR = 0;
    /// The peer violated the protocol in a way that has no other code.
    PROTOCOL_ERROR = 1;
    /// An internal failure of the sender.
    INTERNAL_ERROR = 2;
    /// A window was exceeded, or grew beyond 2³¹−1.
    FLOW_CONTROL_ERROR = 3;
    /// Settings were not acknowledged in time.
    SETTINGS_TIMEOUT = 4;
    /// A frame for a stream that is half-closed or closed.
    STREAM_CLOSED = 5;
    /// A frame has a wrong length.
    FRAME_SIZE_ERROR = 6;
    /// The stream was not processed at all: safe to send again (§8.7).
    REFUSED_STREAM = 7;
    /// The stream is no longer needed.
    CANCEL = 8;
    /// The header compression state is lost.
    COMPRESSION_ERROR = 9;
    /// The connection of a CONNECT request failed.
    CONNECT_ERROR = 10;
    /// The peer causes excessive load.
    ENHANCE_YOUR_CALM = 11;
    /// The properties of TLS are insufficient.
    INADEQUATE_SECURITY = 12;
    /// The peer requires HTTP/1.1.
    HTTP_1_1_REQUIRED = 13;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {:#x}", self.0),
        }
    }
}

/// A connection error: send GOAWAY with [`code`](Error::code) and close (§5.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason} ({code})")]
pub struct Error {
    /// The code for the GOAWAY.
    pub code: ErrorCode,
    /// A short description of what the peer did.
    pub reason: &'static str,
}

impl Error {
    /// Creates an error for a violation that has no other code.
    pub const fn protocol(reason: &'static str) -> Error {
        Error { code: ErrorCode::PROTOCOL_ERROR, reason }
    }

    /// Creates an error for a frame with a wrong length.
    pub(crate) const fn frame_size(reason: &'static str) -> Error {
        Error { code: ErrorCode::FRAME_SIZE_ERROR, reason }
    }

    /// Creates an error for an exceeded window.
    pub const fn flow_control(reason: &'static str) -> Error {
        Error { code: ErrorCode::FLOW_CONTROL_ERROR, reason }
    }

    /// Creates an error for a flood of frames that are cheap to send.
    pub const fn flood(reason: &'static str) -> Error {
        Error { code: ErrorCode::ENHANCE_YOUR_CALM, reason }
    }
}
