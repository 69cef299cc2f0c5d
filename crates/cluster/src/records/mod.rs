//! Records that all nodes share, and what the cluster does with them: written once, for every kind of store.
//!
//! [`Records`] is what a store has to offer for that: reading and listing records, writing and removing one only if nobody has
//! written it meanwhile, and messages to nodes. Redis ([`super::redis`]), NATS ([`super::nats`]) and, for tests, the memory of
//! a process implement it. Kept calls ([`kept`]), the key of shared budgets ([`budgets_key`]) and the log of
//! settings ([`settings_log`]) stand on it.
//!
//! Leases, members and users' counts need more: a write must have no effect once a later connection of the same process has begun,
//! or once others have swept the process. Redis decides that in the script that writes. NATS cannot look at two records in one
//! step; there the order of all records decides, after the write ([`super::ordered`]).
//!
//! The values are JSON as NATS keeps it. Redis had other encodings before there was this interface, and keeps them.

pub(super) mod budgets_key;
pub(super) mod kept;
pub(super) mod settings_log;

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::condition::Condition;

/// The version of all records. A reader skips those of another.
pub(super) const VERSION: u8 = 1;
/// The most attempts to write a record that other nodes write too.
pub(super) const ATTEMPTS_MAX: usize = 16;

/// The result of an operation.
pub(super) type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// Why an operation failed, or why its result is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StoreError {
    /// The store has refused it: the condition, and the server's message.
    #[error("{1}")]
    Refused(Condition, Box<str>),
    /// The server is no longer the right one; a new connection finds it.
    #[error("{0}")]
    Elsewhere(Box<str>),
    /// It was not executed, for a temporary reason.
    #[error("{0}")]
    Passed(Box<str>),
    /// There is no connection, or it was lost: it may or may not have been executed.
    #[error("{0}")]
    Closed(Box<str>),
}

impl StoreError {
    /// The condition of a node whose operations fail like this.
    pub(super) fn condition(&self) -> Condition {
        match self {
            StoreError::Refused(condition, _) => *condition,
            StoreError::Closed(_) => Condition::Unreachable,
            StoreError::Elsewhere(_) | StoreError::Passed(_) => Condition::Failed,
        }
    }
}

/// The recipient of a message.
#[derive(Clone, Debug)]
pub(super) enum Destination {
    All,
    /// One process, by uid.
    Node(Arc<str>),
}

/// The name of a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// A call that is kept for disconnected nodes, by its name.
    Kept(Box<str>),
    /// The key that names of budgets are hashed by.
    Budgets,
    /// The head of the log of settings.
    LogHead,
    /// A part of a change in that log: the number of the change and, from 0, of the part.
    LogChange(u64, u16),
}

/// Records that are listed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// All [`Key::Kept`].
    Kept,
    /// All [`Key::LogChange`].
    LogChanges,
}

/// One state of one record. A write or a removal names the state that it replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecordVersion {
    /// The number of the write among those of all records.
    Sequence(u64),
    /// The record's name and what identifies its value, where writes have no number.
    Value(Key, Box<str>),
}

/// A record that was read.
#[derive(Clone, Debug)]
pub(super) struct RecordRead {
    pub(super) version: RecordVersion,
    pub(super) value: Vec<u8>,
    /// How long ago it was written, by the clock of the store; 0 where that is unknown.
    pub(super) age_ms: i64,
}

/// A write.
#[derive(Clone, Debug)]
pub(super) struct RecordPut {
    pub(super) key: Key,
    /// The state that it replaces; `None`: there is no record.
    pub(super) after: Option<RecordVersion>,
    pub(super) value: Vec<u8>,
}

/// The records and messages of a store, over one connection of a process.
pub(super) trait Records: Send + Sync {
    /// Reads records.
    fn get(&self, keys: Vec<Key>) -> StoreFuture<Vec<Option<RecordRead>>>;

    /// Writes records, each on its own: it returns the new version, or `None` if the record is not as expected. Of several writers
    /// of one record exactly one succeeds.
    fn put(&self, puts: Vec<RecordPut>) -> StoreFuture<Vec<Option<RecordVersion>>>;

    /// Removes records that are still in this state. Returns for each whether it was.
    fn remove(&self, versions: Vec<RecordVersion>) -> StoreFuture<Vec<bool>>;

    /// Lists records. One that exists during the whole call is among them; one that is written meanwhile may be.
    fn list(&self, group: Group) -> StoreFuture<Vec<RecordRead>>;

    /// The largest value, in bytes.
    fn value_bytes_max(&self) -> usize;

    /// Publishes messages to nodes, in order. Their place in the order is fixed when this returns.
    fn publish(&self, messages: Vec<(Destination, Vec<u8>)>) -> StoreFuture<()>;
}

/// Reads a record.
pub(super) async fn get_one(
    records: &dyn Records,
    key: Key,
) -> Result<Option<RecordRead>, StoreError> {
    Ok(records.get(vec![key]).await?.pop().flatten())
}

/// Writes a record. Returns whether it was as expected.
pub(super) async fn put_one(
    records: &dyn Records,
    key: Key,
    after: Option<RecordVersion>,
    value: Vec<u8>,
) -> Result<bool, StoreError> {
    let written = records.put(vec![RecordPut { key, after, value }]).await?;
    Ok(written.first().is_some_and(Option::is_some))
}

/// The serialized operations of a connection.
#[derive(Default)]
pub(super) struct Turns {
    /// Completes when the newest of them has ended.
    last: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Turns {
    /// Waits until earlier operations have ended. Later ones wait until the returned sender is dropped.
    pub(super) fn next(&self) -> impl Future<Output = oneshot::Sender<()>> + Send + use<> {
        let (done, next) = oneshot::channel();
        let before = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(next);
        async move {
            if let Some(before) = before {
                // Nothing is ever sent; the sender is dropped.
                let _ = before.await;
            }
            done
        }
    }
}

pub(super) fn refused(condition: Condition, text: &str) -> StoreError {
    StoreError::Refused(condition, text.into())
}

/// The error after [`ATTEMPTS_MAX`] conflicts with writes of other nodes.
pub(super) fn contended() -> StoreError {
    StoreError::Passed("others have written the same record meanwhile, again and again".into())
}
