//! Violations of HTTP by a server.

use dunlin_wire::http1;

/// A violation of HTTP by a server. The connection cannot be used further: the beginning of the next answer is
/// unknown, and a wrong guess would match an answer to the wrong request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
#[error("{}", self.message())]
pub enum ProtocolError {
    /// An answer or its body is malformed or exceeds a limit.
    Malformed(http1::Error),
    /// An answer arrived without a request.
    Unsolicited,
    /// The input is not HTTP: the server speaks another protocol.
    NotHttp,
}

impl ProtocolError {
    /// Returns what happened and what to do about it, one sentence each.
    pub fn message(self) -> &'static str {
        use http1::Error;
        match self {
            ProtocolError::Unsolicited => {
                "The server sent an answer nobody had asked for. Nothing was given to a wrong request; \
                 look for a server or proxy that answers twice."
            }
            ProtocolError::NotHttp => {
                "The server does not answer in HTTP. Check scheme and port: TLS, HTTP/2 or another protocol \
                 may listen there."
            }
            ProtocolError::Malformed(error) => match error {
                Error::HeadTooLong | Error::TooManyHeaders => {
                    "The head of the answer is too long. Raise head_bytes_max or headers_max, or fix the server."
                }
                Error::BodyTooLong => {
                    "The body of the answer is too long. Raise body_bytes_max, or stream it."
                }
                Error::ContentLength => {
                    "Content-Length of the answer is no decimal number that fits. Fix the server."
                }
                Error::ContentLengthRepeated => {
                    "The answer has two Content-Lengths, so its end is not known. Fix the server or the \
                     proxy in front of it."
                }
                Error::LengthAndCoding | Error::TransferEncoding => {
                    "Content-Length and Transfer-Encoding of the answer contradict each other (RFC 9112 §6.1). Fix \
                     the server or the proxy in front of it."
                }
                Error::TransferCodingUnknown => {
                    "The answer has a transfer coding other than chunked. Ask without TE, or fix the server."
                }
                Error::ChunkSize | Error::ChunkFraming | Error::ChunkOverhead => {
                    "A chunk of the answer is malformed. Fix the server."
                }
                Error::Trailer | Error::TrailersTooLong => {
                    "The trailers of the answer are malformed or too long. Fix the server."
                }
                Error::BareLineEnd => {
                    "A line of the answer's head does not end in CR LF. Fix the server."
                }
                Error::HeaderName | Error::HeaderValue => {
                    "A header of the answer is malformed. Fix the server."
                }
                Error::StatusCode => {
                    "The status of the answer is not between 100 and 599. Fix the server."
                }
                _ => "The answer is malformed. Fix the server.",
            },
        }
    }
}
