//! What was wrong with a value.

use std::fmt;

/// Why a value was refused. Where the next one begins is then not known: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// The first byte is that of no type.
    Type,
    /// A number is malformed, or does not fit 64 bits.
    Number,
    /// A line does not end in CR LF, or a string is not followed by it.
    LineEnd,
    /// A boolean, a double, a big number or a verbatim string is malformed, or a text is not UTF-8.
    Malformed,
    /// A value of unknown length (`$?`), which no server sends.
    Streamed,
    /// Deeper than [`Limits::depth_max`](super::Limits).
    TooDeep,
    /// More elements than [`Limits::elements_max`](super::Limits).
    TooManyElements,
    /// Longer than [`Limits::value_bytes_max`](super::Limits).
    TooLong,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Type => "no value of RESP begins so; is it a Redis server that listens there?",
            Error::Number => "a number of RESP is malformed or does not fit 64 bits",
            Error::LineEnd => "a line or string of RESP does not end in CR LF",
            Error::Malformed => "a value of RESP is malformed",
            Error::Streamed => "a streamed value of RESP, which is not supported",
            Error::TooDeep => "a value of RESP is nested too deeply; raise depth_max",
            Error::TooManyElements => "a value of RESP has too many elements; raise elements_max",
            Error::TooLong => "a value of RESP is too long; raise value_bytes_max",
        })
    }
}

impl std::error::Error for Error {}
