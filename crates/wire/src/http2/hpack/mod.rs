//! Header compression (RFC 7541).

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod table;

use std::fmt;

pub use decoder::Decoder;
pub use encoder::{Encoder, Indexing};
pub use huffman::{decode as decode_huffman, encode as encode_huffman};

use super::ErrorCode;

/// Bytes of the table until a setting says otherwise (RFC 9113 §6.5.2).
pub const TABLE_BYTES_DEFAULT: usize = 4_096;

/// Why a header block cannot be decoded. After any but [`ListTooLong`](Error::ListTooLong) the two
/// tables differ, and the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// An index without an entry (§2.3.3).
    Index,
    /// An integer that does not end, or beyond 2³²−1 (§5.1).
    Integer,
    /// A string that ends behind the block (§5.2).
    Length,
    /// Bits that are not a code, or invalid padding (§5.2).
    Huffman,
    /// A change of the table's size in a wrong place, or beyond what was announced (§6.3).
    TableSize,
    /// More than the caller's bound. The whole block was decoded: the table is in step.
    ListTooLong,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Index => "header index stands for nothing",
            Error::Integer => "header integer is malformed",
            Error::Length => "header string ends behind its block",
            Error::Huffman => "header string is no Huffman code",
            Error::TableSize => "header table size may not change so",
            Error::ListTooLong => "header list is too long",
        })
    }
}

impl std::error::Error for Error {}

impl From<Error> for super::Error {
    fn from(error: Error) -> super::Error {
        let reason = match error {
            Error::Index => "header index stands for nothing",
            Error::Integer => "header integer is malformed",
            Error::Length => "header string ends behind its block",
            Error::Huffman => "header string is no Huffman code",
            Error::TableSize => "header table size may not change so",
            Error::ListTooLong => return super::Error::flood("header list is too long"),
        };
        super::Error { code: ErrorCode::COMPRESSION_ERROR, reason }
    }
}
