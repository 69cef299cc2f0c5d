//! A file of records: its head, and how its records are found again.

use crate::identity::VERSION;
use crate::record::{Checksums, FIXED_BYTES, HEADER_BYTES_MAX, Header, Kind, number};

const MAGIC: &[u8; 8] = b"dunlinsg";
/// Bytes before the first record.
pub(crate) const HEAD_BYTES: u32 = 32;

/// The position of a record: the number of its segment, from 1, and the place in it.
pub(crate) fn position(segment: u32, at: u32) -> u64 {
    u64::from(segment) << 32 | u64::from(at)
}

pub(crate) fn segment_of(position: u64) -> u32 {
    (position >> 32) as u32
}

pub(crate) fn place_of(position: u64) -> u32 {
    position as u32
}

pub(crate) fn file_name(segment: u32) -> String {
    format!("{segment:08x}.segment")
}

/// The number of the file with this name and this ending.
pub(crate) fn numbered(name: &str, ending: &str) -> Option<u32> {
    let digits = name.strip_suffix(ending)?;
    let is_number =
        digits.len() == 8 && digits.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
    if is_number { u32::from_str_radix(digits, 16).ok() } else { None }
}

pub(crate) fn head(log: u64, segment: u32) -> [u8; HEAD_BYTES as usize] {
    let mut head = [0; HEAD_BYTES as usize];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..16].copy_from_slice(&segment.to_le_bytes());
    head[16..24].copy_from_slice(&log.to_le_bytes());
    let checksum = crc32fast::hash(&head[..24]);
    head[24..28].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// What the head of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Ours,
    /// Of another log, or none at all.
    Foreign(&'static str),
    Newer(u32),
    /// Nothing was written, or a part of it: the process ended while it began the segment.
    Unwritten,
    /// It is damaged, and the rest is to be judged by its records.
    Damaged,
}

pub(crate) fn read_head(bytes: &[u8], log: u64, segment: u32) -> Head {
    let due = head(log, segment);
    let Some(head) = bytes.get(..HEAD_BYTES as usize) else {
        return match due.starts_with(bytes) || bytes.iter().all(|byte| *byte == 0) {
            true => Head::Unwritten,
            false => Head::Foreign("it is no segment of a log"),
        };
    };
    if head == due {
        return Head::Ours;
    }
    if head.starts_with(MAGIC) && number(head, 8, 4) as u32 > VERSION {
        return Head::Newer(number(head, 8, 4) as u32);
    }
    if bytes.iter().all(|byte| *byte == 0) {
        return Head::Unwritten;
    }
    let flipped: u32 = head.iter().zip(&due).map(|(is, due)| (is ^ due).count_ones()).sum();
    let is_whole = crc32fast::hash(&head[..24]) == number(head, 24, 4) as u32;
    match () {
        () if is_whole && number(head, 16, 8) != log => Head::Foreign("it is of another log"),
        () if is_whole => Head::Foreign("it is another segment, renamed"),
        // A torn head: some of its bytes are still 0.
        () if head.iter().zip(&due).all(|(is, due)| is == due || *is == 0) => Head::Unwritten,
        () if flipped <= 8 => Head::Damaged,
        () => Head::Foreign("it is no segment of a log"),
    }
}

/// What stands at a place of a segment.
pub(crate) enum Found<'a> {
    Record {
        at: u32,
        header: Header<'a>,
        /// `None`: its checksum is wrong.
        body: Option<&'a [u8]>,
        /// A flipped bit of the header was corrected.
        is_corrected: bool,
    },
    /// No record can be made of these bytes.
    Damaged { at: u32, end: u32 },
}

/// Finds the records of a segment from `from` on. Returns the place behind the last one.
pub(crate) fn scan(
    bytes: &[u8],
    checksums: Checksums,
    segment: u32,
    from: u32,
    mut found: impl FnMut(Found<'_>),
) -> u32 {
    let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let mut at = from as usize;
    while at < written {
        let place = position(segment, at as u32);
        if let Some(header) = checksums.parse(&bytes[at..], place) {
            at = record(bytes, at, header, false, &mut found);
            continue;
        }
        let corrected = checksums.correct(&bytes[at..], place);
        if let Some(header) = corrected.as_ref().and_then(|it| checksums.parse(it, place)) {
            at = record(bytes, at, header, true, &mut found);
            continue;
        }
        let next = (at + 1..written).find(|next| {
            let rest = &bytes[*next..];
            rest.len() >= FIXED_BYTES
                && (1..=5).contains(&rest[12])
                && rest[13] <= 3
                && checksums.parse(rest, position(segment, *next as u32)).is_some()
        });
        let end = next.unwrap_or(written);
        found(Found::Damaged { at: at as u32, end: end as u32 });
        at = end;
    }
    at.max(from as usize) as u32
}

/// Reports a record, and returns the place behind it.
fn record(
    bytes: &[u8],
    at: usize,
    header: Header<'_>,
    is_corrected: bool,
    found: &mut impl FnMut(Found<'_>),
) -> usize {
    let begin = at + header.bytes();
    let end = begin + header.body_bytes as usize;
    let body = bytes.get(begin..end);
    let body = body.filter(|body| crc32fast::hash(body) == header.body_checksum);
    found(Found::Record { at: at as u32, header, body, is_corrected });
    end.min(bytes.len())
}

/// The newest record of a stream before a position, found by reading its segment.
pub(crate) fn last_before(
    bytes: &[u8],
    checksums: Checksums,
    segment: u32,
    id: u64,
    before: u64,
) -> Option<(u64, u64)> {
    let mut last = None;
    scan(bytes, checksums, segment, HEAD_BYTES, |it| {
        if let Found::Record { at, header, .. } = it
            && header.id == id
            && header.kind != Kind::Mark
            && position(segment, at) < before
        {
            last = Some((position(segment, at), header.offset));
        }
    });
    last
}

const _: () = assert!(HEADER_BYTES_MAX < 1 << 16);
