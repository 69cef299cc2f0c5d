//! WebSocket: no cut changes what is said, and what is agreed on is what was offered.

use dunlin_wire::http1::{
    Decoded, HeaderSlots, Limits as HttpLimits, Method, decode_request, decode_response,
};
use dunlin_wire::websocket::deflate::{DeflateConfig, Deflater, Direction, Inflater};
use dunlin_wire::websocket::handshake::{self, ClientConfig, ClientHandshake, ServerConfig};
use dunlin_wire::websocket::{
    Decoder, Error, Event, FrameHeader, Limits, MessageAssembly, Role, is_close_code,
};

/// A header that decodes encodes to the same bytes.
pub fn frame(data: &[u8]) {
    match FrameHeader::decode(data) {
        Ok(Some((header, length))) => {
            let mut out = Vec::new();
            header.encode(&mut out);
            assert_eq!(out, data[..length]);
            assert_eq!(header.encoded_len(), length);
            for cut in 0..length {
                assert_eq!(FrameHeader::decode(&data[..cut]), Ok(None));
            }
        }
        Ok(None) => assert!(data.len() < 14),
        Err(error) => assert!(is_close_code(error.close_code())),
    }
}

/// Both ends of a connection, with and without compression, in pieces and whole.
pub fn messages(data: &[u8]) {
    let Some((settings, data)) = super::settings(data) else { return };
    let decoder = Decoder {
        role: if settings & 1 == 0 { Role::Server } else { Role::Client },
        limits: Limits { frame_bytes_max: 300, message_bytes_max: 700 },
        deflate: settings & 2 != 0,
    };
    let whole = hear(decoder, data, usize::MAX, false);
    let piece = usize::from(settings >> 2) % 16 + 1;
    assert_eq!(hear(decoder, data, piece, false), whole);
    assert_eq!(hear(decoder, data, piece, true), whole);
}

type Heard = (Vec<(&'static str, Vec<u8>)>, Result<(), Error>);

fn hear(decoder: Decoder, data: &[u8], piece: usize, held: bool) -> Heard {
    let mut heard = Vec::new();
    let mut assembly = held.then(MessageAssembly::new);
    for piece in data.chunks(piece) {
        let mut piece = piece.to_vec();
        let mut rest = &mut piece[..];
        while !rest.is_empty() {
            let available = rest.len();
            let decoded = match decoder.decode(assembly.as_mut(), rest) {
                Ok(decoded) => decoded,
                Err(error) => {
                    assert!(is_close_code(error.close_code()));
                    return (heard, Err(error));
                }
            };
            let consumed = decoded.consumed;
            assert!(consumed <= available);
            match decoded.event {
                Event::NeedMore { hint } => assert!(consumed == available && hint > 0),
                Event::NeedAssembly => {
                    assert!(consumed == 0 && assembly.is_none());
                    assembly = Some(MessageAssembly::new());
                    continue;
                }
                Event::Message(message) => {
                    assert!(message.payload.len() <= decoder.limits.message_bytes_max);
                    assert!(!message.compressed || decoder.deflate);
                    if let Some(text) = message.text() {
                        heard.push(("text", text.into()));
                    } else {
                        let kind = if message.compressed { "compressed" } else { "binary" };
                        heard.push((kind, message.payload.to_vec()));
                    }
                }
                Event::Ping(payload) => heard.push(("ping", payload.to_vec())),
                Event::Pong(payload) => heard.push(("pong", payload.to_vec())),
                Event::Close(None) => heard.push(("close", Vec::new())),
                Event::Close(Some(close)) => {
                    assert!(is_close_code(close.code));
                    heard.push(("close", format!("{} {}", close.code, close.reason).into()));
                }
            }
            if let Some(assembly) = &assembly {
                assert!(assembly.memory_bytes() <= 2 * decoder.limits.message_bytes_max);
            }
            if !held && assembly.as_ref().is_some_and(MessageAssembly::is_idle) {
                assembly = None;
            }
            rest = &mut rest[consumed..];
        }
    }
    (heard, Ok(()))
}

const TERMS: DeflateConfig = DeflateConfig {
    server_context_takeover: true,
    client_context_takeover: true,
    server_max_window_bits: 14,
    client_max_window_bits: 13,
};

/// Headers of any kind on a handshake, to either end.
pub fn handshake(data: &[u8]) {
    let http = HttpLimits::default();
    let request = [
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
        data,
        b"\r\n\r\n",
    ]
    .concat();
    let mut slots = HeaderSlots::new();
    if let Ok(Decoded::Head(head, _)) = decode_request(&request, &mut slots, &http) {
        let config = ServerConfig { protocols: &["chat"], deflate: Some(TERMS) };
        match handshake::accept(&head, &config) {
            Ok(accepted) => {
                let mut out = Vec::new();
                accepted.encode_response(&mut out, &[]);
                let mut slots = HeaderSlots::new();
                let response = decode_response(&out, &mut slots, &http, Method::Get);
                let Ok(Decoded::Head(response, consumed)) = response else {
                    panic!("our own response does not decode: {response:?}");
                };
                assert_eq!((response.status, consumed), (101, out.len()));
                let protocol = response.headers.get_str("sec-websocket-protocol");
                assert_eq!(protocol, accepted.protocol);
            }
            Err(error) => assert!(matches!(error.status(), 400 | 405 | 426)),
        }
    }
    let response =
        [b"HTTP/1.1 101 \r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", data, b"\r\n\r\n"]
            .concat();
    let mut slots = HeaderSlots::new();
    if let Ok(Decoded::Head(head, _)) = decode_response(&response, &mut slots, &http, Method::Get) {
        let config = ClientConfig { protocols: &["chat"], deflate: Some(TERMS) };
        let connected = ClientHandshake::new(*b"the sample nonce").check_response(&head, &config);
        if let Ok(connected) = connected {
            assert!(matches!(connected.protocol, None | Some("chat")));
            if let Some(params) = connected.deflate {
                assert!((8..=14).contains(&params.server_max_window_bits));
                assert!((8..=13).contains(&params.client_max_window_bits));
            }
        }
    }
}

/// An offer of any kind: whatever is agreed on keeps to it.
pub fn extensions(data: &[u8]) {
    let data = [
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
          Sec-WebSocket-Extensions: ",
        data,
    ]
    .concat();
    handshake(&data);
    let data = [
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Extensions: ",
        data.split(|&byte| byte == b'\n').next_back().unwrap_or_default(),
    ]
    .concat();
    handshake(&data);
}

/// A compressed message of any kind.
pub fn inflate(data: &[u8]) {
    let Some((settings, data)) = super::settings(data) else { return };
    let direction =
        Direction { context_takeover: settings & 1 != 0, window_bits: 8 + (settings >> 1) % 8 };
    let mut inflater = Inflater::new(direction);
    let mut out = b"before".to_vec();
    match inflater.inflate(data, &mut out, 4096) {
        Ok(()) => {
            assert!(out.starts_with(b"before") && out.len() <= 6 + 4096);
            let mut compressed = Vec::new();
            let alone = Direction { context_takeover: false, window_bits: 15 };
            Deflater::new(1, alone).deflate(&out[6..], &mut compressed);
            let mut again = Vec::new();
            assert_eq!(Inflater::new(alone).inflate(&compressed, &mut again, 4096), Ok(()));
            assert_eq!(again, out[6..]);
        }
        Err(error) => assert!(matches!(error, Error::Inflate | Error::MessageTooLong)),
    }
    assert!(out.capacity() <= 4 * 4096);
    if !direction.context_takeover {
        // Whatever the last message was, the next is read as if it were the first.
        let mut out = Vec::new();
        let hello = b"\xf2\x48\xcd\xc9\xc9\x07\x00";
        assert_eq!(inflater.inflate(hello, &mut out, 5), Ok(()));
        assert_eq!(out, b"Hello");
    }
}

/// Messages of any kind, compressed and read again.
pub fn deflate(data: &[u8]) {
    let Some((settings, data)) = super::settings(data) else { return };
    let direction =
        Direction { context_takeover: settings & 1 != 0, window_bits: 9 + (settings >> 1) % 7 };
    let mut deflater = Deflater::new(u32::from(settings >> 4) % 9 + 1, direction);
    let mut inflater = Inflater::new(direction);
    for message in data.split(|&byte| byte == b'\n') {
        // Long enough that the window slides, without a fuzzer having to write it all.
        let message = message.repeat(1 + usize::from(settings & 8) * 40);
        let mut compressed = Vec::new();
        deflater.deflate(&message, &mut compressed);
        let mut out = Vec::new();
        assert_eq!(inflater.inflate(&compressed, &mut out, message.len()), Ok(()));
        assert_eq!(out, message);
    }
}
