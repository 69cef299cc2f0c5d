//! Errors of values.

/// Why a value was refused. The start of the next one is unknown: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The first byte is not a type.
    #[error("no value of RESP begins so; is it a Redis server that listens there?")]
    Type,
    /// A number is malformed, or does not fit 64 bits.
    #[error("a number of RESP is malformed or does not fit 64 bits")]
    Number,
    /// A line does not end in CR LF, or a string is not followed by it.
    #[error("a line or string of RESP does not end in CR LF")]
    LineEnd,
    /// A boolean, a double, a big number or a verbatim string is malformed, or a text is not UTF-8.
    #[error("a value of RESP is malformed")]
    Malformed,
    /// A value of unknown length (`$?`), which no server sends.
    #[error("a streamed value of RESP, which is not supported")]
    Streamed,
    /// Deeper than [`Limits::depth_max`](super::Limits).
    #[error("a value of RESP is nested too deeply; raise depth_max")]
    TooDeep,
    /// A line without a length is longer than 64 KiB, or a length does not fit a `usize`.
    #[error("a line of RESP is longer than 64 KiB")]
    TooLong,
}
