//! Finds the end of a value.

use super::{DEPTH_MAX, Error, Limits};

/// Finds the end of one value after another. Each byte is examined once, however the input is split. Plain data.
#[derive(Clone, Debug)]
pub struct Scanner {
    limits: Limits,
    /// Bytes of the value that were examined.
    at: usize,
    /// Missing elements of each open aggregate.
    open: [u64; DEPTH_MAX],
    depth: usize,
    elements: u64,
}

/// The line at the start of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Header<'a> {
    Simple(&'a [u8]),
    Error(&'a [u8]),
    Integer(i64),
    Double(f64),
    BigNumber(&'a [u8]),
    Boolean(bool),
    Null,
    /// Type byte and length of the following string, without CR LF.
    Text(u8, usize),
    /// Type byte and the number of following values.
    Aggregate(u8, u64),
}

/// Maximum bytes of a line with a number: more than any that fits.
const NUMBER_BYTES_MAX: usize = 64;

/// Maximum bytes of a text without a length.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Reads the line at the start of `bytes`: its meaning and its length. `None` if it is incomplete.
pub(super) fn header(bytes: &[u8], line_max: usize) -> Result<Option<(Header<'_>, usize)>, Error> {
    let Some(&kind) = bytes.first() else { return Ok(None) };
    let line_max = match kind {
        b'+' | b'-' | b'(' => line_max,
        b':' | b',' | b'#' | b'_' | b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|' => {
            NUMBER_BYTES_MAX
        }
        _ => return Err(Error::Type),
    };
    let window = &bytes[1..bytes.len().min(line_max.saturating_add(3))];
    let Some(end) = window.iter().position(|&byte| matches!(byte, b'\r' | b'\n')) else {
        return if window.len() > line_max { Err(Error::TooLong) } else { Ok(None) };
    };
    match window[end..] {
        [b'\r', b'\n', ..] => {}
        [b'\r'] => return Ok(None),
        _ => return Err(Error::LineEnd),
    }
    let line = &window[..end];
    let header = match kind {
        b'+' => Header::Simple(text(line)?),
        b'-' => Header::Error(text(line)?),
        b':' => Header::Integer(number(line)?),
        b',' => Header::Double(double(line)?),
        b'(' => match line.strip_prefix(b"-").unwrap_or(line) {
            digits if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => {
                Header::BigNumber(line)
            }
            _ => return Err(Error::Malformed),
        },
        b'#' => match line {
            b"t" => Header::Boolean(true),
            b"f" => Header::Boolean(false),
            _ => return Err(Error::Malformed),
        },
        b'_' if line.is_empty() => Header::Null,
        b'_' => return Err(Error::Malformed),
        _ if line == b"?" => return Err(Error::Streamed),
        b'$' | b'*' if line == b"-1" => Header::Null,
        _ => {
            let count = u64::try_from(number(line)?).map_err(|_| Error::Number)?;
            match kind {
                b'$' | b'!' | b'=' => {
                    Header::Text(kind, usize::try_from(count).map_err(|_| Error::TooLong)?)
                }
                b'%' => {
                    Header::Aggregate(kind, count.checked_mul(2).ok_or(Error::TooManyElements)?)
                }
                b'|' => {
                    let elements = count.checked_mul(2).and_then(|count| count.checked_add(1));
                    Header::Aggregate(kind, elements.ok_or(Error::TooManyElements)?)
                }
                _ => Header::Aggregate(kind, count),
            }
        }
    };
    Ok(Some((header, end + 3)))
}

fn text(line: &[u8]) -> Result<&[u8], Error> {
    str::from_utf8(line).map(|_| line).map_err(|_| Error::Malformed)
}

fn number(line: &[u8]) -> Result<i64, Error> {
    let digits = line.strip_prefix(b"-").or(line.strip_prefix(b"+")).unwrap_or(line);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Error::Number);
    }
    str::from_utf8(line).ok().and_then(|line| line.parse().ok()).ok_or(Error::Number)
}

fn double(line: &[u8]) -> Result<f64, Error> {
    let legal = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    match line {
        b"inf" => Ok(f64::INFINITY),
        b"-inf" => Ok(f64::NEG_INFINITY),
        b"nan" => Ok(f64::NAN),
        line if line.iter().all(legal) => {
            str::from_utf8(line).ok().and_then(|line| line.parse().ok()).ok_or(Error::Malformed)
        }
        _ => Err(Error::Malformed),
    }
}

impl Scanner {
    /// Creates a scanner at the start of a value.
    pub fn new(limits: &Limits) -> Scanner {
        let depth_max = limits.depth_max.min(DEPTH_MAX);
        Scanner {
            limits: Limits { depth_max, ..*limits },
            at: 0,
            open: [0; DEPTH_MAX],
            depth: 0,
            elements: 0,
        }
    }

    /// Examines the bytes of a value from its first byte on. `Some`: the value ends there, and the scanner is at the start of
    /// the next one. `None`: call again with the same bytes and more after them.
    ///
    /// # Errors
    ///
    /// Returns [`Error`]; the scanner cannot be used any more.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, Error> {
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            let Some((header, line)) =
                header(rest, self.limits.value_bytes_max.min(LINE_BYTES_MAX))?
            else {
                return Ok(None);
            };
            let mut taken = line;
            let mut opened = None;
            match header {
                Header::Text(kind, length) => {
                    let end = line.checked_add(length).ok_or(Error::TooLong)?;
                    if self.at.saturating_add(end) > self.limits.value_bytes_max {
                        return Err(Error::TooLong);
                    }
                    match rest.get(end..end + 2) {
                        Some(b"\r\n") => {}
                        Some(_) => return Err(Error::LineEnd),
                        None if rest.get(end).is_some_and(|&byte| byte != b'\r') => {
                            return Err(Error::LineEnd);
                        }
                        None => return Ok(None),
                    }
                    if kind == b'=' && rest.get(line + 3) != Some(&b':') {
                        return Err(Error::Malformed);
                    }
                    taken = end + 2;
                }
                Header::Aggregate(_, count) => {
                    self.elements = self.elements.saturating_add(count);
                    if self.elements > self.limits.elements_max {
                        return Err(Error::TooManyElements);
                    }
                    if self.depth == self.limits.depth_max {
                        return Err(Error::TooDeep);
                    }
                    opened = Some(count);
                }
                _ => {}
            }
            self.at += taken;
            if self.at > self.limits.value_bytes_max {
                return Err(Error::TooLong);
            }
            if let Some(count) = opened.filter(|&count| count > 0) {
                self.open[self.depth] = count;
                self.depth += 1;
                continue;
            }
            // A value has ended, and possibly aggregates around it.
            loop {
                if self.depth == 0 {
                    let end = self.at;
                    (self.at, self.elements) = (0, 0);
                    return Ok(Some(end));
                }
                let left = &mut self.open[self.depth - 1];
                *left -= 1;
                if *left > 0 {
                    break;
                }
                self.depth -= 1;
            }
        }
    }
}
