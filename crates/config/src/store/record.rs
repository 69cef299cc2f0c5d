//! The format of the log.
//!
//! A log begins with a head: magic, version, the revision it continues from, and a checksum. Then records:
//! length and checksum (4 bytes each, little-endian), then a byte for the kind, eight for the revision,
//! and the rest. The checksum also covers the record's place, so that bytes written elsewhere are not
//! mistaken for a record. Zeros after the last record are reserved space.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ChangedKey;
use crate::store::{Origin, RevisionKind};

const MAGIC: &[u8; 8] = b"dunlinlg";
const VERSION: u32 = 1;
/// Magic, version, revision, checksum.
pub(super) const HEAD_BYTES: usize = 8 + 4 + 8 + 4;
/// Length and checksum, before the content.
const FRAME_BYTES: usize = 8;
/// Kind and revision, before the rest.
const FIXED_BYTES: usize = 9;
/// A confirmation: a record without a rest.
pub(super) const CONFIRM_BYTES: usize = FRAME_BYTES + FIXED_BYTES;
/// The longest record: a whole configuration in one change.
const RECORD_BYTES_MAX: usize = 256 << 20;

/// The content of a record.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// A change, which counts once it is confirmed.
    Change(ChangeRecord),
    /// Confirms every change up to this revision.
    Confirm(u64),
    /// The changes since the last confirmation were rolled back; this revision has the settings before
    /// them.
    RolledBack(ChangeRecord),
    /// The file that the settings were begun with; later files are compared with it.
    Start(Started),
}

/// A change in the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ChangeRecord {
    #[serde(skip)]
    pub(super) revision: u64,
    #[serde(alias = "how")]
    pub(super) kind: RevisionKind,
    #[serde(flatten)]
    pub(super) origin: Origin,
    /// Pointers and new values; `None` if removed.
    pub(super) changes: Vec<(String, Option<Wrapped>)>,
}

/// A value that may be null, which differs from no value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Wrapped {
    pub(super) is: Value,
}

/// The file the settings were begun with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Started {
    pub(super) name: String,
    /// The values that differ from the defaults.
    pub(super) config: Value,
}

/// As [`ChangeRecord`], borrowed.
#[derive(Serialize)]
struct ChangeRecordRef<'a> {
    kind: RevisionKind,
    #[serde(flatten)]
    origin: &'a Origin,
    changes: Changes<'a>,
}

struct Changes<'a>(&'a [ChangedKey]);

impl Serialize for Changes<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Is<'a> {
            is: &'a Value,
        }
        serializer.collect_seq(
            self.0.iter().map(|key| (&key.pointer, key.after.as_ref().map(|is| Is { is }))),
        )
    }
}

/// Returns the head of a log that continues from `revision`.
pub(super) fn head(revision: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..20].copy_from_slice(&revision.to_le_bytes());
    let checksum = crc32fast::hash(&head[..20]);
    head[20..].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// Returns whether a log has an incomplete head: a proper prefix of it, then only zeros.
pub(super) fn is_begun_only(log: &[u8], revision: u64) -> bool {
    let head = head(revision);
    let same = log.iter().zip(&head).take_while(|(is, due)| is == due).count();
    same < HEAD_BYTES && log[same..].iter().all(|byte| *byte == 0)
}

/// Returns the revision that a log continues from.
pub(super) fn read_head(log: &[u8]) -> Result<u64, &'static str> {
    let head = log.get(..HEAD_BYTES).ok_or("it is shorter than its head")?;
    if !head.starts_with(MAGIC) {
        return Err("it is no log of settings");
    }
    if crc32fast::hash(&head[..20]) != u32_at(head, 20) {
        return Err("the checksum of its head is wrong");
    }
    if u32_at(head, 8) != VERSION {
        return Err("it is of another version");
    }
    Ok(u64::from_le_bytes(head[12..20].try_into().expect("eight bytes")))
}

/// Appends a change; `at` is the place in the log where `out` begins.
pub(super) fn write_change(
    out: &mut Vec<u8>,
    at: u64,
    revision: u64,
    kind: RevisionKind,
    origin: &Origin,
    changes: &[ChangedKey],
) {
    let tag = if kind == RevisionKind::RolledBack { 3 } else { 1 };
    frame(out, at, tag, revision, |out| {
        let changed = ChangeRecordRef { kind, origin, changes: Changes(changes) };
        // Memory takes all, and every key is a string.
        let written = serde_json::to_writer(out, &changed);
        debug_assert!(written.is_ok());
    });
}

/// Appends a confirmation.
pub(super) fn write_confirm(out: &mut Vec<u8>, at: u64, revision: u64) {
    frame(out, at, 2, revision, |_| {});
}

/// Appends what the settings were begun with.
pub(super) fn write_start(out: &mut Vec<u8>, at: u64, started: &Started) {
    frame(out, at, 4, 0, |out| {
        let written = serde_json::to_writer(out, started);
        debug_assert!(written.is_ok());
    });
}

/// Returns whether this record ends a change: a confirmation or a rollback.
pub(super) fn is_ending(record: &[u8]) -> bool {
    matches!(record.get(FRAME_BYTES), Some(2 | 3))
}

fn frame(out: &mut Vec<u8>, at: u64, tag: u8, revision: u64, rest: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&[0; FRAME_BYTES]);
    out.push(tag);
    out.extend_from_slice(&revision.to_le_bytes());
    rest(out);
    let length = u32::try_from(out.len() - begin - FRAME_BYTES).unwrap_or(u32::MAX);
    let place = at + begin as u64;
    let checksum = checksum(place, length, &out[begin + FRAME_BYTES..]);
    out[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
    out[begin + 4..begin + 8].copy_from_slice(&checksum.to_le_bytes());
}

fn checksum(place: u64, length: u32, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&place.to_le_bytes());
    hasher.update(&length.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// Reads the record at `at`. Returns it with the offset of the next one.
///
/// # Errors
/// The log is at its end or damaged.
pub(super) fn read(log: &[u8], at: usize) -> Result<(Record, usize), Stop> {
    let rest = log.get(at..).unwrap_or_default();
    if rest.iter().take(FRAME_BYTES).all(|byte| *byte == 0) {
        // Scanning the rest is not repeated: reading a log stops here.
        return Err(match rest.iter().all(|byte| *byte == 0) {
            true => Stop::End,
            false => Stop::Damaged("behind its end there is something else than reserved room"),
        });
    }
    if rest.len() < FRAME_BYTES + FIXED_BYTES {
        return Err(Stop::Damaged("it ends within a record"));
    }
    let length = u32_at(rest, 0) as usize;
    if !(FIXED_BYTES..=RECORD_BYTES_MAX).contains(&length) {
        return Err(Stop::Damaged("a record has an impossible length"));
    }
    let Some(body) = rest.get(FRAME_BYTES..FRAME_BYTES + length) else {
        return Err(Stop::Damaged("it ends within a record"));
    };
    if checksum(at as u64, u32_at(rest, 0), body) != u32_at(rest, 4) {
        return Err(Stop::Damaged("the checksum of a record is wrong"));
    }
    let revision = u64::from_le_bytes(body[1..9].try_into().expect("eight bytes"));
    let payload = &body[FIXED_BYTES..];
    let changed = || {
        let changed = serde_json::from_slice::<ChangeRecord>(payload);
        changed
            .map(|changed| ChangeRecord { revision, ..changed })
            .map_err(|_| Stop::Damaged("a record cannot be understood"))
    };
    let record = match body[0] {
        1 => Record::Change(changed()?),
        2 => Record::Confirm(revision),
        3 => Record::RolledBack(changed()?),
        4 => Record::Start(
            serde_json::from_slice(payload)
                .map_err(|_| Stop::Damaged("a record cannot be understood"))?,
        ),
        _ => return Err(Stop::Damaged("a record is of an unknown kind")),
    };
    Ok((record, at + FRAME_BYTES + length))
}

/// Why no record was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The end of the log.
    End,
    /// The rest of the log is not valid.
    Damaged(&'static str),
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
