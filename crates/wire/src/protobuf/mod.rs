//! Protocol Buffers, binary encoding (protobuf.dev, "Encoding").
//!
//! There are no schemas and no message types: a reader iterates over the [`Fields`] of a message, a [`Writer`] writes
//! them. Neither allocates, and neither recurses: a nested message is a slice of bytes until the caller reads it.
//! Groups (wire types 3 and 4), which proto3 does not have, are an error.

mod reader;
mod writer;

pub use reader::{Delimited, Field, Fields, ProtobufError, Value};
pub use writer::Writer;

/// Maximum length of a varint in bytes: 64 bits, seven per byte.
pub const VARINT_BYTES_MAX: usize = 10;
