//! The state of a message that arrives in pieces.

use std::ops::Range;

use super::decoder::{Decoded, Decoder, Event, Message};
use super::frame::{CONTROL_PAYLOAD_BYTES_MAX, HEADER_BYTES_MAX};
use super::{Error, FrameHeader, Mask, Opcode, apply_mask};

/// Assembles a message that is fragmented, or split across receive buffers.
///
/// The caller keeps assemblies in a pool and lends one to a connection from [`Event::NeedAssembly`]
/// until [`is_idle`](MessageAssembly::is_idle). It grows with the bytes that arrive, not with the
/// length that a header announces.
#[derive(Clone, Debug)]
pub struct MessageAssembly {
    /// The payload received so far. After its message was yielded, it is kept until the next call.
    payload: Vec<u8>,
    /// `payload[..validated]` is valid UTF-8; an incomplete character of at most three bytes
    /// follows. Only for text that is not compressed.
    validated: usize,
    message: Option<PartialMessage>,
    frame: Option<PartialFrame>,
    /// The beginning of an incomplete frame header.
    header: [u8; HEADER_BYTES_MAX],
    header_len: u8,
    /// The payload received so far of an incomplete control frame. It needs a buffer of its own
    /// because it may interrupt a message.
    control: [u8; CONTROL_PAYLOAD_BYTES_MAX],
    control_len: u8,
}

#[derive(Clone, Copy, Debug)]
struct PartialMessage {
    opcode: Opcode,
    compressed: bool,
}

#[derive(Clone, Copy, Debug)]
struct PartialFrame {
    header: FrameHeader,
    /// Bytes of payload still to come.
    remaining: usize,
    /// The key, rotated to the next byte.
    mask: Mask,
}

/// Location of the payload of the event that ended a step.
enum PayloadBounds {
    NeedMore {
        hint: usize,
    },
    /// A complete control frame in the input.
    InInput(FrameHeader, Range<usize>),
    /// A control frame assembled in `control`.
    InControl(FrameHeader),
    /// A message assembled in `payload`.
    InPayload(PartialMessage),
}

impl Default for MessageAssembly {
    fn default() -> Self {
        MessageAssembly::new()
    }
}

impl MessageAssembly {
    /// Returns an idle assembly without any allocation.
    pub const fn new() -> MessageAssembly {
        MessageAssembly {
            payload: Vec::new(),
            validated: 0,
            message: None,
            frame: None,
            header: [0; HEADER_BYTES_MAX],
            header_len: 0,
            control: [0; CONTROL_PAYLOAD_BYTES_MAX],
            control_len: 0,
        }
    }

    /// Returns true when nothing is incomplete: the connection no longer needs the assembly.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.message.is_none() && self.frame.is_none() && self.header_len == 0
    }

    /// Drops any incomplete message, and keeps at most `retained_bytes_max` of memory for the next
    /// use.
    pub fn reset(&mut self, retained_bytes_max: usize) {
        self.payload.clear();
        self.payload.shrink_to(retained_bytes_max);
        self.validated = 0;
        self.message = None;
        self.frame = None;
        self.header_len = 0;
        self.control_len = 0;
    }

    /// Returns the heap memory in bytes, for the caller's accounting.
    pub fn memory_bytes(&self) -> usize {
        self.payload.capacity()
    }

    /// Drops the message that the last call yielded. Returns true when nothing is incomplete.
    #[inline]
    pub(super) fn begin(&mut self) -> bool {
        if self.message.is_none() {
            self.payload.clear();
            self.validated = 0;
        }
        self.is_idle()
    }

    pub(super) fn decode<'b>(
        &'b mut self,
        decoder: &Decoder,
        input: &'b mut [u8],
    ) -> Result<Decoded<'b>, Error> {
        let mut consumed = 0;
        let found = self.run(decoder, input, &mut consumed)?;
        let event = match found {
            PayloadBounds::NeedMore { hint } => Event::NeedMore { hint },
            PayloadBounds::InInput(header, range) => decoder.event(header, &input[range])?,
            PayloadBounds::InControl(header) => {
                decoder.event(header, &self.control[..usize::from(self.control_len)])?
            }
            PayloadBounds::InPayload(PartialMessage { opcode, compressed }) => {
                Event::Message(Message { opcode, compressed, payload: &self.payload })
            }
        };
        Ok(Decoded { consumed, event })
    }

    /// Reads frames until one yields an event or the input is used up.
    fn run(
        &mut self,
        decoder: &Decoder,
        input: &mut [u8],
        consumed: &mut usize,
    ) -> Result<PayloadBounds, Error> {
        loop {
            let mut frame = match self.frame.take() {
                Some(frame) => frame,
                None => match self.next_header(input, consumed)? {
                    Ok(header) => {
                        let frame = self.begin_frame(decoder, header)?;
                        // Common between fragments: a complete control frame.
                        let end = consumed.saturating_add(frame.remaining);
                        if header.opcode.is_control() && end <= input.len() {
                            let range = *consumed..end;
                            apply_mask(&mut input[range.clone()], frame.mask);
                            *consumed = end;
                            return Ok(PayloadBounds::InInput(header, range));
                        }
                        frame
                    }
                    Err(hint) => return Ok(PayloadBounds::NeedMore { hint }),
                },
            };
            let end = input.len().min(consumed.saturating_add(frame.remaining));
            let piece = &mut input[*consumed..end];
            *consumed = end;
            apply_mask(piece, frame.mask);
            frame.mask.rotate_left(piece.len() % 4);
            frame.remaining -= piece.len();
            if frame.header.opcode.is_control() {
                let begin = usize::from(self.control_len);
                self.control[begin..begin + piece.len()].copy_from_slice(piece);
                self.control_len += piece.len() as u8;
            } else {
                self.payload.extend_from_slice(piece);
                self.validate()?;
            }
            if frame.remaining > 0 {
                let hint = frame.remaining;
                self.frame = Some(frame);
                return Ok(PayloadBounds::NeedMore { hint });
            }
            if frame.header.opcode.is_control() {
                return Ok(PayloadBounds::InControl(frame.header));
            }
            if frame.header.fin
                && let Some(message) = self.message.take()
            {
                if message.is_text() && self.validated < self.payload.len() {
                    return Err(Error::Utf8);
                }
                return Ok(PayloadBounds::InPayload(message));
            }
        }
    }

    /// Returns the next header, or the least number of bytes that completes it.
    fn next_header(
        &mut self,
        input: &[u8],
        consumed: &mut usize,
    ) -> Result<Result<FrameHeader, usize>, Error> {
        let rest = &input[*consumed..];
        if self.header_len == 0
            && let Some((header, length)) = FrameHeader::decode(rest)?
        {
            *consumed += length;
            return Ok(Ok(header));
        }
        // Incomplete: append the new bytes to those kept, up to the longest header.
        let kept = usize::from(self.header_len);
        let taken = rest.len().min(HEADER_BYTES_MAX - kept);
        self.header[kept..kept + taken].copy_from_slice(&rest[..taken]);
        let joined = &self.header[..kept + taken];
        match FrameHeader::decode(joined)? {
            Some((header, length)) => {
                *consumed += length - kept;
                self.header_len = 0;
                Ok(Ok(header))
            }
            None => {
                let missing = header_bytes(joined) - joined.len();
                *consumed += taken;
                self.header_len = joined.len() as u8;
                Ok(Err(missing))
            }
        }
    }

    /// Checks a header against the incomplete message, or begins a message with it.
    fn begin_frame(
        &mut self,
        decoder: &Decoder,
        header: FrameHeader,
    ) -> Result<PartialFrame, Error> {
        let compressed =
            header.compressed || self.message.is_some_and(|message| message.compressed);
        decoder.check(&header, compressed && !header.opcode.is_control())?;
        match (header.opcode, self.message) {
            (Opcode::Continuation, None) => return Err(Error::ContinuationUnexpected),
            (Opcode::Text | Opcode::Binary, Some(_)) => return Err(Error::ContinuationMissing),
            (Opcode::Text | Opcode::Binary, None) => {
                self.payload.clear();
                self.validated = 0;
                self.message =
                    Some(PartialMessage { opcode: header.opcode, compressed: header.compressed });
            }
            (Opcode::Continuation, Some(_)) => {
                let total = header.length.saturating_add(self.payload.len() as u64);
                if total > decoder.limits.message_bytes(compressed) {
                    return Err(Error::MessageTooLong);
                }
            }
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => self.control_len = 0,
        }
        let remaining = usize::try_from(header.length).map_err(|_| Error::FrameTooLong)?;
        Ok(PartialFrame { header, remaining, mask: header.mask.unwrap_or_default() })
    }

    /// Validates the text that has arrived since the last call (RFC 6455 §8.1). An incomplete
    /// character at its end is left for the next call.
    fn validate(&mut self) -> Result<(), Error> {
        if !self.message.is_some_and(|message| message.is_text()) {
            return Ok(());
        }
        match simdutf8::compat::from_utf8(&self.payload[self.validated..]) {
            Ok(_) => self.validated = self.payload.len(),
            Err(error) if error.error_len().is_some() => return Err(Error::Utf8),
            Err(error) => self.validated += error.valid_up_to(),
        }
        Ok(())
    }
}

impl PartialMessage {
    fn is_text(self) -> bool {
        self.opcode == Opcode::Text && !self.compressed
    }
}

/// Returns the length of the header that begins with these bytes, or 2 while its second byte is
/// missing.
fn header_bytes(begin: &[u8]) -> usize {
    let Some(second) = begin.get(1) else { return 2 };
    let length = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    2 + length + if second & 0x80 != 0 { 4 } else { 0 }
}
