//! What a worker receives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use dunlin_cluster::message::ClusterToWorker;
use dunlin_hub::SessionId;
use dunlin_push_service::message::PushToWorker;

use super::federation::FederationToWorker;
use crate::api::Method;
use crate::api::connections::{ChannelSearch, ConnectionSearch};
use crate::auth::revocation::{Revocation, RevocationError};

/// A message to a worker. A `request_id` or a `token` is chosen by the requester and repeated in the reply.
pub(crate) enum WorkerMessage {
    // From another worker.
    /// Between their hubs.
    Hub(dunlin_hub::HubMessage),
    /// Commands that a client posted to `/emulation` at a worker that does not own its session.
    Emulation {
        /// The sender has verified the session's token.
        session: SessionId,
        /// The commands, newline-delimited.
        frame: Box<[u8]>,
    },
    /// Searches the receiver's connections, then goes to the next worker, and in the end back to the requester.
    FindConnections(Box<ConnectionSearch>),
    /// The same for channels.
    FindChannels(Box<ChannelSearch>),
    /// A call of a program's shared store, of a key whose home the receiver is.
    ProgramStore(Box<StoreCall>),
    /// The answer to that.
    ProgramStored(Box<(u64, CallAnswer)>),
    /// Once a second: measures the latency of a hop.
    LatencyProbe(std::time::Instant),
    /// The receiver holds a fan-out slot.
    FanoutGranted,

    // From the admin thread.
    /// Wakes the receiver, because a new snapshot has work for it. A worker switches at every wake-up.
    AdoptSettings,
    /// Execute a command of the server API.
    ApiCall {
        request_id: u64,
        method: Method,
        params: Box<[u8]>,
    },
    /// List the broadcasts in progress, or act on one.
    BroadcastCommand {
        request_id: u64,
        command: BroadcastCommand,
    },
    /// Count the sessions that a change affects.
    CountAffected {
        request_id: u64,
        scope: Arc<AffectedScope>,
    },
    /// Explain how a question would be decided.
    Explain {
        request_id: u64,
        question: Box<ExplainQuestion>,
    },
    /// The reply to a revocation, or to the end of one.
    RevokeReply {
        token: u64,
        result: Result<(), RevocationError>,
    },
    /// Tokens were revoked.
    Revoked(Box<Revocation>),
    /// Tokens were revoked while the receiver's ring was full: check the tokens of all sessions.
    RevokedUnseen,

    // From the push thread.
    Push(PushToWorker),

    // From the federation thread.
    Federation(Box<FederationToWorker>),

    // From the control thread.
    /// A key set was fetched, or the fetch failed.
    KeysFetched,
    Cluster(ClusterToWorker),
    /// Stop accepting connections, and ask clients to reconnect, spread over the configured time.
    Drain,
    /// Leave the event loop.
    Stop,

    /// Confirms the receipt, then blocks the turn until the sender of the receiver's channel is dropped.
    #[cfg(test)]
    Stall(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>),
    /// Panics, to test the recovery.
    #[cfg(test)]
    Panic,
}

impl From<PushToWorker> for WorkerMessage {
    fn from(message: PushToWorker) -> WorkerMessage {
        WorkerMessage::Push(message)
    }
}

impl From<ClusterToWorker> for WorkerMessage {
    fn from(message: ClusterToWorker) -> WorkerMessage {
        WorkerMessage::Cluster(message)
    }
}

/// The answer to the call of a program: the result as JSON, or code and message of the error.
pub(crate) type CallAnswer = Result<Box<[u8]>, (u32, Box<str>)>;

/// A call of a program's shared store.
#[derive(Debug)]
pub(crate) struct StoreCall {
    /// The worker that waits for the answer.
    pub(crate) from: usize,
    pub(crate) token: u64,
    pub(crate) program: Arc<str>,
    /// As JSON.
    pub(crate) params: Box<[u8]>,
}

/// A command of the admin thread about broadcasts in progress; the name is the channel's.
#[derive(Clone, Debug)]
pub(crate) enum BroadcastCommand {
    List,
    Pause(Arc<str>),
    Resume(Arc<str>),
    /// Ends the broadcast and removes its unsent messages.
    Cancel(Arc<str>),
}

/// What a client that is about to come would ask for.
#[derive(Debug)]
pub(crate) struct ExplainQuestion {
    /// `subscribe`, `publish`, `history` or `presence`.
    pub(crate) action: String,
    pub(crate) channel: String,
    /// Its connection token; empty: none.
    pub(crate) token: String,
    /// Its subscription token; empty: none.
    pub(crate) subscription_token: String,
    /// The claims it is taken to have in place of a token, as JSON.
    pub(crate) claims: Option<String>,
    /// It is subscribed to the channel.
    pub(crate) subscribed: bool,
}

/// The parts of a change whose affected sessions only the workers know.
#[derive(Debug)]
pub(crate) struct AffectedScope {
    /// Namespaces; the empty name stands for channels without a namespace.
    pub(crate) namespaces: BTreeSet<Arc<str>>,
    /// Listeners that the change closes, each with its address.
    pub(crate) listeners: Vec<(Arc<str>, SocketAddr)>,
}

/// The number of sessions, subscriptions and connections that a change affects.
#[derive(Debug, Default)]
pub(crate) struct AffectedCounts {
    /// Sessions subscribed in a namespace of the scope, each counted once.
    pub(crate) sessions: u64,
    /// Subscriptions, by namespace.
    pub(crate) subscriptions: BTreeMap<Arc<str>, u64>,
    /// Connections, by the listener they came through.
    pub(crate) connections: BTreeMap<Arc<str>, u64>,
}

impl AffectedCounts {
    /// Adds the counts of another worker.
    pub(crate) fn add(&mut self, other: AffectedCounts) {
        self.sessions += other.sessions;
        for (own, other) in [
            (&mut self.subscriptions, other.subscriptions),
            (&mut self.connections, other.connections),
        ] {
            for (name, count) in other {
                *own.entry(name).or_default() += count;
            }
        }
    }
}
