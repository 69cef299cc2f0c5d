//! Decoders of message bodies (RFC 9112 §6).

use super::chunk::{ChunkedDecoder, Step};
use super::{Error, Limits};

/// Result of one decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// More bytes are needed. Pass the unconsumed ones again with more after them: part of a chunk
    /// size or trailer line, at most a few KiB.
    NeedMore,
    /// Bytes of the body.
    Data(&'a [u8]),
    /// A trailer field (RFC 9110 §6.5), returned once its whole line has arrived. Its value is
    /// trimmed.
    Trailer(&'a str, &'a [u8]),
    /// The end of the body; the next message follows.
    End,
}

/// Decodes the body that follows a head. Plain data of a few words, kept with the connection.
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
    /// Returns a decoder for a message without a body.
    pub const fn none() -> BodyDecoder {
        BodyDecoder { framing: Framing::Done }
    }

    /// Returns a decoder for a body of `length` bytes.
    pub const fn length(length: u64) -> BodyDecoder {
        if length == 0 {
            return BodyDecoder::none();
        }
        BodyDecoder { framing: Framing::Length { remaining: length } }
    }

    /// Returns a decoder for a chunked body (RFC 9112 §7.1) within the limits for body and
    /// overhead.
    pub const fn chunked(limits: &Limits) -> BodyDecoder {
        BodyDecoder { framing: Framing::Chunked(ChunkedDecoder::new(limits)) }
    }

    /// Returns a decoder for a body that ends when the server closes the connection (responses
    /// only).
    pub const fn until_close(limits: &Limits) -> BodyDecoder {
        BodyDecoder { framing: Framing::UntilClose { allowed: limits.body_bytes_max } }
    }

    /// Returns true when the whole body has been decoded.
    pub fn is_done(&self) -> bool {
        self.framing == Framing::Done
    }

    /// Returns the number of body bytes still to come, if the length was announced.
    pub fn remaining(&self) -> Option<u64> {
        match self.framing {
            Framing::Done => Some(0),
            Framing::Length { remaining } => Some(remaining),
            Framing::Chunked(_) | Framing::UntilClose { .. } => None,
        }
    }

    /// Lowers the limit on the body bytes still to come to `bytes_max`.
    ///
    /// # Errors
    ///
    /// [`Error::BodyTooLong`] when the announced remainder is longer.
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

    /// Returns true when the close of the connection ends the body. A body of any other framing
    /// that is not [done](BodyDecoder::is_done) when the connection closes was cut short.
    pub fn ends_at_close(&self) -> bool {
        matches!(self.framing, Framing::UntilClose { .. })
    }

    /// Decodes the next piece and returns how many bytes it consumed. Call until [`Body::NeedMore`]
    /// or [`Body::End`].
    ///
    /// # Errors
    ///
    /// [`Error`] when the framing is malformed or a limit is exceeded. The decoder is then
    /// unusable.
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
