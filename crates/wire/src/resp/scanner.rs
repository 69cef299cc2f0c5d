//! Finds the end of a value.

use super::{DEPTH_MAX, Error, Limits};

/// Finds the end of one value after another. Each byte is examined once, however the input is split. Plain data.
///
/// A value beyond [`Limits::value_bytes_max`] or [`Limits::elements_max`] is skipped without being stored, and the values behind
/// it are found as usual.
#[derive(Clone, Debug)]
pub struct Scanner {
    limits: Limits,
    /// The first byte of the value.
    kind: u8,
    /// The value is beyond a limit: its bytes are dropped as they come.
    overlong: bool,
    /// Bytes of a string of such a value that have not come.
    skip: usize,
    /// The line end after that string has not come.
    awaits_line_end: bool,
    /// Bytes of the value that were examined.
    at: usize,
    /// Missing elements of each open aggregate.
    open: [u64; DEPTH_MAX],
    depth: usize,
    elements: u64,
}

/// What [`Scanner::scan`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The value is incomplete: call again with the same bytes and more after them.
    Incomplete,
    /// The value has this many bytes. The scanner is at the start of the next one.
    Value(usize),
    /// This many bytes are part of a value beyond the limits: drop them, and call again with what follows them.
    Drop(usize),
    /// This many bytes end a value beyond the limits: drop them. The scanner is at the start of the next value.
    Overlong {
        /// The bytes to drop.
        bytes: usize,
        /// The value is a push, and no reply.
        is_push: bool,
    },
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
                b'%' => Header::Aggregate(kind, count.saturating_mul(2)),
                b'|' => Header::Aggregate(kind, count.saturating_mul(2).saturating_add(1)),
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
            kind: 0,
            overlong: false,
            skip: 0,
            awaits_line_end: false,
            at: 0,
            open: [0; DEPTH_MAX],
            depth: 0,
            elements: 0,
        }
    }

    /// Examines the bytes of a value from its first byte on.
    ///
    /// # Errors
    ///
    /// Returns [`Error`]; the scanner cannot be used any more.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Scan, Error> {
        loop {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len().saturating_sub(self.at));
                (self.skip, self.at) = (self.skip - skipped, self.at + skipped);
                if self.skip > 0 {
                    return Ok(self.incomplete());
                }
            }
            let rest = bytes.get(self.at..).unwrap_or_default();
            // A string that was skipped is followed by its line end.
            if self.overlong && self.awaits_line_end {
                match rest {
                    [b'\r', b'\n', ..] => {}
                    [] | [b'\r'] => return Ok(self.incomplete()),
                    _ => return Err(Error::LineEnd),
                }
                self.at += 2;
                self.awaits_line_end = false;
                match self.end_value() {
                    Some(end) => return Ok(end),
                    None => continue,
                }
            }
            let Some((header, line)) =
                header(rest, self.limits.value_bytes_max.min(LINE_BYTES_MAX))?
            else {
                return Ok(self.incomplete());
            };
            if self.depth == 0 {
                self.kind = rest[0];
            }
            let mut taken = line;
            let mut opened = None;
            match header {
                Header::Text(kind, length) => {
                    let end = line.checked_add(length).ok_or(Error::TooLong)?;
                    if self.overlong || self.at.saturating_add(end) > self.limits.value_bytes_max {
                        (self.overlong, self.awaits_line_end) = (true, true);
                        (self.at, self.skip) = (self.at + line, length);
                        continue;
                    }
                    match rest.get(end..end + 2) {
                        Some(b"\r\n") => {}
                        Some(_) => return Err(Error::LineEnd),
                        None if rest.get(end).is_some_and(|&byte| byte != b'\r') => {
                            return Err(Error::LineEnd);
                        }
                        None => return Ok(self.incomplete()),
                    }
                    if kind == b'=' && rest.get(line + 3) != Some(&b':') {
                        return Err(Error::Malformed);
                    }
                    taken = end + 2;
                }
                Header::Aggregate(_, count) => {
                    self.elements = self.elements.saturating_add(count);
                    self.overlong |= self.elements > self.limits.elements_max;
                    if self.depth == self.limits.depth_max {
                        return Err(Error::TooDeep);
                    }
                    opened = Some(count);
                }
                _ => {}
            }
            self.at += taken;
            self.overlong |= self.at > self.limits.value_bytes_max;
            if let Some(count) = opened.filter(|&count| count > 0) {
                self.open[self.depth] = count;
                self.depth += 1;
                continue;
            }
            if let Some(end) = self.end_value() {
                return Ok(end);
            }
        }
    }

    /// Notes that a value has ended, and possibly aggregates around it. Returns the end of the outermost one.
    fn end_value(&mut self) -> Option<Scan> {
        while self.depth > 0 {
            let left = &mut self.open[self.depth - 1];
            *left -= 1;
            if *left > 0 {
                return None;
            }
            self.depth -= 1;
        }
        let bytes = std::mem::take(&mut self.at);
        self.elements = 0;
        Some(match std::mem::take(&mut self.overlong) {
            true => Scan::Overlong { bytes, is_push: self.kind == b'>' },
            false => Scan::Value(bytes),
        })
    }

    /// Returns what to do until more bytes come.
    fn incomplete(&mut self) -> Scan {
        match self.overlong && self.at > 0 {
            true => Scan::Drop(std::mem::take(&mut self.at)),
            false => Scan::Incomplete,
        }
    }
}
