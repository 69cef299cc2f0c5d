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

use crate::encoding::{Encoding, Format, Wrapping};

/// A transport opened by an HTTP request that contains the connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamTransport {
    /// Server-sent events; commands by emulation.
    Sse,
    /// Newline-delimited messages; commands by emulation.
    HttpStream,
    /// Server-sent events, unidirectional.
    UniSse,
    /// Newline-delimited messages, unidirectional.
    UniHttpStream,
    /// WebSocket, unidirectional.
    UniWebSocket,
}

impl StreamTransport {
    /// Returns the value of the `Allow` header, and of `Access-Control-Allow-Methods` in a preflight response.
    pub const fn methods(self) -> &'static str {
        match self {
            StreamTransport::Sse | StreamTransport::UniSse => "GET, POST, OPTIONS",
            StreamTransport::HttpStream | StreamTransport::UniHttpStream => "POST, OPTIONS",
            StreamTransport::UniWebSocket => "GET",
        }
    }

    /// Returns the encoding of the stream. `format` is the result of [`StreamTransport::format`]; `chunked` is false
    /// for HTTP/1.0 clients.
    pub const fn encoding(self, format: Format, chunked: bool) -> Encoding {
        match self {
            StreamTransport::Sse => Encoding::sse(chunked),
            StreamTransport::HttpStream => Encoding::http_stream(format, chunked),
            StreamTransport::UniSse => Encoding::uni_sse(chunked),
            StreamTransport::UniHttpStream => Encoding::uni_http_stream(chunked),
            StreamTransport::UniWebSocket => Encoding::UniWs,
        }
    }

    /// Returns the format that a request asks for, by query and type of the body.
    ///
    /// # Errors
    /// [`StreamError::Protobuf`] when the transport only supports JSON.
    pub fn format(self, content_type: &str, query: &str) -> Result<Format, StreamError> {
        match (self, body_format(content_type)) {
            (StreamTransport::HttpStream, format) => Ok(format),
            (_, Format::Json) if query_format(query) == Format::Json => Ok(Format::Json),
            _ => Err(StreamError::Protobuf),
        }
    }

    /// Returns the commands in the request: for [`Commands::of`](crate::centrifuge::Commands::of) on bidirectional
    /// transports, for [`ConnectRequest::parse`](crate::centrifuge::ConnectRequest::parse) on unidirectional ones.
    /// `None` when a unidirectional WebSocket sends its connect request in its first message.
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
    /// The transport does not support the method.
    #[error("use one of {}", .0.methods())]
    Method(StreamTransport),
    /// A bidirectional stream without a connect command.
    #[error(
        "the connect command is missing; send it as `cf_connect` in the query or in the body of a POST"
    )]
    NoConnect,
    /// The client asks for Protobuf.
    #[error(
        "this transport carries JSON only; Protobuf is for /connection/websocket and /connection/http_stream"
    )]
    Protobuf,
}

impl StreamError {
    /// Returns the HTTP status of the response.
    pub const fn status(self) -> u16 {
        match self {
            StreamError::Method(_) => 405,
            StreamError::NoConnect => 400,
            StreamError::Protobuf => 415,
        }
    }
}

/// The subprotocols of a bidirectional WebSocket.
pub const SUBPROTOCOLS: &[&str] = &["centrifuge-json", "centrifuge-protobuf"];

/// Returns the format of a bidirectional WebSocket, by the negotiated subprotocol or by the query.
pub fn websocket_format(subprotocol: Option<&str>, query: &str) -> Format {
    match subprotocol {
        Some("centrifuge-protobuf") => Format::Protobuf,
        _ => query_format(query),
    }
}

/// Returns the format that a query asks for: `cf_protocol=protobuf`, or the older `format=protobuf`.
pub fn query_format(query: &str) -> Format {
    let asks = query::pairs(query)
        .any(|(name, value)| (name == "format" || name == "cf_protocol") && value == "protobuf");
    if asks { Format::Protobuf } else { Format::Json }
}

/// Returns the format of a request's body, by its content type.
pub fn body_format(content_type: &str) -> Format {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    match essence.eq_ignore_ascii_case("application/octet-stream") {
        true => Format::Protobuf,
        false => Format::Json,
    }
}

/// Returns the headers of a stream's response, except those for framing and CORS.
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
        Wrapping::Delimited { .. } => &[
            ("Content-Type", "application/octet-stream"),
            ("Cache-Control", "private, no-cache, no-store, must-revalidate, max-age=0"),
            ("X-Accel-Buffering", "no"),
        ],
        Wrapping::Item => &[
            ("Content-Type", "application/json"),
            ("Cache-Control", "private, no-cache, no-store, must-revalidate, max-age=0"),
        ],
        Wrapping::Frame { .. } | Wrapping::Translated => &[],
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
        let octets = "application/octet-stream";
        assert_eq!(StreamTransport::HttpStream.format(octets, ""), Ok(Format::Protobuf));
        assert_eq!(StreamTransport::HttpStream.format("application/json", ""), Ok(Format::Json));
        for uni in [StreamTransport::Sse, StreamTransport::UniSse, StreamTransport::UniHttpStream] {
            assert_eq!(uni.format("", ""), Ok(Format::Json));
            assert_eq!(uni.format(octets, ""), Err(StreamError::Protobuf));
            assert_eq!(uni.format("", "cf_protocol=protobuf"), Err(StreamError::Protobuf));
        }
        assert_eq!(websocket_format(Some("centrifuge-protobuf"), ""), Format::Protobuf);
        assert_eq!(websocket_format(None, "a=1&cf_protocol=protobuf"), Format::Protobuf);
        assert_eq!(websocket_format(Some("centrifuge-json"), "format=json"), Format::Json);
    }
}
