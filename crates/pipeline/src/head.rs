//! Heads of answers. A head that is equal to the previous one is not parsed again.

use std::fmt;

use dunlin_wire::http1::{
    self, BodyDecoder, Decoded, Error, HeaderSlots, Limits, Method, ResponseHead,
};

use crate::Kind;

/// The head of an answer. Status and framing are parsed; headers are parsed on demand.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// The status code, 100 to 599.
    pub status: u16,
    /// The length of the body; `None` if it is chunked or delimited by the close.
    pub length: Option<u64>,
    /// Whether the server accepts another request on this connection.
    pub keep_alive: bool,
    /// Whether the head is equal to that of the previous answer, byte for byte.
    pub repeated: bool,
    /// The bytes of the head, from the status line to the empty line.
    pub bytes: &'a [u8],
    pub(crate) method: Method<'static>,
}

impl<'a> Head<'a> {
    /// Parses the head with all headers. `slots` provides the space for them. Never returns `None` for a head passed
    /// to a [`Sink`](crate::Sink).
    pub fn read(&self, slots: &'a mut HeaderSlots<'a>) -> Option<ResponseHead<'a>> {
        let limits =
            Limits { head_bytes_max: usize::MAX, body_bytes_max: u64::MAX, ..Limits::default() };
        match http1::decode_response(self.bytes, slots, &limits, self.method) {
            Ok(Decoded::Head(head, _)) => Some(head),
            _ => None,
        }
    }

    /// Returns the value of the first header with this name. To read several headers, use [`Head::read`].
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        header(self.bytes, name)
    }
}

/// Returns the value of the first header with this name in a valid head.
pub(crate) fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    head.split(|&byte| byte == b'\n').skip(1).find_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let (field, value) = (&line[..colon], &line[colon + 1..]);
        field.eq_ignore_ascii_case(name.as_bytes()).then(|| value.trim_ascii())
    })
}

impl fmt::Debug for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head")
            .field("status", &self.status)
            .field("length", &self.length)
            .field("keep_alive", &self.keep_alive)
            .field("bytes", &String::from_utf8_lossy(self.bytes))
            .finish_non_exhaustive()
    }
}

/// The parsed meaning of a head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParsedHead {
    pub(crate) status: u16,
    pub(crate) keep_alive: bool,
    pub(crate) body: BodyDecoder,
}

impl ParsedHead {
    pub(crate) fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    pub(crate) fn head<'a>(&self, bytes: &'a [u8], kind: Kind, repeated: bool) -> Head<'a> {
        Head {
            status: self.status,
            length: self.body.remaining(),
            keep_alive: self.keep_alive,
            repeated,
            bytes,
            method: kind.method(),
        }
    }
}

/// The previous head. Servers repeat their heads for up to a second or longer, and comparing bytes is much cheaper
/// than parsing.
///
/// If the input begins with these bytes, its head is equal to them, because they end with the empty line.
#[derive(Debug)]
pub(crate) struct Known {
    bytes: Vec<u8>,
    meaning: ParsedHead,
    framing: u8,
}

/// Longer heads are always parsed: few repeat, and each connection would store one.
const KNOWN_BYTES_MAX: usize = 1024;

impl Default for Known {
    fn default() -> Known {
        let meaning = ParsedHead { status: 0, keep_alive: false, body: BodyDecoder::none() };
        Known { bytes: Vec::new(), meaning, framing: 0 }
    }
}

impl Known {
    /// Returns the meaning and length of the head at the start of `bytes`, if it equals the previous one.
    #[inline]
    pub(crate) fn recognise(&self, bytes: &[u8], kind: Kind) -> Option<(ParsedHead, usize)> {
        let length = self.bytes.len();
        if length == 0 || self.framing != kind.framing() || !bytes.starts_with(&self.bytes) {
            return None;
        }
        Some((self.meaning, length))
    }

    /// Reads the head at the start of `bytes`. Returns `None` if it is incomplete.
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        kind: Kind,
        limits: &Limits,
    ) -> Result<Option<(ParsedHead, usize)>, Error> {
        let mut slots = HeaderSlots::new();
        let decoded = http1::decode_response(bytes, &mut slots, limits, kind.method())?;
        let Decoded::Head(head, length) = decoded else { return Ok(None) };
        let meaning =
            ParsedHead { status: head.status, keep_alive: head.keep_alive, body: head.body };
        // The last head of a connection does not repeat; keep the previous one.
        if length <= KNOWN_BYTES_MAX && head.keep_alive && !head.is_interim() {
            self.bytes.clear();
            self.bytes.extend_from_slice(&bytes[..length]);
            (self.meaning, self.framing) = (meaning, kind.framing());
        }
        Ok(Some((meaning, length)))
    }
}
