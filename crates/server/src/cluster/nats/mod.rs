//! The store of a cluster in NATS.
//!
//! The JetStream stream `PREFIX-cluster` keeps the last message of each subject ([`stream`]). Nodes exchange messages over
//! subjects that no stream keeps. The subjects after the engine's `prefix` and `.cluster`:
//!
//! | subject | what |
//! |---|---|
//! | `.state.nodes.NUMBER` | the node that has the number: its uid, its facts ([`lease`]) |
//! | `.state.processes.UID` | a process that may have left members behind, and the connection that writes them |
//! | `.state.budgets` | the key that names of shared budgets are hashed by |
//! | `.state.settings` | where the log of all nodes' settings is, and who appends to it ([`settings_log`]) |
//! | `.members.CHANNEL.UID.SESSION` | a member of a channel ([`members`]) |
//! | `.users.USER.UID` | how many connections of a user a process has, where they are bounded ([`user_counts`]) |
//! | `.kept.NAME` | a call that revokes something, for nodes that were away |
//! | `.log.NUMBER`, `.log.NUMBER.PART` | a change of all nodes' settings, sealed, in parts where it is larger than a message |
//! | `.calls`, `.calls.UID` | to all nodes, to one; not kept |

mod address;
mod kept;
mod lease;
mod link;
mod listing;
mod members;
#[cfg(test)]
mod replica_tests;
mod settings_log;
mod stream;
#[cfg(test)]
mod tests;
mod user_counts;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use tokio::sync::oneshot;

pub(super) use address::NatsAddress;
use lease::LeaseTable;
use stream::RecordStream;

use super::condition::Condition;
use super::inbox::Inbox;
use super::lease::{Facts, Lease, LeaseReply};
use super::log_position::LogPosition;
use super::members::{Gathered, MembersByChannel, TrackedChange};
use super::message::MemberChange;
use super::store::{
    Destination, KeptCalls, LogClaim, LogEntry, LogPart, Store, StoreError, StoreFuture,
    UserCountsWrite,
};

/// The version of all records. A reader skips those of another.
const VERSION: u8 = 1;
/// The most attempts to write a record that other nodes write too.
const ATTEMPTS_MAX: usize = 16;

/// A connection of one process to NATS.
#[derive(Clone)]
pub(super) struct NatsStore(Arc<Inner>);

struct Inner {
    stream: RecordStream,
    /// The number of this connection; later connections have greater numbers.
    number: u64,
    /// The prefix of all subjects.
    prefix: Arc<str>,
    /// The uid of this process.
    uid: Arc<str>,
    known: Mutex<LeaseTable>,
    /// Completes when the newest of the serialized operations has ended.
    last: Mutex<Option<oneshot::Receiver<()>>>,
}

impl NatsStore {
    pub(super) async fn open(
        address: &NatsAddress,
        uid: Arc<str>,
        messages: Inbox,
    ) -> Result<NatsStore, StoreError> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let prefix = Arc::clone(&address.prefix);
        let heard = [format!("{prefix}.calls"), format!("{prefix}.calls.{uid}")];
        let link = address.open(heard, &messages).await?;
        let name = address.stream();
        let kept =
            ["state", "members", "users", "kept", "log"].map(|kind| format!("{prefix}.{kind}.>"));
        let config = json!({
            "name": name,
            "subjects": kept,
            "retention": "limits",
            "discard": "old",
            "max_msgs_per_subject": 1,
            "num_replicas": address.engine.stream_replicas,
            "storage": if address.engine.stream_in_memory { "memory" } else { "file" },
        });
        let is_replicated = address.engine.stream_replicas > 1;
        let stream = RecordStream::new(link, name, config, is_replicated);
        stream.create().await?;
        let number = OPENED.fetch_add(1, Ordering::Relaxed) + 1;
        let (known, last) = (Mutex::default(), Mutex::default());
        Ok(NatsStore(Arc::new(Inner { stream, number, prefix, uid, known, last })))
    }

    /// Waits until earlier operations have ended. Later ones wait until the returned sender is dropped.
    fn turn(&self) -> impl Future<Output = oneshot::Sender<()>> + Send + use<> {
        let (done, next) = oneshot::channel();
        let before = self.0.last.lock().unwrap_or_else(PoisonError::into_inner).replace(next);
        async move {
            if let Some(before) = before {
                // Nothing is ever sent; the sender is dropped.
                let _ = before.await;
            }
            done
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, LeaseTable> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subject(&self, name: &str) -> String {
        format!("{}.{name}", self.0.prefix)
    }
}

impl Store for NatsStore {
    fn number(&self) -> u64 {
        self.0.number
    }

    fn send(&self, messages: Vec<(Destination, Vec<u8>)>) -> StoreFuture<()> {
        let said = messages.into_iter().try_for_each(|(to, message)| {
            let subject = match to {
                Destination::All => self.subject("calls"),
                Destination::Node(uid) => self.subject(&format!("calls.{uid}")),
            };
            self.0.stream.link.publish(&subject, &message)
        });
        Box::pin(std::future::ready(said))
    }

    fn write_lease(&self, lease: Lease, facts: Facts, probe: Vec<u8>) -> StoreFuture<LeaseReply> {
        let store = self.clone();
        Box::pin(async move {
            let own = store.subject(&format!("calls.{}", store.0.uid));
            store.0.stream.link.publish(&own, &probe)?;
            lease::write(&store, &lease, &facts).await
        })
    }

    fn leave(&self, lease: Lease) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move { lease::leave(&store, &lease).await })
    }

    fn write_members(&self, changes: &[TrackedChange]) -> StoreFuture<Vec<bool>> {
        let (store, turn) = (self.clone(), self.turn());
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
        // On a replicated stream, a read may overtake writes that are not committed yet, so it waits for them.
        let turn = self.0.stream.is_replicated().then(|| self.turn());
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
        let (store, turn) = (self.clone(), self.turn());
        Box::pin(async move {
            let _turn = turn.await;
            user_counts::write(&store, &write).await
        })
    }

    fn budgets_key(&self, made: [u8; 16]) -> StoreFuture<Option<[u8; 16]>> {
        let store = self.clone();
        Box::pin(async move { kept::budgets_key(&store, made).await.map(Some) })
    }

    fn keep(&self, name: &str, call: Vec<u8>) -> StoreFuture<()> {
        let (store, turn, name) = (self.clone(), self.turn(), name.to_owned());
        Box::pin(async move {
            let _turn = turn.await;
            kept::keep(&store, &name, &call).await
        })
    }

    fn keep_absent(&self, calls: KeptCalls) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move { kept::keep_absent(&store, &calls).await })
    }

    fn kept(&self) -> StoreFuture<KeptCalls> {
        let store = self.clone();
        Box::pin(async move { kept::read(&store).await })
    }

    fn drop_kept(&self, names: Vec<Box<str>>) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move { kept::remove(&store, &names).await })
    }

    fn claim_log(&self, hold_ms: u64, read: LogPosition) -> StoreFuture<LogClaim> {
        let store = self.clone();
        Box::pin(async move { settings_log::claim(&store, hold_ms, read).await })
    }

    fn release_log(&self) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move { settings_log::release(&store).await })
    }

    fn append_log(&self, entry: LogEntry) -> StoreFuture<bool> {
        let store = self.clone();
        Box::pin(async move { settings_log::append(&store, &entry).await })
    }

    fn extend_log(&self, part: LogPart) -> StoreFuture<bool> {
        let store = self.clone();
        Box::pin(async move { settings_log::extend(&store, &part).await })
    }

    fn read_log(&self, known: LogPosition) -> StoreFuture<LogPart> {
        let store = self.clone();
        Box::pin(async move { settings_log::read(&store, known).await })
    }
}

fn refused(condition: Condition, text: &str) -> StoreError {
    StoreError::Refused(condition, text.into())
}

/// The error after [`ATTEMPTS_MAX`] conflicts with writes of other nodes.
fn contended() -> StoreError {
    StoreError::Passed("others have written the same record meanwhile, again and again".into())
}

/// Maps the name of a refusal by a NATS engine to a condition.
fn condition_of(refusal: &str) -> Condition {
    match refusal {
        "wrong_password" => Condition::WrongPassword,
        "credentials_expired" | "credentials_revoked" => Condition::BadCredentials,
        "no_permission" => Condition::NotPermitted,
        "no_jetstream" => Condition::NoJetstream,
        "jetstream_unavailable" => Condition::JetstreamUnavailable,
        "storage_full" => Condition::StorageFull,
        "stream_config" => Condition::StreamConfig,
        "max_payload" => Condition::MaxPayload,
        "tls_required" => Condition::TlsFailed,
        _ => Condition::Failed,
    }
}
