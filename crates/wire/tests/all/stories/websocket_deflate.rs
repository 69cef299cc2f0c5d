//! permessage-deflate's coding (RFC 7692 §6, §7.2).

use dunlin_wire::websocket::deflate::{Deflater, Direction, Inflater, SharedDeflate};
use dunlin_wire::websocket::{
    Decoder, Error, Event, Limits, Message, MessageAssembly, Opcode, Role,
};

pub const ALONE: Direction = Direction { context_takeover: false, window_bits: 15 };
pub const TAKEN_OVER: Direction = Direction { context_takeover: true, window_bits: 15 };

fn inflate(inflater: &mut Inflater, payload: &[u8]) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    inflater.inflate(payload, &mut out, 1 << 20)?;
    Ok(out)
}

fn deflate(deflater: &mut Deflater, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    deflater.deflate(payload, &mut out);
    out
}

#[test]
fn the_examples_of_the_rfc() {
    let hello = b"\xf2\x48\xcd\xc9\xc9\x07\x00";
    // §7.2.3.1, and §7.2.3.2 with a context to refer to.
    assert_eq!(inflate(&mut Inflater::new(ALONE), hello).unwrap(), b"Hello");
    let mut inflater = Inflater::new(TAKEN_OVER);
    assert_eq!(inflate(&mut inflater, hello).unwrap(), b"Hello");
    assert_eq!(inflate(&mut inflater, b"\xf2\x00\x11\x00\x00").unwrap(), b"Hello");
    // Without one the same bytes refer to nothing.
    let mut inflater = Inflater::new(ALONE);
    assert_eq!(inflate(&mut inflater, hello).unwrap(), b"Hello");
    assert_eq!(inflate(&mut inflater, b"\xf2\x00\x11\x00\x00"), Err(Error::Inflate));
    assert_eq!(inflate(&mut inflater, hello).unwrap(), b"Hello", "and the next is none the worse");
    // §7.2.3.3: a block without compression.
    let stored = b"\x00\x05\x00\xfa\xffHello\x00";
    assert_eq!(inflate(&mut inflater, stored).unwrap(), b"Hello");
    // §7.2.3.4: a final block, with and without the empty one behind it.
    assert_eq!(inflate(&mut inflater, b"\xf3\x48\xcd\xc9\xc9\x07\x00\x00").unwrap(), b"Hello");
    assert_eq!(inflate(&mut inflater, b"\xf3\x48\xcd\xc9\xc9\x07\x00").unwrap(), b"Hello");
    // §7.2.3.5: two blocks.
    let blocks = b"\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00";
    assert_eq!(inflate(&mut inflater, blocks).unwrap(), b"Hello");
    // §7.2.3.6: the empty message.
    assert_eq!(inflate(&mut inflater, b"\x00").unwrap(), b"");
    assert_eq!(deflate(&mut Deflater::new(6, ALONE), b""), b"\x00");
    assert_eq!(deflate(&mut Deflater::new(6, ALONE), b"Hello"), hello);
}

#[test]
fn a_context_that_is_taken_over_pays() {
    let mut deflater = Deflater::new(6, TAKEN_OVER);
    let first = deflate(&mut deflater, b"{\"channel\":\"news\",\"data\":{\"text\":\"hello\"}}");
    let second = deflate(&mut deflater, b"{\"channel\":\"news\",\"data\":{\"text\":\"hello\"}}");
    assert!(second.len() < first.len() / 3);
    let mut alone = Deflater::new(6, ALONE);
    let again = deflate(&mut alone, b"{\"channel\":\"news\",\"data\":{\"text\":\"hello\"}}");
    assert_eq!(deflate(&mut alone, b"{\"channel\":\"news\",\"data\":{\"text\":\"hello\"}}"), again);
    // Empty messages in a row do not disturb it.
    let mut inflater = Inflater::new(TAKEN_OVER);
    inflate(&mut inflater, &first).unwrap();
    inflate(&mut inflater, &second).unwrap();
    for text in ["", "", "a", "", "hello"] {
        let compressed = deflate(&mut deflater, text.as_bytes());
        assert_eq!(inflate(&mut inflater, &compressed).unwrap(), text.as_bytes());
    }
}

#[test]
fn a_bomb_does_not_go_off() {
    let bomb = deflate(&mut Deflater::new(9, ALONE), &vec![0; 64 << 20]);
    assert!(bomb.len() < 100_000);
    let mut inflater = Inflater::new(ALONE);
    let mut out = Vec::new();
    assert_eq!(inflater.inflate(&bomb, &mut out, 100_000), Err(Error::MessageTooLong));
    assert!(out.capacity() < 1_000_000, "it was stopped on the way: {}", out.capacity());
    assert_eq!(Error::MessageTooLong.close_code(), 1009);
    // A message of exactly the limit passes.
    let fits = deflate(&mut Deflater::new(9, ALONE), &[7; 5000]);
    assert_eq!(inflater.inflate(&fits, &mut Vec::new(), 5000), Ok(()));
    assert_eq!(inflater.inflate(&fits, &mut Vec::new(), 4999), Err(Error::MessageTooLong));
}

#[test]
fn corruption_and_truncation_are_reported() {
    let text = "the quick brown fox jumps over the lazy dog, the quick brown fox";
    let whole = deflate(&mut Deflater::new(6, ALONE), text.as_bytes());
    let mut inflater = Inflater::new(ALONE);
    for cut in 1..whole.len() - 1 {
        let result = inflate(&mut inflater, &whole[..cut]);
        assert!(result.is_err(), "cut at {cut}: {result:?}");
    }
    assert_eq!(inflate(&mut inflater, b"\xff\xff\xff"), Err(Error::Inflate));
    assert_eq!(Error::Inflate.close_code(), 1007);
    assert_eq!(inflate(&mut inflater, &whole).unwrap(), text.as_bytes());
}

#[test]
fn a_compressed_message_goes_from_end_to_end() {
    let limits = Limits { frame_bytes_max: 1 << 20, message_bytes_max: 1 << 20 };
    let mut shared = SharedDeflate::new(1);
    let payload = "hello, hello, hello! ".repeat(300);
    for window_bits in 9..=15 {
        for mask in [None, Some([1, 2, 3, 4])] {
            let direction = Direction { context_takeover: false, window_bits };
            let deflater = shared.deflater(direction).unwrap();
            let mut bytes = b"before".to_vec();
            deflater.encode_frame(&mut bytes, Opcode::Text, payload.as_bytes(), mask);
            assert!(bytes.len() < payload.len() / 10);
            let role = if mask.is_some() { Role::Server } else { Role::Client };
            let decoder = Decoder { role, limits, deflate: true };
            let decoded = decoder.decode(None, &mut bytes[6..]).unwrap();
            let Event::Message(message) = decoded.event else { panic!("{:?}", decoded.event) };
            assert!(message.compressed);
            let mut out = b"left over".to_vec();
            let message = shared.inflater().message(message, &mut out, &limits).unwrap();
            assert_eq!(message.text(), Some(&payload[..]));
        }
    }
}

#[test]
fn incompressible_data_is_stored() {
    let mut bytes = Vec::new();
    Deflater::new(6, ALONE).encode_frame(&mut bytes, Opcode::Binary, b"\x00\xff\x17", None);
    assert_eq!(bytes, b"\x82\x03\x00\xff\x17");
    // Unless the context counts on it.
    let mut bytes = Vec::new();
    Deflater::new(6, TAKEN_OVER).encode_frame(&mut bytes, Opcode::Binary, b"\x00\xff\x17", None);
    assert_eq!(bytes[0], 0xc2);
}

#[test]
fn inflated_text_is_judged_too() {
    let payload = deflate(&mut Deflater::new(6, ALONE), b"\xff\xfe");
    let message = Message { opcode: Opcode::Text, compressed: true, payload: &payload };
    let mut inflater = Inflater::new(ALONE);
    let limits = Limits::default();
    assert_eq!(inflater.message(message, &mut Vec::new(), &limits), Err(Error::Utf8));
    let message = Message { opcode: Opcode::Binary, ..message };
    assert!(inflater.message(message, &mut Vec::new(), &limits).is_ok());
    let plain = Message { opcode: Opcode::Text, compressed: false, payload: b"as it is" };
    assert_eq!(inflater.message(plain, &mut Vec::new(), &limits), Ok(plain));
}

#[test]
fn a_worker_shares_only_what_can_be_shared() {
    let mut shared = SharedDeflate::new(6);
    assert!(shared.deflater(ALONE).is_some());
    assert!(shared.deflater(TAKEN_OVER).is_none());
    assert!(shared.deflater(Direction { context_takeover: false, window_bits: 8 }).is_none());
}

#[test]
fn compressed_data_fits_the_negotiated_window() {
    // Given room for one byte at a time, zlib has nothing but its window to copy from, and refuses a
    // distance beyond it.
    let mut seed = 1u32;
    let text: Vec<u8> = (0..40_000)
        .map(|_| {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            b"abcdefgh"[(seed >> 29) as usize]
        })
        .collect();
    for level in 1..=9 {
        for window_bits in 9..=15 {
            let mut deflater =
                Deflater::new(level, Direction { context_takeover: true, window_bits });
            let mut inflate = flate2::Decompress::new_with_window_bits(false, window_bits);
            for message in [&text[..], &text[..20_000], b"", &text[100..]] {
                let mut compressed = deflate(&mut deflater, message);
                compressed.extend_from_slice(b"\x00\x00\xff\xff");
                let (mut rest, mut out, mut byte) = (&compressed[..], Vec::new(), [0]);
                loop {
                    let (taken, made) = (inflate.total_in(), inflate.total_out());
                    inflate.decompress(rest, &mut byte, flate2::FlushDecompress::Sync).unwrap();
                    rest = &rest[(inflate.total_in() - taken) as usize..];
                    if inflate.total_out() == made {
                        break;
                    }
                    out.push(byte[0]);
                }
                assert!(out == message, "level {level}, window {window_bits}");
            }
        }
    }
}

/// Random bytes grow by compression; the limit is that of the message, not of its frames.
#[test]
fn incompressible_message_of_the_limit_is_received() {
    let mut seed = 1u32;
    let random: Vec<u8> = (0..64 * 1024)
        .map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        })
        .collect();
    let decoder = Decoder { role: Role::Client, limits: Limits::default(), deflate: true };
    for level in 1..=9 {
        let payload = deflate(&mut Deflater::new(level, ALONE), &random);
        assert!(payload.len() > random.len(), "level {level}: it has grown");
        let length = (payload.len() as u64).to_be_bytes();
        let mut frame = [&[0xc2, 127], &length[..], &payload].concat();
        let mut assembly = MessageAssembly::default();
        let decoded = decoder.decode(Some(&mut assembly), &mut frame).expect("within the limit");
        let Event::Message(message) = decoded.event else { panic!("{:?}", decoded.event) };
        let mut out = Vec::new();
        let message = Inflater::new(ALONE).message(message, &mut out, &Limits::default());
        assert_eq!(message.map(|message| message.payload == random), Ok(true), "level {level}");
    }
    // One byte more is too long, although its frame is within what compression may add.
    let longer = [&random[..], b"x"].concat();
    let payload = deflate(&mut Deflater::new(6, ALONE), &longer);
    let message = Message { opcode: Opcode::Binary, compressed: true, payload: &payload };
    let mut out = Vec::new();
    let inflated = Inflater::new(ALONE).message(message, &mut out, &Limits::default());
    assert_eq!(inflated, Err(Error::MessageTooLong));
}
