//! Members on a stream of records: a record for each, by channel, process and session.
//!
//! Late writes have no effect. A record names the connection that wrote it, and a record of an earlier connection is valid only
//! if its sequence is before the `ProcessRecord` with which the newest connection took over; all records share one sequence. A
//! removal names the message that it removes. After a sweep the process has no record, so its members are not valid; a reader of
//! a channel removes them.
//!
//! A sweep does not remove entries directly. It marks each unchanged entry as left, announces the marked entries, and then
//! removes them. So each leave is announced once, by the node that marked it; if that node ends in between, the next sweep
//! announces it.

use std::sync::Arc;

use dunlin_engine::nats::word;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::lease::ProcessRecord;
use super::{OrderedStore, Record, RecordStream, RecordWrite};
use crate::members::{Gathered, MembersByChannel};
use crate::node_message::{MemberChange, StoredMember};
use crate::records::{ATTEMPTS_MAX, VERSION, contended};
use crate::store::StoreError;

/// The most late entries that one read of a channel removes.
const LATE_REMOVED_MAX: usize = 256;

/// The stored form of a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "FlatEntry", into = "FlatEntry")]
struct Entry {
    v: u8,
    /// The number of the connection that has written it.
    link: u64,
    /// It was swept, and is removed after its leave is announced.
    left: bool,
    change: MemberChange,
}

/// The record as JSON. It repeats the fields of the change, because `serde` cannot read raw JSON, such as a connection's `info`,
/// through `flatten`.
#[derive(Serialize, Deserialize)]
struct FlatEntry {
    v: u8,
    link: u64,
    #[serde(default)]
    left: bool,
    channel: Arc<str>,
    client: u64,
    joined: bool,
    member: StoredMember,
}

impl From<FlatEntry> for Entry {
    fn from(flat: FlatEntry) -> Entry {
        let FlatEntry { v, link, left, channel, client, joined, member } = flat;
        Entry { v, link, left, change: MemberChange { channel, client, joined, member } }
    }
}

impl From<Entry> for FlatEntry {
    fn from(entry: Entry) -> FlatEntry {
        let Entry { v, link, left, change } = entry;
        let MemberChange { channel, client, joined, member } = change;
        FlatEntry { v, link, left, channel, client, joined, member }
    }
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Whether it was written after a later connection had taken over.
    fn is_late(&self, seq: u64, process: Option<&(u64, ProcessRecord)>) -> bool {
        process.is_some_and(|(at, of)| self.link < of.link && seq > of.fence(*at))
    }
}

impl<S: RecordStream> OrderedStore<S> {
    fn member_subject(&self, change: &MemberChange) -> String {
        let (channel, uid) = (word(&change.channel), &change.member.node);
        self.subject(&format!("members.{channel}.{uid}.{}", change.client))
    }

    async fn members_of(&self, uid: &str) -> Result<Vec<(u64, Entry)>, StoreError> {
        let records = self.0.stream.read(&self.subject(&format!("members.*.{uid}.*"))).await?;
        Ok(entries(&records))
    }
}

/// Parses entries; malformed ones are skipped.
fn entries(records: &[Record]) -> Vec<(u64, Entry)> {
    records.iter().filter_map(|record| Some((record.seq, record.read()?))).collect()
}

/// The next step of a change.
enum Step {
    /// Read the record: for the first time, or again once the stream's leader has everything that was written before.
    Get {
        is_sure: bool,
    },
    /// Write it after this sequence; the flag says whether that changes the store.
    Write(u64, bool),
    Remove(u64, bool),
    Done(bool),
}

const GET: Step = Step::Get { is_sure: false };

pub(super) async fn write(
    store: &OrderedStore<impl RecordStream>,
    changes: Vec<MemberChange>,
) -> Result<Vec<bool>, StoreError> {
    let mut written = Vec::with_capacity(changes.len());
    let mut rest = &changes[..];
    while !rest.is_empty() {
        // A join and a leave of one member in the same report keep their order.
        let mut keys = std::collections::HashSet::new();
        let differs = |of: &&MemberChange| keys.insert((Arc::clone(&of.channel), of.client));
        let (step, others) = rest.split_at(rest.iter().take_while(differs).count());
        written.extend(write_apart(store, step).await?);
        rest = others;
    }
    Ok(written)
}

/// Writes changes, at most one for each member.
async fn write_apart(
    store: &OrderedStore<impl RecordStream>,
    changes: &[MemberChange],
) -> Result<Vec<bool>, StoreError> {
    let (stream, link) = (&store.0.stream, store.0.number);
    let own = store.known().processes.get(&store.0.uid).cloned();
    let first = |change: &MemberChange| if change.joined { Step::Write(0, true) } else { GET };
    let mut steps: Vec<Step> = changes.iter().map(first).collect();
    for _ in 0..ATTEMPTS_MAX {
        let (mut puts, mut gets, mut removals) = (Vec::new(), Vec::new(), Vec::new());
        let (mut of_puts, mut of_gets, mut of_removals) = (Vec::new(), Vec::new(), Vec::new());
        let mut waits = false;
        for (at, (step, change)) in steps.iter().zip(changes).enumerate() {
            match *step {
                Step::Write(after, has_changed) => {
                    let change = change.clone();
                    let subject = store.member_subject(&change);
                    let payload = Entry { v: VERSION, link, left: false, change }.encode();
                    puts.push(RecordWrite { subject, after, payload });
                    of_puts.push((at, has_changed));
                }
                Step::Get { is_sure } => {
                    waits |= is_sure;
                    gets.push(store.member_subject(change));
                    of_gets.push((at, is_sure));
                }
                Step::Remove(seq, has_changed) => {
                    removals.push(seq);
                    of_removals.push((at, has_changed));
                }
                Step::Done(_) => {}
            }
        }
        if puts.is_empty() && gets.is_empty() && removals.is_empty() {
            break;
        }
        for ((at, has_changed), written) in of_puts.into_iter().zip(stream.put_all(&puts).await?) {
            steps[at] = if written.is_some() { Step::Done(has_changed) } else { GET };
        }
        let removed = stream.remove_all(&removals).await?;
        for ((at, has_changed), was_there) in of_removals.into_iter().zip(removed) {
            steps[at] = if was_there { Step::Done(has_changed) } else { GET };
        }
        if waits {
            stream.wait_for_leader().await?;
        }
        for ((at, is_sure), record) in of_gets.into_iter().zip(stream.get_all(&gets).await?) {
            let joined = changes[at].joined;
            steps[at] = match record {
                None if joined => Step::Write(0, true),
                // A new leader may not have what its predecessor acknowledged.
                None if stream.is_replicated() && !is_sure => Step::Get { is_sure: true },
                None => Step::Done(false),
                Some(record) => {
                    // An entry that was swept, came late or cannot be parsed belongs to no session.
                    let entry = record.read::<Entry>();
                    let counts =
                        entry.is_some_and(|of| !of.left && !of.is_late(record.seq, own.as_ref()));
                    match joined {
                        true => Step::Write(record.seq, !counts),
                        false => Step::Remove(record.seq, counts),
                    }
                }
            };
        }
    }
    let done = |step: &Step| match step {
        Step::Done(has_changed) => Ok(*has_changed),
        _ => Err(contended()),
    };
    steps.iter().map(done).collect()
}

/// Reads this process's members, and removes invalid entries.
pub(super) async fn own(
    store: &OrderedStore<impl RecordStream>,
) -> Result<MembersByChannel, StoreError> {
    let process = store.known().processes.get(&store.0.uid).cloned();
    let (mut listed, mut late) = (MembersByChannel::new(), Vec::new());
    for (seq, entry) in store.members_of(&store.0.uid).await? {
        if entry.left || entry.is_late(seq, process.as_ref()) {
            late.push(seq);
            continue;
        }
        let MemberChange { channel, client, member, .. } = entry.change;
        listed.insert((channel, client), member);
    }
    store.0.stream.remove_all(&late).await?;
    Ok(listed)
}

pub(super) async fn of_channel(
    store: &OrderedStore<impl RecordStream>,
    channel: &str,
    mut gathered: Gathered,
) -> Result<Gathered, StoreError> {
    let filter = store.subject(&format!("members.{}.>", word(channel)));
    let records = store.0.stream.read(&filter).await?;
    let (mut late, mut unknown) = (Vec::new(), Vec::new());
    {
        let known = store.known();
        for (seq, entry) in entries(&records) {
            let process = known.processes.get(&entry.change.member.node);
            if entry.is_late(seq, process) {
                late.push(seq);
            } else if process.is_none() {
                unknown.push((seq, Arc::clone(&entry.change.member.node)));
            }
            if !entry.left && !entry.is_late(seq, process) {
                gathered.add(entry.change.client, &entry.change.member);
            }
        }
    }
    unknown.truncate(LATE_REMOVED_MAX);
    late.truncate(LATE_REMOVED_MAX);
    if !unknown.is_empty() || !late.is_empty() {
        let store = store.clone();
        // The next reader removes the rest.
        tokio::spawn(async move { remove_late(&store, late, unknown).await });
    }
    check_process(store).await?;
    Ok(gathered)
}

/// Checks that the stream has not lost its data before or during a read: it still knows that this connection writes the members of this
/// process.
async fn check_process(store: &OrderedStore<impl RecordStream>) -> Result<(), StoreError> {
    let record = store.0.stream.get(&store.process_subject(&store.0.uid)).await?;
    let process = record.and_then(|record| record.read::<ProcessRecord>());
    match process.is_some_and(|process| process.link == store.0.number) {
        true => Ok(()),
        false => Err(StoreError::Passed("the stream has lost what this node had written".into())),
    }
}

/// Removes late entries, and entries of processes without a record, which were swept.
async fn remove_late(
    store: &OrderedStore<impl RecordStream>,
    mut late: Vec<u64>,
    unknown: Vec<(u64, Arc<str>)>,
) -> Result<(), StoreError> {
    let subjects: Vec<String> = unknown.iter().map(|(_, uid)| store.process_subject(uid)).collect();
    let processes = store.0.stream.get_all(&subjects).await?;
    let gone = unknown.into_iter().zip(processes).filter(|(_, process)| process.is_none());
    late.extend(gone.map(|((seq, _), _)| seq));
    store.0.stream.remove_all(&late).await.map(drop)
}

pub(super) async fn sweep(
    store: &OrderedStore<impl RecordStream>,
    dead: &Arc<str>,
    claim_ms: u64,
) -> Result<Option<Vec<MemberChange>>, StoreError> {
    let stream = &store.0.stream;
    let subject = store.process_subject(dead);
    let Some(record) = stream.get(&subject).await? else { return Ok(None) };
    let Some(process) = record.read::<ProcessRecord>() else { return Ok(None) };
    if process.swept_by.is_some() && !has_lapsed(store, dead, record.seq, claim_ms) {
        return Ok(None);
    }
    let fence = process.fence(record.seq);
    let swept_by = Some(Arc::clone(&store.0.uid));
    let claim = ProcessRecord { swept_by, fence, ..process };
    let payload = serde_json::to_vec(&claim).unwrap_or_default();
    let Some(seq) = stream.put(subject, record.seq, payload).await? else { return Ok(None) };
    let claim = (seq, claim);
    let (mut gone, mut puts, mut marked) = (Vec::new(), Vec::new(), Vec::new());
    for (seq, mut entry) in store.members_of(dead).await? {
        if entry.is_late(seq, Some(&claim)) {
            continue;
        }
        let is_marked = std::mem::replace(&mut entry.left, true);
        entry.change.joined = false;
        if is_marked {
            gone.push(entry.change);
            continue;
        }
        let (subject, payload) = (store.member_subject(&entry.change), entry.encode());
        puts.push(RecordWrite { subject, after: seq, payload });
        marked.push(entry.change);
    }
    // An entry that has changed was written by the process, which is alive.
    let written = stream.put_all(&puts).await?;
    gone.extend(marked.into_iter().zip(written).filter_map(|(of, is)| is.map(|_| of)));
    Ok(Some(gone))
}

/// Whether a claim to sweep a process was observed unchanged for its duration.
fn has_lapsed(
    store: &OrderedStore<impl RecordStream>,
    dead: &Arc<str>,
    seq: u64,
    claim_ms: u64,
) -> bool {
    let mut known = store.known();
    let claim = known.claims.entry(Arc::clone(dead)).or_insert_with(|| (seq, Instant::now()));
    if claim.0 != seq {
        *claim = (seq, Instant::now());
    }
    claim.1.elapsed().as_millis() > u128::from(claim_ms)
}

pub(super) async fn forget(
    store: &OrderedStore<impl RecordStream>,
    dead: &str,
) -> Result<(), StoreError> {
    let stream = &store.0.stream;
    let Some(record) = stream.get(&store.process_subject(dead)).await? else { return Ok(()) };
    let process = record.read::<ProcessRecord>();
    if process.is_none_or(|of| of.swept_by.as_ref() != Some(&store.0.uid)) {
        // It is alive again, or another node sweeps it.
        return Ok(());
    }
    // Removes entries that were written in the meantime, without announcing them.
    let left: Vec<u64> = store.members_of(dead).await?.into_iter().map(|(seq, _)| seq).collect();
    stream.remove_all(&left).await?;
    store.purge_counts(dead).await?;
    stream.remove_all(&[record.seq]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written_with_the_information_of_its_connection() {
        let text = r#"{"v":1,"link":7,"left":true,"channel":"room","client":9,"joined":true,"member":{"v":1,"node":"n","user":"ann","conn_info":{"name":"Ann"},"chan_info":[1],"presence":true,"join_leave":true}}"#;
        let entry: Entry = serde_json::from_str(text).unwrap();
        let info = entry.change.member.conn_info.as_ref().map(|info| info.get().to_owned());
        assert_eq!(info.as_deref(), Some(r#"{"name":"Ann"}"#));
        assert_eq!(String::from_utf8(entry.encode()).unwrap(), text);
    }
}
