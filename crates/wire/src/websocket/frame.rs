//! Frame headers (RFC 6455 §5.2) and whole frames.

use super::{CLOSE_REASON_BYTES_MAX, Error, Mask, apply_mask};

/// The maximum length of a frame header: two bytes, eight of length, four of mask.
pub const HEADER_BYTES_MAX: usize = 14;

/// The maximum payload of a control frame in bytes (RFC 6455 §5.5).
pub const CONTROL_PAYLOAD_BYTES_MAX: usize = 125;

const FIN: u8 = 0x80;
const RSV1: u8 = 0x40;
const RESERVED: u8 = 0x30;
const MASKED: u8 = 0x80;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// A further fragment of the current message.
    Continuation = 0,
    /// A message of UTF-8 text, or its first fragment.
    Text = 1,
    /// A message of bytes, or its first fragment.
    Binary = 2,
    /// Starts or completes the closing handshake.
    Close = 8,
    /// Requests a pong.
    Ping = 9,
    /// Responds to a ping, or is sent unasked as a heartbeat.
    Pong = 10,
}

impl Opcode {
    /// Returns true for close, ping and pong, which are never fragmented and may interrupt a
    /// message.
    #[inline]
    pub fn is_control(self) -> bool {
        self as u8 & 8 != 0
    }

    fn new(bits: u8) -> Result<Opcode, Error> {
        Ok(match bits {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            reserved => return Err(Error::ReservedOpcode(reserved)),
        })
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Whether the message ends with this frame.
    pub fin: bool,
    /// RSV1, which permessage-deflate sets on the first frame of a compressed message.
    pub compressed: bool,
    /// The type of the frame.
    pub opcode: Opcode,
    /// The masking key; `None` when the payload is not masked. Clients mask every frame.
    pub mask: Option<Mask>,
    /// Length of the payload in bytes, below 2⁶³.
    pub length: u64,
}

impl FrameHeader {
    /// Returns the header of an unfragmented, unmasked frame.
    #[inline]
    pub fn new(opcode: Opcode, length: u64) -> FrameHeader {
        FrameHeader { fin: true, compressed: false, opcode, mask: None, length }
    }

    /// Decodes a header at the start of `bytes` and returns it with its length in bytes; `None`
    /// when it is incomplete.
    ///
    /// # Errors
    ///
    /// Errors that do not depend on the role: RSV2 or RSV3, a reserved opcode, a length that is not
    /// minimal, a control frame that is fragmented, too long or compressed. The first two bytes are
    /// checked before the rest has arrived.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Option<(FrameHeader, usize)>, Error> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        if first & RESERVED != 0 {
            return Err(Error::ReservedBits);
        }
        let opcode = Opcode::new(first & 0x0f)?;
        let (fin, compressed) = (first & FIN != 0, first & RSV1 != 0);
        let short = second & !MASKED;
        if opcode.is_control() {
            if !fin {
                return Err(Error::ControlFragmented);
            }
            if usize::from(short) > CONTROL_PAYLOAD_BYTES_MAX {
                return Err(Error::ControlTooLong);
            }
        }
        if compressed && (opcode.is_control() || opcode == Opcode::Continuation) {
            return Err(Error::ReservedBits);
        }
        let (length, rest) = match short {
            126 => {
                let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
                let length = u64::from(u16::from_be_bytes(*length));
                if length < 126 {
                    return Err(Error::Length);
                }
                (length, rest)
            }
            127 => {
                let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
                let length = u64::from_be_bytes(*length);
                if length <= u64::from(u16::MAX) || length >> 63 != 0 {
                    return Err(Error::Length);
                }
                (length, rest)
            }
            short => (u64::from(short), rest),
        };
        let (mask, rest) = if second & MASKED != 0 {
            let Some((mask, rest)) = rest.split_first_chunk() else { return Ok(None) };
            (Some(*mask), rest)
        } else {
            (None, rest)
        };
        let header = FrameHeader { fin, compressed, opcode, mask, length };
        Ok(Some((header, bytes.len() - rest.len())))
    }

    /// Returns the length of the encoded header in bytes.
    #[inline]
    pub fn encoded_len(&self) -> usize {
        let length = match self.length {
            0..=125 => 0,
            126..=0xffff => 2,
            _ => 8,
        };
        2 + length + if self.mask.is_some() { 4 } else { 0 }
    }

    /// Writes the header to the start of `bytes` and returns its length.
    #[inline]
    pub fn encode_into(&self, bytes: &mut [u8; HEADER_BYTES_MAX]) -> usize {
        debug_assert!(self.length >> 63 == 0, "a length has 63 bits");
        bytes[0] = self.opcode as u8
            | if self.fin { FIN } else { 0 }
            | if self.compressed { RSV1 } else { 0 };
        let masked = if self.mask.is_some() { MASKED } else { 0 };
        let mut at = match self.length {
            0..=125 => {
                bytes[1] = masked | self.length as u8;
                2
            }
            126..=0xffff => {
                bytes[1] = masked | 126;
                bytes[2..4].copy_from_slice(&(self.length as u16).to_be_bytes());
                4
            }
            _ => {
                bytes[1] = masked | 127;
                bytes[2..10].copy_from_slice(&self.length.to_be_bytes());
                10
            }
        };
        if let Some(mask) = self.mask {
            bytes[at..at + 4].copy_from_slice(&mask);
            at += 4;
        }
        at
    }

    /// Appends the header to a buffer.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; HEADER_BYTES_MAX];
        let length = self.encode_into(&mut bytes);
        out.extend_from_slice(&bytes[..length]);
    }
}

/// Appends a frame as a server sends it: unfragmented and unmasked.
#[inline]
pub fn encode_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
    debug_assert!(!opcode.is_control() || payload.len() <= CONTROL_PAYLOAD_BYTES_MAX);
    out.reserve(HEADER_BYTES_MAX + payload.len());
    FrameHeader::new(opcode, payload.len() as u64).encode(out);
    out.extend_from_slice(payload);
}

/// Appends a frame as a client sends it: unfragmented and masked. The key should be unpredictable
/// (RFC 6455 §10.3).
#[inline]
pub fn encode_frame_masked(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], mask: Mask) {
    debug_assert!(!opcode.is_control() || payload.len() <= CONTROL_PAYLOAD_BYTES_MAX);
    out.reserve(HEADER_BYTES_MAX + payload.len());
    FrameHeader { mask: Some(mask), ..FrameHeader::new(opcode, payload.len() as u64) }.encode(out);
    let begin = out.len();
    out.extend_from_slice(payload);
    apply_mask(&mut out[begin..], mask);
}

/// Appends a server's close frame. If the code must not be sent (1005, 1006, …), the frame is
/// empty. A reason of more than 123 bytes is truncated at a character boundary.
pub fn encode_close(out: &mut Vec<u8>, code: u16, reason: &str) {
    let mut payload = [0; CONTROL_PAYLOAD_BYTES_MAX];
    let length = close_payload(&mut payload, code, reason);
    encode_frame(out, Opcode::Close, &payload[..length]);
}

/// Appends a client's close frame; see [`encode_close`].
pub fn encode_close_masked(out: &mut Vec<u8>, code: u16, reason: &str, mask: Mask) {
    let mut payload = [0; CONTROL_PAYLOAD_BYTES_MAX];
    let length = close_payload(&mut payload, code, reason);
    encode_frame_masked(out, Opcode::Close, &payload[..length], mask);
}

fn close_payload(payload: &mut [u8; CONTROL_PAYLOAD_BYTES_MAX], code: u16, reason: &str) -> usize {
    if !super::is_close_code(code) {
        return 0;
    }
    let reason = &reason.as_bytes()[..reason.floor_char_boundary(CLOSE_REASON_BYTES_MAX)];
    payload[..2].copy_from_slice(&code.to_be_bytes());
    payload[2..2 + reason.len()].copy_from_slice(reason);
    2 + reason.len()
}
