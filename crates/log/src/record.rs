//! A record on the disk.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | checksum of the header, with the log's id and the record's position |
//! | 4 | checksum of the body |
//! | 4 | length of the body |
//! | 1, 1 | kind; flags: 1 named, 2 with a jump |
//! | 2 | how long the stream's state outlives the record, see [`Keep`] |
//! | 5, 5 | id of the stream; offset in it |
//! | 7 | position of the record before it in its stream; 0: none |
//! | 6 | expiry, Unix time in milliseconds |
//! | 4 | up to here the segment had been synced when the record was encoded; 0: unknown |
//! | 2 + n | if named: the length of the stream's name, and the name |
//! | 7 + 2 | if with a jump: the position of an earlier record of the stream, and the difference of offsets |
//! | m | the body |
//!
//! Numbers are little-endian. A checksum that contains the position tells a record from an earlier one that stood at the
//! same place of a file that was used again, or of another segment.

use crc32fast::Hasher;

/// Bytes of a header without name and jump.
pub(crate) const FIXED_BYTES: usize = 43;
const JUMP_BYTES: usize = 9;
/// Most bytes of a stream's name.
pub const NAME_BYTES_MAX: usize = 4096;
pub(crate) const HEADER_BYTES_MAX: usize = FIXED_BYTES + 2 + NAME_BYTES_MAX + JUMP_BYTES;
/// Ids and offsets are below this.
pub(crate) const NUMBERS_END: u64 = 1 << 40;

const NAMED: u8 = 1;
const WITH_JUMP: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A record of a stream.
    Data = 1,
    /// Records of the stream below the offset in the body are gone. Has the offset of the record before it.
    Trim = 2,
    /// The stream is removed.
    Remove = 3,
    /// The stream's id and offset, of which no other record is left.
    State = 4,
    /// The id of the next stream, in the body. Belongs to no stream.
    Mark = 5,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        [Kind::Data, Kind::Trim, Kind::Remove, Kind::State, Kind::Mark]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// How long a stream's state outlives its last record: seconds in 11 bits, to be shifted by 5 bits more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keep(pub(crate) u16);

impl Keep {
    /// Rounds up.
    pub(crate) fn of_ms(ms: u64) -> Keep {
        let mut seconds = ms.div_ceil(1_000);
        let mut shift = 0;
        while seconds >= 1 << 11 && shift < 31 {
            seconds = seconds.div_ceil(2);
            shift += 1;
        }
        Keep((seconds.min((1 << 11) - 1) as u16) << 5 | shift)
    }

    pub(crate) fn ms(self) -> u64 {
        (u64::from(self.0 >> 5) << (self.0 & 31)) * 1_000
    }
}

/// An earlier record of the same stream, further back than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Jump {
    pub(crate) position: u64,
    /// The difference of their offsets, at least 2.
    pub(crate) by: u16,
}

/// Everything of a record but its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header<'a> {
    pub(crate) kind: Kind,
    pub(crate) name: Option<&'a str>,
    pub(crate) jump: Option<Jump>,
    pub(crate) keep: Keep,
    pub(crate) id: u64,
    pub(crate) offset: u64,
    pub(crate) previous: u64,
    pub(crate) expiry_ms: u64,
    pub(crate) synced: u32,
    pub(crate) body_bytes: u32,
    pub(crate) body_checksum: u32,
}

impl Header<'_> {
    /// Bytes of the header.
    pub(crate) fn bytes(&self) -> usize {
        header_bytes(self.name.map(str::len), self.jump.is_some())
    }

    /// Until when the stream's state is to be known.
    pub(crate) fn keep_until_ms(&self) -> u64 {
        self.expiry_ms.saturating_add(self.keep.ms())
    }
}

pub(crate) fn header_bytes(name: Option<usize>, jump: bool) -> usize {
    FIXED_BYTES + name.map_or(0, |name| 2 + name) + if jump { JUMP_BYTES } else { 0 }
}

/// The checksums of one log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checksums(u32);

impl Checksums {
    pub(crate) fn new(log: u64) -> Checksums {
        Checksums(crc32fast::hash(&log.to_le_bytes()))
    }

    fn header(self, position: u64, header: &[u8]) -> u32 {
        let mut hasher = Hasher::new_with_initial(self.0);
        hasher.update(&position.to_le_bytes());
        hasher.update(header);
        hasher.finalize()
    }

    /// Appends a header; the body follows it.
    pub(crate) fn encode(self, out: &mut Vec<u8>, position: u64, header: &Header<'_>) {
        let begin = out.len();
        let flags = if header.name.is_some() { NAMED } else { 0 }
            | if header.jump.is_some() { WITH_JUMP } else { 0 };
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&header.body_checksum.to_le_bytes());
        out.extend_from_slice(&header.body_bytes.to_le_bytes());
        out.extend_from_slice(&[header.kind as u8, flags]);
        out.extend_from_slice(&header.keep.0.to_le_bytes());
        out.extend_from_slice(&header.id.to_le_bytes()[..5]);
        out.extend_from_slice(&header.offset.to_le_bytes()[..5]);
        out.extend_from_slice(&header.previous.to_le_bytes()[..7]);
        out.extend_from_slice(&header.expiry_ms.min((1 << 48) - 1).to_le_bytes()[..6]);
        out.extend_from_slice(&header.synced.to_le_bytes());
        if let Some(name) = header.name {
            out.extend_from_slice(&(name.len() as u16).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
        }
        if let Some(jump) = header.jump {
            out.extend_from_slice(&jump.position.to_le_bytes()[..7]);
            out.extend_from_slice(&jump.by.to_le_bytes());
        }
        let checksum = self.header(position, &out[begin + 4..]);
        out[begin..begin + 4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Parses the header at the start of `bytes`; `None` if it is none of this log at this position, or cut off.
    pub(crate) fn parse(self, bytes: &[u8], position: u64) -> Option<Header<'_>> {
        let kind = Kind::of(*bytes.get(12)?)?;
        let flags = *bytes.get(13)?;
        if flags & !(NAMED | WITH_JUMP) != 0 {
            return None;
        }
        let name_bytes = match flags & NAMED {
            0 => None,
            _ => Some(usize::from(u16::from_le_bytes(bytes.get(43..45)?.try_into().ok()?))),
        };
        if name_bytes.is_some_and(|bytes| bytes > NAME_BYTES_MAX) {
            return None;
        }
        let length = header_bytes(name_bytes, flags & WITH_JUMP != 0);
        let header = bytes.get(..length)?;
        if self.header(position, &header[4..]) != number(header, 0, 4) as u32 {
            return None;
        }
        let name_end = FIXED_BYTES + name_bytes.map_or(0, |bytes| 2 + bytes);
        let name = match name_bytes {
            Some(_) => Some(str::from_utf8(&header[FIXED_BYTES + 2..name_end]).ok()?),
            None => None,
        };
        let jump = (flags & WITH_JUMP != 0).then(|| Jump {
            position: number(header, name_end, 7),
            by: number(header, name_end + 7, 2) as u16,
        });
        Some(Header {
            kind,
            name,
            jump,
            keep: Keep(number(header, 14, 2) as u16),
            id: number(header, 16, 5),
            offset: number(header, 21, 5),
            previous: number(header, 26, 7),
            expiry_ms: number(header, 33, 6),
            synced: number(header, 39, 4) as u32,
            body_bytes: number(header, 8, 4) as u32,
            body_checksum: number(header, 4, 4) as u32,
        })
    }

    /// Returns the header that `bytes` was before one bit of it flipped.
    pub(crate) fn correct(self, bytes: &[u8], position: u64) -> Option<Vec<u8>> {
        let mut bytes = bytes[..bytes.len().min(FIXED_BYTES + 2 + 256 + JUMP_BYTES)].to_vec();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            if self.parse(&bytes, position).is_some() {
                return Some(bytes);
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        None
    }
}

/// The little-endian number of `length` bytes at `at`.
pub(crate) fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let mut number = [0; 8];
    number[..length].copy_from_slice(&bytes[at..at + length]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keep_rounds_up_and_by_little() {
        for ms in [0, 1, 1_000, 300_000, 2_047_000, 2_592_000_000, 31_536_000_000] {
            let kept = Keep::of_ms(ms).ms();
            assert!(kept >= ms && kept <= ms + ms / 1_000 + 1_000, "{ms}: {kept}");
        }
        assert!(Keep::of_ms(u64::MAX).ms() > 1_000 * 365 * 86_400_000);
    }

    proptest! {
        #[test]
        fn header_encoded_parses_back_and_no_flipped_bit_passes(
            (id, offset, previous) in (0..NUMBERS_END, 0..NUMBERS_END, 0..1u64 << 56),
            name in proptest::option::of("[a-z:]{1,40}"),
            jump in proptest::option::of((0..1u64 << 56, 2..u16::MAX)),
            (body_bytes, keep, flipped) in any::<(u32, u16, usize)>(),
            expiry_ms in 0..1u64 << 48,
        ) {
            let header = Header {
                kind: Kind::Data, name: name.as_deref(), id, offset, previous, expiry_ms, body_bytes,
                jump: jump.map(|(position, by)| Jump { position, by }),
                keep: Keep(keep), synced: 77, body_checksum: 5,
            };
            let checksums = Checksums::new(9);
            let mut bytes = Vec::new();
            checksums.encode(&mut bytes, 1 << 32, &header);
            prop_assert_eq!(bytes.len(), header.bytes());
            prop_assert_eq!(checksums.parse(&bytes, 1 << 32), Some(header));
            prop_assert_eq!(checksums.parse(&bytes, 2 << 32), None);
            prop_assert_eq!(Checksums::new(8).parse(&bytes, 1 << 32), None);
            let whole = bytes.clone();
            let bit = flipped % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(checksums.parse(&bytes, 1 << 32), None);
            prop_assert_eq!(checksums.correct(&bytes, 1 << 32), Some(whole));
        }
    }
}
