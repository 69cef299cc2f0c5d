//! The encodings of pushes to a session.

/// A connection's encoding. Its number is the hub's [`EncodingId`](dunlin_hub::EncodingId); a
/// publication is encoded once per worker and number.
///
/// Streams over HTTP are chunked (RFC 9112 §7.1) for HTTP/1.1. For HTTP/1.0, which has no chunks
/// and is the default of some reverse proxies, they are not chunked and end when the connection
/// closes ("bare").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Encoding {
    /// Centrifugal protocol in WebSocket text frames.
    WsJson = 0,
    /// The same, each message compressed (RFC 7692) without context takeover.
    WsJsonDeflate = 1,
    /// Pushes of the Centrifugal protocol without the enclosing reply, in WebSocket text frames.
    UniWs = 2,
    /// The same, each message compressed without context takeover.
    UniWsDeflate = 3,
    /// Centrifugal protocol in server-sent events, chunked.
    Sse = 4,
    /// The same, not chunked.
    SseBare = 5,
    /// Centrifugal protocol in lines, chunked.
    HttpStream = 6,
    /// The same, not chunked.
    HttpStreamBare = 7,
    /// Pushes without the enclosing reply in server-sent events, chunked.
    UniSse = 8,
    /// The same, not chunked.
    UniSseBare = 9,
    /// Pushes without the enclosing reply in lines, chunked.
    UniHttpStream = 10,
    /// The same, not chunked.
    UniHttpStreamBare = 11,
    /// Items of a long-poll's response ([`long_poll`](crate::long_poll)).
    Poll = 12,
    /// Centrifugal protocol in Protobuf, in WebSocket binary frames.
    WsProtobuf = 13,
    /// The same, each message compressed without context takeover.
    WsProtobufDeflate = 14,
    /// Centrifugal protocol in length-delimited Protobuf, chunked.
    HttpStreamProtobuf = 15,
    /// The same, not chunked.
    HttpStreamProtobufBare = 16,
    /// The [Pusher protocol](crate::pusher) in WebSocket text frames.
    Pusher = 17,
    /// The same, each message compressed without context takeover.
    PusherDeflate = 18,
    /// A custom protocol ([`Codec`](crate::Codec)) in WebSocket frames.
    Own = 19,
    /// Pushes for a program that speaks the protocol of its client: the Centrifugal protocol in JSON lines, which no client sees.
    Program = 20,
}

/// The format of messages in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Format {
    /// JSON; messages of a frame are separated by newlines.
    #[default]
    Json,
    /// Protobuf; messages of a frame are length-delimited.
    Protobuf,
}

impl Format {
    /// Returns the format as one word.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Json => "json",
            Format::Protobuf => "protobuf",
        }
    }

    /// Returns the separator between two joined frames.
    pub const fn separator(self) -> &'static [u8] {
        match self {
            Format::Json => b"\n",
            Format::Protobuf => b"",
        }
    }
}

/// The framing of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrapping {
    /// A WebSocket frame: text for JSON, binary for Protobuf.
    Frame { deflate: bool },
    /// A server-sent event.
    Event { chunked: bool },
    /// A line.
    Line { chunked: bool },
    /// A length-delimited message.
    Delimited { chunked: bool },
    /// An item of a JSON array, preceded by a comma.
    Item,
    /// A WebSocket frame with the output of the codec.
    Translated,
}

impl Encoding {
    /// All encodings, by number.
    pub const ALL: [Encoding; 21] = [
        Encoding::WsJson,
        Encoding::WsJsonDeflate,
        Encoding::UniWs,
        Encoding::UniWsDeflate,
        Encoding::Sse,
        Encoding::SseBare,
        Encoding::HttpStream,
        Encoding::HttpStreamBare,
        Encoding::UniSse,
        Encoding::UniSseBare,
        Encoding::UniHttpStream,
        Encoding::UniHttpStreamBare,
        Encoding::Poll,
        Encoding::WsProtobuf,
        Encoding::WsProtobufDeflate,
        Encoding::HttpStreamProtobuf,
        Encoding::HttpStreamProtobufBare,
        Encoding::Pusher,
        Encoding::PusherDeflate,
        Encoding::Own,
        Encoding::Program,
    ];

    /// Returns the encoding with this number.
    pub fn of(number: dunlin_hub::EncodingId) -> Option<Encoding> {
        Encoding::ALL.get(usize::from(number.0)).copied()
    }

    /// Returns the encoding of a bidirectional WebSocket connection.
    pub const fn websocket(format: Format, deflate: bool) -> Encoding {
        match (format, deflate) {
            (Format::Json, false) => Encoding::WsJson,
            (Format::Json, true) => Encoding::WsJsonDeflate,
            (Format::Protobuf, false) => Encoding::WsProtobuf,
            (Format::Protobuf, true) => Encoding::WsProtobufDeflate,
        }
    }

    /// Returns the encoding of a WebSocket connection with the Pusher protocol.
    pub const fn pusher(deflate: bool) -> Encoding {
        if deflate { Encoding::PusherDeflate } else { Encoding::Pusher }
    }

    /// Returns whether this is an encoding of the Pusher protocol.
    pub const fn is_pusher(self) -> bool {
        matches!(self, Encoding::Pusher | Encoding::PusherDeflate)
    }

    /// Returns the encoding of a unidirectional WebSocket connection.
    pub const fn uni_websocket(deflate: bool) -> Encoding {
        if deflate { Encoding::UniWsDeflate } else { Encoding::UniWs }
    }

    /// Returns the encoding of a bidirectional server-sent event stream.
    pub const fn sse(chunked: bool) -> Encoding {
        if chunked { Encoding::Sse } else { Encoding::SseBare }
    }

    /// Returns the encoding of a unidirectional server-sent event stream.
    pub const fn uni_sse(chunked: bool) -> Encoding {
        if chunked { Encoding::UniSse } else { Encoding::UniSseBare }
    }

    /// Returns the encoding of a bidirectional HTTP stream.
    pub const fn http_stream(format: Format, chunked: bool) -> Encoding {
        match (format, chunked) {
            (Format::Json, true) => Encoding::HttpStream,
            (Format::Json, false) => Encoding::HttpStreamBare,
            (Format::Protobuf, true) => Encoding::HttpStreamProtobuf,
            (Format::Protobuf, false) => Encoding::HttpStreamProtobufBare,
        }
    }

    /// Returns the encoding of a unidirectional HTTP stream.
    pub const fn uni_http_stream(chunked: bool) -> Encoding {
        if chunked { Encoding::UniHttpStream } else { Encoding::UniHttpStreamBare }
    }

    /// Returns the format of the messages.
    pub const fn format(self) -> Format {
        match self {
            Encoding::WsProtobuf
            | Encoding::WsProtobufDeflate
            | Encoding::HttpStreamProtobuf
            | Encoding::HttpStreamProtobufBare => Format::Protobuf,
            _ => Format::Json,
        }
    }

    /// Returns whether the client may send commands, on the connection or by emulation.
    pub const fn is_bidirectional(self) -> bool {
        matches!(
            self,
            Encoding::WsJson
                | Encoding::WsJsonDeflate
                | Encoding::WsProtobuf
                | Encoding::WsProtobufDeflate
                | Encoding::Pusher
                | Encoding::PusherDeflate
                | Encoding::Own
                | Encoding::Program
        ) || self.is_emulated()
    }

    /// Returns whether the client sends its commands to `/emulation`; the connect reply then
    /// identifies the session.
    pub const fn is_emulated(self) -> bool {
        matches!(
            self,
            Encoding::Sse
                | Encoding::SseBare
                | Encoding::HttpStream
                | Encoding::HttpStreamBare
                | Encoding::HttpStreamProtobuf
                | Encoding::HttpStreamProtobufBare
        )
    }

    /// Returns whether the connection is a WebSocket.
    pub const fn is_websocket(self) -> bool {
        matches!(self.wrapping(), Wrapping::Frame { .. } | Wrapping::Translated)
    }

    /// Returns the name of the transport in Centrifugo's metrics and logs.
    pub const fn transport(self) -> &'static str {
        match self {
            Encoding::WsJson
            | Encoding::WsJsonDeflate
            | Encoding::WsProtobuf
            | Encoding::WsProtobufDeflate => "websocket",
            Encoding::UniWs | Encoding::UniWsDeflate => "uni_websocket",
            Encoding::Sse | Encoding::SseBare => "sse",
            Encoding::HttpStream
            | Encoding::HttpStreamBare
            | Encoding::HttpStreamProtobuf
            | Encoding::HttpStreamProtobufBare => "http_stream",
            Encoding::UniSse | Encoding::UniSseBare => "uni_sse",
            Encoding::UniHttpStream | Encoding::UniHttpStreamBare => "uni_http_stream",
            Encoding::Poll => "poll",
            Encoding::Pusher | Encoding::PusherDeflate => "pusher",
            Encoding::Own => "own",
            Encoding::Program => "program",
        }
    }

    pub(crate) const fn wrapping(self) -> Wrapping {
        match self {
            Encoding::WsJson | Encoding::UniWs | Encoding::WsProtobuf | Encoding::Pusher => {
                Wrapping::Frame { deflate: false }
            }
            Encoding::WsJsonDeflate
            | Encoding::UniWsDeflate
            | Encoding::WsProtobufDeflate
            | Encoding::PusherDeflate => Wrapping::Frame { deflate: true },
            Encoding::Sse | Encoding::UniSse => Wrapping::Event { chunked: true },
            Encoding::SseBare | Encoding::UniSseBare => Wrapping::Event { chunked: false },
            Encoding::HttpStream | Encoding::UniHttpStream => Wrapping::Line { chunked: true },
            Encoding::HttpStreamBare | Encoding::UniHttpStreamBare | Encoding::Program => {
                Wrapping::Line { chunked: false }
            }
            Encoding::HttpStreamProtobuf => Wrapping::Delimited { chunked: true },
            Encoding::HttpStreamProtobufBare => Wrapping::Delimited { chunked: false },
            Encoding::Poll => Wrapping::Item,
            Encoding::Own => Wrapping::Translated,
        }
    }
}

impl From<Encoding> for dunlin_hub::EncodingId {
    fn from(encoding: Encoding) -> Self {
        dunlin_hub::EncodingId(encoding as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_has_room_for_every_number_and_each_leads_back() {
        for (number, encoding) in Encoding::ALL.into_iter().enumerate() {
            let hub = dunlin_hub::EncodingId::from(encoding);
            assert_eq!(usize::from(hub.0), number);
            assert!(number < dunlin_hub::ENCODINGS_MAX);
            assert_eq!(Encoding::of(hub), Some(encoding));
        }
        assert_eq!(Encoding::of(dunlin_hub::EncodingId(21)), None);
    }
}
