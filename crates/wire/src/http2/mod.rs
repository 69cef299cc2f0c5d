//! HTTP/2 (RFC 9113): frames, header compression (RFC 7541), and a client's connection.
//!
//! In contrast to a general-purpose library, the codec exposes the connection's send window,
//! changes of the peer's settings, and the last stream of a GOAWAY. [`frame`] and [`hpack`] serve
//! both ends of a connection; [`client`] is the state machine of one end.
//!
//! Every violation by the peer is an [`Error`], and every [`Error`] ends the connection.

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

/// Sent by a client before its first frame (§3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Initial window in bytes: of a stream unless a setting changes it, of a connection always
/// (§6.9.2).
pub const WINDOW_BYTES_DEFAULT: u32 = 65_535;

/// Maximum window in bytes (§6.9.1).
pub const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;

/// Maximum payload of a frame unless a setting changes it (§4.2).
pub const FRAME_BYTES_DEFAULT: u32 = 16_384;

/// The largest MAX_FRAME_SIZE (§4.2).
pub const FRAME_BYTES_MAX: u32 = (1 << 24) - 1;

/// The highest stream identifier (§5.1.1).
pub const STREAM_MAX: u32 = (1 << 31) - 1;
