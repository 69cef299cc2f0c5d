//! Errors of HTTP messages and their status codes.

/// A malformed or oversized message.
///
/// The bytes that follow cannot be trusted to begin a message: a server responds with
/// [`status`](Error::status) and closes the connection (RFC 9112 §9.6), a client closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
#[error("{}", self.message())]
pub enum Error {
    /// A line ends in LF without CR, or contains a bare CR (RFC 9112 §2.2).
    BareLineEnd,
    /// The start line is malformed.
    StartLine,
    /// A version other than `HTTP/1.0` and `HTTP/1.1`.
    Version,
    /// The request target has none of the four forms, or one that does not fit the method.
    Target,
    /// The request target is longer than [`Limits::target_bytes_max`](super::Limits).
    TargetTooLong,
    /// A header name contains a byte not allowed in names: a space before the colon, a folded line.
    HeaderName,
    /// A header value contains a control character.
    HeaderValue,
    /// A header of a response continues on a second line; see [`unfolded`](super::unfolded).
    Folded,
    /// The head is longer than [`Limits::head_bytes_max`](super::Limits).
    HeadTooLong,
    /// More headers than [`Limits::headers_max`](super::Limits).
    TooManyHeaders,
    /// An HTTP/1.1 request has no `Host`, or any request has two, an empty or a malformed one.
    Host,
    /// `Content-Length` is not a decimal number that fits 64 bits.
    ContentLength,
    /// More than one `Content-Length`; in a response, different ones.
    ContentLengthRepeated,
    /// `Content-Length` and `Transfer-Encoding` in the same message.
    LengthAndCoding,
    /// `Transfer-Encoding` does not end in exactly one `chunked`, or occurs in an HTTP/1.0 message.
    TransferEncoding,
    /// A transfer coding that is not implemented comes before the final `chunked`.
    TransferCodingUnknown,
    /// `Expect` asks for something other than `100-continue`.
    Expectation,
    /// The method is `CONNECT`, which only proxies implement.
    MethodNotImplemented,
    /// The body is, or is announced to be, longer than [`Limits::body_bytes_max`](super::Limits).
    BodyTooLong,
    /// A chunk size is not a hexadecimal number that fits 64 bits.
    ChunkSize,
    /// A chunk is not followed by CRLF, or its extension breaks the grammar of RFC 9112 §7.1.1.
    ChunkFraming,
    /// Chunk extensions exceed [`Limits::chunk_overhead_bytes_max`](super::Limits).
    ChunkOverhead,
    /// A trailer line is malformed.
    Trailer,
    /// Trailers exceed [`Limits::chunk_overhead_bytes_max`](super::Limits).
    TrailersTooLong,
    /// The status code of a response is not three digits from 100 to 599.
    StatusCode,
    /// The peer took too long. Decoders have no clock and never return it; their caller does.
    Timeout,
}

impl Error {
    /// Returns the status code of the response.
    pub fn status(self) -> u16 {
        match self {
            Error::Timeout => 408,
            Error::BodyTooLong => 413,
            Error::TargetTooLong => 414,
            Error::Expectation => 417,
            Error::HeadTooLong | Error::TooManyHeaders | Error::TrailersTooLong => 431,
            Error::TransferCodingUnknown | Error::MethodNotImplemented => 501,
            Error::Version => 505,
            _ => 400,
        }
    }

    /// Returns one sentence for the response body that says what to correct.
    pub fn message(self) -> &'static str {
        match self {
            Error::BareLineEnd => "Lines of a head end in CR LF; this one has a bare CR or LF.",
            Error::StartLine => "The first line is not a valid HTTP/1.1 start line.",
            Error::Version => "Only HTTP/1.0 and HTTP/1.1 are spoken here.",
            Error::Target => "The request target is not valid for this method.",
            Error::TargetTooLong => "The request target is too long.",
            Error::HeaderName => "A header name is malformed, or its line is folded.",
            Error::HeaderValue => "A header value holds a control character.",
            Error::Folded => "A header continues on a second line.",
            Error::HeadTooLong => "The request head is too long.",
            Error::TooManyHeaders => "The request has too many headers.",
            Error::Host => "The request needs exactly one valid Host header.",
            Error::ContentLength => "Content-Length is not a valid decimal number.",
            Error::ContentLengthRepeated => "Content-Length is given more than once.",
            Error::LengthAndCoding => "Content-Length and Transfer-Encoding exclude each other.",
            Error::TransferEncoding => "Transfer-Encoding must end in exactly one chunked.",
            Error::TransferCodingUnknown => "The only transfer coding known here is chunked.",
            Error::Expectation => "The only expectation known here is 100-continue.",
            Error::MethodNotImplemented => "This server is no proxy.",
            Error::BodyTooLong => "The body is too long.",
            Error::ChunkSize => "The size of a chunk is not a valid hexadecimal number.",
            Error::ChunkFraming => "A chunk is not framed by CR LF, or its extension is malformed.",
            Error::ChunkOverhead => "Chunk extensions are too long.",
            Error::Trailer => "A trailer is malformed.",
            Error::TrailersTooLong => "The trailers are too long.",
            Error::StatusCode => "The status code is not valid.",
            Error::Timeout => "The request did not arrive in time.",
        }
    }

    pub(super) fn from_httparse(error: httparse::Error) -> Error {
        match error {
            httparse::Error::HeaderName => Error::HeaderName,
            httparse::Error::HeaderValue => Error::HeaderValue,
            httparse::Error::NewLine => Error::BareLineEnd,
            httparse::Error::Status => Error::StatusCode,
            httparse::Error::Token => Error::StartLine,
            httparse::Error::TooManyHeaders => Error::TooManyHeaders,
            httparse::Error::Version => Error::Version,
        }
    }
}
