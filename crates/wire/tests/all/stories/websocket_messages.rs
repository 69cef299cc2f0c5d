//! Frames and messages (RFC 6455 §5, §7, §8), many of them after the Autobahn test suite's chapters.

use dunlin_wire::websocket::{
    Decoder, Error, Event, FrameHeader, Limits, Mask, MessageAssembly, Opcode, Role, encode_close,
    encode_close_masked, encode_frame, encode_frame_masked, is_close_code,
};

/// An event that owns what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Text(String),
    Binary(Vec<u8>),
    Compressed(Opcode, Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<(u16, String)>),
}

/// Everything that was said before the end or the first error.
pub type Heard = (Vec<Said>, Result<(), Error>);

/// A connection's receiving side: an assembly is taken when asked for and given back when idle, or
/// held from the start.
pub struct Listener {
    decoder: Decoder,
    assembly: Option<Box<MessageAssembly>>,
    holds_assembly: bool,
}

impl Listener {
    pub fn new(decoder: Decoder) -> Listener {
        Listener { decoder, assembly: None, holds_assembly: false }
    }

    pub fn holding_an_assembly(decoder: Decoder) -> Listener {
        Listener { decoder, assembly: Some(Box::default()), holds_assembly: true }
    }

    pub fn is_idle(&self) -> bool {
        self.assembly.as_ref().is_none_or(|assembly| assembly.is_idle())
    }

    pub fn hear(&mut self, bytes: &[u8], said: &mut Vec<Said>) -> Result<(), Error> {
        let mut bytes = bytes.to_vec();
        let mut rest = &mut bytes[..];
        while !rest.is_empty() {
            let available = rest.len();
            let decoded = self.decoder.decode(self.assembly.as_deref_mut(), rest)?;
            let consumed = decoded.consumed;
            match decoded.event {
                Event::NeedMore { hint } => {
                    assert_eq!(consumed, available, "all is taken in");
                    assert!(hint > 0);
                }
                Event::NeedAssembly => {
                    assert_eq!(consumed, 0);
                    assert!(self.assembly.is_none());
                    self.assembly = Some(Box::default());
                    continue;
                }
                Event::Message(message) if message.compressed => {
                    said.push(Said::Compressed(message.opcode, message.payload.to_vec()));
                }
                Event::Message(message) => said.push(match message.text() {
                    Some(text) => Said::Text(text.to_owned()),
                    None => {
                        assert_eq!(message.opcode, Opcode::Binary);
                        Said::Binary(message.payload.to_vec())
                    }
                }),
                Event::Ping(payload) => said.push(Said::Ping(payload.to_vec())),
                Event::Pong(payload) => said.push(Said::Pong(payload.to_vec())),
                Event::Close(close) => {
                    said.push(Said::Close(
                        close.map(|close| (close.code, close.reason.to_owned())),
                    ));
                }
            }
            if !self.holds_assembly && self.is_idle() {
                self.assembly = None;
            }
            rest = &mut rest[consumed..];
        }
        Ok(())
    }
}

pub fn server() -> Decoder {
    Decoder { role: Role::Server, limits: Limits::default(), deflate: false }
}

pub fn client() -> Decoder {
    Decoder { role: Role::Client, ..server() }
}

pub fn hear(decoder: Decoder, bytes: &[u8], piece: usize) -> Heard {
    let mut said = Vec::new();
    let mut listener = Listener::new(decoder);
    for piece in bytes.chunks(piece) {
        if let Err(error) = listener.hear(piece, &mut said) {
            return (said, Err(error));
        }
    }
    (said, Ok(()))
}

/// Hears the bytes whole and in pieces, and insists that it makes no difference.
#[track_caller]
fn heard(decoder: Decoder, bytes: &[u8]) -> Heard {
    let whole = hear(decoder, bytes, usize::MAX);
    for piece in [1, 2, 3, 5, 8, 13] {
        assert_eq!(hear(decoder, bytes, piece), whole, "in pieces of {piece}");
    }
    whole
}

#[track_caller]
fn says(bytes: &[u8]) -> Vec<Said> {
    let (said, end) = heard(client(), bytes);
    end.unwrap();
    said
}

#[track_caller]
fn fails(bytes: &[u8], error: Error, close_code: u16) {
    assert_eq!(heard(client(), bytes).1, Err(error));
    assert_eq!(error.close_code(), close_code);
}

fn frame(fin: bool, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    FrameHeader { fin, ..FrameHeader::new(opcode, payload.len() as u64) }.encode(&mut out);
    out.extend_from_slice(payload);
    out
}

#[test]
fn the_examples_of_the_rfc() {
    // RFC 6455 §5.7.
    assert_eq!(says(b"\x81\x05Hello"), [Said::Text("Hello".into())]);
    let masked = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    assert_eq!(heard(server(), masked), (vec![Said::Text("Hello".into())], Ok(())));
    assert_eq!(says(b"\x01\x03Hel\x80\x02lo"), [Said::Text("Hello".into())]);
    assert_eq!(says(b"\x89\x05Hello"), [Said::Ping(b"Hello".into())]);
    let masked = b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    assert_eq!(heard(server(), masked), (vec![Said::Pong(b"Hello".into())], Ok(())));
    let mut binary = vec![0x82, 0x7e, 0x01, 0x00];
    binary.extend_from_slice(&[7; 256]);
    assert_eq!(says(&binary), [Said::Binary(vec![7; 256])]);
}

#[test]
fn a_whole_frame_is_yielded_where_it_lies() {
    let mut bytes = Vec::new();
    encode_frame_masked(&mut bytes, Opcode::Text, b"in place", [1, 2, 3, 4]);
    encode_frame_masked(&mut bytes, Opcode::Ping, b"next", [5, 6, 7, 8]);
    let untouched = bytes[14..].to_vec();
    let place = bytes[6..].as_ptr();
    let decoded = server().decode(None, &mut bytes).unwrap();
    assert_eq!(decoded.consumed, 14);
    let Event::Message(message) = decoded.event else { panic!("{:?}", decoded.event) };
    assert_eq!(message.payload, b"in place");
    assert!(std::ptr::eq(message.payload.as_ptr(), place));
    assert_eq!(bytes[14..], untouched, "what is not consumed is not unmasked");
}

#[test]
fn nothing_is_no_event_and_needs_no_assembly() {
    let decoded = server().decode(None, &mut []).unwrap();
    assert_eq!((decoded.consumed, decoded.event), (0, Event::NeedMore { hint: 2 }));
}

#[test]
fn the_hint_says_how_much_is_missing() {
    let mut assembly = MessageAssembly::new();
    let mut hint = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        match client().decode(Some(&mut assembly), &mut bytes).unwrap().event {
            Event::NeedMore { hint } => hint,
            event => panic!("{event:?}"),
        }
    };
    assert_eq!(hint(b"\x82"), 1);
    assert_eq!(hint(b"\x7e"), 2);
    assert_eq!(hint(b"\x01"), 1);
    assert_eq!(hint(b"\x00"), 256);
    assert_eq!(hint(&[0; 250]), 6);
}

#[test]
fn lengths_at_their_borders() {
    for length in [0, 1, 125, 126, 127, 128, 65535, 65536] {
        let payload = vec![b'*'; length];
        let mut bytes = Vec::new();
        encode_frame(&mut bytes, Opcode::Binary, &payload);
        assert_eq!(hear(client(), &bytes, usize::MAX).0, [Said::Binary(payload.clone())]);
        assert_eq!(hear(client(), &bytes, 997).0, [Said::Binary(payload.clone())]);
        let mut bytes = Vec::new();
        encode_frame_masked(&mut bytes, Opcode::Binary, &payload, [9, 8, 7, 6]);
        assert_eq!(hear(server(), &bytes, usize::MAX).0, [Said::Binary(payload.clone())]);
        assert_eq!(hear(server(), &bytes, 997).0, [Said::Binary(payload)]);
    }
    fails(b"\x82\x7e\x00\x7d", Error::Length, 1002);
    fails(b"\x82\x7f\x00\x00\x00\x00\x00\x00\xff\xff", Error::Length, 1002);
    fails(b"\x82\x7f\x80\x00\x00\x00\x00\x01\x00\x00", Error::Length, 1002);
}

#[test]
fn control_frames_are_short_and_whole() {
    assert_eq!(says(&frame(true, Opcode::Ping, &[0xfe; 125])), [Said::Ping(vec![0xfe; 125])]);
    fails(b"\x89\x7e\x00\x7e", Error::ControlTooLong, 1002);
    fails(b"\x88\x7e\x00\x7e", Error::ControlTooLong, 1002);
    fails(b"\x09\x00", Error::ControlFragmented, 1002);
    fails(b"\x0a\x00", Error::ControlFragmented, 1002);
    fails(b"\x08\x00", Error::ControlFragmented, 1002);
}

#[test]
fn reserved_bits_and_opcodes_are_reserved() {
    for first in [0xa1, 0x91, 0xb1, 0xc1, 0xf1, 0xc9, 0xc8] {
        fails(&[first, 0x00], Error::ReservedBits, 1002);
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        fails(&[0x80 | opcode, 0x00], Error::ReservedOpcode(opcode), 1002);
    }
}

#[test]
fn rsv1_marks_compressed_messages_once_that_is_agreed() {
    let decoder = Decoder { deflate: true, ..client() };
    let compressed = |payload: &[u8]| Said::Compressed(Opcode::Text, payload.to_vec());
    assert_eq!(heard(decoder, b"\xc1\x01\x00"), (vec![compressed(b"\x00")], Ok(())));
    // Only the first fragment carries it, and what is compressed is not text yet.
    assert_eq!(
        heard(decoder, b"\x41\x01\xff\x80\x01\x00"),
        (vec![compressed(b"\xff\x00")], Ok(()))
    );
    assert_eq!(heard(decoder, b"\x41\x01\xff\xc0\x00").1, Err(Error::ReservedBits));
    assert_eq!(heard(decoder, b"\xc9\x00").1, Err(Error::ReservedBits));
    // A message that is not compressed can still be sent, and its text is still validated.
    assert_eq!(heard(decoder, b"\x81\x01a").0, [Said::Text("a".into())]);
    assert_eq!(heard(decoder, b"\x81\x01\xff").1, Err(Error::Utf8));
}

#[test]
fn clients_mask_and_servers_do_not() {
    assert_eq!(heard(server(), b"\x81\x05Hello").1, Err(Error::MaskMissing));
    assert_eq!(heard(server(), b"\x81\x00").1, Err(Error::MaskMissing));
    assert_eq!(heard(client(), b"\x81\x81\x01\x02\x03\x04a").1, Err(Error::MaskUnexpected));
    assert_eq!(Error::MaskMissing.close_code(), 1002);
}

#[test]
fn fragments_make_a_message_and_control_frames_come_between() {
    let bytes = b"\x01\x01a\x89\x02hi\x00\x00\x8a\x00\x80\x01b\x82\x01c";
    let said = [
        Said::Ping(b"hi".into()),
        Said::Pong(vec![]),
        Said::Text("ab".into()),
        Said::Binary(b"c".into()),
    ];
    assert_eq!(says(bytes), said);
    assert_eq!(says(b"\x02\x00\x00\x00\x80\x00"), [Said::Binary(vec![])]);
    assert_eq!(says(b"\x01\x00\x80\x00"), [Said::Text(String::new())]);
}

#[test]
fn continuations_continue_something() {
    fails(b"\x80\x01a", Error::ContinuationUnexpected, 1002);
    fails(b"\x00\x01a", Error::ContinuationUnexpected, 1002);
    fails(b"\x01\x01a\x80\x01b\x80\x01c", Error::ContinuationUnexpected, 1002);
    fails(b"\x01\x01a\x81\x01b", Error::ContinuationMissing, 1002);
    fails(b"\x02\x01a\x01\x01b", Error::ContinuationMissing, 1002);
}

#[test]
fn text_is_utf8_across_frames_and_cuts() {
    let text = "κόσμε €𐍈";
    assert_eq!(says(&frame(true, Opcode::Text, text.as_bytes())), [Said::Text(text.into())]);
    // Autobahn 6.2.3: each byte a fragment.
    let mut bytes = frame(false, Opcode::Text, b"");
    for byte in text.bytes() {
        bytes.extend(frame(false, Opcode::Continuation, &[byte]));
    }
    bytes.extend(frame(true, Opcode::Continuation, b""));
    assert_eq!(says(&bytes), [Said::Text(text.into())]);
    // A character that never ends.
    fails(&frame(true, Opcode::Text, b"\xce"), Error::Utf8, 1007);
    let bytes =
        [frame(false, Opcode::Text, b"\xce"), frame(true, Opcode::Continuation, b"")].concat();
    fails(&bytes, Error::Utf8, 1007);
    // Surrogates, overlong forms, and what lies beyond Unicode.
    for bad in [
        &b"\xed\xa0\x80"[..],
        b"\xc0\xaf",
        b"\xe0\x80\xaf",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
    ] {
        fails(&frame(true, Opcode::Text, bad), Error::Utf8, 1007);
    }
    assert_eq!(says(&frame(true, Opcode::Binary, b"\xff")), [Said::Binary(b"\xff".into())]);
}

#[test]
fn invalid_text_fails_with_its_first_wrong_byte() {
    // Autobahn 6.4.1 to 6.4.4: the message would go on, and no one waits for it.
    let valid = "κόσμε".as_bytes();
    let mut said = Vec::new();
    for (bad, error_at) in
        [(&b"\xf4\x90\x80\x80"[..], 1), (b"\xf4\xff", 1), (b"\xc0", 0), (b"\xed\xa0", 1)]
    {
        // In one frame of a hundred bytes that never arrive.
        let mut listener = Listener::new(client());
        listener.hear(b"\x81\x64", &mut said).unwrap();
        listener.hear(valid, &mut said).unwrap();
        for (index, byte) in bad.iter().enumerate() {
            let expected = if index < error_at { Ok(()) } else { Err(Error::Utf8) };
            assert_eq!(listener.hear(&[*byte], &mut said), expected, "{bad:x?} at {index}");
            if expected.is_err() {
                break;
            }
        }
        // In a fragment that is not the last.
        let mut listener = Listener::new(client());
        listener.hear(&frame(false, Opcode::Text, valid), &mut said).unwrap();
        assert_eq!(
            listener.hear(&frame(false, Opcode::Continuation, bad), &mut said),
            Err(Error::Utf8)
        );
    }
    assert_eq!(said, []);
}

#[test]
fn frames_and_messages_are_bounded_by_their_headers() {
    let limits = Limits { frame_bytes_max: 300, message_bytes_max: 500 };
    let decoder = Decoder { limits, ..client() };
    let error = |bytes: &[u8]| heard(decoder, bytes).1;
    assert_eq!(error(b"\x82\x7e\x01\x2c"), Ok(()));
    assert_eq!(error(b"\x82\x7e\x01\x2d"), Err(Error::FrameTooLong));
    assert_eq!(error(b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff"), Err(Error::FrameTooLong));
    let first = frame(false, Opcode::Binary, &[0; 300]);
    assert_eq!(error(&[&first[..], b"\x80\x7e\x00\xc8"].concat()), Ok(()));
    assert_eq!(error(&[&first[..], b"\x80\x7e\x00\xc9"].concat()), Err(Error::MessageTooLong));
    assert_eq!(Error::FrameTooLong.close_code(), 1009);
    assert_eq!(Error::MessageTooLong.close_code(), 1009);
}

#[test]
fn memory_grows_with_what_arrives_not_with_what_is_announced() {
    let limits = Limits { frame_bytes_max: usize::MAX, message_bytes_max: usize::MAX };
    let decoder = Decoder { limits, ..client() };
    let mut assembly = MessageAssembly::new();
    let mut bytes = *b"\x82\x7f\x00\x00\x00\xff\xff\xff\xff\xffabc";
    decoder.decode(Some(&mut assembly), &mut bytes).unwrap();
    assert!(assembly.memory_bytes() < 4096);
    assert!(!assembly.is_idle());
    assembly.reset(0);
    assert!(assembly.is_idle());
    assert_eq!(assembly.memory_bytes(), 0);
}

#[test]
fn close_frames_have_a_code_and_a_reason_or_nothing() {
    assert_eq!(says(b"\x88\x00"), [Said::Close(None)]);
    assert_eq!(says(b"\x88\x02\x03\xe8"), [Said::Close(Some((1000, String::new())))]);
    assert_eq!(says(b"\x88\x05\x03\xe9bye"), [Said::Close(Some((1001, "bye".into())))]);
    fails(b"\x88\x01\x03", Error::CloseLength, 1002);
    fails(b"\x88\x03\x03\xe8\xff", Error::CloseReason, 1007);
    // Autobahn 7.7 and 7.9.
    for code in (1000..=1003).chain(1007..=1014).chain([3000, 3999, 4000, 4999]) {
        assert!(is_close_code(code));
        let mut bytes = Vec::new();
        encode_close(&mut bytes, code, "why");
        assert_eq!(says(&bytes), [Said::Close(Some((code, "why".into())))]);
    }
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535] {
        let [high, low] = u16::to_be_bytes(code);
        fails(&[0x88, 2, high, low], Error::CloseCode(code), 1002);
    }
}

#[test]
fn a_close_frame_that_we_write_is_one_that_we_would_read() {
    let long = "é".repeat(100);
    let mut bytes = Vec::new();
    encode_close(&mut bytes, 1008, &long);
    assert_eq!(says(&bytes), [Said::Close(Some((1008, "é".repeat(61))))]);
    for code in [1005, 1006, 0, 1015] {
        let mut bytes = Vec::new();
        encode_close(&mut bytes, code, "not sent");
        assert_eq!(says(&bytes), [Said::Close(None)]);
    }
    let mut bytes = Vec::new();
    encode_close_masked(&mut bytes, 1000, "bye", [1, 2, 3, 4]);
    assert_eq!(heard(server(), &bytes).0, [Said::Close(Some((1000, "bye".into())))]);
}

#[test]
fn a_message_of_65536_fragments_is_one_message() {
    // Autobahn 9.3.1 and 9.4.1: 4 MiB in fragments of 64 bytes.
    let limits = Limits { frame_bytes_max: 1 << 24, message_bytes_max: 1 << 24 };
    let decoder = Decoder { limits, ..server() };
    let mask: Mask = [3, 1, 4, 1];
    let fragments = 65_536;
    let mut bytes = Vec::new();
    for index in 0..fragments {
        let opcode = if index == 0 { Opcode::Text } else { Opcode::Continuation };
        let header = FrameHeader {
            fin: index == fragments - 1,
            mask: Some(mask),
            ..FrameHeader::new(opcode, 64)
        };
        header.encode(&mut bytes);
        let begin = bytes.len();
        bytes.resize(begin + 64, b'*');
        dunlin_wire::websocket::apply_mask(&mut bytes[begin..], mask);
    }
    let mut assembly = MessageAssembly::new();
    let mut messages = 0;
    let mut calls = 0;
    for mut piece in bytes.chunks_mut(64 * 1024) {
        while !piece.is_empty() {
            calls += 1;
            let decoded = decoder.decode(Some(&mut assembly), piece).unwrap();
            let consumed = decoded.consumed;
            if let Event::Message(message) = decoded.event {
                assert_eq!(message.payload.len(), 64 * fragments);
                assert!(message.payload.iter().all(|&byte| byte == b'*'));
                messages += 1;
            }
            piece = &mut piece[consumed..];
        }
    }
    assert_eq!(messages, 1);
    assert!(calls <= 75, "a call for each piece received, not for each fragment: {calls}");
    assert!(assembly.is_idle());
}

#[test]
fn one_assembly_can_serve_a_whole_worker() {
    // Held by the loop and lent to the connection that is read; kept by it only while a message is incomplete.
    let bytes = b"\x81\x01a\x01\x01b\x89\x00\x80\x01c\x82\x01d";
    let mut said = Vec::new();
    let mut listener = Listener::holding_an_assembly(client());
    listener.hear(bytes, &mut said).unwrap();
    assert!(listener.is_idle());
    assert_eq!(said, says(bytes));
}

#[test]
fn an_idle_connection_needs_no_state_and_the_rest_is_small() {
    assert!(size_of::<Decoder>() <= 24);
    assert!(size_of::<MessageAssembly>() <= 256);
    assert!(size_of::<Event<'_>>() <= 32);
    assert_eq!(size_of::<Option<Box<MessageAssembly>>>(), 8);
}
