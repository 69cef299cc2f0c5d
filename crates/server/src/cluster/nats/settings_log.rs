//! The log of changes of all nodes' settings in NATS: a record for each change, and one that says where the log is and who may append to
//! it.
//!
//! A change is written where nothing else stands, and counts once the record of the log says so: of a node that ends in between,
//! or that writes late, nobody reads anything.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::stream::Record;
use super::{NatsStore, VERSION};
use crate::cluster::log_position::{BYTES_MAX, CHANGES_MAX, LogPosition};
use crate::cluster::store::{LogClaim, LogEntry, LogPart, StoreError};

/// Where the log is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct LogHead {
    v: u8,
    id: u64,
    revision: u64,
    /// Those up to this one are not kept any more.
    since: u64,
    /// Of all that are kept.
    bytes: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim: Option<Claim>,
}

/// The right to append to it, from when this was written.
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

    fn change_subject(&self, revision: u64) -> String {
        self.subject(&format!("log.{revision}"))
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
        // Somebody has written it meanwhile: who makes a change, that is.
        false => LogClaim::UnderWay(head.position()),
    })
}

pub(super) async fn release(store: &NatsStore) -> Result<(), StoreError> {
    if let Some((record, head)) = store.head().await?
        && head.claim.as_ref().is_some_and(|claim| claim.uid == store.0.uid)
    {
        // Whoever has written it meanwhile has the claim.
        store.put_head(record.seq, &LogHead { claim: None, ..head }).await?;
    }
    Ok(())
}

pub(super) async fn append(store: &NatsStore, entry: &LogEntry) -> Result<bool, StoreError> {
    let LogEntry { at, sealed, message } = entry;
    let stream = &store.0.stream;
    let Some((record, mut head)) = store.head().await? else { return Ok(false) };
    if head.claim.as_ref().is_none_or(|claim| claim.uid != store.0.uid) {
        return Ok(false);
    }
    if head.id != at.id || head.revision + 1 != at.revision {
        // Where it does not reach up to the number before, what is in it is no whole any more.
        stream.purge(&store.subject("log.>")).await?;
        (head.since, head.bytes) = (at.revision - 1, 0);
    }
    let subject = store.change_subject(at.revision);
    let before = stream.get(&subject).await?.map_or(0, |record| record.seq);
    if stream.put(subject, before, sealed.clone()).await?.is_none() {
        return Ok(false);
    }
    head.bytes += sealed.len();
    let mut over = Vec::new();
    while head.since < at.revision - 1
        && (at.revision - head.since > CHANGES_MAX || head.bytes > BYTES_MAX)
    {
        head.since += 1;
        if let Some(gone) = stream.get(&store.change_subject(head.since)).await? {
            head.bytes = head.bytes.saturating_sub(gone.payload.len());
            over.push(gone.seq);
        }
    }
    (head.id, head.revision, head.claim) = (at.id, at.revision, None);
    if !store.put_head(record.seq, &head).await? {
        return Ok(false);
    }
    stream.remove_all(&over).await?;
    stream.link.publish(&store.subject("calls"), message)?;
    Ok(true)
}

pub(super) async fn read(store: &NatsStore, known: LogPosition) -> Result<LogPart, StoreError> {
    let Some((_, head)) = store.head().await?.filter(|(_, head)| head.id != 0) else {
        return Ok(LogPart::default());
    };
    let after = if head.id == known.id { known.revision.max(head.since) } else { head.since };
    let numbers: Vec<u64> = (after + 1..=head.revision).collect();
    let subjects: Vec<String> = numbers.iter().map(|of| store.change_subject(*of)).collect();
    let records = store.0.stream.get_all(&subjects).await?;
    let changes = numbers.into_iter().zip(records);
    let changes = changes.filter_map(|(number, record)| Some((number, record?.payload.to_vec())));
    Ok(LogPart { log: head.position(), since: head.since, changes: changes.collect() })
}
