//! HTTP/2: what holds for every input.

use dunlin_wire::http2::client::{Config, Connection, Event};
use dunlin_wire::http2::frame::{self, Frame};
use dunlin_wire::http2::hpack::{Decoder, Encoder, Indexing, decode_huffman, encode_huffman};
use dunlin_wire::http2::{ErrorCode, Setting, WINDOW_BYTES_DEFAULT};
use proptest::collection::vec;
use proptest::prelude::*;

fn indexing() -> impl Strategy<Value = Indexing> {
    prop_oneof![Just(Indexing::Table), Just(Indexing::None), Just(Indexing::Never)]
}

/// Names and values from a small stock, so that the table is used, and some from none.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let stock: [&[u8]; 6] = [b"", b"a", b":path", b":status", b"200", b"authorization"];
    prop_oneof![prop::sample::select(stock.map(<[u8]>::to_vec).to_vec()), vec(any::<u8>(), 0..300),]
}

proptest! {
    #[test]
    fn a_text_survives_the_huffman_code(text in vec(any::<u8>(), 0..300)) {
        let (mut code, mut back) = (Vec::new(), Vec::new());
        encode_huffman(&mut code, &text);
        prop_assert_eq!(decode_huffman(&mut back, &code), Ok(()));
        prop_assert_eq!(back, text);
    }

    #[test]
    fn header_lists_survive_whatever_the_table_does(
        blocks in vec((prop::option::of(0..6_000u32), vec((text(), text(), indexing()), 0..8)), 1..12),
    ) {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4_096));
        for (size, fields) in blocks {
            if let Some(size) = size {
                encoder.set_table_size(size);
            }
            let mut block = Vec::new();
            for (name, value, indexing) in &fields {
                encoder.encode(&mut block, name, value, *indexing);
            }
            let mut read = Vec::new();
            let result = decoder.decode(&block, usize::MAX, |name, value| {
                read.push((name.to_vec(), value.to_vec()));
            });
            prop_assert_eq!(result, Ok(()));
            let fields: Vec<_> = fields.into_iter().map(|(name, value, _)| (name, value)).collect();
            prop_assert_eq!(read, fields);
        }
    }

    #[test]
    fn frames_survive_and_no_cut_is_a_frame(
        stream in 1..1u32 << 31,
        data in vec(any::<u8>(), 0..100),
        code: u32,
        payload: [u8; 8],
        increment in 1..1u32 << 31,
        end: bool,
    ) {
        let mut frames: Vec<Vec<u8>> = vec![Vec::new(); 7];
        frame::encode_data(&mut frames[0], stream, &data, end);
        frame::encode_reset(&mut frames[1], stream, ErrorCode(code));
        frame::encode_settings(&mut frames[2], &[(Setting::Unknown(0xf0f0), code)]);
        frame::encode_ping(&mut frames[3], payload, end);
        frame::encode_go_away(&mut frames[4], stream, ErrorCode(code), &data);
        frame::encode_window_update(&mut frames[5], stream, increment);
        frame::encode_headers(&mut frames[6], stream, &data, end, 16_384);
        for bytes in &frames {
            for cut in 0..bytes.len() {
                prop_assert_eq!(frame::decode(&bytes[..cut], 16_384), Ok(None));
            }
        }
        let read: Vec<_> = frames
            .iter()
            .map(|bytes| {
                let (frame, length) = frame::decode(bytes, 16_384).unwrap().unwrap();
                assert_eq!(length, bytes.len());
                frame
            })
            .collect();
        let code = ErrorCode(code);
        let flow_bytes = data.len() as u32;
        prop_assert_eq!(read[0], Frame::Data { stream, data: &data, flow_bytes, end_stream: end });
        prop_assert_eq!(read[1], Frame::Reset { stream, code });
        let Frame::Settings(settings) = read[2] else { panic!() };
        prop_assert_eq!(settings.iter().next(), Some((Setting::Unknown(0xf0f0), code.0)));
        prop_assert_eq!(read[3], Frame::Ping { ack: end, payload });
        prop_assert_eq!(read[4], Frame::GoAway { last_stream: stream, code, debug: &data });
        prop_assert_eq!(read[5], Frame::WindowUpdate { stream, increment });
        let (end_headers, depends_on) = (true, None);
        prop_assert_eq!(
            read[6],
            Frame::Headers { stream, fragment: &data, end_stream: end, end_headers, depends_on }
        );
    }

    #[test]
    fn windows_are_never_exceeded_and_every_body_arrives(
        bodies in vec(0..30_000usize, 1..20),
        grants in vec((0..20u32, 1..40_000u32, any::<bool>()), 0..60),
        initial in 0..70_000u32,
    ) {
        let mut client = Connection::new(Config::default());
        let mut server = Vec::new();
        frame::encode_settings(&mut server, &[(Setting::InitialWindowSize, initial)]);
        client.handle_bytes(&server).unwrap();
        let mut window = i64::from(WINDOW_BYTES_DEFAULT);
        let mut windows = vec![i64::from(initial); bodies.len()];
        let mut received = vec![0; bodies.len()];
        let mut ended = vec![false; bodies.len()];
        for (index, bytes) in bodies.iter().enumerate() {
            let stream = client.open(vec![0u8; *bytes], |_| ()).unwrap();
            prop_assert_eq!(stream as usize, 2 * index + 1);
        }
        let rest = (0..bodies.len() as u32)
            .flat_map(|index| [(index + 1, 40_000, false), (0, 40_000, true)]);
        for (index, bytes, connection) in grants.into_iter().chain(rest) {
            let mut sent = client.transmit().to_vec();
            client.handle_transmitted(sent.len());
            if sent.starts_with(b"PRI") {
                sent.drain(..24);
            }
            let mut at = 0;
            while let Some((frame, length)) = frame::decode(&sent[at..], 16_384).unwrap() {
                at += length;
                match frame {
                    Frame::Data { stream, data, end_stream, .. } => {
                        let index = stream as usize / 2;
                        window -= data.len() as i64;
                        windows[index] -= data.len() as i64;
                        prop_assert!(window >= 0 && windows[index] >= 0);
                        received[index] += data.len();
                        ended[index] |= end_stream;
                    }
                    Frame::Headers { stream, end_stream, .. } => ended[stream as usize / 2] |= end_stream,
                    _ => {}
                }
            }
            let mut server = Vec::new();
            if connection {
                frame::encode_window_update(&mut server, 0, bytes);
                window += i64::from(bytes);
            } else {
                let index = (index as usize).min(bodies.len()).max(1) - 1;
                frame::encode_window_update(&mut server, 2 * index as u32 + 1, bytes);
                windows[index] += i64::from(bytes);
            }
            client.handle_bytes(&server).unwrap();
        }
        // The last grants were answered with what was left.
        let sent = client.transmit().to_vec();
        let mut at = 0;
        while let Some((frame, length)) = frame::decode(&sent[at..], 16_384).unwrap() {
            at += length;
            if let Frame::Data { stream, data, end_stream, .. } = frame {
                received[stream as usize / 2] += data.len();
                ended[stream as usize / 2] |= end_stream;
            }
        }
        prop_assert_eq!(received, bodies);
        prop_assert!(ended.iter().all(|ended| *ended));
        prop_assert_eq!(client.unsent_bytes(), 0);
    }

    #[test]
    fn pieces_make_no_difference(bytes in vec(any::<u8>(), 1..400), piece in 1..40usize) {
        let hear = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let mut client = Connection::new(Config::default());
            for _ in 0..4 {
                client.open(vec![1u8; 10], |_| ()).unwrap();
            }
            let mut server = Vec::new();
            frame::encode_settings(&mut server, &[]);
            client.handle_bytes(&server).unwrap();
            let mut events: Vec<Event> = Vec::new();
            let mut end = Ok(());
            for piece in pieces {
                end = client.handle_bytes(piece);
                while let Some(event) = client.poll_event() {
                    events.push(event);
                }
                if end.is_err() {
                    break;
                }
            }
            (events, end, client.transmit().to_vec())
        };
        let whole = hear(&mut std::iter::once(&bytes[..]));
        let cut = hear(&mut bytes.chunks(piece));
        prop_assert_eq!(whole, cut);
    }
}
