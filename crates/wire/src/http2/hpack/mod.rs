//! Header compression (RFC 7541).

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod table;

pub use decoder::Decoder;
pub use encoder::{Encoder, Indexing};
pub use huffman::{decode as decode_huffman, encode as encode_huffman};

use super::ErrorCode;

/// Bytes of the table until a setting says otherwise (RFC 9113 §6.5.2).
pub const TABLE_BYTES_DEFAULT: usize = 4_096;

/// Why a header block cannot be decoded. After any but [`ListTooLong`](Error::ListTooLong) the two
/// tables differ, and the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An index without an entry (§2.3.3).
    #[error("header index stands for nothing")]
    Index,
    /// An integer that does not end, or beyond 2³²−1 (§5.1).
    #[error("header integer is malformed")]
    Integer,
    /// A string that ends behind the block (§5.2).
    #[error("header string ends behind its block")]
    Length,
    /// Bits that are not a code, or invalid padding (§5.2).
    #[error("header string is no Huffman code")]
    Huffman,
    /// A change of the table's size in a wrong place, or beyond what was announced (§6.3).
    #[error("header table size may not change so")]
    TableSize,
    /// More than the caller's bound. The whole block was decoded: the table is in step.
    #[error("header list is too long")]
    ListTooLong,
}

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
