//! Decodes bodies of messages (RFC 9112 §6).

use super::chunk::{ChunkedDecoder, Step};
use super::{Error, Limits};

/// One step through a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// These bytes are incomplete. Pass the ones not consumed again with more behind them: part of
    /// a chunk size or trailer line, at most a few KiB.
    NeedMore,
    /// Bytes of the body.
    Data(&'a [u8]),
    /// A trailer field (RFC 9110 §6.5), once its whole line is here. Its value is trimmed.
    Trailer(&'a str, &'a [u8]),
    /// The body is over; what follows is the next message.
    End,
}

/// Decodes the body behind a head. Plain data, a few words, kept with the connection.
///
/// ```
/// # use dunlin_wire::http1::{Body, BodyDecoder, Limits};
/// let mut bytes = &b"5\r\nhello\r\n0\r\n\r\nGET "[..];
/// let mut decoder = BodyDecoder::chunked(&Limits::default());
/// let mut body = Vec::new();
/// loop {
///     let (consumed, piece) = decoder.decode(bytes)?;
///     bytes = &bytes[consumed..];
///     match piece {
///         Body::Data(data) => body.extend_from_slice(data),
///         Body::Trailer(..) => {}
///         Body::End => break,
///         Body::NeedMore => unreachable!("all of it is here"),
///     }
/// }
/// assert_eq!((&body[..], bytes), (&b"hello"[..], &b"GET "[..]));
/// # Ok::<(), dunlin_wire::http1::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyDecoder {
    framing: Framing,
}

const _: () = assert!(size_of::<BodyDecoder>() <= 32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Done,
    Length { remaining: u64 },
    Chunked(ChunkedDecoder),
    UntilClose { allowed: u64 },
}

impl BodyDecoder {
    /// No body.
    pub const fn none() -> BodyDecoder {
        BodyDecoder { framing: Framing::Done }
    }

    /// A body of a known length in bytes.
    pub const fn length(length: u64) -> BodyDecoder {
        if length == 0 {
            return BodyDecoder::none();
        }
        BodyDecoder { framing: Framing::Length { remaining: length } }
    }

    /// A chunked body (RFC 9112 §7.1) within the limits for body and overhead.
    pub const fn chunked(limits: &Limits) -> BodyDecoder {
        BodyDecoder { framing: Framing::Chunked(ChunkedDecoder::new(limits)) }
    }

    /// A body that lasts until the server closes the connection, which only responses can have.
    pub const fn until_close(limits: &Limits) -> BodyDecoder {
        BodyDecoder { framing: Framing::UntilClose { allowed: limits.body_bytes_max } }
    }

    /// True when nothing of the body is outstanding.
    pub fn is_done(&self) -> bool {
        self.framing == Framing::Done
    }

    /// Bytes of the body that are still to come, when its length was announced.
    pub fn remaining(&self) -> Option<u64> {
        match self.framing {
            Framing::Done => Some(0),
            Framing::Length { remaining } => Some(remaining),
            Framing::Chunked(_) | Framing::UntilClose { .. } => None,
        }
    }

    /// Takes no more than so many bytes from here on, where the limits would allow more.
    ///
    /// # Errors
    ///
    /// [`Error::BodyTooLong`] when more was announced.
    pub fn restrict(&mut self, bytes_max: u64) -> Result<(), Error> {
        match &mut self.framing {
            Framing::Done => {}
            Framing::Length { remaining } if *remaining > bytes_max => {
                return Err(Error::BodyTooLong);
            }
            Framing::Length { .. } => {}
            Framing::Chunked(chunked) => chunked.restrict(bytes_max),
            Framing::UntilClose { allowed } => *allowed = bytes_max.min(*allowed),
        }
        Ok(())
    }

    /// True when the end of the connection is the end of the body. At that point the body of any
    /// other framing that is not [done](BodyDecoder::is_done) was cut short.
    pub fn ends_at_close(&self) -> bool {
        matches!(self.framing, Framing::UntilClose { .. })
    }

    /// Decodes the next piece and returns how many bytes it consumed. Call until [`Body::NeedMore`]
    /// or [`Body::End`].
    ///
    /// # Errors
    ///
    /// [`Error`] when the framing is malformed or a limit is passed. The decoder is then of no use.
    pub fn decode<'a>(&mut self, bytes: &'a [u8]) -> Result<(usize, Body<'a>), Error> {
        match &mut self.framing {
            Framing::Done => Ok((0, Body::End)),
            _ if bytes.is_empty() => Ok((0, Body::NeedMore)),
            Framing::Length { remaining } => {
                let data =
                    &bytes[..bytes.len().min(usize::try_from(*remaining).unwrap_or(usize::MAX))];
                *remaining -= data.len() as u64;
                if *remaining == 0 {
                    self.framing = Framing::Done;
                }
                Ok((data.len(), Body::Data(data)))
            }
            Framing::UntilClose { allowed } => {
                *allowed = allowed.checked_sub(bytes.len() as u64).ok_or(Error::BodyTooLong)?;
                Ok((bytes.len(), Body::Data(bytes)))
            }
            Framing::Chunked(chunked) => {
                let mut consumed = 0;
                loop {
                    match chunked.step(&bytes[consumed..])? {
                        Step::NeedMore => return Ok((consumed, Body::NeedMore)),
                        Step::Skip(bytes) => consumed += bytes,
                        Step::Data(length) => {
                            let data = &bytes[consumed..consumed + length];
                            return Ok((consumed + length, Body::Data(data)));
                        }
                        Step::Trailer(line, name, value) => {
                            return Ok((consumed + line, Body::Trailer(name, value)));
                        }
                        Step::End(bytes) => {
                            self.framing = Framing::Done;
                            return Ok((consumed + bytes, Body::End));
                        }
                    }
                }
            }
        }
    }
}
