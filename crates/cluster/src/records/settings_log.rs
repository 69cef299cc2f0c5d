//! The log of shared settings: a record for each change, and a head record with the position of the log and the claim to append.
//!
//! A change that is larger than a record is stored in parts. A change is written under a new number, and becomes part of the log
//! when the head record is updated. Changes of a node that ends in between, or that writes late, are never read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    Destination, Group, Key, RecordPut, RecordRead, RecordVersion, Records, StoreError, VERSION,
    get_one, put_one, refused,
};
use crate::condition::Condition;
use crate::log_position::{BYTES_MAX, CHANGES_MAX, LogPosition};

/// The result of a claim to append to the log of settings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LogClaim {
    Claimed(LogPosition),
    /// Another node holds the claim.
    UnderWay(LogPosition),
    /// The log has changes that this node has not read.
    Behind(LogPosition),
}

/// A change for the log of settings.
pub(crate) struct LogEntry {
    pub(crate) at: LogPosition,
    pub(crate) sealed: Vec<u8>,
    /// The message that is published to all nodes once the change is in the log.
    pub(crate) message: Vec<u8>,
}

/// A part of the log of settings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPart {
    /// Zeros without a log.
    pub(crate) log: LogPosition,
    /// Changes up to this number are no longer kept.
    pub(crate) since: u64,
    /// Sealed changes by number.
    pub(crate) changes: Vec<(u64, Vec<u8>)>,
}

/// The head of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogHead {
    pub(crate) v: u8,
    pub(crate) id: u64,
    pub(crate) revision: u64,
    /// Changes up to this number are no longer kept.
    pub(crate) since: u64,
    /// The size of all kept changes.
    pub(crate) bytes: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) claim: Option<Claim>,
}

/// The claim to append, valid from the time of this record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) uid: Arc<str>,
    pub(crate) hold_ms: u64,
}

impl LogHead {
    pub(crate) fn position(&self) -> LogPosition {
        LogPosition { id: self.id, revision: self.revision }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(value: &[u8]) -> Option<LogHead> {
        serde_json::from_slice(value).ok()
    }
}

/// The head, its version, and its age in milliseconds. A head of another program counts as none, and is not overwritten.
async fn read_head(
    records: &dyn Records,
) -> Result<Option<(RecordVersion, LogHead, i64)>, StoreError> {
    let found = get_one(records, Key::LogHead).await?;
    Ok(found.and_then(|found| Some((found.version, LogHead::decode(&found.value)?, found.age_ms))))
}

async fn put_head(
    records: &dyn Records,
    after: Option<RecordVersion>,
    head: &LogHead,
) -> Result<bool, StoreError> {
    put_one(records, Key::LogHead, after, head.encode()).await
}

/// The header of each part: the version, the number of parts, and the bytes of the whole change.
const HEAD_BYTES: usize = 7;

/// Splits a change into values of at most `value_bytes_max`. `None` if that is too small.
pub(crate) fn parts(sealed: &[u8], value_bytes_max: usize) -> Option<Vec<Vec<u8>>> {
    let room = value_bytes_max.checked_sub(HEAD_BYTES).filter(|room| *room > 0)?;
    let count = u16::try_from(sealed.len().div_ceil(room)).ok()?.max(1);
    let bytes = u32::try_from(sealed.len()).ok()?;
    let part = |at: usize| {
        let rest = &sealed[at * room..];
        let part = &rest[..room.min(rest.len())];
        [&[VERSION][..], &count.to_be_bytes(), &bytes.to_be_bytes(), part].concat()
    };
    Some((0..usize::from(count)).map(part).collect())
}

/// Parses a part: the number of parts, the bytes of the change, and the bytes of this part. `None` for another version.
pub(crate) fn read_part(part: &[u8]) -> Option<(u16, u32, &[u8])> {
    let (head, sealed) = part.split_first_chunk::<HEAD_BYTES>()?;
    let [VERSION, high, low, ref bytes @ ..] = *head else { return None };
    Some((u16::from_be_bytes([high, low]), u32::from_be_bytes(*bytes), sealed))
}

/// Claims the right to append for the process `uid`.
pub(crate) async fn claim(
    records: &dyn Records,
    uid: &Arc<str>,
    hold_ms: u64,
    read: LogPosition,
) -> Result<LogClaim, StoreError> {
    let (after, mut head) = match read_head(records).await? {
        Some((version, head, age_ms)) => {
            let log = head.position();
            let held = head.claim.as_ref().filter(|claim| claim.uid != *uid);
            if held.is_some_and(|of| age_ms < i64::try_from(of.hold_ms).unwrap_or(i64::MAX)) {
                return Ok(LogClaim::UnderWay(log));
            }
            if head.id != 0 && log != read {
                return Ok(LogClaim::Behind(log));
            }
            (Some(version), head)
        }
        None => (None, LogHead { v: VERSION, ..LogHead::default() }),
    };
    head.claim = Some(Claim { uid: Arc::clone(uid), hold_ms });
    Ok(match put_head(records, after, &head).await? {
        true => LogClaim::Claimed(head.position()),
        // Another node, which makes a change, has written it in the meantime.
        false => LogClaim::UnderWay(head.position()),
    })
}

pub(crate) async fn release(records: &dyn Records, uid: &Arc<str>) -> Result<(), StoreError> {
    if let Some((version, head, _)) = read_head(records).await?
        && head.claim.as_ref().is_some_and(|claim| claim.uid == *uid)
    {
        // A node that has written it in the meantime has the claim.
        put_head(records, Some(version), &LogHead { claim: None, ..head }).await?;
    }
    Ok(())
}

/// A change that is about to be written.
struct ChangeWrite {
    parts: Vec<Vec<u8>>,
    /// What is stored under its number: a part of a node that ended before it updated the head, for each part that is there.
    before: Vec<Option<RecordRead>>,
}

/// Reads what is stored under the number of a change. The head is read after it: whoever makes the same change later has another
/// claim, so of the two writers of a part the one without the claim finds it changed.
async fn prepare_change(
    records: &dyn Records,
    revision: u64,
    sealed: &[u8],
) -> Result<ChangeWrite, StoreError> {
    let Some(parts) = parts(sealed, records.value_bytes_max()) else {
        let why = format!("a change of {} bytes is more than 65,535 messages", sealed.len());
        return Err(refused(Condition::MaxPayload, &why));
    };
    let keys = (0..).take(parts.len()).map(|part| Key::LogChange(revision, part)).collect();
    let before = records.get(keys).await?;
    Ok(ChangeWrite { parts, before })
}

/// Writes a change, which is part of the log once the head record is updated. Returns `false` if another node wrote it first.
async fn write_change(
    records: &dyn Records,
    revision: u64,
    ChangeWrite { parts, before }: ChangeWrite,
) -> Result<bool, StoreError> {
    let puts = (0..).zip(parts).zip(before).map(|((part, value), before)| {
        let after = before.map(|found| found.version);
        RecordPut { key: Key::LogChange(revision, part), after, value }
    });
    Ok(!records.put(puts.collect()).await?.contains(&None))
}

pub(crate) async fn extend(records: &dyn Records, part: &LogPart) -> Result<bool, StoreError> {
    let mut lacking = Vec::new();
    let newest = read_head(records).await?.map_or(0, |(_, head, _)| head.revision);
    for (number, sealed) in part.changes.iter().filter(|(number, _)| *number > newest) {
        lacking.push((*number, sealed.len(), prepare_change(records, *number, sealed).await?));
    }
    let (after, mut head) = match read_head(records).await? {
        Some((version, head, _)) => (Some(version), head),
        None => (None, LogHead { v: VERSION, ..LogHead::default() }),
    };
    if head.id == 0 {
        (head.id, head.since, head.revision, head.bytes) = (part.log.id, part.since, part.since, 0);
    }
    if head.id != part.log.id || head.revision < part.since {
        return Ok(false);
    }
    let mut is_extended = false;
    for (number, bytes, change) in lacking {
        if number != head.revision + 1 {
            continue;
        }
        if !write_change(records, number, change).await? {
            return Ok(false);
        }
        (head.revision, head.bytes, is_extended) = (number, head.bytes + bytes, true);
    }
    // Fails if another node has appended to the log, or extended it, in the meantime.
    Ok(is_extended && put_head(records, after, &head).await?)
}

pub(crate) async fn append(
    records: &dyn Records,
    uid: &Arc<str>,
    entry: &LogEntry,
) -> Result<bool, StoreError> {
    let LogEntry { at, sealed, message } = entry;
    let change = prepare_change(records, at.revision, sealed).await?;
    let Some((version, mut head, _)) = read_head(records).await? else { return Ok(false) };
    if head.claim.as_ref().is_none_or(|claim| claim.uid != *uid) {
        return Ok(false);
    }
    // What is removed once the change is in the log. A state that another node replaces meanwhile stays.
    let mut over = Vec::new();
    if head.id != at.id || head.revision + 1 != at.revision {
        // If the log does not reach the previous number, it is incomplete.
        over.extend(records.list(Group::LogChanges).await?.into_iter().map(|found| found.version));
        (head.since, head.bytes) = (at.revision - 1, 0);
    }
    head.bytes += sealed.len();
    while head.since < at.revision - 1
        && (at.revision - head.since > CHANGES_MAX || head.bytes > BYTES_MAX)
    {
        head.since += 1;
        let Some(gone) = get_one(records, Key::LogChange(head.since, 0)).await? else { continue };
        let (count, bytes) = read_part(&gone.value).map_or((1, 0), |of| (of.0, of.1 as usize));
        head.bytes = head.bytes.saturating_sub(bytes);
        let rest = (1..count).map(|part| Key::LogChange(head.since, part)).collect();
        let rest = records.get(rest).await?.into_iter().flatten();
        over.extend([gone].into_iter().chain(rest).map(|found| found.version));
    }
    if !write_change(records, at.revision, change).await? {
        return Ok(false);
    }
    (head.id, head.revision, head.claim) = (at.id, at.revision, None);
    if !put_head(records, Some(version), &head).await? {
        return Ok(false);
    }
    // Nodes that do not hear of it find the change with their next lease renewal.
    let announced = records.publish(vec![(Destination::All, message.clone())]);
    if let Err(error) = records.remove(over).await.and(announced.await) {
        tracing::debug!(%error, "a change of all nodes' settings is in the log and may not be announced");
    }
    Ok(true)
}

pub(crate) async fn read(records: &dyn Records, known: LogPosition) -> Result<LogPart, StoreError> {
    loop {
        let Some((_, head, _)) = read_head(records).await?.filter(|(_, head, _)| head.id != 0)
        else {
            return Ok(LogPart::default());
        };
        let after = if head.id == known.id { known.revision.max(head.since) } else { head.since };
        let numbers: Vec<u64> = (after + 1..=head.revision).collect();
        let keys = numbers.iter().map(|number| Key::LogChange(*number, 0)).collect();
        let mut changes = Vec::new();
        for (number, first) in numbers.into_iter().zip(records.get(keys).await?) {
            let Some(first) = first else { continue };
            changes.push((number, whole(records, number, &first).await?));
        }
        // A log that is begun anew has other changes under the same numbers.
        if read_head(records).await?.is_some_and(|(_, now, _)| now.id == head.id) {
            return Ok(LogPart { log: head.position(), since: head.since, changes });
        }
    }
}

/// Joins a change from its parts. Returns an empty change, which cannot be opened, if parts are missing or of another version.
async fn whole(
    records: &dyn Records,
    revision: u64,
    first: &RecordRead,
) -> Result<Vec<u8>, StoreError> {
    let Some((count, bytes, sealed)) = read_part(&first.value) else { return Ok(Vec::new()) };
    let mut sealed = sealed.to_vec();
    if count > 1 {
        let keys = (1..count).map(|part| Key::LogChange(revision, part)).collect();
        for part in records.get(keys).await?.into_iter().flatten() {
            sealed.extend_from_slice(read_part(&part.value).map_or(&[], |(_, _, part)| part));
        }
    }
    Ok(if sealed.len() == bytes as usize { sealed } else { Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_what_its_parts_are() {
        let sealed: Vec<u8> = (0..=255).cycle().take(1_000).collect();
        for (value_bytes_max, count) in [(8, 1_000), (57, 20), (58, 20), (1_007, 1), (1 << 20, 1)] {
            let parts = parts(&sealed, value_bytes_max).unwrap_or_default();
            assert_eq!(parts.len(), count, "{value_bytes_max}");
            assert!(parts.iter().all(|part| part.len() <= value_bytes_max));
            let read: Vec<_> = parts.iter().filter_map(|part| read_part(part)).collect();
            assert!(read.iter().all(|(of, bytes, _)| (usize::from(*of), *bytes) == (count, 1_000)));
            assert_eq!(
                read.iter().flat_map(|(_, _, part)| *part).copied().collect::<Vec<_>>(),
                sealed
            );
        }
        assert!(parts(&sealed, 7).is_none() && parts(&vec![0; 70_000], 8).is_none());
        assert!(parts(b"", 100).is_some_and(|of| read_part(&of[0]) == Some((1, 0, b""))));
        assert!(read_part(&[VERSION + 1, 0, 1, 0, 0, 0, 0]).is_none() && read_part(b"").is_none());
    }
}
