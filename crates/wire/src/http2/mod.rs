//! HTTP/2 (RFC 9113): frames, header compression (RFC 7541), and a client's connection.
//!
//! The codec shows what a library for general use hides and a sender lives by: the send window of the
//! connection, the peer's settings as they change, and the last stream of a GOAWAY. [`frame`] and
//! [`hpack`] serve both ends of a connection; [`client`] is the state machine of one end.
//!
//! Whatever the peer does wrong is an [`Error`], and every [`Error`] ends the connection: a client that
//! meets a server out of step has nothing to gain from staying.

pub mod client;
mod error;
pub mod flow;
pub mod frame;
mod header_block;
pub mod hpack;
mod settings;

pub use error::{Error, ErrorCode};
pub use header_block::{CONTINUATIONS_MAX, HeaderAssembly, HeaderBlock};
pub use settings::{Setting, Settings};

/// What a client sends before its first frame (§3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes a window begins with, of a stream until a setting says otherwise, of a connection always (§6.9.2).
pub const WINDOW_BYTES_DEFAULT: u32 = 65_535;

/// The most bytes of a window (§6.9.1).
pub const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;

/// The most payload of a frame until a setting says otherwise (§4.2).
pub const FRAME_BYTES_DEFAULT: u32 = 16_384;

/// The most payload of a frame that a setting can allow (§4.2).
pub const FRAME_BYTES_MAX: u32 = (1 << 24) - 1;

/// The highest stream identifier (§5.1.1).
pub const STREAM_MAX: u32 = (1 << 31) - 1;
