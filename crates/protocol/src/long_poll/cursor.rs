//! The cursor: a client's positions in its channels as an opaque, URL-safe text.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dunlin_hub::{Epoch, StreamPosition};

/// The point from which a channel is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// From now on: only new publications.
    Now,
    /// From the oldest publication in the history.
    Beginning,
    /// After this position.
    Position(StreamPosition),
}

/// A client's positions in its channels.
///
/// The text is in base64url without padding: a version byte; for each channel an eight-byte hash of
/// its name, and epoch and offset as varints; a four-byte checksum. The checksum detects damage,
/// not forgery: a cursor grants no permission.
///
/// ```
/// use dunlin_hub::{Epoch, StreamPosition};
/// use dunlin_protocol::long_poll::{Cursor, Since};
///
/// let position = StreamPosition { offset: 7, epoch: Epoch::from_u64(99) };
/// let text = Cursor::new([("news", position)]).to_string();
/// let cursor = Cursor::parse(&text, 10).unwrap();
/// assert_eq!(cursor.since("news"), Since::Position(position));
/// assert_eq!(cursor.since("sports"), Since::Now);
/// assert_eq!(Cursor::parse("0", 10).unwrap().since("news"), Since::Beginning);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Beginning,
    Positions(Vec<(u64, StreamPosition)>),
}

/// The cursor that stands for the beginning of every history.
const BEGINNING: &str = "0";
const VERSION: u8 = 1;
const NAME_BYTES: usize = 8;
const VARINT_BYTES_MAX: usize = 10;
const CHECKSUM_BYTES: usize = 4;

/// Why a text is not a cursor of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// Longer than a cursor for the maximum number of channels can be.
    #[error("is longer than any cursor")]
    TooLong,
    /// Truncated, changed, or not a cursor.
    #[error(
        "is not a cursor; send the last answer's as it is, `0` for all there is, or none for what comes"
    )]
    Damaged,
    /// A version that this server does not support.
    #[error("is of version {0}, which this server does not know")]
    Version(u8),
}

impl Cursor {
    /// Creates a cursor for these positions.
    pub fn new<'c>(positions: impl IntoIterator<Item = (&'c str, StreamPosition)>) -> Cursor {
        let positions = positions.into_iter().map(|(channel, position)| (name(channel), position));
        Cursor(Kind::Positions(positions.collect()))
    }

    /// Parses a cursor of at most `channels_max` channels.
    ///
    /// # Errors
    /// [`CursorError`] (response: 400).
    pub fn parse(text: &str, channels_max: usize) -> Result<Cursor, CursorError> {
        if text == BEGINNING {
            return Ok(Cursor(Kind::Beginning));
        }
        let entry_bytes_max = NAME_BYTES + 2 * VARINT_BYTES_MAX;
        let bytes_max = 1 + channels_max.saturating_mul(entry_bytes_max) + CHECKSUM_BYTES;
        if text.len() > bytes_max.div_ceil(3) * 4 {
            return Err(CursorError::TooLong);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| CursorError::Damaged)?;
        let (body, checksum) =
            bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(CursorError::Damaged)?;
        if *checksum != checksum_of(body) {
            return Err(CursorError::Damaged);
        }
        let (&version, mut rest) = body.split_first().ok_or(CursorError::Damaged)?;
        if version != VERSION {
            return Err(CursorError::Version(version));
        }
        let mut positions = Vec::new();
        while !rest.is_empty() {
            let (name, after) =
                rest.split_first_chunk::<NAME_BYTES>().ok_or(CursorError::Damaged)?;
            rest = after;
            let epoch = read_varint(&mut rest).ok_or(CursorError::Damaged)?;
            let offset = read_varint(&mut rest).ok_or(CursorError::Damaged)?;
            let position = StreamPosition { offset, epoch: Epoch::from_u64(epoch) };
            positions.push((u64::from_le_bytes(*name), position));
        }
        Ok(Cursor(Kind::Positions(positions)))
    }

    /// Returns the point from which to read `channel`.
    pub fn since(&self, channel: &str) -> Since {
        match &self.0 {
            Kind::Beginning => Since::Beginning,
            Kind::Positions(positions) => {
                let name = name(channel);
                match positions.iter().find(|(n, _)| *n == name) {
                    Some((_, position)) => Since::Position(*position),
                    None => Since::Now,
                }
            }
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kind::Positions(positions) = &self.0 else {
            return f.write_str(BEGINNING);
        };
        let mut bytes = Vec::with_capacity(8 + positions.len() * 20);
        bytes.push(VERSION);
        for (name, position) in positions {
            bytes.extend_from_slice(&name.to_le_bytes());
            write_varint(&mut bytes, position.epoch.to_u64());
            write_varint(&mut bytes, position.offset);
        }
        let checksum = checksum_of(&bytes);
        bytes.extend_from_slice(&checksum);
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// Hashes a channel's name to eight bytes (FNV-1a; stable across machines and versions).
fn name(channel: &str) -> u64 {
    channel.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn checksum_of(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = bytes
        .iter()
        .fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.to_le_bytes()
}

fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for at in 0..VARINT_BYTES_MAX {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if at == VARINT_BYTES_MAX - 1 && bits > 1 {
            return None;
        }
        value |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A client may use its cursor after an upgrade of the server.
    #[test]
    fn a_cursor_of_yesterday_is_understood() {
        let text = "ASZlOqC6W0nllZrvOiql8QGGTN9jrwAAMN_8Jg";
        let cursor = Cursor::parse(text, 2).unwrap();
        let position = StreamPosition { offset: 42, epoch: Epoch::from_u64(123_456_789) };
        assert_eq!(cursor.since("news"), Since::Position(position));
        assert_eq!(cursor.since("b"), Since::Position(StreamPosition::default()));
        assert_eq!(cursor.to_string(), text);
    }

    #[test]
    fn a_changed_or_cut_cursor_is_recognised() {
        let position = StreamPosition { offset: 1234, epoch: Epoch::from_u64(0xdead_beef) };
        let text = Cursor::new([("a", position), ("b", position)]).to_string();
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
        for end in 0..text.len() {
            assert!(Cursor::parse(&text[..end], 10).is_err(), "cut at {end}");
        }
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(Cursor::parse(&changed, 10).is_err(), "changed at {at}");
        }
        assert_eq!(Cursor::parse(&text, 0), Err(CursorError::TooLong));
        assert_eq!(Cursor::parse("", 10), Err(CursorError::Damaged));
        assert_eq!(Cursor::parse("é", 10), Err(CursorError::Damaged));
    }

    proptest! {
        #[test]
        fn text_round_trips(entries in proptest::collection::vec(("[a-z]{1,8}", any::<u64>(), any::<u64>()), 0..20)) {
            let positions: Vec<_> = entries
                .iter()
                .map(|(channel, epoch, offset)| {
                    (channel.as_str(), StreamPosition { offset: *offset, epoch: Epoch::from_u64(*epoch) })
                })
                .collect();
            let cursor = Cursor::new(positions.iter().copied());
            let parsed = Cursor::parse(&cursor.to_string(), 20).unwrap();
            prop_assert_eq!(&parsed, &cursor);
            for (channel, _) in &positions {
                let first = positions.iter().find(|(c, _)| c == channel).unwrap();
                prop_assert_eq!(parsed.since(channel), Since::Position(first.1));
            }
        }

        #[test]
        fn anything_at_all_parses_or_is_refused(text in ".{0,200}") {
            let _ = Cursor::parse(&text, 4);
        }
    }
}
