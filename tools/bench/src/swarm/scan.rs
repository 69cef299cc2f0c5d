//! Splits received bytes into messages, independent of the client that received them.
//!
//! A broadcast reaches thousands of clients as the same bytes, mostly cut in the same places. A scan depends only on
//! the bytes, so the last one is kept: if the next client received the same bytes, one comparison replaces the parsing.
//! A burst of 11,100 bytes costs a comparison of 11,100 bytes, not the parsing of 100 frames.

use memchr::memchr;
use memchr::memmem::Finder;

use crate::protocol::{ANSWERED_CONNECT, ANSWERED_SUBSCRIBE, Framing};

/// Marks the bench's own messages: `"seq":"0000000042"`.
pub(crate) const SEQUENCE_MARK: &str = "\"seq\":\"";
/// Decimal digits of a sequence number, fixed so that all messages have the same length.
pub(crate) const SEQUENCE_DIGITS: usize = 10;

/// Longest message a client accepts, bytes. A longer one is an error of the run.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// A message for a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Publication {
    /// Sequence number of the bench; 0 if there is none: then the message is counted, but its order is not checked.
    pub(crate) sequence: u32,
    /// Offset that the server assigned; 0 if the channel keeps no history.
    pub(crate) offset: u64,
}

/// The result of scanning some bytes.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Bytes used; the rest is an incomplete message.
    pub(crate) consumed: usize,
    pub(crate) publications: Vec<Publication>,
    /// First and last publication, if sequences and offsets increase by one throughout.
    pub(crate) run: Option<(Publication, Publication)>,
    /// Payload bytes of the publications: a WebSocket frame's payload, a line, an MQTT packet's body.
    pub(crate) publication_bytes: u64,
    /// Documents that are neither publication nor ping.
    pub(crate) others: u32,
    /// Pings that must be answered as the protocol requires.
    pub(crate) pings: u32,
    /// Pongs of the WebSocket layer.
    pub(crate) pongs: u32,
    /// Payloads of WebSocket pings; usually empty.
    pub(crate) ping_payloads: Vec<Vec<u8>>,
    /// Which answers were seen: `ANSWERED_*`.
    pub(crate) answered: u8,
    /// The server's message when it rejected the client or ended the connection.
    pub(crate) refusal: Option<String>,
}

/// Scans for one thread, and caches the last scan.
pub(crate) struct Scanner {
    framing: Framing,
    mark: Finder<'static>,
    offset: Finder<'static>,
    publication: Finder<'static>,
    error: Finder<'static>,
    last_bytes: Vec<u8>,
    last: Scan,
}

impl Scanner {
    pub(crate) fn new(framing: Framing) -> Self {
        Self {
            framing,
            mark: Finder::new(SEQUENCE_MARK),
            offset: Finder::new("\"offset\":"),
            publication: Finder::new("\"pub\":{"),
            error: Finder::new("\"error\":{"),
            last_bytes: Vec::new(),
            last: Scan::default(),
        }
    }

    /// Scans `bytes`, which start at a message boundary.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> &Scan {
        // Nothing is cached for empty input.
        if bytes.is_empty() || self.last_bytes != bytes {
            let mut scan = std::mem::take(&mut self.last);
            scan.clear();
            match self.framing {
                Framing::WebSocket { lines: false } => {
                    self.websocket(bytes, &mut scan, Self::document);
                }
                Framing::WebSocket { lines: true } => {
                    self.websocket(bytes, &mut scan, |scanner, payload, scan| {
                        for document in payload.split(|&byte| byte == b'\n') {
                            scanner.centrifuge(document, scan);
                        }
                    });
                }
                Framing::WebSocketProtobuf => self.websocket(bytes, &mut scan, Self::replies),
                Framing::Lines => self.lines(bytes, &mut scan),
                Framing::Mqtt => self.mqtt(bytes, &mut scan),
            }
            scan.run = run_of(&scan.publications);
            self.last = scan;
            self.last_bytes.clear();
            self.last_bytes.extend_from_slice(bytes);
        }
        &self.last
    }

    /// Splits `bytes` into frames and passes each payload to `message`.
    fn websocket(&self, bytes: &[u8], scan: &mut Scan, message: fn(&Self, &[u8], &mut Scan)) {
        let mut at = 0;
        while let Some(&[first, second]) = bytes.get(at..at + 2) {
            let extended = match second & 0x7f {
                126 => 2,
                127 => 8,
                _ => 0,
            };
            let Some(length_bytes) = bytes.get(at + 2..at + 2 + extended) else { break };
            let length = match extended {
                0 => usize::from(second & 0x7f),
                _ => length_bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)),
            };
            if second & 0x80 != 0 || first & 0x70 != 0 || length > MESSAGE_BYTES_MAX {
                scan.refusal = Some(format!(
                    "a frame no server may send: {first:#04x} {second:#04x}, {length} bytes"
                ));
                break;
            }
            let start = at + 2 + extended;
            let Some(payload) = bytes.get(start..start + length) else { break };
            at = start + length;
            match first & 0x0f {
                // Fragments of a message count as separate documents: no measured server sends any.
                0x0..=0x2 => message(self, payload, scan),
                0x8 => {
                    let code = payload
                        .get(..2)
                        .map_or(1005, |code| u16::from_be_bytes([code[0], code[1]]));
                    let reason =
                        String::from_utf8_lossy(payload.get(2..).unwrap_or(&[])).into_owned();
                    scan.refusal = Some(format!("close {code} {reason}").trim_end().to_owned());
                }
                0x9 => scan.ping_payloads.push(payload.to_vec()),
                0xa => scan.pongs += 1,
                opcode => scan.refusal = Some(format!("reserved opcode {opcode:#x}")),
            }
        }
        scan.consumed = at;
    }

    fn lines(&self, bytes: &[u8], scan: &mut Scan) {
        let mut at = 0;
        while let Some(length) = memchr(b'\n', &bytes[at..]) {
            let line = &bytes[at..at + length];
            at += length + 1;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match line {
                b"" | b":" => {}
                b"PING" => scan.pings += 1,
                b"PONG" | b"subscribe" => {
                    scan.answered |= ANSWERED_SUBSCRIBE;
                    scan.others += 1;
                }
                b"{}" | b"data: {}" => scan.pings += 1,
                // Array and length lines of Redis and chunk sizes of HTTP are too short to hold a publication.
                _ if line.len() < SEQUENCE_MARK.len() + SEQUENCE_DIGITS && line[0] != b'-' => {
                    scan.others += 1;
                }
                _ if line.starts_with(b"-") => {
                    scan.refusal = Some(String::from_utf8_lossy(line).into_owned());
                }
                _ => self.centrifuge(line, scan),
            }
        }
        if bytes.len() - at > MESSAGE_BYTES_MAX {
            scan.refusal = Some(format!("a line longer than {MESSAGE_BYTES_MAX} bytes"));
        }
        scan.consumed = at;
    }

    fn mqtt(&self, bytes: &[u8], scan: &mut Scan) {
        let mut at = 0;
        while at < bytes.len() {
            let Some((length, length_bytes)) = varint(&bytes[at + 1..]) else { break };
            let start = at + 1 + length_bytes;
            let Some(body) = bytes.get(start..start + length) else { break };
            match bytes[at] >> 4 {
                2 if body.get(1) == Some(&0) => scan.answered |= ANSWERED_CONNECT,
                2 => scan.refusal = Some(format!("CONNACK {:?}", body.get(1))),
                9 if body.get(2) == Some(&0x80) => scan.refusal = Some("SUBACK failure".into()),
                9 => scan.answered |= ANSWERED_SUBSCRIBE,
                3 => self.document(body, scan),
                _ => scan.others += 1,
            }
            at = start + length;
        }
        scan.consumed = at;
    }

    /// Scans a document of the Centrifugal protocol, or of a transport that carries its publications.
    fn centrifuge(&self, document: &[u8], scan: &mut Scan) {
        if document == b"{}" {
            scan.pings += 1;
        } else if self.mark.find(document).is_some() || self.publication.find(document).is_some() {
            self.document(document, scan);
        } else {
            scan.others += 1;
            let answers = |name: &str| memchr::memmem::find(document, name.as_bytes()).is_some();
            if self.error.find(document).is_some() || answers("\"disconnect\":{") {
                scan.refusal = Some(String::from_utf8_lossy(document).into_owned());
            } else if answers("\"connect\":{") || answers("\"client\":\"") {
                scan.answered |= ANSWERED_CONNECT;
            } else if answers("\"subscribe\":{") {
                scan.answered |= ANSWERED_SUBSCRIBE;
            }
        }
    }

    /// Reads Protobuf replies, each prefixed with its length; an empty one is a ping.
    fn replies(&self, mut payload: &[u8], scan: &mut Scan) {
        while let Some((length, bytes)) = varint(payload) {
            let Some(reply) = payload.get(bytes..bytes + length) else { break };
            payload = &payload[bytes + length..];
            if reply.is_empty() {
                scan.pings += 1;
            } else {
                self.reply(reply, scan);
            }
        }
        if !payload.is_empty() {
            scan.refusal = Some("a frame that does not end with a reply".into());
        }
    }

    /// Scans a Reply { id = 1, error = 2, push = 4 { channel = 2, pub = 4, disconnect = 9 }, connect = 5, subscribe = 6
    /// }.
    fn reply(&self, reply: &[u8], scan: &mut Scan) {
        let before = scan.publications.len();
        for (field, value) in fields(reply) {
            match field {
                1 => {}
                4 if fields(value).any(|(field, _)| field == 4) => self.document(reply, scan),
                5 => scan.answered |= ANSWERED_CONNECT,
                6 => scan.answered |= ANSWERED_SUBSCRIBE,
                2 => scan.refusal = Some(String::from_utf8_lossy(value).into_owned()),
                4 if fields(value).any(|(field, _)| field == 9) => {
                    scan.refusal = Some(String::from_utf8_lossy(value).into_owned());
                }
                _ => {}
            }
        }
        scan.others += u32::from(scan.publications.len() == before);
    }

    fn document(&self, document: &[u8], scan: &mut Scan) {
        let (mut sequence, mut offset) = (0, 0);
        if let Some(at) = self.mark.find(document) {
            let (digits, rest) = document[at + SEQUENCE_MARK.len()..]
                .split_at_checked(SEQUENCE_DIGITS)
                .unwrap_or_default();
            sequence = number(digits) as u32;
            if let Some(at) = self.offset.find(rest) {
                offset = number(&rest[at + "\"offset\":".len()..]);
            }
        }
        scan.publications.push(Publication { sequence, offset });
        scan.publication_bytes += document.len() as u64;
    }
}

impl Scan {
    /// Clears the scan and keeps its allocation.
    fn clear(&mut self) {
        let mut publications = std::mem::take(&mut self.publications);
        publications.clear();
        *self = Self { publications, ..Self::default() };
    }
}

fn run_of(publications: &[Publication]) -> Option<(Publication, Publication)> {
    let (&first, &last) = (publications.first()?, publications.last()?);
    let rises = first.sequence != 0
        && publications.windows(2).all(|pair| {
            pair[1].sequence == pair[0].sequence.wrapping_add(1)
                && (pair[1].offset == pair[0].offset + 1
                    || (pair[0].offset == 0 && pair[1].offset == 0))
        });
    rises.then_some((first, last))
}

/// Parses the leading decimal number of `digits`; 0 if there is none. Saturates instead of wrapping.
fn number(digits: &[u8]) -> u64 {
    digits.iter().take_while(|digit| digit.is_ascii_digit()).fold(0, |number: u64, digit| {
        number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    })
}

/// Iterates over the fields of a Protobuf message: number, and bytes if length-delimited. Ends at an unknown wire type.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    std::iter::from_fn(move || {
        let (key, key_bytes) = varint(message)?;
        let (value, bytes) = varint(&message[key_bytes..])?;
        let start = key_bytes + bytes;
        let length = if key & 7 == 2 { value } else { 0 };
        let value = message.get(start..start + length)?;
        message = &message[start + length..];
        Some((key >> 3, value))
    })
}

/// Parses a number in groups of seven bits, as in MQTT (3.1.1 §2.2.3) and Protobuf. Returns value and size, or `None`
/// if it is incomplete. Numbers of more than four groups do not occur.
fn varint(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut length = 0;
    for (index, &byte) in bytes.iter().take(4).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((length, index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0x80 | opcode];
        if payload.len() < 126 {
            out.push(payload.len() as u8);
        } else {
            out.push(126);
            out.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        }
        out.extend_from_slice(payload);
        out
    }

    fn push(sequence: u32, offset: u64) -> String {
        format!(
            "{{\"push\":{{\"channel\":\"c\",\"pub\":{{\"data\":{{\"seq\":\"{sequence:010}\",\"pad\":\"yy\"}},\"offset\":{offset}}}}}}}"
        )
    }

    #[test]
    fn the_same_conversation_in_protobuf() {
        let mut scanner = Scanner::new(Framing::WebSocketProtobuf);
        let scan = scanner.scan(&frame(2, b"\x06\x08\x01\x2a\x02\x0a\x00\x04\x08\x02\x32\x00"));
        assert_eq!(scan.answered, ANSWERED_CONNECT | ANSWERED_SUBSCRIBE);
        let scan = scanner.scan(&frame(2, b"\x00"));
        assert_eq!((scan.pings, scan.answered, scan.others), (1, 0, 0));
        let data = b"{\"seq\":\"0000000007\"}";
        let mut reply = vec![0x22, data.len() as u8 + 7, 0x12, 1, b'c', 0x22, data.len() as u8 + 2];
        reply.extend_from_slice(&[0x22, data.len() as u8]);
        reply.extend_from_slice(data);
        reply.insert(0, reply.len() as u8);
        let scan = scanner.scan(&frame(2, &reply));
        assert_eq!(scan.publications, [Publication { sequence: 7, offset: 0 }]);
        let scan = scanner.scan(&frame(2, b"\x05\x08\x01\x12\x01\x08"));
        assert!(scan.refusal.is_some());
    }

    #[test]
    fn the_centrifugal_conversation() {
        let mut scanner = Scanner::new(Framing::WebSocket { lines: true });
        let hello = b"{\"id\":1,\"connect\":{\"client\":\"7\",\"ping\":25,\"pong\":true}}\n{\"id\":2,\"subscribe\":{}}";
        let scan = scanner.scan(&frame(1, hello));
        assert_eq!((scan.answered, scan.others), (ANSWERED_CONNECT | ANSWERED_SUBSCRIBE, 2));

        let scan = scanner.scan(&frame(1, b"{}"));
        assert_eq!((scan.pings, scan.answered, scan.others), (1, 0, 0));

        // Several publications packed into one frame, as Centrifugo does it.
        let packed = format!("{}\n{{}}\n{}", push(7, 107), push(8, 108));
        let scan = scanner.scan(&frame(1, packed.as_bytes()));
        assert_eq!(scan.pings, 1);
        let publication = |sequence, offset| Publication { sequence, offset };
        assert_eq!(scan.publications, [publication(7, 107), publication(8, 108)]);
        assert_eq!(scan.run, Some((publication(7, 107), publication(8, 108))));

        let scan = scanner.scan(&frame(
            1,
            b"{\"id\":2,\"error\":{\"code\":103,\"message\":\"permission denied\"}}",
        ));
        assert!(scan.refusal.as_ref().unwrap().contains("permission denied"));

        let scan = scanner.scan(&frame(8, b"\x0b\xb9shutdown"));
        assert_eq!(scan.refusal.as_deref(), Some("close 3001 shutdown"));
    }

    #[test]
    fn a_plain_websocket_counts_every_data_frame() {
        let mut scanner = Scanner::new(Framing::WebSocket { lines: false });
        let mut bytes = frame(1, b"hello");
        bytes.extend(frame(9, b"are you there"));
        bytes.extend(frame(2, b"{\"seq\":\"0000000003\"}"));
        bytes.extend(&[0x81, 0x7e, 0x01]);
        let scan = scanner.scan(&bytes);
        assert_eq!(scan.consumed, bytes.len() - 3);
        assert_eq!(scan.publications.len(), 2);
        assert_eq!(scan.publications[1], Publication { sequence: 3, offset: 0 });
        assert_eq!(scan.ping_payloads, [b"are you there"]);
        assert!(scan.run.is_none());
    }

    #[test]
    fn redis_nats_and_mqtt() {
        let mut scanner = Scanner::new(Framing::Lines);
        let scan = scanner.scan(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        assert_eq!(scan.answered, ANSWERED_SUBSCRIBE);
        let scan = scanner
            .scan(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$20\r\n{\"seq\":\"0000000009\"}\r\n*3\r\n$7");
        assert_eq!(scan.publications, [Publication { sequence: 9, offset: 0 }]);
        let scan = scanner.scan(b"INFO {\"server_id\":\"x\"}\r\nPING\r\nPONG\r\n");
        assert_eq!((scan.pings, scan.answered), (1, ANSWERED_SUBSCRIBE));

        let mut scanner = Scanner::new(Framing::Mqtt);
        let mut bytes =
            b"\x20\x02\x00\x00\x90\x03\x00\x01\x00\x30\x17\x00\x01c{\"seq\":\"0000000001\"}"
                .to_vec();
        let scan = scanner.scan(&bytes);
        assert_eq!(scan.answered, ANSWERED_CONNECT | ANSWERED_SUBSCRIBE);
        assert_eq!(scan.publications, [Publication { sequence: 1, offset: 0 }]);
        bytes.truncate(20);
        assert_eq!(scanner.scan(&bytes).consumed, 9);
    }

    #[test]
    fn malformed_server_reply_is_reported_and_not_followed() {
        let mut scanner = Scanner::new(Framing::WebSocket { lines: false });
        for bad in
            [&b"\x81\x85abcdefghi"[..], b"\xf1\x00", b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            assert!(scanner.scan(bad).refusal.is_some());
        }
    }

    proptest! {
        /// However the bytes are cut, the same publications result, and a cached scan equals a fresh one.
        #[test]
        fn cuts_do_not_matter(sequences in prop::collection::vec(1u32..1_000_000, 1..20), cut in 0usize..4096) {
            let mut bytes = Vec::new();
            for &sequence in &sequences {
                bytes.extend(frame(1, push(sequence, u64::from(sequence)).as_bytes()));
            }
            let cut = cut % (bytes.len() + 1);
            let mut scanner = Scanner::new(Framing::WebSocket { lines: true });
            let mut seen = Vec::new();
            let scan = scanner.scan(&bytes[..cut]);
            seen.extend(scan.publications.iter().map(|publication| publication.sequence));
            let consumed = scan.consumed;
            let again = scanner.scan(&bytes[..cut]);
            prop_assert_eq!(again.consumed, consumed);
            let rest = scanner.scan(&bytes[consumed..]);
            seen.extend(rest.publications.iter().map(|publication| publication.sequence));
            prop_assert_eq!(seen, sequences);
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..512), framing in 0..4) {
            let framing = match framing {
                0 => Framing::WebSocket { lines: true },
                1 => Framing::WebSocket { lines: false },
                2 => Framing::Lines,
                _ => Framing::Mqtt,
            };
            let mut scanner = Scanner::new(framing);
            prop_assert!(scanner.scan(&bytes).consumed <= bytes.len());
        }
    }
}
