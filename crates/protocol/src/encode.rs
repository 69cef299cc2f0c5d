//! Encoding of pushes and replies into bytes for the socket.

use std::borrow::Cow;
use std::rc::Rc;

use dunlin_hub::Outgoing;
use dunlin_wire::fossil::DeltaEncoder;
use dunlin_wire::protobuf::Writer;
use dunlin_wire::websocket::deflate::Deflater;
use dunlin_wire::websocket::{FrameHeader, HEADER_BYTES_MAX, Opcode, encode_close};
use serde::Deserialize;

use crate::centrifuge::{
    ConnectResult, REASON_BYTES_MAX, Reply, protobuf, write_connect_push, write_push,
    write_refresh_push,
};
use crate::codec::{Codec, Own};
use crate::encoding::{Encoding, Format, Wrapping};
use crate::{json, long_poll, pusher};

/// Messages below this length are sent uncompressed on a connection with compression: deflate's overhead exceeds its
/// savings.
const DEFLATE_BYTES_MIN: usize = 96;

/// Encodes everything a worker sends, in every [`Encoding`]. There is one per worker; all connections share its
/// compressor and scratch buffer.
#[derive(Debug, Default)]
pub struct FrameEncoder {
    deflater: Option<Deflater>,
    delta: DeltaEncoder,
    scratch: Vec<u8>,
    codec: Own,
}

impl FrameEncoder {
    /// Creates an encoder whose compressed encodings use `deflater`, which must not carry context from one message to
    /// the next. Without one, all messages are sent uncompressed, which RFC 7692 §6 allows.
    ///
    /// A message is compressed once for all connections, so they must have negotiated at least the deflater's window. A
    /// connection with a smaller window uses the uncompressed encoding.
    pub fn new(deflater: Option<Deflater>) -> FrameEncoder {
        FrameEncoder { deflater, ..FrameEncoder::default() }
    }

    /// Adds a codec for a custom protocol. Without one, [`Encoding::Own`] sends nothing.
    #[must_use]
    pub fn with_codec(self, codec: Option<Rc<dyn Codec>>) -> FrameEncoder {
        FrameEncoder { codec: Own(codec), ..self }
    }

    /// Returns the codec of the custom protocol, if there is one.
    pub fn codec(&self) -> Option<&Rc<dyn Codec>> {
        self.codec.0.as_ref()
    }

    /// Appends the reply to command `id`. Appends nothing in unidirectional encodings, which have no replies.
    pub fn reply(&mut self, encoding: Encoding, id: u32, reply: &Reply<'_>, out: &mut Vec<u8>) {
        if encoding.is_bidirectional() {
            self.wrap(encoding, out, |body| match encoding.format() {
                Format::Json => reply.write(id, body),
                Format::Protobuf => {
                    Writer::delimited(body, |w| protobuf::write_reply(w, id, reply));
                }
            });
        }
    }

    /// Appends the push that opens a unidirectional stream. Appends nothing in bidirectional encodings, which send a
    /// reply instead, and for the long-poll.
    pub fn connect_push(
        &mut self,
        encoding: Encoding,
        result: &ConnectResult<'_>,
        out: &mut Vec<u8>,
    ) {
        if !encoding.is_bidirectional() && encoding != Encoding::Poll {
            self.wrap(encoding, out, |body| write_connect_push(body, result));
        }
    }

    /// Appends the push with the remaining lifetime of the connection.
    pub fn refresh_push(&mut self, encoding: Encoding, ttl_s: u32, out: &mut Vec<u8>) {
        if encoding != Encoding::Poll && !encoding.is_pusher() {
            self.push_with(
                encoding,
                out,
                |body| write_refresh_push(body, ttl_s),
                |w| protobuf::write_refresh_push(w, ttl_s),
            );
        }
    }

    /// Appends `push`.
    pub fn push(&mut self, encoding: Encoding, outgoing: &Outgoing<'_>, out: &mut Vec<u8>) {
        // All clients in a tenant's channel belong to that tenant.
        let outgoing = &outgoing.bare();
        if let Outgoing::Disconnect { code, reason, .. } = *outgoing {
            self.disconnect(encoding, outgoing, code, reason, out);
        } else if encoding == Encoding::Poll {
            long_poll::write_item(out, outgoing);
        } else if encoding.is_pusher() {
            self.wrap(encoding, out, |body| pusher::event::write_push(body, outgoing));
        } else {
            self.push_outgoing(encoding, outgoing, out);
        }
    }

    /// Appends the event of the Pusher protocol that `write` writes.
    pub fn pusher_event(
        &mut self,
        encoding: Encoding,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        self.wrap(encoding, out, write);
    }

    fn push_outgoing(&mut self, encoding: Encoding, outgoing: &Outgoing<'_>, out: &mut Vec<u8>) {
        self.push_with(
            encoding,
            out,
            |body| write_push(body, outgoing),
            |w| protobuf::write_push(w, outgoing),
        );
    }

    /// Appends a disconnect: in the close frame on bidirectional WebSockets, in a push on streams, in both on
    /// unidirectional WebSockets. It ends a chunked stream.
    fn disconnect(
        &mut self,
        encoding: Encoding,
        outgoing: &Outgoing<'_>,
        code: u32,
        reason: &str,
        out: &mut Vec<u8>,
    ) {
        if let Outgoing::Disconnect { reconnect, .. } = *outgoing
            && encoding.is_pusher()
        {
            let code = pusher::PusherCode::of_disconnect(code, reconnect);
            self.wrap(encoding, out, |body| pusher::event::write_disconnect(body, code, reason));
            encode_close(out, code, &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]);
            return;
        }
        let in_close_frame_only = encoding.is_bidirectional() && encoding.is_websocket();
        if !in_close_frame_only && encoding != Encoding::Poll {
            self.push_outgoing(encoding, outgoing, out);
        }
        if encoding.is_websocket() {
            let reason = &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)];
            // Close codes are 1000–4999; a larger one is a mistake of the API caller.
            let code = u16::try_from(code).unwrap_or(4999);
            encode_close(out, code, reason);
        }
        out.extend_from_slice(end_of_stream(encoding));
    }

    fn push_with(
        &mut self,
        encoding: Encoding,
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Vec<u8>),
        protobuf: impl Fn(&mut Writer<'_>),
    ) {
        if encoding.format() == Format::Protobuf {
            // All Protobuf encodings are bidirectional: the push is inside a reply.
            if Writer::count(&protobuf) > 0 {
                self.wrap(encoding, out, |out| {
                    Writer::delimited(out, |w| w.message(4, &protobuf));
                });
            }
        } else if encoding.is_bidirectional() {
            self.wrap(encoding, out, |out| {
                let start = out.len();
                out.extend_from_slice(b"{\"push\":");
                let empty = out.len();
                body(out);
                if out.len() == empty {
                    out.truncate(start);
                } else {
                    out.push(b'}');
                }
            });
        } else {
            self.wrap(encoding, out, body);
        }
    }

    /// Wraps the message that `body` writes. Appends nothing if it writes nothing.
    fn wrap(&mut self, encoding: Encoding, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        match encoding.wrapping() {
            Wrapping::Frame { deflate } => {
                if deflate && let Some(deflater) = &mut self.deflater {
                    self.scratch.clear();
                    body(&mut self.scratch);
                    if self.scratch.len() >= DEFLATE_BYTES_MIN {
                        deflater.encode_frame(out, opcode(encoding), &self.scratch, None);
                        return;
                    }
                    out.extend_from_slice(&self.scratch);
                } else {
                    body(out);
                }
                if out.len() > start {
                    frame(opcode(encoding), out, start);
                }
            }
            Wrapping::Delimited { chunked } => {
                body(out);
                if chunked && out.len() > start {
                    chunk(out, start);
                }
            }
            Wrapping::Event { chunked } => {
                out.extend_from_slice(b"data: ");
                let empty = out.len();
                body(out);
                if out.len() == empty {
                    out.truncate(start);
                    return;
                }
                out.extend_from_slice(b"\n\n");
                if chunked {
                    chunk(out, start);
                }
            }
            Wrapping::Line { chunked } => {
                body(out);
                if out.len() == start {
                    return;
                }
                out.push(b'\n');
                if chunked {
                    chunk(out, start);
                }
            }
            Wrapping::Translated => {
                let Some(codec) = &self.codec.0 else { return };
                self.scratch.clear();
                body(&mut self.scratch);
                if self.scratch.is_empty() {
                    return;
                }
                codec.encode(&self.scratch, out);
                if out.len() > start {
                    let opcode = if codec.is_binary() { Opcode::Binary } else { Opcode::Text };
                    frame(opcode, out, start);
                }
            }
            Wrapping::Item => {
                out.push(b',');
                body(out);
                if out.len() == start + 1 {
                    out.truncate(start);
                }
            }
        }
    }
}

impl dunlin_hub::Encode for FrameEncoder {
    fn encode(
        &mut self,
        encoding: dunlin_hub::EncodingId,
        outgoing: &Outgoing<'_>,
        out: &mut Vec<u8>,
    ) {
        if let Some(encoding) = Encoding::of(encoding) {
            self.push(encoding, outgoing, out);
        }
    }

    fn encode_delta(&mut self, source: &[u8], target: &[u8], out: &mut Vec<u8>) {
        self.delta.encode(source, target, out);
    }

    fn is_of_device(&self, conn_info: &[u8], device: &str) -> bool {
        device_of(conn_info).is_some_and(|of| of == device)
    }
}

/// Returns the `device` of a JSON object, if it has one that is text: of what is known about a connection, or of what its client
/// sends when it connects.
pub fn device_of(object: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Device<'a> {
        #[serde(borrow, deserialize_with = "json::text")]
        device: Cow<'a, str>,
    }
    json::from_slice::<Device<'_>>(object).ok().map(|of| of.device)
}

/// Returns the server's ping, an empty message. It is a constant of the encoding, so pings cost no encoding. Empty for
/// the long-poll, which has no pings.
pub const fn ping(encoding: Encoding) -> &'static [u8] {
    match encoding.wrapping() {
        Wrapping::Frame { .. } if encoding.is_pusher() => {
            b"\x81\x21{\"event\":\"pusher:ping\",\"data\":{}}"
        }
        Wrapping::Frame { .. } if matches!(encoding.format(), Format::Protobuf) => b"\x82\x01\0",
        Wrapping::Frame { .. } => b"\x81\x02{}",
        Wrapping::Event { chunked: true } => b"a\r\ndata: {}\n\n\r\n",
        Wrapping::Event { chunked: false } => b"data: {}\n\n",
        Wrapping::Line { chunked: true } => b"3\r\n{}\n\r\n",
        Wrapping::Line { chunked: false } => b"{}\n",
        Wrapping::Delimited { chunked: true } => b"1\r\n\0\r\n",
        Wrapping::Delimited { chunked: false } => b"\0",
        Wrapping::Item => b"",
        // WebSocket clients respond to this automatically (RFC 6455 §5.5.2).
        Wrapping::Translated => b"\x89\0",
    }
}

/// Returns the end of a chunked stream (RFC 9112 §7.1); empty for other encodings. The disconnect push includes it.
pub const fn end_of_stream(encoding: Encoding) -> &'static [u8] {
    match encoding.wrapping() {
        Wrapping::Event { chunked: true }
        | Wrapping::Line { chunked: true }
        | Wrapping::Delimited { chunked: true } => b"0\r\n\r\n",
        _ => b"",
    }
}

/// Returns the WebSocket opcode for an encoding.
fn opcode(encoding: Encoding) -> Opcode {
    match encoding.format() {
        Format::Json => Opcode::Text,
        Format::Protobuf => Opcode::Binary,
    }
}

/// Inserts a WebSocket frame header before the bytes from `start` on.
fn frame(opcode: Opcode, out: &mut Vec<u8>, start: usize) {
    let header = FrameHeader::new(opcode, (out.len() - start) as u64);
    let mut bytes = [0; HEADER_BYTES_MAX];
    let taken = header.encode_into(&mut bytes);
    prepend(out, start, &bytes[..taken]);
}

/// Turns the bytes from `start` on into a chunk.
fn chunk(out: &mut Vec<u8>, start: usize) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut length = out.len() - start;
    let mut head = [0; 18];
    let mut at = 16;
    head[16..].copy_from_slice(b"\r\n");
    loop {
        at -= 1;
        head[at] = HEX[length & 15];
        length >>= 4;
        if length == 0 {
            break;
        }
    }
    prepend(out, start, &head[at..]);
    out.extend_from_slice(b"\r\n");
}

/// Inserts `head` at `start`. The length is known only after the message is written; moving it by a
/// few bytes costs less than writing it twice.
fn prepend(out: &mut Vec<u8>, start: usize, head: &[u8]) {
    let end = out.len();
    out.extend_from_slice(head);
    out.copy_within(start..end, start + head.len());
    out[start..start + head.len()].copy_from_slice(head);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dunlin_hub::{
        ClientInfo, Encode as _, Epoch, PayloadFormat, Publication, PublicationParts, SessionId,
        StreamPosition, Subscribed,
    };
    use dunlin_wire::websocket::deflate::{Direction, Inflater};
    use proptest::prelude::*;

    use super::*;
    use crate::centrifuge::{ErrorCode, SubscribeResult};
    use crate::json::single_line;

    fn publication(offset: u64, data: &str) -> Publication {
        let data = data.as_bytes().into();
        PublicationParts { offset, data, ..PublicationParts::default() }.into()
    }

    fn encode(encoding: Encoding, outgoing: &Outgoing<'_>) -> String {
        let mut out = Vec::new();
        FrameEncoder::default().encode(encoding.into(), outgoing, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn a_publication_on_every_transport() {
        let publication = publication(1, r#"{"input":1}"#);
        let push = Outgoing::Publication { channel: "test", publication: &publication };
        let uni = r#"{"channel":"test","pub":{"data":{"input":1},"offset":1}}"#;
        let bi = format!(r#"{{"push":{uni}}}"#);
        assert_eq!((uni.len(), bi.len()), (0x38, 0x41));
        for (encoding, expected) in [
            (Encoding::WsJson, format!("\u{fffd}\x41{bi}")),
            (Encoding::WsJsonDeflate, format!("\u{fffd}\x41{bi}")),
            (Encoding::UniWs, format!("\u{fffd}\x38{uni}")),
            (Encoding::Sse, format!("49\r\ndata: {bi}\n\n\r\n")),
            (Encoding::SseBare, format!("data: {bi}\n\n")),
            (Encoding::UniSse, format!("40\r\ndata: {uni}\n\n\r\n")),
            (Encoding::UniSseBare, format!("data: {uni}\n\n")),
            (Encoding::HttpStream, format!("42\r\n{bi}\n\r\n")),
            (Encoding::HttpStreamBare, format!("{bi}\n")),
            (Encoding::UniHttpStream, format!("39\r\n{uni}\n\r\n")),
            (Encoding::UniHttpStreamBare, format!("{uni}\n")),
            (Encoding::Poll, r#",{"channel":"test","data":{"input":1},"offset":1}"#.to_owned()),
        ] {
            assert_eq!(encode(encoding, &push), expected, "{encoding:?}");
        }
    }

    /// Passes the messages of the client protocol on unchanged, and ignores all messages of clients.
    struct Same;

    impl Codec for Same {
        fn decode(&self, _: &[u8], _: &mut Vec<u8>) {}

        fn encode(&self, said: &[u8], message: &mut Vec<u8>) {
            message.extend_from_slice(said);
        }
    }

    #[test]
    fn pings_are_what_an_empty_message_would_be() {
        for encoding in Encoding::ALL {
            let mut out = Vec::new();
            if encoding == Encoding::Own {
                // The custom protocol uses WebSocket pings, to which clients respond without the codec.
                FrameHeader::new(Opcode::Ping, 0).encode(&mut out);
            } else if encoding != Encoding::Poll {
                FrameEncoder::default().wrap(encoding, &mut out, |out| match encoding.format() {
                    _ if encoding.is_pusher() => {
                        out.extend_from_slice(br#"{"event":"pusher:ping","data":{}}"#);
                    }
                    Format::Json => out.extend_from_slice(b"{}"),
                    Format::Protobuf => Writer::delimited(out, |_| ()),
                });
            }
            assert_eq!(ping(encoding), out, "{encoding:?}");
        }
    }

    #[test]
    fn a_disconnect_is_encoded_for_each_transport() {
        let push = Outgoing::Disconnect { code: 3001, reason: "shutdown", reconnect: true };
        let uni = r#"{"disconnect":{"code":3001,"reason":"shutdown","reconnect":true}}"#;
        let close = "\u{fffd}\x0a\x0b\u{fffd}shutdown";
        assert_eq!(encode(Encoding::WsJson, &push), close);
        assert_eq!(encode(Encoding::UniWs, &push), format!("\u{fffd}\x41{uni}{close}"));
        assert_eq!(encode(Encoding::UniHttpStream, &push), format!("42\r\n{uni}\n\r\n0\r\n\r\n"));
        assert_eq!(encode(Encoding::SseBare, &push), format!("data: {{\"push\":{uni}}}\n\n"));
        assert_eq!(encode(Encoding::Poll, &push), "");
    }

    #[test]
    fn a_push_that_a_long_poll_does_not_have_is_not_sent() {
        let push = Outgoing::Unsubscribe { channel: "a", code: 2500, reason: "insufficient state" };
        assert_eq!(encode(Encoding::Poll, &push), "");
        assert_eq!(
            encode(Encoding::HttpStreamBare, &push),
            "{\"push\":{\"channel\":\"a\",\"unsubscribe\":{\"code\":2500,\"reason\":\"insufficient state\"}}}\n"
        );
    }

    #[test]
    fn the_other_pushes_as_the_documentation_has_them() {
        let info = ClientInfo {
            user_is_number: false,
            foreign_client: None,
            user: "2694".into(),
            client: SessionId::from_u64(9_007_199_254_740_991).unwrap(),
            conn_info: Some(b"{\"a\":1}".as_slice().into()),
            chan_info: None,
        };
        let who = r#"{"info":{"user":"2694","client":"9007199254740991","conn_info":{"a":1}}}"#;
        let position = StreamPosition { offset: 12, epoch: Epoch::from_u64(10) };
        for (push, expected) in [
            (
                Outgoing::Join { channel: "#2694", info: &info, of_user: true },
                format!(r##"{{"channel":"#2694","join":{who}}}"##),
            ),
            (
                Outgoing::Leave { channel: "#2694", info: &info, of_user: true },
                format!(r##"{{"channel":"#2694","leave":{who}}}"##),
            ),
            (
                Outgoing::Subscribe {
                    channel: "test",
                    position,
                    recoverable: true,
                    positioned: true,
                    data: Some(b"7"),
                },
                r#"{"channel":"test","subscribe":{"recoverable":true,"epoch":"A","offset":12,"positioned":true,"data":7}}"#
                    .to_owned(),
            ),
            (
                Outgoing::Subscribe {
                    channel: "test",
                    position: StreamPosition::default(),
                    recoverable: false,
                    positioned: false,
                    data: None,
                },
                r#"{"channel":"test","subscribe":{}}"#.to_owned(),
            ),
            (
                Outgoing::Missed { channel: "test", count: 3 },
                r#"{"channel":"test","missed":{"count":3}}"#.to_owned(),
            ),
            (
                Outgoing::Message { data: b"[1]", format: PayloadFormat::Json },
                r#"{"message":{"data":[1]}}"#.to_owned(),
            ),
            (
                Outgoing::Message { data: &[0, 255], format: PayloadFormat::Binary },
                r#"{"message":{"data":null,"b64data":"AP8="}}"#.to_owned(),
            ),
        ] {
            assert_eq!(encode(Encoding::UniHttpStreamBare, &push), format!("{expected}\n"));
        }
    }

    #[test]
    fn a_unidirectional_stream_begins_with_connect() {
        let subscribed = Subscribed {
            position: StreamPosition { offset: 12, epoch: Epoch::from_u64(10) },
            recoverable: true,
            positioned: true,
            ..Subscribed::default()
        };
        let subs = [(Arc::from("personal"), SubscribeResult::from(&subscribed))];
        let result = ConnectResult {
            client: SessionId::from_u64(5),
            version: "dunlin 0.1.0",
            subs: &subs,
            ping_s: 25,
            session: "s",
            ..ConnectResult::default()
        };
        let mut out = Vec::new();
        let mut encoder = FrameEncoder::default();
        encoder.connect_push(Encoding::UniSseBare, &result, &mut out);
        encoder.connect_push(Encoding::WsJson, &result, &mut out);
        encoder.reply(Encoding::UniSse, 1, &Reply::Publish, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            concat!(
                r#"data: {"connect":{"client":"5","version":"dunlin 0.1.0","#,
                r#""subs":{"personal":{"recoverable":true,"epoch":"A","offset":12,"positioned":true}},"#,
                r#""ping":25,"session":"s"}}"#,
                "\n\n"
            )
        );
    }

    #[test]
    fn a_reply_and_an_error() {
        let mut out = Vec::new();
        let mut encoder = FrameEncoder::default();
        let error = ErrorCode::Internal.into();
        encoder.reply(Encoding::HttpStreamBare, 1, &Reply::Error(&error), &mut out);
        encoder.reply(Encoding::HttpStreamBare, 2, &Reply::Unsubscribe, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            concat!(
                r#"{"id":1,"error":{"code":100,"message":"internal server error","temporary":true}}"#,
                "\n",
                r#"{"id":2,"unsubscribe":{}}"#,
                "\n"
            )
        );
    }

    #[test]
    fn a_long_message_is_compressed_for_those_who_asked() {
        let direction = Direction { context_takeover: false, window_bits: 15 };
        let mut encoder = FrameEncoder::new(Some(Deflater::new(1, direction)));
        let publication = publication(1, &format!("[{}0]", "1234567,".repeat(40)));
        let push = Outgoing::Publication { channel: "a", publication: &publication };
        for _ in 0..2 {
            let mut out = Vec::new();
            encoder.push(Encoding::WsJsonDeflate, &push, &mut out);
            assert_eq!(out[0], 0xc1, "one text frame with RSV1");
            let mut plain = Vec::new();
            Inflater::new(direction).inflate(&out[2..], &mut plain, 1 << 20).unwrap();
            let mut expected = Vec::new();
            encoder.push(Encoding::HttpStreamBare, &push, &mut expected);
            assert_eq!(plain, expected.trim_ascii_end());
            assert!(out.len() < plain.len() / 3);
        }
    }

    #[test]
    fn a_payload_written_over_several_lines_breaks_no_framing() {
        let pretty = "{\r\n  \"a\": [1,\n 2],\n  \"b \\\" c\": \"x  y\"\r}";
        let data = single_line(pretty.as_bytes());
        assert_eq!(&*data, br#"{"a":[1,2],"b \" c":"x  y"}"#);
    }

    proptest! {
        /// For any name and payload, a message remains one line, one event, one frame with the same content.
        #[test]
        fn a_message_survives_every_wrapping(
            // Excludes the separator of a tenant's name, which names of clients cannot contain.
            channel in "\\PC{1,40}|[\\x00\\x02-\\x7f]{1,20}",
            text in ".{0,300}",
            tag in "[\\x00-\\x7f]{0,8}",
            offset in 0u64..1 << 53,
        ) {
            let data = serde_json::to_string_pretty(&serde_json::json!({ "text": text, "n": [1, 2] })).unwrap();
            let publication = Publication::from(PublicationParts {
                offset,
                data: single_line(data.as_bytes()).into_owned().into(),
                tags: [(tag.clone().into(), text.clone().into())].into_iter().collect(),
                ..PublicationParts::default()
            });
            let push = Outgoing::Publication { channel: &channel, publication: &publication };
            let mut expected = serde_json::json!({
                "channel": channel,
                "pub": { "data": { "text": text, "n": [1, 2] }, "tags": { tag: text } },
            });
            if offset > 0 {
                expected["pub"]["offset"] = offset.into();
            }
            let mut encoder = FrameEncoder::default().with_codec(Some(Rc::new(Same)));
            for encoding in Encoding::ALL {
                if encoding == Encoding::Poll || encoding.format() == Format::Protobuf {
                    continue;
                }
                let mut out = b"before".to_vec();
                encoder.push(encoding, &push, &mut out);
                prop_assert!(out.starts_with(b"before"));
                let body = unwrap(encoding, &out[6..]);
                prop_assert!(memchr::memchr2(b'\n', b'\r', body).is_none());
                let mut value: serde_json::Value = serde_json::from_slice(body).unwrap();
                if encoding.is_pusher() {
                    prop_assert_eq!(&value["channel"], pusher::pusher_name(&channel));
                    let data = serde_json::from_str(value["data"].as_str().unwrap());
                    prop_assert_eq!(&data.unwrap_or(serde_json::Value::Null), &expected["pub"]["data"]);
                    continue;
                }
                if encoding.is_bidirectional() {
                    value = value["push"].take();
                }
                prop_assert_eq!(value, expected.clone());
            }
        }
    }

    /// Removes the wrapping of a single message, as a client would.
    fn unwrap(encoding: Encoding, mut bytes: &[u8]) -> &[u8] {
        match encoding.wrapping() {
            Wrapping::Frame { .. } | Wrapping::Translated => {
                let (header, taken) = FrameHeader::decode(bytes).unwrap().unwrap();
                assert_eq!(header.length as usize, bytes.len() - taken);
                &bytes[taken..]
            }
            Wrapping::Event { chunked } => {
                if chunked {
                    bytes = unchunk(bytes);
                }
                bytes.strip_prefix(b"data: ").unwrap().strip_suffix(b"\n\n").unwrap()
            }
            Wrapping::Line { chunked } => {
                if chunked {
                    bytes = unchunk(bytes);
                }
                bytes.strip_suffix(b"\n").unwrap()
            }
            Wrapping::Delimited { .. } => unreachable!("not JSON"),
            Wrapping::Item => bytes.strip_prefix(b",").unwrap(),
        }
    }

    fn unchunk(bytes: &[u8]) -> &[u8] {
        let end = memchr::memmem::find(bytes, b"\r\n").unwrap();
        let length =
            usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        let chunk = &bytes[end + 2..];
        assert_eq!(&chunk[length..], b"\r\n");
        &chunk[..length]
    }
}
