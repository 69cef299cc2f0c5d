//! Connection errors and their codes.

use std::fmt;

/// An error code of GOAWAY or RST_STREAM (§7). Unknown ones are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: ErrorCode = ErrorCode($value);)*

            /// The name that RFC 9113 gives the code, if it gives it one.
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
    /// Nothing is wrong: a graceful end.
    NO_ERROR = 0;
    /// The peer broke a rule that has no code of its own.
    PROTOCOL_ERROR = 1;
    /// Something failed on this side.
    INTERNAL_ERROR = 2;
    /// A window was exceeded, or grew beyond 2³¹−1.
    FLOW_CONTROL_ERROR = 3;
    /// Settings were not acknowledged in time.
    SETTINGS_TIMEOUT = 4;
    /// A frame for a stream that is half-closed or closed.
    STREAM_CLOSED = 5;
    /// A frame whose length is wrong.
    FRAME_SIZE_ERROR = 6;
    /// The stream was not processed at all: safe to send again (§8.7).
    REFUSED_STREAM = 7;
    /// The stream is no longer needed.
    CANCEL = 8;
    /// The compression state cannot be kept in step.
    COMPRESSION_ERROR = 9;
    /// A tunnel failed.
    CONNECT_ERROR = 10;
    /// The peer causes too much load.
    ENHANCE_YOUR_CALM = 11;
    /// TLS is not good enough.
    INADEQUATE_SECURITY = 12;
    /// HTTP/1.1 is asked for.
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
    /// What the peer did, in a few words.
    pub reason: &'static str,
}

impl Error {
    /// The peer broke a rule that has no code of its own.
    pub const fn protocol(reason: &'static str) -> Error {
        Error { code: ErrorCode::PROTOCOL_ERROR, reason }
    }

    /// A frame of a wrong length.
    pub(crate) const fn frame_size(reason: &'static str) -> Error {
        Error { code: ErrorCode::FRAME_SIZE_ERROR, reason }
    }

    /// A window exceeded.
    pub const fn flow_control(reason: &'static str) -> Error {
        Error { code: ErrorCode::FLOW_CONTROL_ERROR, reason }
    }

    /// A flood of frames that are cheap to send.
    pub const fn flood(reason: &'static str) -> Error {
        Error { code: ErrorCode::ENHANCE_YOUR_CALM, reason }
    }
}
