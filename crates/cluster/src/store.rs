//! The interface of the store that a cluster's nodes share: their records, and the messages between them.
//!
//! Operations on one connection are executed in the order of the calls. The store makes no decisions; the agent does.
//!
//! What needs no more than [`Records`] has its one body here. Leases, members and counts of users are the stores' own:
//! [`super::records`] says why.

use std::sync::Arc;

use super::lease::{Facts, Lease, LeaseReply};
use super::log_position::LogPosition;
use super::members::{Gathered, MembersByChannel, TrackedChange};
use super::node_message::MemberChange;
pub(super) use super::records::kept::KeptCalls;
pub(super) use super::records::settings_log::{LogClaim, LogEntry, LogPart};
pub(super) use super::records::{Destination, StoreError, StoreFuture};
use super::records::{Records, Turns, budgets_key, kept, settings_log};

/// A received message.
pub(super) type RawMessage = Box<[u8]>;

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

    /// The uid of the process.
    fn uid(&self) -> &Arc<str>;

    /// The records and messages of this connection.
    fn records(&self) -> Arc<dyn Records>;

    /// The operations of this connection that wait for each other.
    fn turns(&self) -> &Turns;

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

    /// Publishes messages to other nodes, in order.
    fn send(&self, messages: Vec<(Destination, Vec<u8>)>) -> StoreFuture<()> {
        self.records().publish(messages)
    }

    /// Returns the cluster's key for hashing names of budgets, and stores `made` if there was none.
    fn budgets_key(&self, made: [u8; 16]) -> StoreFuture<[u8; 16]> {
        let records = self.records();
        Box::pin(async move { budgets_key::read(&*records, made).await })
    }

    /// Keeps a call for disconnected nodes. It replaces an earlier call with the same name.
    fn keep(&self, name: &str, call: Vec<u8>) -> StoreFuture<()> {
        let (records, turn, name) = (self.records(), self.turns().next(), name.to_owned());
        Box::pin(async move {
            let _turn = turn.await;
            kept::keep(&*records, &name, &call).await
        })
    }

    /// Keeps the calls whose names are not kept yet.
    fn keep_absent(&self, calls: KeptCalls) -> StoreFuture<()> {
        let records = self.records();
        Box::pin(async move { kept::keep_absent(&*records, &calls).await })
    }

    /// Reads the kept calls, by name.
    fn kept(&self) -> StoreFuture<KeptCalls> {
        let records = self.records();
        Box::pin(async move { kept::read(&*records).await })
    }

    /// Removes expired calls, unless others with their names have replaced them.
    fn drop_kept(&self, calls: KeptCalls) -> StoreFuture<()> {
        let records = self.records();
        Box::pin(async move { kept::remove(&*records, &calls).await })
    }

    /// Claims the right to append to the log of settings for at most `hold_ms`, by a node that has read up to `read`.
    fn claim_log(&self, hold_ms: u64, read: LogPosition) -> StoreFuture<LogClaim> {
        let (records, uid) = (self.records(), Arc::clone(self.uid()));
        Box::pin(async move { settings_log::claim(&*records, &uid, hold_ms, read).await })
    }

    /// Releases the claim.
    fn release_log(&self) -> StoreFuture<()> {
        let (records, uid) = (self.records(), Arc::clone(self.uid()));
        Box::pin(async move { settings_log::release(&*records, &uid).await })
    }

    /// Appends a change. Returns `false` if another node has claimed the log since.
    fn append_log(&self, entry: LogEntry) -> StoreFuture<bool> {
        let (records, uid) = (self.records(), Arc::clone(self.uid()));
        Box::pin(async move { settings_log::append(&*records, &uid, &entry).await })
    }

    /// Writes the changes that the log lacks: all of them if there is no log, those after its newest if it is the same log.
    /// Returns whether it has written any.
    fn extend_log(&self, part: LogPart) -> StoreFuture<bool> {
        let records = self.records();
        Box::pin(async move { settings_log::extend(&*records, &part).await })
    }

    /// Reads the changes after a known position.
    fn read_log(&self, known: LogPosition) -> StoreFuture<LogPart> {
        let records = self.records();
        Box::pin(async move { settings_log::read(&*records, known).await })
    }
}
