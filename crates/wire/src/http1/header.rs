//! Header fields of a head, borrowed from the bytes they were decoded from.

use std::fmt;
use std::mem::MaybeUninit;

/// The most headers a head can have, whatever its [`Limits`](super::Limits).
pub const HEADERS_MAX: usize = 256;

/// Space for the headers of one head, on the caller's stack and uninitialised until used.
///
/// A decoder fills it and lends it to the head it returns, so that decoding allocates nothing.
pub struct HeaderSlots<'b> {
    pub(super) slots: [MaybeUninit<httparse::Header<'b>>; HEADERS_MAX],
}

impl HeaderSlots<'_> {
    /// Returns empty, uninitialised space.
    #[inline]
    pub fn new() -> Self {
        HeaderSlots { slots: [const { MaybeUninit::uninit() }; HEADERS_MAX] }
    }
}

impl Default for HeaderSlots<'_> {
    fn default() -> Self {
        HeaderSlots::new()
    }
}

impl fmt::Debug for HeaderSlots<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderSlots")
    }
}

/// The header fields of a head, in order of arrival. Names compare case-insensitively.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Headers<'a> {
    fields: &'a [httparse::Header<'a>],
}

impl<'a> Headers<'a> {
    pub(super) fn new(fields: &'a [httparse::Header<'a>]) -> Headers<'a> {
        Headers { fields }
    }

    /// Returns an empty list of headers.
    pub const fn empty() -> Headers<'static> {
        Headers { fields: &[] }
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Returns true when there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Iterates over name and value of every field. Values have no white space at either end.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, &'a [u8])> + use<'a> {
        self.fields.iter().map(|field| (field.name, field.value))
    }

    /// Returns the value of the first field with this name.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.get_all(name).next()
    }

    /// Returns the value of the first field with this name, if it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&'a str> {
        self.get(name).and_then(|value| str::from_utf8(value).ok())
    }

    /// Iterates over the values of all fields with this name.
    pub fn get_all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        self.fields
            .iter()
            .filter(move |field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value)
    }

    /// Iterates over the elements of a list-valued header (RFC 9110 §5.6.1): all its fields joined,
    /// empty elements skipped. Not for headers whose elements may contain quoted commas.
    pub fn list<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        self.get_all(name).flat_map(elements)
    }

    /// Iterates over the fields that a proxy forwards: all but those for the next hop (RFC 9110 §7.6.1), those that
    /// `Connection` lists, and `Content-Length`, which belongs to the message as it is sent on. Values that are not UTF-8
    /// are left out.
    pub fn end_to_end(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        const HOP_BY_HOP: [&str; 8] = [
            "Connection",
            "Content-Length",
            "Keep-Alive",
            "Proxy-Connection",
            "TE",
            "Trailer",
            "Transfer-Encoding",
            "Upgrade",
        ];
        let headers = *self;
        let stays = move |name: &str| {
            HOP_BY_HOP.iter().any(|of_hop| of_hop.eq_ignore_ascii_case(name))
                || headers.has_token("Connection", name)
        };
        self.iter()
            .filter(move |(name, _)| !stays(name))
            .filter_map(|(name, value)| Some((name, str::from_utf8(value).ok()?)))
    }

    /// Returns true when a list-valued header contains this element, compared case-insensitively.
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        self.list(name).any(|element| element.eq_ignore_ascii_case(token.as_bytes()))
    }
}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(name, value)| (name, String::from_utf8_lossy(value))))
            .finish()
    }
}

/// Iterates over the comma-separated, trimmed, non-empty elements of one value.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim).filter(|element| !element.is_empty())
}

/// Strips optional white space (SP, HTAB) from both ends.
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// What the headers of a message mean for its framing and its connection, collected in one pass.
#[derive(Debug, Default)]
pub(super) struct Semantics<'a> {
    pub(super) content_length: Option<u64>,
    pub(super) coding: Coding,
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) connection_upgrade: bool,
    pub(super) upgrade: bool,
    pub(super) host: Option<&'a [u8]>,
    pub(super) expect: Option<&'a [u8]>,
}

/// The state of all `Transfer-Encoding` fields read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Coding {
    /// There is no such field.
    #[default]
    Absent,
    /// Exactly `chunked`.
    Chunked,
    /// `chunked` comes last, applied over codings that are not implemented.
    ChunkedOverUnknown,
    /// The last coding is not `chunked`.
    NotFinallyChunked,
}

/// What a repeated `Content-Length` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RepeatedLength {
    /// An error, even if it is equal: a proxy may have used either of two (RFC 9112 §6.3, rule 5).
    Refused,
    /// One length, if all are equal: some servers and proxies in front of them write it twice.
    Equal,
}

impl<'a> Semantics<'a> {
    pub(super) fn read(
        headers: Headers<'a>,
        repeated: RepeatedLength,
    ) -> Result<Semantics<'a>, super::Error> {
        use super::Error;
        let mut this = Semantics::default();
        for (name, value) in headers.iter() {
            // The names below differ in length, so dispatching on the length makes most headers
            // cost one jump.
            match name.len() {
                4 if name.eq_ignore_ascii_case("host") && this.host.replace(value).is_some() => {
                    return Err(Error::Host);
                }
                6 if name.eq_ignore_ascii_case("expect") => this.expect = Some(value),
                7 if name.eq_ignore_ascii_case("upgrade") => this.upgrade = true,
                10 if name.eq_ignore_ascii_case("connection") => {
                    for option in elements(value) {
                        this.close |= option.eq_ignore_ascii_case(b"close");
                        this.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                        this.connection_upgrade |= option.eq_ignore_ascii_case(b"upgrade");
                    }
                }
                14 if name.eq_ignore_ascii_case("content-length") => {
                    let length = match repeated {
                        RepeatedLength::Refused => decimal(value),
                        RepeatedLength::Equal => equal_decimals(value)?,
                    };
                    let length = length.ok_or(Error::ContentLength)?;
                    let before = this.content_length.replace(length);
                    if before.is_some_and(|before| {
                        repeated == RepeatedLength::Refused || before != length
                    }) {
                        return Err(Error::ContentLengthRepeated);
                    }
                }
                17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                    if this.coding == Coding::Absent && trim(value).is_empty() {
                        return Err(Error::TransferEncoding);
                    }
                    for coding in elements(value) {
                        this.coding = this.coding.then(coding)?;
                    }
                    if this.coding == Coding::Absent {
                        return Err(Error::TransferEncoding);
                    }
                }
                _ => {}
            }
        }
        if this.content_length.is_some() && this.coding != Coding::Absent {
            return Err(Error::LengthAndCoding);
        }
        Ok(this)
    }

    /// Returns whether the connection persists after this message (RFC 9112 §9.3).
    pub(super) fn persists(&self, version: super::Version) -> bool {
        match version {
            super::Version::Http11 => !self.close,
            super::Version::Http10 => self.keep_alive && !self.close,
        }
    }
}

impl Coding {
    /// Applies the next coding of the list. `chunked` twice is never valid (RFC 9112 §7.1).
    fn then(self, coding: &[u8]) -> Result<Coding, super::Error> {
        let chunked = coding.eq_ignore_ascii_case(b"chunked");
        match (self, chunked) {
            (Coding::Absent, true) => Ok(Coding::Chunked),
            (Coding::NotFinallyChunked, true) => Ok(Coding::ChunkedOverUnknown),
            (Coding::Absent | Coding::NotFinallyChunked, false) => Ok(Coding::NotFinallyChunked),
            (Coding::Chunked | Coding::ChunkedOverUnknown, _) => {
                Err(super::Error::TransferEncoding)
            }
        }
    }
}

/// Parses a non-empty run of digits that fits 64 bits. Rejects signs, lists and white space.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Parses one number, or a list of equal ones as a proxy makes it of repeated fields.
fn equal_decimals(value: &[u8]) -> Result<Option<u64>, super::Error> {
    let mut numbers = value.split(|&byte| byte == b',').map(|number| decimal(trim(number)));
    let first = numbers.next().flatten();
    for number in numbers {
        if number.is_none() || first.is_none() {
            return Ok(None);
        }
        if number != first {
            return Err(super::Error::ContentLengthRepeated);
        }
    }
    Ok(first)
}

/// Returns true when an LF has no CR before it. Without early exit, so that it vectorises.
pub(super) fn has_bare_lf(bytes: &[u8]) -> bool {
    let Some((first, rest)) = bytes.split_first() else { return false };
    bytes.iter().zip(rest).fold(*first == b'\n', |bare, (&before, &byte)| {
        bare | ((byte == b'\n') & (before != b'\r'))
    })
}
