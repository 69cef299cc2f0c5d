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

/// Size of the table in bytes unless a setting changes it (RFC 9113 §6.5.2).
pub const TABLE_BYTES_DEFAULT: usize = 4_096;

/// Why a header block cannot be decoded. After any error but [`ListTooLong`](Error::ListTooLong)
/// the two tables differ, and the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An index without an entry (§2.3.3).
    #[error("header index stands for nothing")]
    Index,
    /// An integer that does not end or exceeds 2³²−1 (§5.1).
    #[error("header integer is malformed")]
    Integer,
    /// A string that extends beyond its block (§5.2).
    #[error("header string ends behind its block")]
    Length,
    /// An invalid Huffman code or padding (§5.2).
    #[error("header string is no Huffman code")]
    Huffman,
    /// A table size update in a wrong place, or beyond the announced size (§6.3).
    #[error("header table size may not change so")]
    TableSize,
    /// A list beyond the caller's limit. The whole block was decoded, so the table stays
    /// synchronised.
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
