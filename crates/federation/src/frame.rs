//! Frames of a link: a length, a kind, and the fields of that kind. Numbers are big-endian.

use std::fmt;

/// The version of the protocol.
pub const VERSION: u16 = 1;
/// The longest name of a domain in bytes.
pub const NAME_BYTES_MAX: usize = 253;
/// The most bytes of a message in one frame.
pub const FRAGMENT_BYTES_MAX: usize = 16 << 10;
/// The most bytes of a frame behind its length.
pub const FRAME_BYTES_MAX: usize = FRAGMENT_BYTES_MAX + 64;
/// The most failures in one [`Resume`].
pub(crate) const FAILURES_MAX: usize = 1_024;

const LENGTH_BYTES: usize = 4;
/// The longest text of a [`Close`].
const TEXT_BYTES_MAX: usize = 512;
/// The first bytes of a hello, so that a peer of another protocol is recognised.
const MAGIC: &[u8; 8] = b"dunlin/f";
/// The only class of credit: messages. Control frames need none.
const MESSAGES: u8 = 0;

/// The bytes of a fragment's frame beside its content.
pub(crate) const FRAGMENT_HEAD_BYTES: usize = LENGTH_BYTES + 1 + 1 + 8 + 4;

/// The first frame of each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The oldest version that the sender speaks.
    pub version_min: u16,
    /// The newest.
    pub version_max: u16,
    /// The sender's domain.
    pub name: &'a str,
    /// The domain that the sender takes the receiver for.
    pub peer: &'a str,
    /// Random bytes.
    pub nonce: [u8; 32],
}

/// What each side knows of both streams when a link begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// The id of the sender's stream.
    pub stream: u64,
    /// The first number that the sender has not forgotten: all before it are settled.
    pub base: u64,
    /// The id of the receiver's stream, as the sender knows it; 0 if it knows none.
    pub known: u64,
    /// All of that stream up to this number is taken.
    pub taken: u64,
    /// The bytes of messages that may be sent on this link until more credit comes.
    pub credit: u64,
    /// The messages of the receiver's stream that have failed last, which it may not know yet: number and reason.
    pub failures: Vec<(u64, u8)>,
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// The message's number.
    pub seq: u64,
    /// The bytes of the whole message.
    pub total: u32,
    /// The next of them.
    pub bytes: &'a [u8],
}

/// Why a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CloseCode {
    /// There is no version that both speak.
    Version = 1,
    /// The name is not that of a peer, or the peer is blocked.
    NotAPeer = 2,
    /// It is the link to another domain.
    WrongName = 3,
    /// The signature is by none of the keys.
    WrongKey = 4,
    /// Another link is kept instead.
    Replaced = 5,
    /// The peer has violated the protocol.
    Protocol = 6,
    /// The server stops, or the peer was removed from the settings.
    GoingAway = 7,
    /// Nothing was received for too long.
    Silent = 8,
}

impl CloseCode {
    const ALL: [CloseCode; 8] = [
        CloseCode::Version,
        CloseCode::NotAPeer,
        CloseCode::WrongName,
        CloseCode::WrongKey,
        CloseCode::Replaced,
        CloseCode::Protocol,
        CloseCode::GoingAway,
        CloseCode::Silent,
    ];
}

/// The last frame: why the link ends, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close<'a> {
    /// The kind of reason.
    pub code: CloseCode,
    /// A sentence for the operator.
    pub text: &'a str,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Who the sender is.
    Hello(Hello<'a>),
    /// The signature of what both have said.
    Auth {
        /// By Ed25519.
        signature: [u8; 64],
    },
    /// Where the streams continue.
    Resume(Resume),
    /// A part of a message.
    Fragment(Fragment<'a>),
    /// There is no message of this number: it has expired.
    Skip {
        /// The number.
        seq: u64,
    },
    /// All up to this number is taken.
    Ack {
        /// The number.
        taken: u64,
    },
    /// A message has failed; it counts as taken.
    Failed {
        /// Its number.
        seq: u64,
        /// The code of a [`Reason`](crate::Reason).
        reason: u8,
    },
    /// So many bytes of messages may be sent on this link, counted from its beginning.
    Credit {
        /// The bytes.
        granted: u64,
    },
    /// Asks for a pong.
    Ping,
    /// The peer works.
    Pong,
    /// The link ends.
    Close(Close<'a>),
}

/// A frame that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// It is longer than a frame may be here.
    TooLong(usize),
    /// It does not have the form of its kind.
    Malformed,
    /// The peer does not speak this protocol.
    Foreign,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong(bytes) => write!(f, "a frame of {bytes} bytes is too long"),
            FrameError::Malformed => f.write_str("a frame that does not have the form of its kind"),
            FrameError::Foreign => f.write_str(
                "the peer does not speak Dunlin's federation: is the address that of its federation.listen?",
            ),
        }
    }
}

impl std::error::Error for FrameError {}

impl Frame<'_> {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        match self {
            Frame::Hello(hello) => {
                out.push(1);
                out.extend_from_slice(MAGIC);
                out.extend_from_slice(&hello.version_min.to_be_bytes());
                out.extend_from_slice(&hello.version_max.to_be_bytes());
                put_text(out, hello.name);
                put_text(out, hello.peer);
                out.extend_from_slice(&hello.nonce);
            }
            Frame::Auth { signature } => {
                out.push(2);
                out.extend_from_slice(signature);
            }
            Frame::Resume(resume) => {
                out.push(3);
                let Resume { stream, base, known, taken, credit, failures } = resume;
                for number in [stream, base, known, taken, credit] {
                    out.extend_from_slice(&number.to_be_bytes());
                }
                for (seq, reason) in failures.iter().take(FAILURES_MAX) {
                    out.extend_from_slice(&seq.to_be_bytes());
                    out.push(*reason);
                }
            }
            Frame::Fragment(Fragment { seq, total, bytes }) => {
                out.extend_from_slice(&[4, MESSAGES]);
                out.extend_from_slice(&seq.to_be_bytes());
                out.extend_from_slice(&total.to_be_bytes());
                out.extend_from_slice(bytes);
            }
            Frame::Skip { seq } => put_number(out, 5, *seq),
            Frame::Ack { taken } => put_number(out, 6, *taken),
            Frame::Failed { seq, reason } => {
                put_number(out, 7, *seq);
                out.push(*reason);
            }
            Frame::Credit { granted } => {
                out.extend_from_slice(&[8, MESSAGES]);
                out.extend_from_slice(&granted.to_be_bytes());
            }
            Frame::Ping => out.push(9),
            Frame::Pong => out.push(10),
            Frame::Close(Close { code, text }) => {
                out.extend_from_slice(&[11, *code as u8]);
                put_text(out, &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]);
            }
        }
        let length = (out.len() - start - LENGTH_BYTES) as u32;
        out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    }
}

fn put_number(out: &mut Vec<u8>, kind: u8, number: u64) {
    out.push(kind);
    out.extend_from_slice(&number.to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Takes fields from the front of a frame or a message.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn text(&mut self, bytes_max: usize) -> Option<&'a str> {
        let bytes = usize::from(self.array().map(u16::from_be_bytes)?);
        let text = (bytes <= bytes_max).then(|| self.take(bytes)).flatten()?;
        std::str::from_utf8(text).ok()
    }

    fn end<T>(&self, of: T) -> Option<T> {
        self.0.is_empty().then_some(of)
    }
}

fn parse(frame: &[u8]) -> Option<Frame<'_>> {
    let mut fields = Fields(frame);
    let frame = match fields.byte()? {
        1 => {
            fields.take(MAGIC.len())?;
            Frame::Hello(Hello {
                version_min: u16::from_be_bytes(fields.array()?),
                version_max: u16::from_be_bytes(fields.array()?),
                name: fields.text(NAME_BYTES_MAX)?,
                peer: fields.text(NAME_BYTES_MAX)?,
                nonce: fields.array()?,
            })
        }
        2 => Frame::Auth { signature: fields.array()? },
        3 => {
            let mut resume = Resume {
                stream: fields.number()?,
                base: fields.number()?,
                known: fields.number()?,
                taken: fields.number()?,
                credit: fields.number()?,
                failures: Vec::new(),
            };
            while !fields.0.is_empty() {
                if resume.failures.len() == FAILURES_MAX {
                    return None;
                }
                resume.failures.push((fields.number()?, fields.byte()?));
            }
            Frame::Resume(resume)
        }
        4 if fields.byte()? == MESSAGES => Frame::Fragment(Fragment {
            seq: fields.number()?,
            total: u32::from_be_bytes(fields.array()?),
            bytes: std::mem::take(&mut fields.0),
        }),
        5 => Frame::Skip { seq: fields.number()? },
        6 => Frame::Ack { taken: fields.number()? },
        7 => Frame::Failed { seq: fields.number()?, reason: fields.byte()? },
        8 if fields.byte()? == MESSAGES => Frame::Credit { granted: fields.number()? },
        9 => Frame::Ping,
        10 => Frame::Pong,
        11 => {
            let code = fields.byte()?;
            let code = CloseCode::ALL.into_iter().find(|of| *of as u8 == code)?;
            Frame::Close(Close { code, text: fields.text(TEXT_BYTES_MAX)? })
        }
        _ => return None,
    };
    fields.end(frame)
}

/// Cuts what arrives into frames. Holds at most the beginning of one frame between two calls.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    /// The bytes of the buffer that were read.
    read: usize,
}

impl FrameReader {
    /// Takes what has arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.read));
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame, if it is complete.
    ///
    /// # Errors
    /// The frame has more than `bytes_max` bytes behind its length, or is malformed.
    pub fn next(&mut self, bytes_max: usize) -> Result<Option<Frame<'_>>, FrameError> {
        let rest = &self.buffer[self.read..];
        let Some((length, behind)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > bytes_max {
            // A peer that speaks another protocol has sent text, or a record of TLS.
            let is_text = rest.starts_with(b"HTTP") || rest.starts_with(b"GET ");
            return Err(if is_text { FrameError::Foreign } else { FrameError::TooLong(length) });
        }
        let Some(frame) = behind.get(..length) else { return Ok(None) };
        if let [1, magic @ ..] = frame
            && !magic.starts_with(MAGIC)
        {
            return Err(FrameError::Foreign);
        }
        self.read += LENGTH_BYTES + length;
        parse(frame).map(Some).ok_or(FrameError::Malformed)
    }

    /// Returns the bytes that wait for the rest of their frame.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.read
    }

    /// Releases the memory of what was read.
    pub(crate) fn trim(&mut self) {
        if self.buffered() == 0 {
            (self.buffer, self.read) = (Vec::new(), 0);
        }
    }
}
