//! The client protocol of NATS (docs.nats.io, "Client Protocol"): parses a server's operations and encodes a client's.
//!
//! ```
//! use dunlin_wire::nats::{Limits, Operation, encode_publish, parse};
//!
//! let mut out = Vec::new();
//! encode_publish(&mut out, b"news", None, &[("Kind", "greeting")], &[b"hello"]);
//! assert_eq!(out, b"HPUB news 28 33\r\nNATS/1.0\r\nKind: greeting\r\n\r\nhello\r\n");
//!
//! let bytes = b"MSG news 7 5\r\nhello\r\nPI";
//! let (operation, length) = parse(bytes, &Limits::default())?.expect("the first is complete");
//! let Operation::Message(message) = operation else { unreachable!() };
//! assert_eq!((message.sid, message.payload, length), (7, &b"hello"[..], 21));
//! assert_eq!(parse(&bytes[length..], &Limits::default()), Ok(None));
//! # Ok::<(), dunlin_wire::nats::Error>(())
//! ```

mod encode;
mod headers;
mod parser;

pub use encode::{encode_connect, encode_publish, encode_subscribe, encode_unsubscribe};
pub use headers::Headers;
pub use parser::{Error, NatsMessage, Operation, parse};

/// A ping, from either side.
pub const PING: &[u8] = b"PING\r\n";

/// The answer to [`PING`].
pub const PONG: &[u8] = b"PONG\r\n";

/// Limits of a server's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of a line, without its end.
    pub line_bytes_max: usize,
    /// Maximum bytes of headers and payload of a message together.
    pub message_bytes_max: usize,
}

impl Default for Limits {
    /// 64 KiB and 64 MiB, the largest values that a server can be configured to.
    fn default() -> Limits {
        Limits { line_bytes_max: 64 << 10, message_bytes_max: 64 << 20 }
    }
}
