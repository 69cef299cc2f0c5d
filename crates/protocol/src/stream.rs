//! Requests that open a stream or a unidirectional WebSocket, and the headers of their responses.
//!
//! | path | method | says who connects |
//! |---|---|---|
//! | `/connection/sse` | GET, POST | commands in `cf_connect`, or in the body |
//! | `/connection/http_stream` | POST | commands in the body |
//! | `/connection/uni_sse` | GET, POST | a connect request in `cf_connect` (may be missing), or in the body |
//! | `/connection/uni_http_stream` | POST | a connect request in the body |
//! | `/connection/uni_websocket` | GET | a connect request in `cf_connect`, or in the first message |

use std::borrow::Cow;

use dunlin_wire::http1::query;

use crate::encoding::{Encoding, Wrapping};

/// A transport opened by an HTTP request that contains the connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamTransport {
    /// Server-sent events; commands by emulation.
    Sse,
    /// Lines; commands by emulation.
    HttpStream,
    /// Server-sent events, unidirectional.
    UniSse,
    /// Lines, unidirectional.
    UniHttpStream,
    /// WebSocket, unidirectional.
    UniWebSocket,
}

impl StreamTransport {
    /// Value of the `Allow` header, and of `Access-Control-Allow-Methods` in a preflight response.
    pub const fn methods(self) -> &'static str {
        match self {
            StreamTransport::Sse | StreamTransport::UniSse => "GET, POST, OPTIONS",
            StreamTransport::HttpStream | StreamTransport::UniHttpStream => "POST, OPTIONS",
            StreamTransport::UniWebSocket => "GET",
        }
    }

    /// The encoding of the stream; `chunked` unless the client speaks HTTP/1.0.
    pub const fn encoding(self, chunked: bool) -> Encoding {
        match self {
            StreamTransport::Sse => Encoding::sse(false, chunked),
            StreamTransport::HttpStream => Encoding::http_stream(false, chunked),
            StreamTransport::UniSse => Encoding::sse(true, chunked),
            StreamTransport::UniHttpStream => Encoding::http_stream(true, chunked),
            StreamTransport::UniWebSocket => Encoding::UniWs,
        }
    }

    /// The commands in the request: for [`Commands::of`](crate::centrifuge::Commands::of) on
    /// bidirectional transports, for
    /// [`ConnectRequest::parse`](crate::centrifuge::ConnectRequest::parse) on unidirectional ones.
    /// `None`: a unidirectional WebSocket sends its connect request in its first message.
    ///
    /// # Errors
    /// [`StreamError`] with the status of the response.
    pub fn initial_commands<'a>(
        self,
        method: &str,
        query: &'a str,
        body: &'a [u8],
    ) -> Result<Option<Cow<'a, [u8]>>, StreamError> {
        let nothing = Cow::Borrowed(&b"{}"[..]);
        let commands = match (self, method) {
            (
                StreamTransport::Sse | StreamTransport::UniSse | StreamTransport::UniWebSocket,
                "GET",
            ) => match (query::pairs(query).find(|(name, _)| name == "cf_connect"), self) {
                (Some((_, commands)), _) if !commands.trim_ascii().is_empty() => match commands {
                    Cow::Borrowed(commands) => Cow::Borrowed(commands.as_bytes()),
                    Cow::Owned(commands) => Cow::Owned(commands.into_bytes()),
                },
                (_, StreamTransport::UniSse) => nothing,
                (_, StreamTransport::UniWebSocket) => return Ok(None),
                _ => return Err(StreamError::NoConnect),
            },
            (StreamTransport::UniWebSocket, _) => return Err(StreamError::Method(self)),
            (_, "POST") if !body.trim_ascii().is_empty() => Cow::Borrowed(body),
            (StreamTransport::UniSse | StreamTransport::UniHttpStream, "POST") => nothing,
            (_, "POST") => return Err(StreamError::NoConnect),
            _ => return Err(StreamError::Method(self)),
        };
        Ok(Some(commands))
    }
}

/// A request that cannot open a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The transport has other methods.
    #[error("use one of {}", .0.methods())]
    Method(StreamTransport),
    /// A bidirectional stream without a connect command.
    #[error(
        "the connect command is missing; send it as `cf_connect` in the query or in the body of a POST"
    )]
    NoConnect,
    /// The client wants the binary variant of the protocol.
    #[error("this server speaks the JSON variant of the protocol only")]
    Protobuf,
}

impl StreamError {
    /// The HTTP status of the response.
    pub const fn status(self) -> u16 {
        match self {
            StreamError::Method(_) => 405,
            StreamError::NoConnect => 400,
            StreamError::Protobuf => 415,
        }
    }
}

/// Whether a request asks for the binary variant of the protocol, which this server does not have:
/// by its content type (streams, emulation), by query parameter or by subprotocol (WebSocket).
pub fn wants_protobuf(content_type: &str, query: &str, subprotocols: &str) -> bool {
    content_type.trim().eq_ignore_ascii_case("application/octet-stream")
        || subprotocols.split(',').any(|name| name.trim() == "centrifuge-protobuf")
        || query::pairs(query)
            .any(|(name, value)| (name == "format" || name == "cf_protocol") && value == "protobuf")
}

/// Headers of a stream's response, beside the framing of its body and the origin's permission.
///
/// They keep caches and proxies from buffering.
pub const fn headers(encoding: Encoding) -> &'static [(&'static str, &'static str)] {
    match encoding.wrapping() {
        Wrapping::Event { .. } => &[
            ("Content-Type", "text/event-stream; charset=utf-8"),
            ("Cache-Control", "private, no-cache, no-store, must-revalidate, max-age=0"),
            ("X-Accel-Buffering", "no"),
        ],
        Wrapping::Line { .. } => &[
            ("Content-Type", "application/x-ndjson; charset=utf-8"),
            ("Cache-Control", "private, no-cache, no-store, must-revalidate, max-age=0"),
            ("X-Accel-Buffering", "no"),
        ],
        Wrapping::Item => &[
            ("Content-Type", "application/json"),
            ("Cache-Control", "private, no-cache, no-store, must-revalidate, max-age=0"),
        ],
        Wrapping::Frame { .. } => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initial_commands(
        stream: StreamTransport,
        method: &str,
        query: &str,
        body: &str,
    ) -> Result<String, u16> {
        match stream.initial_commands(method, query, body.as_bytes()) {
            Ok(Some(commands)) => Ok(String::from_utf8(commands.into_owned()).unwrap()),
            Ok(None) => Ok("(first message)".to_owned()),
            Err(refused) => Err(refused.status()),
        }
    }

    #[test]
    fn centrifuge_js_opens_its_streams() {
        let query = "cf_connect=%7B%22connect%22%3A%7B%7D%2C%22id%22%3A1%7D";
        assert_eq!(
            initial_commands(StreamTransport::Sse, "GET", query, ""),
            Ok(r#"{"connect":{},"id":1}"#.to_owned())
        );
        let body = r#"{"connect":{},"id":1}"#;
        assert_eq!(
            initial_commands(StreamTransport::HttpStream, "POST", "", body),
            Ok(body.to_owned())
        );
    }

    #[test]
    fn a_bidirectional_stream_has_to_say_who_connects() {
        assert_eq!(initial_commands(StreamTransport::Sse, "GET", "", ""), Err(400));
        assert_eq!(initial_commands(StreamTransport::Sse, "GET", "cf_connect=", ""), Err(400));
        assert_eq!(initial_commands(StreamTransport::HttpStream, "POST", "", " "), Err(400));
    }

    #[test]
    fn a_unidirectional_one_may_be_silent() {
        assert_eq!(initial_commands(StreamTransport::UniSse, "GET", "", ""), Ok("{}".to_owned()));
        assert_eq!(initial_commands(StreamTransport::UniSse, "POST", "", ""), Ok("{}".to_owned()));
        assert_eq!(
            initial_commands(StreamTransport::UniHttpStream, "POST", "", ""),
            Ok("{}".to_owned())
        );
        assert_eq!(
            initial_commands(StreamTransport::UniWebSocket, "GET", "", ""),
            Ok("(first message)".to_owned())
        );
        assert_eq!(
            initial_commands(StreamTransport::UniWebSocket, "GET", "cf_connect={}", ""),
            Ok("{}".to_owned())
        );
    }

    #[test]
    fn other_methods_get_the_allowed_ones() {
        assert_eq!(
            initial_commands(StreamTransport::HttpStream, "GET", "cf_connect={}", ""),
            Err(405)
        );
        assert_eq!(initial_commands(StreamTransport::UniHttpStream, "GET", "", ""), Err(405));
        assert_eq!(initial_commands(StreamTransport::Sse, "PUT", "", "{}"), Err(405));
        assert_eq!(initial_commands(StreamTransport::UniWebSocket, "POST", "", "{}"), Err(405));
        assert_eq!(
            StreamError::Method(StreamTransport::Sse).to_string(),
            "use one of GET, POST, OPTIONS"
        );
    }

    #[test]
    fn the_binary_variant_is_recognised_everywhere_it_can_be_asked_for() {
        assert!(wants_protobuf("application/octet-stream", "", ""));
        assert!(wants_protobuf("", "cf_protocol=protobuf", ""));
        assert!(wants_protobuf("", "a=1&format=protobuf", ""));
        assert!(wants_protobuf("", "", "centrifuge-json, centrifuge-protobuf"));
        assert!(!wants_protobuf("application/json", "format=json", ""));
    }
}
