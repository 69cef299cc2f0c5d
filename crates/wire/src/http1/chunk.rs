//! The chunked transfer coding (RFC 9112 §7.1).

use super::header::trim;
use super::{Error, Limits};
use crate::token::{is_token, is_token_byte};

/// The maximum length of a chunk-size line in bytes, including extension and line end.
const SIZE_LINE_BYTES_MAX: usize = 1024;

/// Sixteen hexadecimal digits hold every size that fits 64 bits.
const SIZE_DIGITS_MAX: usize = 16;

/// The end of a chunked body without trailers: the last chunk and the empty line.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Appends one chunk. Appends nothing for empty data, because an empty chunk would end the body.
pub fn encode_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    write_size(out, data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends one chunk with the bytes that `write` appends; no chunk if it appends none.
///
/// The size is written when the data is known. The data moves only if the size has another number
/// of digits than foreseen.
pub fn encode_chunk_with<R>(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    /// Digits of the size of chunks from 256 to 4095 bytes, plus CRLF.
    const FORESEEN: usize = 3 + 2;
    let begin = out.len();
    out.extend_from_slice(&[0; FORESEEN]);
    let result = write(out);
    let length = out.len() - begin - FORESEEN;
    if length == 0 {
        out.truncate(begin);
        return result;
    }
    let digits = digits(length);
    let data = begin + digits + 2;
    if digits + 2 > FORESEEN {
        out.resize(out.len() + digits + 2 - FORESEEN, 0);
    }
    out.copy_within(begin + FORESEEN..begin + FORESEEN + length, data);
    out.truncate(data + length);
    put_size(&mut out[begin..data], length);
    out.extend_from_slice(b"\r\n");
    result
}

/// Appends the end of a chunked body with trailers. Line breaks inside a value become spaces.
pub fn encode_last_chunk(out: &mut Vec<u8>, trailers: &[(&str, &str)]) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        super::writer::write_field(out, name, value.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

fn write_size(out: &mut Vec<u8>, size: usize) {
    let begin = out.len();
    out.resize(begin + digits(size) + 2, 0);
    put_size(&mut out[begin..], size);
}

/// Fills `line` with the size in hexadecimal and CRLF, which fit it exactly.
fn put_size(line: &mut [u8], mut size: usize) {
    let (digits, end) = line.split_at_mut(line.len() - 2);
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[size & 15];
        size >>= 4;
    }
    end.copy_from_slice(b"\r\n");
}

fn digits(size: usize) -> usize {
    size.checked_ilog(16).map_or(1, |log| log as usize + 1)
}

/// State of a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkedDecoder {
    /// Bytes of body that the limit still allows after the chunks announced so far.
    allowed: u64,
    /// Bytes of extensions and trailers that the limit still allows.
    overhead_allowed: u32,
    state: State,
    /// Bytes of the current chunk that are still to come.
    remaining: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    Data,
    DataEnd,
    Trailer,
}

/// Result of one step.
pub(super) enum Step<'a> {
    NeedMore,
    Skip(usize),
    Data(usize),
    Trailer(usize, &'a str, &'a [u8]),
    End(usize),
}

impl ChunkedDecoder {
    pub(super) const fn new(limits: &Limits) -> ChunkedDecoder {
        ChunkedDecoder {
            allowed: limits.body_bytes_max,
            overhead_allowed: limits.chunk_overhead_bytes_max,
            state: State::Size,
            remaining: 0,
        }
    }

    /// Lowers the limit on the data in further chunks to `bytes_max`.
    pub(super) fn restrict(&mut self, bytes_max: u64) {
        self.allowed = self.allowed.min(bytes_max);
    }

    pub(super) fn step<'a>(&mut self, bytes: &'a [u8]) -> Result<Step<'a>, Error> {
        match self.state {
            State::Size => self.size(bytes),
            State::Data => {
                if bytes.is_empty() {
                    return Ok(Step::NeedMore);
                }
                let remaining = usize::try_from(self.remaining).unwrap_or(usize::MAX);
                let length = bytes.len().min(remaining);
                self.remaining -= length as u64;
                if self.remaining == 0 {
                    self.state = State::DataEnd;
                }
                Ok(Step::Data(length))
            }
            State::DataEnd => match bytes {
                [b'\r', b'\n', ..] => {
                    self.state = State::Size;
                    Ok(Step::Skip(2))
                }
                [] | [b'\r'] => Ok(Step::NeedMore),
                _ => Err(Error::ChunkFraming),
            },
            State::Trailer => self.trailer(bytes),
        }
    }

    /// Reads a complete line `chunk-size [ chunk-ext ] CRLF`.
    fn size(&mut self, bytes: &[u8]) -> Result<Step<'static>, Error> {
        let digits = bytes
            .iter()
            .take(SIZE_DIGITS_MAX + 1)
            .position(|byte| !byte.is_ascii_hexdigit())
            .unwrap_or(bytes.len().min(SIZE_DIGITS_MAX + 1));
        if digits > SIZE_DIGITS_MAX || (digits == 0 && !bytes.is_empty()) {
            return Err(Error::ChunkSize);
        }
        let (digits, rest) = bytes.split_at(digits);
        let extension = match line(rest, SIZE_LINE_BYTES_MAX) {
            Line::Complete(extension) => extension,
            Line::NeedMore => {
                // Check the part of the extension that has arrived: the rest may never come.
                let begun = Extension::read(rest.strip_suffix(b"\r").unwrap_or(rest));
                return begun.map(|_| Step::NeedMore).ok_or(Error::ChunkFraming);
            }
            Line::TooLong => return Err(Error::ChunkOverhead),
            Line::Malformed => return Err(Error::ChunkFraming),
        };
        if !extension.is_empty() && !Extension::read(extension).is_some_and(Extension::may_end) {
            return Err(Error::ChunkFraming);
        }
        self.spend(extension.len()).ok_or(Error::ChunkOverhead)?;
        let size = digits.iter().fold(0u64, |size, &digit| {
            size << 4 | u64::from((digit as char).to_digit(16).unwrap_or_default())
        });
        if size == 0 {
            self.state = State::Trailer;
        } else {
            self.allowed = self.allowed.checked_sub(size).ok_or(Error::BodyTooLong)?;
            self.remaining = size;
            self.state = State::Data;
        }
        Ok(Step::Skip(digits.len() + extension.len() + 2))
    }

    fn trailer<'a>(&mut self, bytes: &'a [u8]) -> Result<Step<'a>, Error> {
        let line = match line(bytes, self.overhead_allowed as usize) {
            Line::Complete(line) => line,
            Line::NeedMore => return Ok(Step::NeedMore),
            Line::TooLong => return Err(Error::TrailersTooLong),
            Line::Malformed => return Err(Error::Trailer),
        };
        if line.is_empty() {
            return Ok(Step::End(2));
        }
        self.spend(line.len() + 2).ok_or(Error::TrailersTooLong)?;
        let colon = line.iter().position(|&byte| byte == b':').ok_or(Error::Trailer)?;
        let (name, value) = (&line[..colon], trim(&line[colon + 1..]));
        if !is_token(name) || !value.iter().all(is_text_byte) {
            return Err(Error::Trailer);
        }
        let name = str::from_utf8(name).map_err(|_| Error::Trailer)?;
        Ok(Step::Trailer(line.len() + 2, name, value))
    }

    fn spend(&mut self, bytes: usize) -> Option<()> {
        self.overhead_allowed = self.overhead_allowed.checked_sub(u32::try_from(bytes).ok()?)?;
        Some(())
    }
}

enum Line<'a> {
    /// The line without its CRLF.
    Complete(&'a [u8]),
    NeedMore,
    TooLong,
    /// A bare CR or LF.
    Malformed,
}

fn line(bytes: &[u8], bytes_max: usize) -> Line<'_> {
    let window = &bytes[..bytes.len().min(bytes_max.saturating_add(2))];
    match window.iter().position(|&byte| matches!(byte, b'\r' | b'\n')) {
        Some(end) => match window[end..] {
            [b'\r', b'\n', ..] => Line::Complete(&window[..end]),
            [b'\r'] if window.len() == bytes.len() => Line::NeedMore,
            [b'\r'] => Line::TooLong,
            _ => Line::Malformed,
        },
        None if window.len() < bytes_max.saturating_add(2) => Line::NeedMore,
        None => Line::TooLong,
    }
}

/// Position within `*( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] )` (RFC 9112
/// §7.1.1).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extension {
    /// After the size or a quoted value.
    End,
    /// In white space that only a `;` may follow.
    EndSpace,
    /// After `;`.
    NameBegin,
    Name,
    NameSpace,
    /// After `=`.
    ValueBegin,
    Value,
    Quoted,
    /// After a backslash in a quoted value.
    Escaped,
}

impl Extension {
    /// Returns the position after the bytes; `None` when no extension begins with them.
    fn read(bytes: &[u8]) -> Option<Extension> {
        bytes.iter().try_fold(Extension::End, |at, byte| at.step(byte))
    }

    fn may_end(self) -> bool {
        matches!(self, Extension::End | Extension::Name | Extension::Value)
    }

    fn step(self, byte: &u8) -> Option<Extension> {
        use Extension::{
            End, EndSpace, Escaped, Name, NameBegin, NameSpace, Quoted, Value, ValueBegin,
        };
        Some(match (self, byte) {
            (Quoted, b'"') => End,
            (Quoted, b'\\') => Escaped,
            (Quoted | Escaped, byte) if is_text_byte(byte) => Quoted,
            (End | EndSpace | Name | NameSpace | Value, b';') => NameBegin,
            (End | EndSpace | Value, b' ' | b'\t') => EndSpace,
            (NameBegin | ValueBegin, b' ' | b'\t') => self,
            (Name | NameSpace, b' ' | b'\t') => NameSpace,
            (Name | NameSpace, b'=') => ValueBegin,
            (ValueBegin, b'"') => Quoted,
            (NameBegin | Name, byte) if is_token_byte(byte) => Name,
            (ValueBegin | Value, byte) if is_token_byte(byte) => Value,
            _ => return None,
        })
    }
}

fn is_text_byte(byte: &u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}
