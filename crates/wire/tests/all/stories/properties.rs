//! What holds for every input: round trips, and that no cut makes a difference.

use dunlin_wire::http1::{
    self, Body, BodyDecoder, Decoded, HeaderSlots, Limits, Method, Version, decode_request,
    encode_chunk, encode_last_chunk,
};
use dunlin_wire::sse;
use dunlin_wire::websocket::deflate::{Deflater, Direction, Inflater};
use dunlin_wire::websocket::{self, FrameHeader, Opcode, Role};
use proptest::collection::vec;
use proptest::prelude::*;

use super::http1_body::read;
use super::websocket_messages::{Said, hear};

fn opcode() -> impl Strategy<Value = Opcode> {
    prop_oneof![
        Just(Opcode::Continuation),
        Just(Opcode::Text),
        Just(Opcode::Binary),
        Just(Opcode::Close),
        Just(Opcode::Ping),
        Just(Opcode::Pong),
    ]
}

proptest! {
    #[test]
    fn a_frame_header_survives(
        opcode in opcode(),
        fin: bool,
        compressed: bool,
        mask: Option<[u8; 4]>,
        length in prop_oneof![0..200u64, 65_000..66_000u64, 0..1u64 << 63],
        behind in vec(any::<u8>(), 0..4),
    ) {
        let control = opcode.is_control();
        let header = FrameHeader {
            opcode,
            fin: fin || control,
            compressed: compressed && matches!(opcode, Opcode::Text | Opcode::Binary),
            mask,
            length: if control { length % 126 } else { length },
        };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        prop_assert_eq!(bytes.len(), header.encoded_len());
        for cut in 0..bytes.len() {
            prop_assert_eq!(FrameHeader::decode(&bytes[..cut]), Ok(None));
        }
        let length = bytes.len();
        bytes.extend(behind);
        prop_assert_eq!(FrameHeader::decode(&bytes), Ok(Some((header, length))));
    }

    #[test]
    fn messages_survive_fragments_masks_and_cuts(
        messages in vec((any::<bool>(), "\\PC{0,40}", vec(0..20usize, 0..4), any::<[u8; 4]>()), 1..6),
        pings in vec(vec(any::<u8>(), 0..126), 0..3),
        server: bool,
        piece in 1..64usize,
    ) {
        let mut bytes = Vec::new();
        let mut said = Vec::new();
        let mut pings = pings.into_iter();
        for (text, payload, cuts, mask) in messages {
            let payload = if text { payload.into_bytes() } else { payload.bytes().rev().collect() };
            let mask = server.then_some(mask);
            let first = if text { Opcode::Text } else { Opcode::Binary };
            let mut rest = &payload[..];
            for (index, cut) in cuts.iter().enumerate() {
                let (fragment, behind) = rest.split_at(rest.len().min(*cut));
                rest = behind;
                let opcode = if index == 0 { first } else { Opcode::Continuation };
                put(&mut bytes, opcode, false, mask, fragment);
                if let Some(ping) = pings.next() {
                    put(&mut bytes, Opcode::Ping, true, mask, &ping);
                    said.push(Said::Ping(ping));
                }
            }
            let opcode = if cuts.is_empty() { first } else { Opcode::Continuation };
            put(&mut bytes, opcode, true, mask, rest);
            said.push(match text {
                true => Said::Text(String::from_utf8(payload).unwrap()),
                false => Said::Binary(payload),
            });
        }
        let decoder = websocket::Decoder {
            role: if server { Role::Server } else { Role::Client },
            limits: websocket::Limits::default(),
            deflate: false,
        };
        prop_assert_eq!(hear(decoder, &bytes, usize::MAX), (said.clone(), Ok(())));
        prop_assert_eq!(hear(decoder, &bytes, piece), (said, Ok(())));
    }

    #[test]
    fn text_is_accepted_exactly_when_it_is_utf8(
        payload in prop_oneof![
            vec(any::<u8>(), 0..12),
            vec(prop_oneof![Just(0xe2), Just(0x82), Just(0xac), Just(0xf0), Just(0x90), Just(0x8d), Just(0x61)], 0..12),
        ],
        piece in 1..5usize,
    ) {
        let mut bytes = Vec::new();
        put(&mut bytes, Opcode::Text, true, None, &payload);
        let decoder = super::websocket_messages::client();
        let expected = match String::from_utf8(payload) {
            Ok(text) => (vec![Said::Text(text)], Ok(())),
            Err(_) => (vec![], Err(websocket::Error::Utf8)),
        };
        prop_assert_eq!(&hear(decoder, &bytes, usize::MAX), &expected);
        prop_assert_eq!(hear(decoder, &bytes, piece), expected);
    }

    #[test]
    fn a_mask_undoes_itself_in_pieces(
        payload in vec(any::<u8>(), 0..300),
        mask: [u8; 4],
        cut in 0..300usize,
    ) {
        let mut masked = payload.clone();
        websocket::apply_mask(&mut masked, mask);
        let (begin, end) = masked.split_at_mut(cut.min(payload.len()));
        websocket::apply_mask(begin, mask);
        let mut rotated = mask;
        rotated.rotate_left(begin.len() % 4);
        websocket::apply_mask(end, rotated);
        prop_assert_eq!(masked, payload);
    }

    #[test]
    fn compression_is_undone_by_decompression(
        messages in vec(
            prop_oneof![
                vec(any::<u8>(), 0..2000),
                vec(0..3u8, 0..6000),
                "[a-c]{0,10}".prop_map(|text| text.repeat(300).into_bytes()),
            ],
            1..8,
        ),
        level in 1..10u32,
        window_bits in 9..16u8,
        context_takeover: bool,
    ) {
        let direction = Direction { context_takeover, window_bits };
        let (mut deflater, mut inflater) = (Deflater::new(level, direction), Inflater::new(direction));
        for message in messages {
            let mut compressed = b"before".to_vec();
            deflater.deflate(&message, &mut compressed);
            let mut inflated = b"before".to_vec();
            inflater.inflate(&compressed[6..], &mut inflated, message.len()).unwrap();
            prop_assert_eq!(&inflated[6..], message);
        }
    }

    #[test]
    fn chunks_survive_cuts(
        chunks in vec(vec(any::<u8>(), 0..600), 0..6),
        trailers in vec(("[a-zA-Z-]{1,8}", "[!-~]{0,8}"), 0..3),
        behind in vec(any::<u8>(), 0..5),
        piece in 1..50usize,
    ) {
        let mut bytes = Vec::new();
        for chunk in &chunks {
            encode_chunk(&mut bytes, chunk);
        }
        let fields: Vec<_> = trailers.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        encode_last_chunk(&mut bytes, &fields);
        bytes.extend_from_slice(&behind);
        for piece in [piece, usize::MAX / 2] {
            let body = read(BodyDecoder::chunked(&Limits::default()), &bytes, piece);
            prop_assert_eq!(&body.data, &chunks.concat());
            prop_assert_eq!(body.trailers.len(), trailers.len());
            prop_assert_eq!(body.end, Ok(Some(behind.len())));
        }
    }

    #[test]
    fn a_request_survives(
        method in "[A-Z]{1,7}".prop_filter("a proxy's", |method| method != "CONNECT"),
        path in "/[!-~&&[^#?]]{0,20}",
        query in proptest::option::of("[!-~&&[^#]]{0,20}"),
        headers in vec(("X-[a-zA-Z0-9-]{1,8}", "([!-~]([ -~]{0,12}[!-~])?)?"), 0..8),
        body in proptest::option::of(vec(any::<u8>(), 0..50)),
    ) {
        let target = match &query {
            Some(query) => format!("{path}?{query}"),
            None => path.clone(),
        };
        let mut bytes = Vec::new();
        let mut writer = http1::RequestWriter::new(&mut bytes, &method, &target, "a.example:80");
        for (name, value) in &headers {
            writer = writer.header(name, value);
        }
        match &body {
            Some(body) => writer.body(body),
            None => writer.no_body(),
        }
        let mut slots = HeaderSlots::new();
        let decoded = decode_request(&bytes, &mut slots, &Limits::default());
        let Ok(Decoded::Head(head, consumed)) = decoded else { panic!("{decoded:?}") };
        prop_assert_eq!(head.method, Method::new(&method));
        prop_assert_eq!((head.path, head.query), (&path[..], query.as_deref()));
        prop_assert_eq!(head.host, Some("a.example:80"));
        for ((name, value), got) in headers.iter().zip(head.headers.iter().skip(1)) {
            prop_assert_eq!((&name[..], value.as_bytes()), got);
        }
        let read = read(head.body, &bytes[consumed..], usize::MAX / 2);
        prop_assert_eq!(read.data, body.unwrap_or_default());
    }

    #[test]
    fn a_response_survives(
        status in 200..600u16,
        headers in vec(("X-[a-zA-Z0-9-]{1,8}", "([!-~]([ -~]{0,12}[!-~])?)?"), 0..8),
        body in vec(any::<u8>(), 0..50),
        keep_alive: bool,
    ) {
        let mut bytes = Vec::new();
        let mut writer = http1::ResponseWriter::new(&mut bytes, status);
        for (name, value) in &headers {
            writer = writer.header(name, value);
        }
        writer.keep_alive(keep_alive, Version::Http11).body(&body);
        super::http1_response::response(&bytes, Method::Get, |head, consumed| {
            assert_eq!((head.status, head.keep_alive), (status, keep_alive));
            for ((name, value), got) in headers.iter().zip(head.headers.iter()) {
                assert_eq!((&name[..], value.as_bytes()), got);
            }
            let mut decoder = head.body;
            if matches!(status, 204 | 304) || body.is_empty() {
                assert_eq!(consumed, bytes.len());
            } else {
                assert_eq!(decoder.decode(&bytes[consumed..]), Ok((body.len(), Body::Data(&body))));
            }
            assert_eq!(decoder.decode(b""), Ok((0, Body::End)));
        });
    }

    #[test]
    fn an_event_survives(
        written in vec((
            proptest::option::of("[^\r\n\0]{0,8}"),
            proptest::option::of("[^\r\n\0]{1,8}"),
            "[^\r]{0,30}",
            proptest::option::of(any::<u64>()),
        ), 1..5),
        piece in 1..40usize,
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        let mut last_id = String::new();
        for (id, event, data, retry_ms) in &written {
            sse::Event {
                id: id.as_deref(),
                event: event.as_deref(),
                data: Some(data.as_bytes()),
                retry_ms: *retry_ms,
            }
            .encode(&mut bytes);
            sse::encode_comment(&mut bytes, data);
            last_id = id.clone().unwrap_or(last_id);
            let event = event.as_deref().unwrap_or("message");
            expected.push((last_id.clone(), event.to_owned(), data.clone()));
        }
        let events = super::sse::events(&mut sse::Decoder::new(4096), &bytes, piece).unwrap();
        prop_assert_eq!(events, expected);
    }
}

fn put(out: &mut Vec<u8>, opcode: Opcode, fin: bool, mask: Option<[u8; 4]>, payload: &[u8]) {
    FrameHeader { fin, mask, ..FrameHeader::new(opcode, payload.len() as u64) }.encode(out);
    let begin = out.len();
    out.extend_from_slice(payload);
    if let Some(mask) = mask {
        websocket::apply_mask(&mut out[begin..], mask);
    }
}
