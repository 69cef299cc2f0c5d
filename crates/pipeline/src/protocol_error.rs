//! What a server did against HTTP.

use dunlin_wire::http1;

/// What a server did against HTTP. The connection is then of no use: where the next answer begins is not known,
/// and to guess would give one request the answer of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
#[error("{}", self.message())]
pub enum ProtocolError {
    /// An answer, or its body, is malformed or passes a limit.
    Malformed(http1::Error),
    /// An answer came that no request asked for.
    Unsolicited,
    /// What came is not HTTP at all: another protocol listens there.
    NotHttp,
}

impl ProtocolError {
    /// What happened and what to do about it, a sentence each.
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
                    "The head of the answer is too long. Raise head_bytes_max or headers_max, or mend the server."
                }
                Error::BodyTooLong => {
                    "The body of the answer is too long. Raise body_bytes_max, or stream it."
                }
                Error::ContentLength => {
                    "Content-Length of the answer is no decimal number that fits. The server must be mended."
                }
                Error::ContentLengthRepeated => {
                    "The answer has two Content-Lengths, so its end is not known. The server or a proxy before it \
                     must be mended."
                }
                Error::LengthAndCoding | Error::TransferEncoding => {
                    "Content-Length and Transfer-Encoding of the answer contradict each other (RFC 9112 §6.1). The \
                     server or a proxy before it must be mended."
                }
                Error::TransferCodingUnknown => {
                    "The answer has a transfer coding other than chunked. Ask without TE, or mend the server."
                }
                Error::ChunkSize | Error::ChunkFraming | Error::ChunkOverhead => {
                    "A chunk of the answer is malformed. The server must be mended."
                }
                Error::Trailer | Error::TrailersTooLong => {
                    "The trailers of the answer are malformed or too long. The server must be mended."
                }
                Error::BareLineEnd => {
                    "A line of the answer's head does not end in CR LF. The server must be mended."
                }
                Error::HeaderName | Error::HeaderValue => {
                    "A header of the answer is malformed. The server must be mended."
                }
                Error::StatusCode => {
                    "The status of the answer is not between 100 and 599. The server must be mended."
                }
                _ => "The answer is malformed. The server must be mended.",
            },
        }
    }
}
