//! Decoding of a connection's bytes into messages and control frames.

use super::{CloseFrame, Error, FrameHeader, MessageAssembly, Opcode, apply_mask};

/// The end of the connection that decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The server: every frame it receives must be masked.
    Server,
    /// The client: no frame it receives may be masked.
    Client,
}

/// Bounds on what a peer may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Payload bytes of one frame. A longer one gives close code 1009 as soon as its header has
    /// arrived. A frame of a compressed message may be longer by what compression may add, an eighth and a little.
    pub frame_bytes_max: usize,
    /// Bytes of one message, as inflated if it was compressed. A longer one gives close code 1009.
    pub message_bytes_max: usize,
}

impl Limits {
    /// Returns the limit of a frame's payload on the wire.
    fn frame_bytes(&self, compressed: bool) -> u64 {
        payload_bytes_max(self.frame_bytes_max, compressed)
    }

    /// Returns the limit of a message on the wire. That of a compressed one applies to the inflated message too.
    pub(super) fn message_bytes(&self, compressed: bool) -> u64 {
        payload_bytes_max(self.message_bytes_max, compressed)
    }
}

/// Data that deflate cannot compress grow: by an eighth and a little with the fixed Huffman codes of RFC 1951 §3.2.6, whose
/// longest literal has nine bits, and by less in stored blocks.
fn payload_bytes_max(bytes_max: usize, compressed: bool) -> u64 {
    let bytes_max = bytes_max as u64;
    if compressed { bytes_max + bytes_max / 8 + bytes_max / 64 + 16 } else { bytes_max }
}

impl Default for Limits {
    /// 64 KiB for each.
    fn default() -> Limits {
        Limits { frame_bytes_max: 64 * 1024, message_bytes_max: 64 * 1024 }
    }
}

/// Decodes one direction of a connection. Plain configuration without state.
///
/// Call [`decode`](Decoder::decode) on received bytes until they are consumed. With an assembly,
/// all of the input is consumed, so the caller keeps no bytes of incomplete frames:
///
/// ```
/// use dunlin_wire::websocket::{Decoder, Event, Limits, MessageAssembly, Opcode, Role};
///
/// let decoder = Decoder { role: Role::Client, limits: Limits::default(), deflate: false };
/// let mut received = *b"\x81\x05Hello\x89\x00\x01\x03cut"; // a message, a ping, a fragment
/// let mut assembly: Option<Box<MessageAssembly>> = None;
///
/// let mut bytes = &mut received[..];
/// let mut events = Vec::new();
/// while !bytes.is_empty() {
///     let decoded = decoder.decode(assembly.as_deref_mut(), bytes)?;
///     let consumed = decoded.consumed;
///     match decoded.event {
///         Event::Message(message) => events.push(message.payload.to_vec()),
///         Event::Ping(_) => events.push(b"ping".to_vec()),
///         Event::Pong(_) | Event::Close(_) | Event::NeedMore { .. } => {}
///         Event::NeedAssembly => assembly = Some(Box::default()), // from a pool
///     }
///     bytes = &mut bytes[consumed..];
/// }
/// assert_eq!(events, [b"Hello".to_vec(), b"ping".to_vec()]);
/// assert!(!assembly.unwrap().is_idle());
/// # Ok::<(), dunlin_wire::websocket::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoder {
    /// Which end decodes.
    pub role: Role,
    /// Bounds on frames and messages.
    pub limits: Limits,
    /// Whether permessage-deflate was negotiated, so that RSV1 may be set.
    pub deflate: bool,
}

/// Result of one decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded<'b> {
    /// Number of input bytes consumed. The bytes after them are unchanged.
    pub consumed: usize,
    /// The event they contain.
    pub event: Event<'b>,
}

/// An event in what the peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'b> {
    /// All of the input was consumed, and a frame or message is incomplete.
    NeedMore {
        /// The least number of bytes that completes the current frame header or frame.
        hint: usize,
    },
    /// The next frame is incomplete or fragmented and no assembly was passed. Nothing was consumed:
    /// call again with an idle assembly.
    NeedAssembly,
    /// A whole message.
    Message(Message<'b>),
    /// A ping; respond with a pong that has the same payload.
    Ping(&'b [u8]),
    /// A pong.
    Pong(&'b [u8]),
    /// A close frame; respond with one unless this is a response. Ignore all bytes after it.
    Close(Option<CloseFrame<'b>>),
}

/// A whole message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'b> {
    /// [`Opcode::Text`] or [`Opcode::Binary`].
    pub opcode: Opcode,
    /// Whether the payload is still compressed; see
    /// [`Inflater::inflate`](super::deflate::Inflater::inflate).
    pub compressed: bool,
    /// The payload. That of a text message is UTF-8, unless it is still compressed.
    pub payload: &'b [u8],
}

impl<'b> Message<'b> {
    /// Returns the text of a text message that is not compressed.
    pub fn text(&self) -> Option<&'b str> {
        if self.opcode != Opcode::Text {
            return None;
        }
        simdutf8::basic::from_utf8(self.payload).ok()
    }
}

impl Decoder {
    /// Returns the next event of `input`. A message in a single complete frame is unmasked in place
    /// and borrowed from `input`; any other is assembled in `assembly`.
    ///
    /// Without an assembly, an incomplete or fragmented message yields [`Event::NeedAssembly`]. An
    /// assembly that is not [idle](MessageAssembly::is_idle) must be passed with the next bytes of
    /// its connection.
    ///
    /// # Errors
    ///
    /// [`Error`], which has the close code; the connection must be failed. Invalid UTF-8 is found
    /// at its first wrong byte, an oversized frame at its header.
    #[inline]
    pub fn decode<'b>(
        &self,
        mut assembly: Option<&'b mut MessageAssembly>,
        input: &'b mut [u8],
    ) -> Result<Decoded<'b>, Error> {
        if assembly.as_deref_mut().is_none_or(MessageAssembly::begin) {
            match self.whole(input)? {
                NextFrame::Complete { header, begin, end } => {
                    let event = self.event(header, &input[begin..end])?;
                    return Ok(Decoded { consumed: end, event });
                }
                NextFrame::Empty => {
                    return Ok(Decoded { consumed: 0, event: Event::NeedMore { hint: 2 } });
                }
                NextFrame::Incomplete => {}
            }
        }
        match assembly {
            Some(assembly) => assembly.decode(self, input),
            None => Ok(Decoded { consumed: 0, event: Event::NeedAssembly }),
        }
    }

    /// Reads a complete frame that needs no assembly, and unmasks it.
    #[inline]
    fn whole(&self, input: &mut [u8]) -> Result<NextFrame, Error> {
        if input.is_empty() {
            return Ok(NextFrame::Empty);
        }
        let Some((header, begin)) = FrameHeader::decode(input)? else {
            return Ok(NextFrame::Incomplete);
        };
        self.check(&header, header.compressed)?;
        if header.opcode == Opcode::Continuation {
            return Err(Error::ContinuationUnexpected);
        }
        let length = usize::try_from(header.length).map_err(|_| Error::FrameTooLong)?;
        if !header.fin || input.len() - begin < length {
            return Ok(NextFrame::Incomplete);
        }
        let end = begin + length;
        if let Some(mask) = header.mask {
            apply_mask(&mut input[begin..end], mask);
        }
        Ok(NextFrame::Complete { header, begin, end })
    }

    /// Checks the rules that depend on role, extensions and limits. `compressed`: the frame is part of a compressed message.
    #[inline]
    pub(super) fn check(&self, header: &FrameHeader, compressed: bool) -> Result<(), Error> {
        match (self.role, header.mask) {
            (Role::Server, None) => return Err(Error::MaskMissing),
            (Role::Client, Some(_)) => return Err(Error::MaskUnexpected),
            _ => {}
        }
        if header.compressed && !self.deflate {
            return Err(Error::ReservedBits);
        }
        if header.opcode.is_control() {
            return Ok(());
        }
        if header.length > self.limits.frame_bytes(compressed) {
            return Err(Error::FrameTooLong);
        }
        if header.length > self.limits.message_bytes(compressed) {
            return Err(Error::MessageTooLong);
        }
        Ok(())
    }

    /// Returns the event of an unfragmented frame whose payload is complete and unmasked.
    #[inline]
    pub(super) fn event<'b>(
        &self,
        header: FrameHeader,
        payload: &'b [u8],
    ) -> Result<Event<'b>, Error> {
        Ok(match header.opcode {
            Opcode::Text | Opcode::Binary | Opcode::Continuation => {
                let text = header.opcode == Opcode::Text && !header.compressed;
                if text && simdutf8::basic::from_utf8(payload).is_err() {
                    return Err(Error::Utf8);
                }
                Event::Message(Message {
                    opcode: header.opcode,
                    compressed: header.compressed,
                    payload,
                })
            }
            Opcode::Ping => Event::Ping(payload),
            Opcode::Pong => Event::Pong(payload),
            Opcode::Close => Event::Close(CloseFrame::read(payload)?),
        })
    }
}

enum NextFrame {
    Complete { header: FrameHeader, begin: usize, end: usize },
    Incomplete,
    Empty,
}
