//! The encodings of what is pushed to a session.

/// A connection's encoding. Its number is the hub's [`EncodingId`](dunlin_hub::EncodingId); a
/// publication is encoded once per worker and number.
///
/// Streams over HTTP are chunked (RFC 9112 §7.1) for HTTP/1.1 and bare for HTTP/1.0, which has no
/// chunks and is the default of some reverse proxies; a bare stream ends with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Encoding {
    /// Centrifugal protocol in WebSocket text frames.
    WsJson = 0,
    /// The same, compressed message by message (RFC 7692) without context takeover.
    WsJsonDeflate = 1,
    /// Pushes of the Centrifugal protocol without their reply, in WebSocket text frames.
    UniWs = 2,
    /// The same, compressed message by message without context takeover.
    UniWsDeflate = 3,
    /// Centrifugal protocol in server-sent events, chunked.
    Sse = 4,
    /// The same, until the connection ends.
    SseBare = 5,
    /// Centrifugal protocol in lines, chunked.
    HttpStream = 6,
    /// The same, until the connection ends.
    HttpStreamBare = 7,
    /// Pushes without their reply in server-sent events, chunked.
    UniSse = 8,
    /// The same, until the connection ends.
    UniSseBare = 9,
    /// Pushes without their reply in lines, chunked.
    UniHttpStream = 10,
    /// The same, until the connection ends.
    UniHttpStreamBare = 11,
    /// Items of a long-poll's response ([`long_poll`](crate::long_poll)).
    Poll = 12,
}

/// The framing of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrapping {
    /// A WebSocket text frame.
    Frame { deflate: bool },
    /// A server-sent event.
    Event { chunked: bool },
    /// A line.
    Line { chunked: bool },
    /// An item of a JSON array, with the comma before it.
    Item,
}

impl Encoding {
    /// Every encoding, by number.
    pub const ALL: [Encoding; 13] = [
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
    ];

    /// The encoding with the hub's number.
    pub fn of(number: dunlin_hub::EncodingId) -> Option<Encoding> {
        Encoding::ALL.get(usize::from(number.0)).copied()
    }

    /// The encoding of a WebSocket connection.
    pub const fn websocket(unidirectional: bool, deflate: bool) -> Encoding {
        match (unidirectional, deflate) {
            (false, false) => Encoding::WsJson,
            (false, true) => Encoding::WsJsonDeflate,
            (true, false) => Encoding::UniWs,
            (true, true) => Encoding::UniWsDeflate,
        }
    }

    /// The encoding of a server-sent event stream.
    pub const fn sse(unidirectional: bool, chunked: bool) -> Encoding {
        match (unidirectional, chunked) {
            (false, true) => Encoding::Sse,
            (false, false) => Encoding::SseBare,
            (true, true) => Encoding::UniSse,
            (true, false) => Encoding::UniSseBare,
        }
    }

    /// The encoding of an HTTP stream.
    pub const fn http_stream(unidirectional: bool, chunked: bool) -> Encoding {
        match (unidirectional, chunked) {
            (false, true) => Encoding::HttpStream,
            (false, false) => Encoding::HttpStreamBare,
            (true, true) => Encoding::UniHttpStream,
            (true, false) => Encoding::UniHttpStreamBare,
        }
    }

    /// Whether the client may send commands, on the connection itself or by emulation.
    pub const fn is_bidirectional(self) -> bool {
        matches!(
            self,
            Encoding::WsJson
                | Encoding::WsJsonDeflate
                | Encoding::Sse
                | Encoding::SseBare
                | Encoding::HttpStream
                | Encoding::HttpStreamBare
        )
    }

    /// Whether the client sends its commands to `/emulation`; the connect reply then identifies the
    /// session.
    pub const fn is_emulated(self) -> bool {
        matches!(
            self,
            Encoding::Sse | Encoding::SseBare | Encoding::HttpStream | Encoding::HttpStreamBare
        )
    }

    /// Whether the connection is a WebSocket.
    pub const fn is_websocket(self) -> bool {
        matches!(self.wrapping(), Wrapping::Frame { .. })
    }

    /// Name of the transport, as Centrifugo names it in metrics and logs.
    pub const fn transport(self) -> &'static str {
        match self {
            Encoding::WsJson | Encoding::WsJsonDeflate => "websocket",
            Encoding::UniWs | Encoding::UniWsDeflate => "uni_websocket",
            Encoding::Sse | Encoding::SseBare => "sse",
            Encoding::HttpStream | Encoding::HttpStreamBare => "http_stream",
            Encoding::UniSse | Encoding::UniSseBare => "uni_sse",
            Encoding::UniHttpStream | Encoding::UniHttpStreamBare => "uni_http_stream",
            Encoding::Poll => "poll",
        }
    }

    pub(crate) const fn wrapping(self) -> Wrapping {
        match self {
            Encoding::WsJson | Encoding::UniWs => Wrapping::Frame { deflate: false },
            Encoding::WsJsonDeflate | Encoding::UniWsDeflate => Wrapping::Frame { deflate: true },
            Encoding::Sse | Encoding::UniSse => Wrapping::Event { chunked: true },
            Encoding::SseBare | Encoding::UniSseBare => Wrapping::Event { chunked: false },
            Encoding::HttpStream | Encoding::UniHttpStream => Wrapping::Line { chunked: true },
            Encoding::HttpStreamBare | Encoding::UniHttpStreamBare => {
                Wrapping::Line { chunked: false }
            }
            Encoding::Poll => Wrapping::Item,
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
        assert_eq!(Encoding::of(dunlin_hub::EncodingId(13)), None);
    }
}
