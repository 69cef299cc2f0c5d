//! The log of shared settings in NATS: a record for each change, and a head record with the position of the log and the claim to
//! append.
//!
//! A change that is larger than a message is stored in parts. A change is written to a new subject, and becomes part of the log
//! when the head record is updated. Changes of a node that ends in between, or that writes late, are never read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::stream::{Record, RecordWrite};
use super::{NatsStore, VERSION, refused};
use crate::cluster::condition::Condition;
use crate::cluster::log_position::{BYTES_MAX, CHANGES_MAX, LogPosition};
use crate::cluster::store::{LogClaim, LogEntry, LogPart, StoreError};

/// The head of the log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct LogHead {
    v: u8,
    id: u64,
    revision: u64,
    /// Changes up to this number are no longer kept.
    since: u64,
    /// The size of all kept changes.
    bytes: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim: Option<Claim>,
}

/// The claim to append, valid from the time of this record.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Claim {
    uid: Arc<str>,
    hold_ms: u64,
}

impl LogHead {
    pub(super) fn position(&self) -> LogPosition {
        LogPosition { id: self.id, revision: self.revision }
    }
}

impl NatsStore {
    fn head_subject(&self) -> String {
        self.subject("state.settings")
    }

    fn change_subject(&self, revision: u64, part: u16) -> String {
        match part {
            0 => self.subject(&format!("log.{revision}")),
            part => self.subject(&format!("log.{revision}.{part}")),
        }
    }

    async fn head(&self) -> Result<Option<(Record, LogHead)>, StoreError> {
        let record = self.0.stream.get(&self.head_subject()).await?;
        Ok(record.and_then(|record| Some((record.clone(), record.read()?))))
    }

    async fn put_head(&self, after: u64, head: &LogHead) -> Result<bool, StoreError> {
        let payload = serde_json::to_vec(head).unwrap_or_default();
        Ok(self.0.stream.put(self.head_subject(), after, payload).await?.is_some())
    }
}

/// The header of each part: the version, the number of parts, and the bytes of the whole change.
const HEAD_BYTES: usize = 7;

/// Splits a change into messages of at most `message_bytes_max`. `None` if that is too small.
fn parts(sealed: &[u8], message_bytes_max: usize) -> Option<Vec<Vec<u8>>> {
    let room = message_bytes_max.checked_sub(HEAD_BYTES).filter(|room| *room > 0)?;
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
fn read_part(part: &[u8]) -> Option<(u16, u32, &[u8])> {
    let (head, sealed) = part.split_first_chunk::<HEAD_BYTES>()?;
    let [VERSION, high, low, ref bytes @ ..] = *head else { return None };
    Some((u16::from_be_bytes([high, low]), u32::from_be_bytes(*bytes), sealed))
}

pub(super) async fn claim(
    store: &NatsStore,
    hold_ms: u64,
    read: LogPosition,
) -> Result<LogClaim, StoreError> {
    let (after, mut head) = match store.head().await? {
        Some((record, head)) => {
            let log = head.position();
            let held = head.claim.as_ref().filter(|claim| claim.uid != store.0.uid);
            let since_ms =
                store.known().server_ms(Instant::now()).map_or(0, |ms| ms - record.time_ms);
            if held.is_some_and(|of| since_ms < i64::try_from(of.hold_ms).unwrap_or(i64::MAX)) {
                return Ok(LogClaim::UnderWay(log));
            }
            if head.id != 0 && log != read {
                return Ok(LogClaim::Behind(log));
            }
            (record.seq, head)
        }
        None => (0, LogHead { v: VERSION, ..LogHead::default() }),
    };
    head.claim = Some(Claim { uid: Arc::clone(&store.0.uid), hold_ms });
    Ok(match store.put_head(after, &head).await? {
        true => LogClaim::Claimed(head.position()),
        // Another node, which makes a change, has written it in the meantime.
        false => LogClaim::UnderWay(head.position()),
    })
}

pub(super) async fn release(store: &NatsStore) -> Result<(), StoreError> {
    if let Some((record, head)) = store.head().await?
        && head.claim.as_ref().is_some_and(|claim| claim.uid == store.0.uid)
    {
        // A node that has written it in the meantime has the claim.
        store.put_head(record.seq, &LogHead { claim: None, ..head }).await?;
    }
    Ok(())
}

/// Writes a change, which is part of the log once the head record is updated. Returns `false` if another node wrote it first.
async fn write_change(store: &NatsStore, revision: u64, sealed: &[u8]) -> Result<bool, StoreError> {
    let stream = &store.0.stream;
    let Some(parts) = parts(sealed, stream.link.message_bytes_max()) else {
        let why = format!("a change of {} bytes is more than 65,535 messages", sealed.len());
        return Err(refused(Condition::MaxPayload, &why));
    };
    let subjects: Vec<String> =
        (0..).take(parts.len()).map(|part| store.change_subject(revision, part)).collect();
    let before = stream.get_all(&subjects).await?;
    let puts = subjects.into_iter().zip(before).zip(parts).map(|((subject, before), payload)| {
        RecordWrite { subject, after: before.map_or(0, |record| record.seq), payload }
    });
    let written = stream.put_all(&puts.collect::<Vec<_>>()).await?;
    Ok(!written.contains(&None))
}

pub(super) async fn extend(store: &NatsStore, part: &LogPart) -> Result<bool, StoreError> {
    let (after, mut head) = match store.head().await? {
        Some((record, head)) => (record.seq, head),
        None => (0, LogHead { v: VERSION, ..LogHead::default() }),
    };
    if head.id == 0 {
        (head.id, head.since, head.revision, head.bytes) = (part.log.id, part.since, part.since, 0);
    }
    if head.id != part.log.id || head.revision < part.since {
        return Ok(false);
    }
    let lacking = part.changes.iter().filter(|(number, _)| *number > head.revision);
    let mut is_extended = false;
    for (number, sealed) in lacking.collect::<Vec<_>>() {
        if !write_change(store, *number, sealed).await? {
            return Ok(false);
        }
        (head.revision, head.bytes, is_extended) = (*number, head.bytes + sealed.len(), true);
    }
    // Fails if another node has appended to the log, or extended it, in the meantime.
    Ok(is_extended && store.put_head(after, &head).await?)
}

pub(super) async fn append(store: &NatsStore, entry: &LogEntry) -> Result<bool, StoreError> {
    let LogEntry { at, sealed, message } = entry;
    let stream = &store.0.stream;
    let Some((record, mut head)) = store.head().await? else { return Ok(false) };
    if head.claim.as_ref().is_none_or(|claim| claim.uid != store.0.uid) {
        return Ok(false);
    }
    if head.id != at.id || head.revision + 1 != at.revision {
        // If the log does not reach the previous number, it is incomplete.
        stream.purge(&store.subject("log.>")).await?;
        (head.since, head.bytes) = (at.revision - 1, 0);
    }
    if !write_change(store, at.revision, sealed).await? {
        return Ok(false);
    }
    head.bytes += sealed.len();
    let mut over = Vec::new();
    while head.since < at.revision - 1
        && (at.revision - head.since > CHANGES_MAX || head.bytes > BYTES_MAX)
    {
        head.since += 1;
        if let Some(gone) = stream.get(&store.change_subject(head.since, 0)).await? {
            let bytes = read_part(&gone.payload).map_or(0, |(_, bytes, _)| bytes as usize);
            head.bytes = head.bytes.saturating_sub(bytes);
            over.push(head.since);
        }
    }
    (head.id, head.revision, head.claim) = (at.id, at.revision, None);
    if !store.put_head(record.seq, &head).await? {
        return Ok(false);
    }
    for revision in over {
        let first = store.change_subject(revision, 0);
        stream.purge(&first).await?;
        stream.purge(&format!("{first}.*")).await?;
    }
    stream.link.publish(&store.subject("calls"), message)?;
    Ok(true)
}

pub(super) async fn read(store: &NatsStore, known: LogPosition) -> Result<LogPart, StoreError> {
    let Some((_, head)) = store.head().await?.filter(|(_, head)| head.id != 0) else {
        return Ok(LogPart::default());
    };
    let after = if head.id == known.id { known.revision.max(head.since) } else { head.since };
    let numbers: Vec<u64> = (after + 1..=head.revision).collect();
    let subjects: Vec<String> = numbers.iter().map(|of| store.change_subject(*of, 0)).collect();
    let records = store.0.stream.get_all(&subjects).await?;
    let mut changes = Vec::new();
    for (number, first) in numbers.into_iter().zip(records) {
        let Some(first) = first else { continue };
        changes.push((number, whole(store, number, &first).await?));
    }
    Ok(LogPart { log: head.position(), since: head.since, changes })
}

/// Joins a change from its parts. Returns an empty change, which cannot be opened, if parts are missing or of another version.
async fn whole(store: &NatsStore, revision: u64, first: &Record) -> Result<Vec<u8>, StoreError> {
    let Some((count, bytes, sealed)) = read_part(&first.payload) else { return Ok(Vec::new()) };
    let mut sealed = sealed.to_vec();
    let subjects: Vec<String> =
        (1..count).map(|part| store.change_subject(revision, part)).collect();
    for part in store.0.stream.get_all(&subjects).await?.into_iter().flatten() {
        sealed.extend_from_slice(read_part(&part.payload).map_or(&[], |(_, _, part)| part));
    }
    Ok(if sealed.len() == bytes as usize { sealed } else { Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_what_its_parts_are() {
        let sealed: Vec<u8> = (0..=255).cycle().take(1_000).collect();
        for (message_bytes_max, count) in [(8, 1_000), (57, 20), (58, 20), (1_007, 1), (1 << 20, 1)]
        {
            let parts = parts(&sealed, message_bytes_max).unwrap_or_default();
            assert_eq!(parts.len(), count, "{message_bytes_max}");
            assert!(parts.iter().all(|part| part.len() <= message_bytes_max));
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
