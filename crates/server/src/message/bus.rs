//! What travels on the bus between workers, the control thread, the admin thread, the push thread and the webhooks
//! thread. Every payload type stands here or below, so that senders and receivers import this module and
//! not each other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use dunlin_hub::SessionId;

use crate::auth::revocation::{Revocation, RevocationError};
use crate::message::cluster::{
    ClusterCommand, ClusterReply, ClusterRequest, ClusterStatus, MembersReport, RemoteMember,
    SharedChangeEvent, SharedChangeRequest, StatusPage,
};
use crate::message::push::{PushReply, PushRequest};
use crate::state::connections::ConnectionSearch;

/// A message on the bus. A `request_id` is chosen by the requester and repeated in the reply.
pub(crate) enum BusMessage {
    /// Worker to worker, between their hubs.
    Hub(dunlin_hub::HubMessage),
    /// Worker to worker: commands that a client posted to `/emulation` at a worker that does not own its session.
    Emulation {
        /// The sender has verified the session's token.
        session: SessionId,
        /// The commands, newline-delimited.
        frame: Box<[u8]>,
    },
    /// Worker to worker: looks for connections here, and goes on with the next worker; or, when it has been to all that it was to see,
    /// back to the one that asked.
    FindConnections(Box<ConnectionSearch>),
    /// Worker to worker, once a second: measures the latency of a hop.
    LatencyProbe(std::time::Instant),
    /// Worker to worker: the receiver holds a fan-out slot.
    FanoutGranted,

    /// Admin to workers and to the webhooks thread: wake up, the new snapshot wants work done now. The switch itself
    /// comes with every wake.
    AdoptSettings,
    /// Worker to admin: the generation it waits for is adopted or rejected.
    SettingsAdopted,
    /// Admin to workers: list the broadcasts under way, or act on one.
    BroadcastCommand {
        request_id: u64,
        command: BroadcastCommand,
    },
    /// Worker to admin.
    BroadcastReply {
        request_id: u64,
        worker: usize,
        /// The broadcasts, if they were to be listed.
        found: Vec<dunlin_hub::BroadcastStatus>,
        /// Messages removed from outboxes; `None`: no such broadcast here.
        acted: Option<u64>,
    },
    /// Admin to workers: count the sessions that a change affects.
    CountAffected {
        request_id: u64,
        scope: Arc<AffectedScope>,
    },
    /// Worker to admin.
    AffectedReply {
        request_id: u64,
        worker: usize,
        counts: Box<AffectedCounts>,
    },

    /// Worker to admin: tokens are to be revoked. `token` comes back with the reply.
    Revoke {
        worker: usize,
        token: u64,
        revocation: Box<Revocation>,
    },
    /// Worker to admin: a blocked user may come in again.
    Unblock {
        worker: usize,
        token: u64,
        user: Box<str>,
    },
    /// Admin to worker.
    RevokeReply {
        token: u64,
        result: Result<(), RevocationError>,
    },
    /// Admin to workers: tokens were revoked.
    Revoked(Box<Revocation>),
    /// Admin to a worker whose ring was full when tokens were revoked: which of its sessions came with one?
    RevokedUnseen,

    /// Worker to the push thread: a request below `/api/push`.
    PushRequest(Box<PushRequest>),
    /// Push thread to worker: a piece of the response.
    PushReply(Box<PushReply>),
    /// Worker to the push thread: the client's socket has taken so many bytes of its response.
    PushReplyRead {
        call: u64,
        bytes: usize,
    },
    /// Worker to the push thread: the client of this call has closed its connection.
    PushCallerGone {
        call: u64,
    },
    /// Push thread to workers: which of these users have a session? To control: on another node?
    OnlineQuery {
        request_id: u64,
        users: Arc<[String]>,
    },
    /// To the requester: indexes in the query.
    OnlineReply {
        request_id: u64,
        online: Vec<u32>,
    },

    /// Worker to the webhooks thread: an event that some hook wants.
    HookEvent(Box<dunlin_webhooks::HookEvent>),

    /// Worker to control: a token names a key that is not known.
    WantKeys,
    /// Control to workers: a key set was fetched, or could not be.
    KeysFetched,

    /// Worker to control: ask all nodes of the cluster. `token` comes back with the answer.
    ClusterRequest {
        token: u64,
        request: Box<ClusterRequest>,
    },
    /// Control to worker.
    ClusterReply {
        token: u64,
        reply: Box<ClusterReply>,
    },
    /// Control to a worker: carry out a command for a node of the cluster.
    ClusterCommand(Box<ClusterCommand>),
    /// Admin to control: what does each other node say of itself? Control to admin: another node asks.
    StatusQuery {
        request_id: u64,
        page: StatusPage,
    },
    /// Control to admin: what they have said.
    ClusterStatus(Box<ClusterStatus>),
    /// Admin to control, and control to admin: a change of settings for all nodes.
    SharedChangeRequest(SharedChangeRequest),
    SharedChangeEvent(Box<SharedChangeEvent>),
    /// Worker or admin to control: the response to a command or a query of another node.
    NodeReply {
        request_id: u64,
        response: Box<[u8]>,
    },
    /// Worker to control: counts of users' connections have changed.
    UsersChanged,
    /// Control to a worker: one more connection of a user that this worker has let in is counted on all nodes, and may stay.
    UserCounted(Box<str>),
    /// Control to a worker: a user has more connections on all nodes than he may, and this worker has let in the last of this node.
    UserOverLimit(Box<str>),
    /// Control to workers: name sessions by another number from now on, that of the lease.
    NodeNumber,
    /// Worker to control: who has come to channels at home there, and gone.
    Members(Box<MembersReport>),
    /// Control to workers: list all members.
    ListMembers,
    /// Control to workers: a session on another node has come to a channel, or gone.
    RemoteMember(Box<RemoteMember>),

    /// Control to workers: stop accepting, ask clients to reconnect, spread over the configured time.
    Drain,
    /// Control to all threads: leave the event loop. The webhooks thread sends what it has first.
    Stop,
    /// Say so, and stay in this turn until the other end of the receiver is dropped.
    #[cfg(test)]
    Stall(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>),
    /// Panic, to see what is left standing.
    #[cfg(test)]
    Panic,
}

/// What the admin thread asks of broadcasts under way; the name is the channel's.
#[derive(Clone, Debug)]
pub(crate) enum BroadcastCommand {
    List,
    Pause(Arc<str>),
    Resume(Arc<str>),
    /// Ends it, and takes back what has not been sent.
    Cancel(Arc<str>),
}

/// The parts of a change for which only workers know which sessions they affect.
#[derive(Debug)]
pub(crate) struct AffectedScope {
    /// Namespaces; the empty one stands for channels without.
    pub(crate) namespaces: BTreeSet<Arc<str>>,
    /// Listeners that close, each with its address.
    pub(crate) listeners: Vec<(Arc<str>, SocketAddr)>,
}

/// What a change affects.
#[derive(Debug, Default)]
pub(crate) struct AffectedCounts {
    /// Sessions subscribed in a namespace of the scope, each once.
    pub(crate) sessions: u64,
    /// Subscriptions, by namespace.
    pub(crate) subscriptions: BTreeMap<Arc<str>, u64>,
    /// Connections, by the listener they came through.
    pub(crate) connections: BTreeMap<Arc<str>, u64>,
}

impl AffectedCounts {
    /// Adds those of another worker.
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
