//! The Redis serialization protocol, versions 2 and 3, as bytes (redis.io, "RESP protocol spec").
//!
//! A [`Scanner`] finds where a value ends, however it is cut; [`Value::parse`] reads a complete one without copying
//! its strings; [`encode_command`] writes what clients send. Depth, elements and bytes are bounded before anything is
//! allocated for them.
//!
//! ```
//! use dunlin_wire::resp::{Limits, Scan, Scanner, Value, encode_command};
//!
//! let mut out = Vec::new();
//! encode_command(&mut out, &[b"GET", b"key"]);
//! assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
//!
//! let bytes = b"$5\r\nvalue\r\n+OK\r\n";
//! let mut scanner = Scanner::new(&Limits::default());
//! let Scan::Value(end) = scanner.scan(bytes)? else { panic!("all of it is here") };
//! assert_eq!(Value::parse(&bytes[..end]), Some(Value::Bulk(b"value")));
//! # Ok::<(), dunlin_wire::resp::Error>(())
//! ```

mod encode;
mod error;
mod scanner;
mod server_error;
mod value;

pub use encode::{encode_command, encode_value};
pub use error::Error;
pub use scanner::{Scan, Scanner};
pub use server_error::ServerError;
pub use value::Value;

/// The deepest nesting of any [`Limits`].
pub const DEPTH_MAX: usize = 32;

/// Bounds on one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Aggregates inside each other, at most [`DEPTH_MAX`].
    pub depth_max: usize,
    /// Elements of all aggregates of a value together.
    pub elements_max: u64,
    /// Bytes of a value.
    pub value_bytes_max: usize,
}

impl Default for Limits {
    /// A depth of 16, a million elements, 64 MiB.
    fn default() -> Limits {
        Limits { depth_max: 16, elements_max: 1 << 20, value_bytes_max: 64 << 20 }
    }
}
