//! The store of a cluster in Redis.
//!
//! The keys, after the engine's `prefix` and `:cluster`:
//!
//! | name | what |
//! |---|---|
//! | `:nodes` | hash: a node's number → its uid, the end of its lease, its facts ([`lease`]) |
//! | `:uids` | set: processes that may have left members behind |
//! | `:links` | hash: such a process → the connection that writes its members |
//! | `:members:CHANNEL` | hash: session id → who it is, and the uid of its node ([`members`]) |
//! | `:channels:UID` | set: channels of which a process has members |
//! | `:users:UID` | hash: user → the version of the entry and how many connections a process has of it ([`user_counts`]) |
//! | `:budgets` | the key that names of budgets are hashed by ([`records`]) |
//! | `:revocations` | hash: what is revoked → the call that revokes it, for nodes that were away ([`records`]) |
//! | `:settings` | hash: changes of all nodes' settings, sealed, by number ([`records`]) |
//! | `:settings:claim` | the node that makes such a change |
//! | `:removed:UID` | list: members of a dead process that are removed and not announced yet |
//! | `:sweep:UID` | which node sweeps after a dead one |
//! | `:calls`, `:calls:UID` | channels: to all nodes, to one |
//!
//! A process writes and receives messages over one connection, in order. Large reads use another ([`reads`]).
//!
//! What stays apart from the logic that all stores share ([`super::records`]) is what Lua makes atomic: the lease is one script by
//! the clock of Redis; members are a hash for each channel, of which a script writes a hundred in one step and refuses all that
//! another connection or a dead process sends; a user's connections on all nodes are summed in the step that counts them.

#[cfg(test)]
mod acl_tests;
mod address;
mod lease;
mod link;
mod members;
mod reads;
mod records;
#[cfg(test)]
mod store_tests;
mod user_counts;

use std::sync::Arc;

pub(super) use address::RedisAddress;
use link::{Commands, RedisLink};
use reads::ReadLink;

use super::condition::Condition;
use super::inbox::Inbox;
use super::lease::{Facts, Lease, LeaseReply};
use super::members::{Gathered, MembersByChannel, TrackedChange};
use super::node_message::MemberChange;
use super::records::{Records, Turns};
use super::store::{Destination, Store, StoreError, StoreFuture, UserCountsWrite};

/// A connection of one process to Redis.
#[derive(Clone)]
pub(super) struct RedisStore {
    link: Arc<RedisLink>,
    reads: Arc<ReadLink>,
    /// The prefix of all keys and channels.
    prefix: Arc<str>,
    /// The uid of this process.
    uid: Arc<str>,
    turns: Arc<Turns>,
    /// The prefix of the presence keys of Centrifugo nodes.
    foreign_presence: Option<Box<str>>,
}

impl RedisStore {
    pub(super) async fn open(
        address: &RedisAddress,
        uid: Arc<str>,
        messages: Inbox,
    ) -> Result<RedisStore, StoreError> {
        let link = Arc::new(address.open(messages).await?);
        let foreign_presence = address.foreign_presence().map(Box::from);
        let (prefix, reads) = (Arc::clone(&address.prefix), Arc::new(ReadLink::new(address)));
        let turns = Arc::default();
        let store = RedisStore { link, reads, prefix, uid, turns, foreign_presence };
        for to in [Destination::All, Destination::Node(Arc::clone(&store.uid))] {
            store.link.call(&[&[b"SUBSCRIBE", store.channel(&to).as_bytes()]]).await?;
        }
        members::load_script(&store.link).await?;
        Ok(store)
    }

    fn channel(&self, to: &Destination) -> String {
        match to {
            Destination::All => format!("{}:calls", self.prefix),
            Destination::Node(uid) => format!("{}:calls:{uid}", self.prefix),
        }
    }

    /// Completes once all commands sent before have been executed, so that a later read sees their effects.
    fn written(&self) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let mut commands = Commands::default();
        commands.push(&[b"PING"]);
        let answered = self.link.begin(commands);
        async move { answered.await.map(drop) }
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }
}

impl Store for RedisStore {
    fn number(&self) -> u64 {
        self.link.number
    }

    fn uid(&self) -> &Arc<str> {
        &self.uid
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::new(self.clone())
    }

    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn write_lease(&self, lease: Lease, facts: Facts, probe: Vec<u8>) -> StoreFuture<LeaseReply> {
        let store = self.clone();
        Box::pin(async move { lease::write(&store, &lease, &facts, &probe).await })
    }

    fn leave(&self, lease: Lease) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move { lease::leave(&store, &lease).await })
    }

    fn write_members(&self, changes: &[TrackedChange]) -> StoreFuture<Vec<bool>> {
        Box::pin(members::write(self, changes))
    }

    fn own_members(&self) -> StoreFuture<MembersByChannel> {
        let store = self.clone();
        Box::pin(async move {
            store.written().await?;
            members::of_process(&store, &store.uid).await
        })
    }

    fn members_in(&self, channel: &str, gathered: Gathered) -> StoreFuture<Gathered> {
        let (store, channel, written) = (self.clone(), channel.to_owned(), self.written());
        Box::pin(async move {
            written.await?;
            members::of_channel(&store, &channel, gathered).await
        })
    }

    fn sweep(&self, dead: Arc<str>, claim_ms: u64) -> StoreFuture<Option<Vec<MemberChange>>> {
        let store = self.clone();
        Box::pin(async move { members::sweep(&store, &dead, claim_ms).await })
    }

    fn forget(&self, dead: Arc<str>) -> StoreFuture<()> {
        Box::pin(members::forget(self, &dead))
    }

    fn count_users(&self, write: UserCountsWrite) -> StoreFuture<Vec<u64>> {
        let store = self.clone();
        Box::pin(async move { user_counts::write(&store, &write).await })
    }
}

/// Converts an error of Redis. The text begins with a code, as in `WRONGPASS …`.
fn refused(text: Box<str>) -> StoreError {
    match text.split(' ').next().unwrap_or_default() {
        "NOSCRIPT" => StoreError::Passed(text),
        "MOVED" => StoreError::Elsewhere(text),
        _ => StoreError::Refused(condition_of(&text), text),
    }
}

/// The error for a reply of another form than the command has.
fn malformed() -> StoreError {
    refused("ERR what Redis answers is another program's".into())
}

fn condition_of(text: &str) -> Condition {
    // The error of a script contains the error of its command.
    let has = |code: &str| text.contains(code);
    match text.split(' ').next().unwrap_or_default() {
        "WRONGPASS" | "NOAUTH" => Condition::WrongPassword,
        "NOPERM" => Condition::NotPermitted,
        "READONLY" => Condition::ReadOnly,
        "LOADING" => Condition::Loading,
        "OOM" => Condition::OutOfMemory,
        "MISCONF" => Condition::CannotSave,
        "NOREPLICAS" => Condition::TooFewReplicas,
        "BUSY" => Condition::Busy,
        "WRONGTYPE" => Condition::ForeignKey,
        "MASTERDOWN" => Condition::ReadOnly,
        "TRYAGAIN" | "ASK" => Condition::SlotMoving,
        "CLUSTERDOWN" => Condition::ClusterDown,
        "FENCED" => Condition::RecordLost,
        _ if has("AUTH") => Condition::WrongPassword,
        _ if has("WRONGTYPE") => Condition::ForeignKey,
        _ if has("-READONLY") => Condition::ReadOnly,
        _ if has("-OOM") => Condition::OutOfMemory,
        _ if has("-NOREPLICAS") => Condition::TooFewReplicas,
        _ if has("NOPERM") || has("No permissions") => Condition::NotPermitted,
        _ => Condition::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_redis_have_a_name_and_a_fix() {
        for (text, name) in [
            ("WRONGPASS invalid username-password pair or user is disabled.", "wrong_password"),
            ("NOAUTH HELLO must be called with the client already authenticated", "wrong_password"),
            ("READONLY You can't write against a read only replica.", "read_only"),
            ("LOADING Redis is loading the dataset in memory", "loading"),
            ("OOM command not allowed when used memory > 'maxmemory'.", "out_of_memory"),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", "foreign_key"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", "slot_moving"),
            ("ASK 3999 127.0.0.1:6381", "slot_moving"),
            ("CLUSTERDOWN Hash slot not served", "cluster_down"),
            ("NOREPLICAS Not enough good replicas to write.", "too_few_replicas"),
            ("BUSY Redis is busy running a script.", "busy"),
            ("ERR something new", "failed"),
        ] {
            let condition = refused(text.into()).condition();
            assert_eq!(condition.name(), name, "{text}");
            assert!(!condition.fix(dunlin_config::EngineKind::Redis).is_empty());
        }
    }
}
