//! Protocol Buffers, binary encoding (protobuf.dev, "Encoding"): fields in, fields out.
//!
//! No schema and no messages of its own: a reader walks the [`Fields`] of a message, a [`Writer`] writes them. Neither
//! allocates, and neither recurses: a nested message is a slice of bytes until somebody walks it. Groups (wire types 3
//! and 4), which no message of proto3 has, are an error.

mod reader;
mod writer;

pub use reader::{Delimited, Field, Fields, ProtobufError, Value};
pub use writer::Writer;

/// Bytes of the longest varint: 64 bits, seven each.
pub const VARINT_BYTES_MAX: usize = 10;
