//! The store of a cluster on a stream of records that have one order, as NATS keeps it.
//!
//! A [`RecordStream`] keeps the last message of each subject. A write succeeds only if the last message of its subject is the
//! expected one, and all messages share one sequence. It cannot look at a second record in the same step, as a script of Redis
//! can; so what a connection writes after a later one has begun is stored, and does not count: the sequence shows that it is late.
//!
//! The subjects after the stream's prefix:
//!
//! | subject | what |
//! |---|---|
//! | `.state.nodes.NUMBER` | the node that has the number: its uid, its facts ([`lease`]) |
//! | `.state.processes.UID` | a process that may have left members behind, and the connection that writes them |
//! | `.state.budgets` | the key that names of shared budgets are hashed by |
//! | `.state.settings` | where the log of all nodes' settings is, and who appends to it ([`super::records::settings_log`]) |
//! | `.members.CHANNEL.UID.SESSION` | a member of a channel ([`members`]) |
//! | `.users.USER.UID` | how many connections of a user a process has, where they are bounded ([`user_counts`]) |
//! | `.kept.NAME` | a call that revokes something, for nodes that were away |
//! | `.log.NUMBER`, `.log.NUMBER.PART` | a change of all nodes' settings, sealed, in parts where it is larger than a message |
//! | `.calls`, `.calls.UID` | to all nodes, to one; not kept |

mod lease;
mod members;
mod user_counts;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dunlin_engine::nats::word;
use serde::Deserialize;
use tokio::time::Instant;

use self::lease::LeaseTable;
use super::lease::{Facts, Lease, LeaseReply};
use super::members::{Gathered, MembersByChannel, TrackedChange};
use super::node_message::MemberChange;
use super::records::{Group, Key, RecordPut, RecordRead, RecordVersion, Records, Turns};
use super::store::{Destination, Store, StoreError, StoreFuture, UserCountsWrite};

/// The kinds of records, which are the first tokens of their subjects.
pub(super) const KINDS: [&str; 5] = ["state", "members", "users", "kept", "log"];

/// A record of a stream.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) seq: u64,
    /// When it was stored, by the server's clock, in milliseconds of Unix time.
    pub(super) time_ms: i64,
    pub(super) subject: Box<str>,
    pub(super) payload: Box<[u8]>,
}

impl Record {
    pub(super) fn read<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_slice(&self.payload).ok()
    }

    /// The last token of its subject.
    pub(super) fn name(&self) -> &str {
        self.subject.rsplit('.').next().unwrap_or_default()
    }
}

/// A write: the new record of a subject.
#[derive(Clone, Debug)]
pub(super) struct RecordWrite {
    pub(super) subject: String,
    /// The expected sequence of its last message; 0: there is no record.
    pub(super) after: u64,
    pub(super) payload: Vec<u8>,
}

/// A stream that keeps the last message of each subject, over one connection. Requests are executed in the order of the calls.
pub(super) trait RecordStream: Send + Sync + 'static {
    /// Creates the stream unless it exists.
    fn create(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Writes records, each if its last message is the expected one. Returns the new sequences; `None` if the last message is
    /// another.
    fn put_all(
        &self,
        puts: &[RecordWrite],
    ) -> impl Future<Output = Result<Vec<Option<u64>>, StoreError>> + Send;

    /// Reads records by their subjects.
    fn get_all(
        &self,
        subjects: &[String],
    ) -> impl Future<Output = Result<Vec<Option<Record>>, StoreError>> + Send;

    /// Removes records by their sequences. Returns for each whether it existed.
    fn remove_all(
        &self,
        seqs: &[u64],
    ) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send;

    /// Reads all records whose subjects match a filter, in the order of their sequences. No record that was stored before is
    /// missing. In a filter `*` is one token, and `>` all that follow.
    fn read(&self, filter: &str) -> impl Future<Output = Result<Vec<Record>, StoreError>> + Send;

    /// Removes all records whose subjects match a filter.
    fn purge(&self, filter: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Whether it has replicas, so that a read may overtake writes that are not committed yet.
    fn is_replicated(&self) -> bool;

    /// Waits until the stream has a leader with everything that this connection has written.
    fn wait_for_leader(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Publishes a message that the stream does not keep.
    ///
    /// # Errors
    /// When the connection has ended.
    fn publish(&self, subject: &str, payload: &[u8]) -> Result<(), StoreError>;

    /// The largest payload of a record, in bytes.
    fn payload_bytes_max(&self) -> usize;

    /// Writes a record like [`RecordStream::put_all`].
    fn put(
        &self,
        subject: String,
        after: u64,
        payload: Vec<u8>,
    ) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send {
        async move {
            let written = self.put_all(&[RecordWrite { subject, after, payload }]).await?;
            Ok(written.into_iter().next().flatten())
        }
    }

    /// Reads a record.
    fn get(
        &self,
        subject: &str,
    ) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send {
        async move { Ok(self.get_all(&[subject.to_owned()]).await?.pop().flatten()) }
    }
}

/// A connection of one process to a stream.
pub(super) struct OrderedStore<S>(pub(super) Arc<Inner<S>>);

impl<S> Clone for OrderedStore<S> {
    fn clone(&self) -> OrderedStore<S> {
        OrderedStore(Arc::clone(&self.0))
    }
}

pub(super) struct Inner<S> {
    pub(super) stream: S,
    /// The number of this connection; later connections have greater numbers.
    number: u64,
    /// The prefix of all subjects.
    prefix: Arc<str>,
    /// The uid of this process.
    uid: Arc<str>,
    known: Mutex<LeaseTable>,
    turns: Turns,
}

impl<S: RecordStream> OrderedStore<S> {
    /// Uses an open connection of the process `uid`. Names of records begin with `prefix`.
    pub(super) fn new(stream: S, prefix: &Arc<str>, uid: Arc<str>) -> OrderedStore<S> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed) + 1;
        let (prefix, known, turns) = (Arc::clone(prefix), Mutex::default(), Turns::default());
        OrderedStore(Arc::new(Inner { stream, number, prefix, uid, known, turns }))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, LeaseTable> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn subject(&self, name: &str) -> String {
        format!("{}.{name}", self.0.prefix)
    }

    fn key_subject(&self, key: &Key) -> String {
        match key {
            Key::Kept(name) => self.subject(&format!("kept.{}", word(name))),
            Key::Budgets => self.subject("state.budgets"),
            Key::LogHead => self.subject("state.settings"),
            Key::LogChange(revision, 0) => self.subject(&format!("log.{revision}")),
            Key::LogChange(revision, part) => self.subject(&format!("log.{revision}.{part}")),
        }
    }

    fn record_read(&self, record: Record) -> RecordRead {
        let server_ms = self.known().server_ms(Instant::now());
        RecordRead {
            version: RecordVersion::Sequence(record.seq),
            value: record.payload.into(),
            age_ms: server_ms.map_or(0, |ms| ms - record.time_ms),
        }
    }
}

fn seq(version: &RecordVersion) -> u64 {
    match version {
        RecordVersion::Sequence(seq) => *seq,
        // No write has this number.
        RecordVersion::Value(..) => u64::MAX,
    }
}

impl<S: RecordStream> Records for OrderedStore<S> {
    fn get(&self, keys: Vec<Key>) -> StoreFuture<Vec<Option<RecordRead>>> {
        let store = self.clone();
        Box::pin(async move {
            let subjects: Vec<String> = keys.iter().map(|key| store.key_subject(key)).collect();
            let found = store.0.stream.get_all(&subjects).await?.into_iter();
            Ok(found.map(|record| record.map(|record| store.record_read(record))).collect())
        })
    }

    fn put(&self, puts: Vec<RecordPut>) -> StoreFuture<Vec<Option<RecordVersion>>> {
        let store = self.clone();
        Box::pin(async move {
            let puts = puts.into_iter().map(|RecordPut { key, after, value }| RecordWrite {
                subject: store.key_subject(&key),
                after: after.as_ref().map_or(0, seq),
                payload: value,
            });
            let written = store.0.stream.put_all(&puts.collect::<Vec<_>>()).await?;
            Ok(written.into_iter().map(|seq| seq.map(RecordVersion::Sequence)).collect())
        })
    }

    fn remove(&self, versions: Vec<RecordVersion>) -> StoreFuture<Vec<bool>> {
        let store = self.clone();
        Box::pin(async move {
            let seqs: Vec<u64> = versions.iter().map(seq).collect();
            store.0.stream.remove_all(&seqs).await
        })
    }

    fn list(&self, group: Group) -> StoreFuture<Vec<RecordRead>> {
        let store = self.clone();
        Box::pin(async move {
            let filter = match group {
                Group::Kept => store.subject("kept.>"),
                Group::LogChanges => store.subject("log.>"),
            };
            let found = store.0.stream.read(&filter).await?.into_iter();
            Ok(found.map(|record| store.record_read(record)).collect())
        })
    }

    fn value_bytes_max(&self) -> usize {
        self.0.stream.payload_bytes_max()
    }

    fn publish(&self, messages: Vec<(Destination, Vec<u8>)>) -> StoreFuture<()> {
        let published = messages.into_iter().try_for_each(|(to, message)| {
            let subject = match to {
                Destination::All => self.subject("calls"),
                Destination::Node(uid) => self.subject(&format!("calls.{uid}")),
            };
            self.0.stream.publish(&subject, &message)
        });
        Box::pin(std::future::ready(published))
    }
}

impl<S: RecordStream> Store for OrderedStore<S> {
    fn number(&self) -> u64 {
        self.0.number
    }

    fn uid(&self) -> &Arc<str> {
        &self.0.uid
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::new(self.clone())
    }

    fn turns(&self) -> &Turns {
        &self.0.turns
    }

    fn write_lease(&self, lease: Lease, facts: Facts, probe: Vec<u8>) -> StoreFuture<LeaseReply> {
        let store = self.clone();
        Box::pin(async move {
            let own = store.subject(&format!("calls.{}", store.0.uid));
            store.0.stream.publish(&own, &probe)?;
            lease::write(&store, &lease, &facts).await
        })
    }

    fn leave(&self, lease: Lease) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move { lease::leave(&store, &lease).await })
    }

    fn write_members(&self, changes: &[TrackedChange]) -> StoreFuture<Vec<bool>> {
        let (store, turn) = (self.clone(), self.0.turns.next());
        let changes: Vec<MemberChange> = changes.iter().map(|(change, _)| change.clone()).collect();
        Box::pin(async move {
            let _turn = turn.await;
            members::write(&store, changes).await
        })
    }

    fn own_members(&self) -> StoreFuture<MembersByChannel> {
        let store = self.clone();
        Box::pin(async move { members::own(&store).await })
    }

    fn members_in(&self, channel: &str, gathered: Gathered) -> StoreFuture<Gathered> {
        let (store, channel) = (self.clone(), channel.to_owned());
        let turn = self.0.stream.is_replicated().then(|| self.0.turns.next());
        Box::pin(async move {
            if let Some(turn) = turn {
                drop(turn.await);
            }
            members::of_channel(&store, &channel, gathered).await
        })
    }

    fn sweep(&self, dead: Arc<str>, claim_ms: u64) -> StoreFuture<Option<Vec<MemberChange>>> {
        let store = self.clone();
        Box::pin(async move { members::sweep(&store, &dead, claim_ms).await })
    }

    fn forget(&self, dead: Arc<str>) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move { members::forget(&store, &dead).await })
    }

    fn count_users(&self, write: UserCountsWrite) -> StoreFuture<Vec<u64>> {
        let (store, turn) = (self.clone(), self.0.turns.next());
        Box::pin(async move {
            let _turn = turn.await;
            user_counts::write(&store, &write).await
        })
    }
}
