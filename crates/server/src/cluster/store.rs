//! The interface of the store that a cluster's nodes share: their records, and the messages between them.
//!
//! Operations on one connection are executed in the order of the calls, whether their futures are awaited or dropped. The store
//! makes no decisions; the agent does.

use std::pin::Pin;
use std::sync::Arc;

use super::condition::Condition;
use super::lease::{Facts, Lease, LeaseReply};
use super::log_position::LogPosition;
use super::members::{Gathered, MembersByChannel, TrackedChange};
use super::message::MemberChange;

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

/// A received message.
pub(super) type RawMessage = Box<[u8]>;

/// Kept calls with their names.
pub(super) type KeptCalls = Vec<(Box<str>, Vec<u8>)>;

/// The result of a claim to append to the log of settings.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogClaim {
    Claimed(LogPosition),
    /// Another node holds the claim.
    UnderWay(LogPosition),
    /// The log has changes that this node has not read.
    Behind(LogPosition),
}

/// A change for the log of settings.
pub(super) struct LogEntry {
    pub(super) at: LogPosition,
    pub(super) sealed: Vec<u8>,
    /// The message that is published to all nodes once the change is in the log.
    pub(super) message: Vec<u8>,
}

/// A part of the log of settings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LogPart {
    /// Zeros without a log.
    pub(super) log: LogPosition,
    /// Changes up to this number are no longer kept.
    pub(super) since: u64,
    /// Sealed changes by number.
    pub(super) changes: Vec<(u64, Vec<u8>)>,
}

/// A write of users' connection counts.
#[derive(Default)]
pub(super) struct UserCountsWrite {
    /// Users and their number of connections in this process; 0 removes the count.
    pub(super) users: Vec<(Box<str>, u32)>,
    /// Counts of users that are not listed are removed.
    pub(super) is_all: bool,
    /// The other living processes.
    pub(super) others: Vec<Arc<str>>,
}

/// An open connection of one process. It closes when it is dropped.
pub(super) trait Store: Send + Sync {
    /// The number of the connection; it is larger than those of earlier connections of this process.
    fn number(&self) -> u64;

    /// Publishes messages to other nodes, in order.
    fn send(&self, messages: Vec<(Destination, Vec<u8>)>) -> StoreFuture<()>;

    /// Acquires or renews the lease and reads the leases of the other nodes. From now on only this connection may write members
    /// and keep calls for its process. `probe` is sent to the process itself once.
    fn write_lease(&self, lease: Lease, facts: Facts, probe: Vec<u8>) -> StoreFuture<LeaseReply>;

    /// Ends the lease of a node that leaves. Its number is not assigned for a day; other nodes remove its records.
    fn leave(&self, lease: Lease) -> StoreFuture<()>;

    /// Writes member changes of this node. Returns for each whether it changed the store.
    fn write_members(&self, changes: &[TrackedChange]) -> StoreFuture<Vec<bool>>;

    /// Reads all members of this process.
    fn own_members(&self) -> StoreFuture<MembersByChannel>;

    /// Reads the members of a channel, including everything that this process has written before, until the request's bounds are
    /// reached.
    fn members_in(&self, channel: &str, gathered: Gathered) -> StoreFuture<Gathered>;

    /// Removes the records of a dead process unless another node does; the claim lasts `claim_ms`. Returns the removed members
    /// whose leaves must be announced, including those that an interrupted sweep did not announce. [`Store::forget`] then
    /// completes the sweep.
    fn sweep(&self, dead: Arc<str>, claim_ms: u64) -> StoreFuture<Option<Vec<MemberChange>>>;

    /// Removes a dead process whose members' leaves were announced, unless it is alive again.
    fn forget(&self, dead: Arc<str>) -> StoreFuture<()>;

    /// Writes connection counts of users. Returns for each user the number of connections that other processes had before.
    fn count_users(&self, write: UserCountsWrite) -> StoreFuture<Vec<u64>>;

    /// Returns the cluster's key for hashing names of budgets, and stores `made` if there was none. `None`: the store cannot keep
    /// one, so budgets are not shared.
    fn budgets_key(&self, _made: [u8; 16]) -> StoreFuture<Option<[u8; 16]>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Keeps a call for disconnected nodes. It replaces an earlier call with the same name.
    fn keep(&self, name: &str, call: Vec<u8>) -> StoreFuture<()>;

    /// Keeps the calls whose names are not kept yet.
    fn keep_absent(&self, calls: KeptCalls) -> StoreFuture<()>;

    /// Reads the kept calls, by name.
    fn kept(&self) -> StoreFuture<KeptCalls>;

    /// Removes expired calls.
    fn drop_kept(&self, names: Vec<Box<str>>) -> StoreFuture<()>;

    /// Claims the right to append to the log of settings for at most `hold_ms`, by a node that has read up to `read`.
    fn claim_log(&self, hold_ms: u64, read: LogPosition) -> StoreFuture<LogClaim>;

    /// Releases the claim.
    fn release_log(&self) -> StoreFuture<()>;

    /// Appends a change. Returns `false` if the claim had expired.
    fn append_log(&self, entry: LogEntry) -> StoreFuture<bool>;

    /// Writes the changes that the log lacks: all of them if there is no log, those after its newest if it is the same log.
    /// Returns whether it has written any.
    fn extend_log(&self, part: LogPart) -> StoreFuture<bool>;

    /// Reads the changes after a known position.
    fn read_log(&self, known: LogPosition) -> StoreFuture<LogPart>;
}
