//! Where a cluster's nodes meet: what they keep there and what they say to each other, whatever it is that keeps it.
//!
//! Each operation has its place in the order of all on its connection when it is called, and is carried out while its future is
//! awaited or dropped all the same. What is decided with it is decided by the agent.

use std::pin::Pin;
use std::sync::Arc;

use super::condition::Condition;
use super::lease::{Facts, Lease, LeaseReply};
use super::log_position::LogPosition;
use super::members::{Gathered, MembersByChannel, TrackedChange};
use super::message::MemberChange;

/// What comes of an operation.
pub(super) type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// Why an operation was not carried out, or is not known to have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StoreError {
    /// The store says no: what is wrong, and its own words.
    #[error("{1}")]
    Refused(Condition, Box<str>),
    /// It is the wrong server by now; another connection finds the right one.
    #[error("{0}")]
    Elsewhere(Box<str>),
    /// It was not carried out, for a reason that is over.
    #[error("{0}")]
    Passed(Box<str>),
    /// There is no connection, or it has ended: whether it was carried out is not known.
    #[error("{0}")]
    Closed(Box<str>),
}

impl StoreError {
    /// What is wrong while this is how things end.
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
    /// One process, by its uid.
    Node(Arc<str>),
}

/// What a node was sent.
pub(super) type RawMessage = Box<[u8]>;

/// Calls that are kept, each with its name.
pub(super) type KeptCalls = Vec<(Box<str>, Vec<u8>)>;

/// The result of a claim to append to the log of settings.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogClaim {
    Claimed(LogPosition),
    /// Another node has it.
    UnderWay(LogPosition),
    /// The log has more than this node has read.
    Behind(LogPosition),
}

/// A change for the log of settings.
pub(super) struct LogEntry {
    pub(super) at: LogPosition,
    pub(super) sealed: Vec<u8>,
    /// Said to all nodes once the log has it.
    pub(super) message: Vec<u8>,
}

/// What the log of settings has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LogPart {
    /// Zeros: there is none.
    pub(super) log: LogPosition,
    /// Those up to this one are not kept any more.
    pub(super) since: u64,
    /// Sealed, by number.
    pub(super) changes: Vec<(u64, Vec<u8>)>,
}

/// Counts of users' connections that a process writes.
#[derive(Default)]
pub(super) struct UserCountsWrite {
    /// Users and their connections here; 0: none.
    pub(super) users: Vec<(Box<str>, u32)>,
    /// What is not among them is removed.
    pub(super) is_all: bool,
    /// The other living processes.
    pub(super) others: Vec<Arc<str>>,
}

/// An open connection of one process. Dropped, it closes.
pub(super) trait Store: Send + Sync {
    /// Each has a greater one than those that this process has opened before.
    fn number(&self) -> u64;

    /// Says these to other nodes, in order.
    fn send(&self, messages: Vec<(Destination, Vec<u8>)>) -> StoreFuture<()>;

    /// Takes the number or prolongs the lease on it, and reads who else is there. From now on this connection alone writes members
    /// and keeps calls for its process. `probe` is said to the process itself once.
    fn write_lease(&self, lease: Lease, facts: Facts, probe: Vec<u8>) -> StoreFuture<LeaseReply>;

    /// Ends the lease: the node has left. Its number is not assigned for a day; other nodes remove its entries.
    fn leave(&self, lease: Lease) -> StoreFuture<()>;

    /// Writes what has changed on this node. Says of each whether it has changed anything in the store.
    fn write_members(&self, changes: &[TrackedChange]) -> StoreFuture<Vec<bool>>;

    /// All members of this process.
    fn own_members(&self) -> StoreFuture<MembersByChannel>;

    /// Gathers who is in a channel, what this process has written before among it, until no more is wanted.
    fn members_in(&self, channel: &str, gathered: Gathered) -> StoreFuture<Gathered>;

    /// Removes what a dead process has left, if no other node does; a claim on that holds for `claim_ms`. Gives the members that were
    /// removed and are to be announced, those among them that an earlier sweep has not come to announce; then
    /// [`Store::forget`] ends the sweep.
    fn sweep(&self, dead: Arc<str>, claim_ms: u64) -> StoreFuture<Option<Vec<MemberChange>>>;

    /// Forgets a dead process whose members were announced, unless it lives again.
    fn forget(&self, dead: Arc<str>) -> StoreFuture<()>;

    /// Writes how many connections of users this process has. Gives for each user how many the others had before.
    fn count_users(&self, write: UserCountsWrite) -> StoreFuture<Vec<u64>>;

    /// The key of all nodes that names of budgets are hashed by: `made`, if there was none. `None`: the store has no place for one, and
    /// budgets are each node's own.
    fn budgets_key(&self, _made: [u8; 16]) -> StoreFuture<Option<[u8; 16]>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Keeps a call for nodes that are away, in place of an earlier one under the same name.
    fn keep(&self, name: &str, call: Vec<u8>) -> StoreFuture<()>;

    /// Keeps those of which none is kept under the same name.
    fn keep_absent(&self, calls: KeptCalls) -> StoreFuture<()>;

    /// The calls that are kept, by their names.
    fn kept(&self) -> StoreFuture<KeptCalls>;

    /// Removes calls that are over.
    fn drop_kept(&self, names: Vec<Box<str>>) -> StoreFuture<()>;

    /// Asks for the right to append to the log of settings, for so long at most, as one who has read up to `read`.
    fn claim_log(&self, hold_ms: u64, read: LogPosition) -> StoreFuture<LogClaim>;

    /// Gives the right back.
    fn release_log(&self) -> StoreFuture<()>;

    /// Appends a change. False: the right to do so had ended.
    fn append_log(&self, entry: LogEntry) -> StoreFuture<bool>;

    /// What the log has behind what is known of it.
    fn read_log(&self, known: LogPosition) -> StoreFuture<LogPart>;
}
