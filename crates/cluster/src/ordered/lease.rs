//! Leases on a stream of records.
//!
//! A node writes the record of its number only if the last message is the one that it knows: of two nodes that want one number
//! exactly one succeeds, and a node that was taken for dead notices. No node's wall clock decides whether another is alive. A
//! record that a reader has seen unchanged for the duration of its lease, by the reader's monotonic clock, has expired, because
//! its node would have replaced it. When a reader sees a record for the first time, the timestamps of the stream's server give
//! its age: the server has stamped both this record and the reader's own. Successive leaders may have different clocks, so a
//! process is never swept on that age alone, but only after the record was observed for the duration of a lease.
//!
//! The record of a process names the connection that writes its members. It is the first record that a connection writes after
//! the lease; writes of earlier connections with a larger sequence are late ([`super::members`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{OrderedStore, Record, RecordStream};
use crate::condition::Condition;
use crate::lease::{Facts, Lease, LeaseReply, LeaseWrite, Node};
use crate::log_position::LogPosition;
use crate::records::settings_log::LogHead;
use crate::records::{ATTEMPTS_MAX, VERSION, contended};
use crate::store::StoreError;

/// How long a number stays reserved for its former holder.
const NUMBER_KEPT_MS: i64 = 86_400_000;

/// The holder of a number.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct NodeRecord {
    v: u8,
    uid: Arc<str>,
    lease_ms: u64,
    /// It has left, or has changed its number.
    #[serde(default)]
    ended: bool,
    facts: Facts,
}

/// A process that may have left members behind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ProcessRecord {
    pub(super) v: u8,
    /// The connection that writes its members.
    pub(super) link: u64,
    /// The node that sweeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) swept_by: Option<Arc<str>>,
    /// The sequence of the message with which `link` took over; 0: this message.
    #[serde(default)]
    pub(super) fence: u64,
}

impl ProcessRecord {
    /// The sequence after which writes of earlier connections are late.
    pub(super) fn fence(&self, seq: u64) -> u64 {
        if self.fence == 0 { seq } else { self.fence }
    }
}

/// When a record was first seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    seq: u64,
    /// An estimate of when it was written.
    written: Instant,
    seen: Instant,
    /// An earlier record of the same number was seen, so this reader's own clock bounds `written`.
    is_followed: bool,
}

/// The leases that this connection knows.
#[derive(Default)]
pub(super) struct LeaseTable {
    nodes: BTreeMap<u16, (u64, NodeRecord)>,
    pub(super) processes: HashMap<Arc<str>, (u64, ProcessRecord)>,
    seen: HashMap<u16, Seen>,
    /// Since when a process has a record but no node record has its uid.
    alone: HashMap<Arc<str>, Instant>,
    /// All subjects at the last read of the state.
    subjects: BTreeSet<Box<str>>,
    /// Since when a claim to sweep a process is known.
    pub(super) claims: HashMap<Arc<str>, (u64, Instant)>,
    head: LogPosition,
    /// The time of the stream's server, and when it was read.
    clock: Option<(i64, Instant)>,
    /// When the state was last read.
    read: Option<Instant>,
    /// The known state is current; otherwise it is read before the next write.
    is_fresh: bool,
    /// Sequences of number records whose reservation has ended.
    over: Vec<u64>,
}

impl LeaseTable {
    /// Estimates the time of the stream's server.
    pub(super) fn server_ms(&self, now: Instant) -> Option<i64> {
        let (ms, at) = self.clock?;
        Some(ms + i64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(i64::MAX))
    }

    /// The greatest possible age of a node's record.
    fn age(&self, number: u16, now: Instant) -> Duration {
        let written = self.seen.get(&number).map(|seen| seen.written);
        written.map_or(Duration::ZERO, |written| now.saturating_duration_since(written))
    }

    fn has_ended(&self, number: u16, record: &NodeRecord, now: Instant) -> bool {
        record.ended || self.age(number, now) > Duration::from_millis(record.lease_ms)
    }

    /// Whether others may sweep a process. A process without a node record may be swept only after the duration of a lease,
    /// because it may be changing its number.
    fn is_dead(&self, uid: &Arc<str>, now: Instant, lease_ms: u64) -> bool {
        if let Some(since) = self.alone.get(uid) {
            return now.saturating_duration_since(*since) > Duration::from_millis(lease_ms);
        }
        let mut of_it = self.nodes.iter().filter(|(_, (_, record))| record.uid == *uid);
        of_it.all(|(number, (_, record))| {
            let lease = Duration::from_millis(record.lease_ms);
            let seen = self.seen.get(number);
            let is_sure = seen
                .is_some_and(|of| of.is_followed || now.saturating_duration_since(of.seen) > lease);
            record.ended || self.has_ended(*number, record, now) && is_sure
        })
    }

    /// Updates the known state from the stream's records. `own` is the number of this node, whose record was just written.
    fn take(&mut self, now: Instant, records: &[Record], own: Option<u16>) {
        let before = self.read.replace(now);
        self.is_fresh = true;
        (self.nodes, self.processes) = (BTreeMap::new(), HashMap::new());
        (self.head, self.over) = (LogPosition::default(), Vec::new());
        let number_of = |record: &Record| -> Option<u16> { record.name().parse().ok() };
        let of_kind = |record: &Record, kind: &str| {
            record.subject.rsplit('.').nth(1).is_some_and(|of| of == kind)
        };
        let is_own = |of: &&Record| of_kind(of, "nodes") && number_of(of) == own && own.is_some();
        self.clock = records.iter().find(is_own).map(|of| (of.time_ms, now)).or(self.clock);
        let server_ms = self.server_ms(now).or_else(|| records.iter().map(|of| of.time_ms).max());
        for record in records {
            let age_ms = server_ms.map_or(0, |ms| ms - record.time_ms).max(0);
            if of_kind(record, "nodes") {
                let (Some(number), Some(node)) = (number_of(record), record.read::<NodeRecord>())
                else {
                    continue;
                };
                if age_ms > NUMBER_KEPT_MS + node.lease_ms as i64 && Some(number) != own {
                    self.over.push(record.seq);
                    continue;
                }
                let former = self.seen.get(&number).copied();
                if former.is_none_or(|former| former.seq != record.seq) {
                    let age = Duration::from_millis(age_ms.unsigned_abs());
                    // The record is newer than the previous one, which this reader has seen.
                    let is_followed = former.is_some();
                    let most = before.filter(|_| is_followed).map_or(age, |at| now - at);
                    let written = now.checked_sub(age.min(most)).unwrap_or(now);
                    let seen = Seen { seq: record.seq, written, seen: now, is_followed };
                    self.seen.insert(number, seen);
                }
                self.nodes.insert(number, (record.seq, node));
            } else if of_kind(record, "processes") {
                let Some(process) = record.read() else { continue };
                self.processes.insert(record.name().into(), (record.seq, process));
            } else if let Some(head) = record.read::<LogHead>() {
                self.head = head.position();
            }
        }
        self.subjects = records.iter().map(|record| record.subject.clone()).collect();
        let with_node: HashSet<&Arc<str>> =
            self.nodes.values().map(|(_, record)| &record.uid).collect();
        let before = std::mem::take(&mut self.alone);
        let alone = self.processes.keys().filter(|uid| !with_node.contains(uid));
        self.alone =
            alone.map(|uid| (Arc::clone(uid), before.get(uid).copied().unwrap_or(now))).collect();
        let nodes = &self.nodes;
        self.seen.retain(|number, _| nodes.contains_key(number));
        let processes = &self.processes;
        self.claims.retain(|uid, _| processes.contains_key(uid));
    }

    fn beat(&self, now: Instant, lease: &Lease, facts: &Facts, written: LeaseWrite) -> LeaseReply {
        let others = self.nodes.iter().filter(|(_, (_, record))| record.uid != lease.uid);
        let mut nodes: BTreeMap<u16, Node> = others
            .map(|(&number, (_, record))| {
                let age_ms = i64::try_from(self.age(number, now).as_millis()).unwrap_or(i64::MAX);
                let lease_ms = i64::try_from(record.lease_ms).unwrap_or(i64::MAX);
                let left_ms = if record.ended { -age_ms - 1 } else { lease_ms - age_ms };
                let (uid, facts) = (Arc::clone(&record.uid), record.facts.clone());
                (number, Node { number, uid, left_ms, facts })
            })
            .collect();
        if written != LeaseWrite::Taken {
            nodes.insert(lease.number, lease.node(facts.clone()));
        }
        let is_dead =
            |uid: &&Arc<str>| **uid != lease.uid && self.is_dead(uid, now, lease.lease_ms);
        let dead = self.processes.keys().filter(is_dead);
        LeaseReply { written, nodes, dead: dead.cloned().collect(), log: self.head }
    }
}

impl<S: RecordStream> OrderedStore<S> {
    fn node_subject(&self, number: u16) -> String {
        self.subject(&format!("state.nodes.{number}"))
    }

    pub(super) fn process_subject(&self, uid: &str) -> String {
        self.subject(&format!("state.processes.{uid}"))
    }

    async fn read_state(&self, own: Option<u16>) -> Result<(), StoreError> {
        let mut records = self.0.stream.read(&self.subject("state.>")).await?;
        // A record that is replaced during the read is not delivered.
        let listed: HashSet<&str> = records.iter().map(|record| &*record.subject).collect();
        let before: Vec<String> = self.known().subjects.iter().map(ToString::to_string).collect();
        let missing: Vec<String> =
            before.into_iter().filter(|subject| !listed.contains(&**subject)).collect();
        let found = self.0.stream.get_all(&missing).await?;
        records.extend(found.into_iter().flatten());
        self.known().take(Instant::now(), &records, own);
        Ok(())
    }
}

fn encoded<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).unwrap_or_default()
}

pub(super) async fn write(
    store: &OrderedStore<impl RecordStream>,
    lease: &Lease,
    facts: &Facts,
) -> Result<LeaseReply, StoreError> {
    for _ in 0..ATTEMPTS_MAX {
        let is_fresh = store.known().is_fresh;
        let written = match is_fresh {
            true => Ok(()),
            false => store.read_state(None).await,
        };
        let written = match written {
            Ok(()) => write_once(store, lease, facts).await,
            Err(error) => Err(error),
        };
        match written {
            Ok(Some(beat)) => return Ok(beat),
            Ok(None) => {}
            // The stream was deleted with all its records.
            Err(StoreError::Refused(Condition::RecordLost, _)) => {
                store.0.stream.create().await?;
            }
            Err(error) => return Err(error),
        }
        store.known().is_fresh = false;
    }
    Err(contended())
}

/// Returns `None` if another node wrote first; the state must then be read again.
async fn write_once(
    store: &OrderedStore<impl RecordStream>,
    lease: &Lease,
    facts: &Facts,
) -> Result<Option<LeaseReply>, StoreError> {
    let (stream, number) = (&store.0.stream, lease.number);
    let own = store.known().nodes.get(&number).cloned();
    let before_ms = store.known().clock.map(|(ms, _)| ms);
    let (after, mut written) = match own {
        None => (0, LeaseWrite::Created),
        Some((seq, record)) if record.uid == lease.uid => {
            let has_ended =
                record.ended || store.known().has_ended(number, &record, Instant::now());
            (seq, if has_ended { LeaseWrite::Revived } else { LeaseWrite::Renewed })
        }
        Some((seq, record))
            if lease.is_wanted && store.known().has_ended(number, &record, Instant::now()) =>
        {
            (seq, LeaseWrite::Created)
        }
        Some(_) => {
            store.read_state(None).await?;
            let known = store.known();
            // It may have left in the meantime; the next renewal shows that.
            return Ok(Some(known.beat(Instant::now(), lease, facts, LeaseWrite::Taken)));
        }
    };
    let record = NodeRecord {
        v: VERSION,
        uid: Arc::clone(&lease.uid),
        lease_ms: lease.lease_ms,
        ended: false,
        facts: facts.clone(),
    };
    if stream.put(store.node_subject(number), after, encoded(&record)).await?.is_none() {
        return Ok(None);
    }
    // A former number of this process is not in use.
    let others = store.known().nodes.clone();
    for (other, (seq, former)) in others {
        if other != number && former.uid == lease.uid {
            let former = NodeRecord { uid: "-".into(), ended: true, ..former };
            stream.put(store.node_subject(other), seq, encoded(&former)).await?;
        }
    }
    store.read_state(Some(number)).await?;
    match write_process(store, lease).await? {
        ProcessWrite::Contended => return Ok(None),
        ProcessWrite::Swept => written = revived(written),
        ProcessWrite::LeaseTable | ProcessWrite::New => {}
    }
    let (beat, over) = {
        let known = store.known();
        let has_passed = known.clock.zip(before_ms).map_or(0, |((ms, _), before)| ms - before);
        if written == LeaseWrite::Renewed && has_passed > lease.lease_ms as i64 {
            written = LeaseWrite::Revived;
        }
        (known.beat(Instant::now(), lease, facts, written), known.over.clone())
    };
    stream.remove_all(&over).await?;
    Ok(Some(beat))
}

fn revived(written: LeaseWrite) -> LeaseWrite {
    match written {
        LeaseWrite::Created => LeaseWrite::Created,
        _ => LeaseWrite::Revived,
    }
}

enum ProcessWrite {
    /// The record is unchanged.
    LeaseTable,
    New,
    /// The record was removed, or is being swept.
    Swept,
    Contended,
}

/// Records that this connection writes the members of this process.
async fn write_process(
    store: &OrderedStore<impl RecordStream>,
    lease: &Lease,
) -> Result<ProcessWrite, StoreError> {
    let former = store.known().processes.get(&lease.uid).cloned();
    let (after, outcome) = match former {
        Some((_, ProcessRecord { link, swept_by: None, .. })) if link == store.0.number => {
            return Ok(ProcessWrite::LeaseTable);
        }
        Some((_, ProcessRecord { link, .. })) if link > store.0.number => {
            return Err(StoreError::Passed("a later connection writes the lease".into()));
        }
        Some((seq, ProcessRecord { swept_by: None, .. })) => (seq, ProcessWrite::New),
        Some((seq, _)) => (seq, ProcessWrite::Swept),
        None => (0, ProcessWrite::Swept),
    };
    let record = ProcessRecord { v: VERSION, link: store.0.number, swept_by: None, fence: 0 };
    let subject = store.process_subject(&lease.uid);
    match store.0.stream.put(subject, after, encoded(&record)).await? {
        Some(seq) => {
            store.known().processes.insert(Arc::clone(&lease.uid), (seq, record));
            Ok(outcome)
        }
        None => Ok(ProcessWrite::Contended),
    }
}

pub(super) async fn leave(
    store: &OrderedStore<impl RecordStream>,
    lease: &Lease,
) -> Result<(), StoreError> {
    let subject = store.node_subject(lease.number);
    for _ in 0..ATTEMPTS_MAX {
        let Some(record) = store.0.stream.get(&subject).await? else { return Ok(()) };
        let Some(node) = record.read::<NodeRecord>().filter(|node| node.uid == lease.uid) else {
            return Ok(());
        };
        let facts = Facts { left: true, ..node.facts };
        let node = NodeRecord { ended: true, facts, ..node };
        if store.0.stream.put(subject.clone(), record.seq, encoded(&node)).await?.is_some() {
            return Ok(());
        }
    }
    Err(contended())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::Inbox;
    use crate::memory::Memory;
    use crate::store::Store as _;

    fn record(number: u16, uid: &str, seq: u64, time_ms: i64) -> Record {
        let facts = Facts::named("");
        let uid = uid.into();
        let node = NodeRecord { v: VERSION, uid, lease_ms: 9_000, ended: false, facts };
        let subject = format!("p.cluster.state.nodes.{number}").into();
        Record { seq, time_ms, subject, payload: encoded(&node).into() }
    }

    fn process(uid: &str) -> Record {
        let process = ProcessRecord { v: VERSION, link: 1, swept_by: None, fence: 0 };
        let subject = format!("p.cluster.state.processes.{uid}").into();
        Record { seq: 1, time_ms: 0, subject, payload: encoded(&process).into() }
    }

    fn lease() -> Lease {
        Lease { uid: "own".into(), number: 1, lease_ms: 9_000, is_wanted: false }
    }

    /// Reads the leases after `at_s`. Returns whether the other node is alive, and whether it may be swept.
    fn look(
        known: &mut LeaseTable,
        (start, at_s): (Instant, u64),
        ms: i64,
        other: (u64, i64),
    ) -> [bool; 2] {
        let now = start + Duration::from_secs(at_s);
        let own = record(1, "own", 900 + at_s, ms);
        known.take(now, &[own.clone(), record(2, "b", other.0, other.1), process("b")], Some(1));
        let facts = own.read::<NodeRecord>().expect("a record").facts;
        let beat = known.beat(now, &lease(), &facts, LeaseWrite::Renewed);
        [beat.nodes[&2].is_alive(), !beat.dead.is_empty()]
    }

    #[test]
    fn a_node_is_dead_when_its_record_was_seen_for_the_time_of_its_lease() {
        let (mut known, start) = (LeaseTable::default(), Instant::now());
        assert_eq!(look(&mut known, (start, 0), 1_000_000, (5, 999_000)), [true, false]);
        assert_eq!(look(&mut known, (start, 3), 1_003_000, (6, 1_002_000)), [true, false]);
        // The server's clock jumps forward by an hour and back. No lease expires early or late.
        assert_eq!(look(&mut known, (start, 6), 4_606_000, (7, 1_005_000)), [true, false]);
        assert_eq!(look(&mut known, (start, 12), 1_012_000, (7, 1_005_000)), [true, false]);
        assert_eq!(look(&mut known, (start, 16), 1_016_000, (7, 1_005_000)), [false, true]);
    }

    #[test]
    fn dead_node_is_swept_once_it_was_seen_dead_for_a_lease() {
        let (mut known, start) = (LeaseTable::default(), Instant::now());
        assert_eq!(look(&mut known, (start, 0), 1_000_000, (5, 900_000)), [false, false]);
        assert_eq!(look(&mut known, (start, 8), 1_008_000, (5, 900_000)), [false, false]);
        assert_eq!(look(&mut known, (start, 10), 1_010_000, (5, 900_000)), [false, true]);
    }

    #[test]
    fn a_process_without_a_node_is_swept_once_that_was_so_for_the_time_of_a_lease() {
        let (mut known, start) = (LeaseTable::default(), Instant::now());
        let mut is_dead = |at_s: u64, records: &[Record]| {
            let now = start + Duration::from_secs(at_s);
            known.take(now, records, None);
            known.is_dead(&"b".into(), now, 9_000)
        };
        let (b, of_b) = (record(2, "b", 5, 0), process("b"));
        assert!(!is_dead(0, std::slice::from_ref(&of_b)));
        // The record existed, and one read missed it.
        assert!(!is_dead(8, &[b, of_b.clone()]));
        assert!(!is_dead(10, std::slice::from_ref(&of_b)));
        assert!(!is_dead(18, std::slice::from_ref(&of_b)));
        assert!(is_dead(20, &[of_b]));
    }

    /// A record that is replaced during a read may not be delivered. The test uses one that lease reads never deliver.
    #[tokio::test]
    async fn record_that_was_known_and_is_not_delivered_is_read_by_its_subject() {
        let (store, _link) = Memory::open(&Arc::default(), "own".into(), Inbox::of_nobody());
        let renew = || store.write_lease(lease(), Facts::named(""), Vec::new());
        renew().await.expect("a lease");
        let subject = store.subject("members.room.own.1");
        let put = store.0.stream.put(subject.clone(), 0, b"{}".to_vec()).await;
        assert!(put.is_ok_and(|seq| seq.is_some()));
        store.known().subjects.insert(subject.as_str().into());
        renew().await.expect("a lease");
        assert!(store.known().subjects.contains(&*subject), "it is there, and was read");
        store.0.stream.purge(&subject).await.expect("it is removed");
        renew().await.expect("a lease");
        assert!(!store.known().subjects.contains(&*subject));
    }
}
