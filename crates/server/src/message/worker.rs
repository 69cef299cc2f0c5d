//! Messages on the bus between workers, the control thread, the admin thread, the push thread and the webhooks thread. Every
//! payload type is defined here or in a submodule, so that senders and receivers import this module and not each other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use dunlin_hub::SessionId;

use crate::api::connections::ConnectionSearch;
use crate::auth::revocation::{Revocation, RevocationError};
use crate::message::cluster::{
    ClusterCommand, ClusterReply, ClusterRequest, ClusterStatus, MembersReport, OccupancyChange,
    RemoteMember, SharedChangeEvent, SharedChangeRequest, StatusPage,
};
use crate::message::push::{PushReply, PushRequest};

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
    /// Worker to worker: searches the receiver's connections, then goes to the next worker, and in the end back to the
    /// requester.
    FindConnections(Box<ConnectionSearch>),
    /// Worker to worker, once a second: measures the latency of a hop.
    LatencyProbe(std::time::Instant),
    /// Worker to worker: the receiver holds a fan-out slot.
    FanoutGranted,

    /// Admin to workers and to the webhooks thread: wakes the receiver, because a new snapshot has work for it. A thread
    /// switches at every wake-up.
    AdoptSettings,
    /// Worker to admin: the generation that the admin thread awaits was adopted or rejected.
    SettingsAdopted,
    /// Admin to workers: list the broadcasts in progress, or act on one.
    BroadcastCommand {
        request_id: u64,
        command: BroadcastCommand,
    },
    /// Worker to admin.
    BroadcastReply {
        request_id: u64,
        worker: usize,
        /// The broadcasts, if the command was to list them.
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

    /// Worker to admin: revoke tokens. The reply repeats `token`.
    Revoke {
        worker: usize,
        token: u64,
        revocation: Box<Revocation>,
    },
    /// Worker to admin: end the block of a user.
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
    /// Admin to a worker whose ring was full when tokens were revoked: check the tokens of all sessions.
    RevokedUnseen,

    /// Worker to the push thread: a request below `/api/push`.
    PushRequest(Box<PushRequest>),
    /// Push thread to worker: a piece of the response.
    PushReply(Box<PushReply>),
    /// Worker to the push thread: the client's socket has accepted `bytes` of the response.
    PushReplyRead {
        call: u64,
        bytes: usize,
    },
    /// Worker to the push thread: the client of this call has closed its connection.
    PushCallerGone {
        call: u64,
    },
    /// Push thread to workers: queries which of these users have a session. Push thread to control: the same for other
    /// nodes.
    OnlineQuery {
        request_id: u64,
        users: Arc<[String]>,
    },
    /// The reply to an online query: indexes in the query.
    OnlineReply {
        request_id: u64,
        online: Vec<u32>,
    },

    /// Worker to the webhooks thread: an event that some hook subscribes to.
    HookEvent(Box<dunlin_webhooks::HookEvent>),

    /// Worker to control: a token names an unknown key.
    WantKeys,
    /// Control to workers: a key set was fetched, or the fetch failed.
    KeysFetched,

    /// Worker to control: queries nodes of the cluster. The reply repeats `token`.
    ClusterRequest {
        token: u64,
        request: Box<ClusterRequest>,
    },
    /// Control to worker.
    ClusterReply {
        token: u64,
        reply: Box<ClusterReply>,
    },
    /// Control to a worker: execute a command for a node of the cluster.
    ClusterCommand(Box<ClusterCommand>),
    /// Admin to control: query the status of each other node. Control to admin: another node queries this one.
    StatusQuery {
        request_id: u64,
        page: StatusPage,
    },
    /// Control to admin: the responses of the nodes.
    ClusterStatus(Box<ClusterStatus>),
    /// Admin to control, and control to admin: a change of settings on all nodes.
    SharedChangeRequest(SharedChangeRequest),
    SharedChangeEvent(Box<SharedChangeEvent>),
    /// Worker or admin to control: the response to a command or a query of another node.
    NodeReply {
        request_id: u64,
        response: Box<[u8]>,
    },
    /// Worker to control: counts of users' connections have changed.
    UsersChanged,
    /// Control to a worker: a connection of a user that this worker accepted is counted on all nodes, and may stay.
    UserCounted(Box<str>),
    /// Control to a worker: a user has more connections on all nodes than allowed, and this worker accepted the newest one of
    /// this node.
    UserOverLimit(Box<str>),
    /// Control to workers: use the node number of the lease in new session ids.
    NodeNumber,
    /// Worker to control: joins and leaves of channels that are at home on this worker.
    Members(Box<MembersReport>),
    /// Control to workers: list all members.
    ListMembers,
    /// Control to workers: a session on another node has joined a channel, or left it.
    RemoteMember(Box<RemoteMember>),
    /// Worker to control: occupancy of channels that are at home on this worker, for webhooks.
    Occupancy(Vec<OccupancyChange>),
    /// Control to workers: report all that is occupied.
    ListOccupied,
    /// Control to workers: joins and leaves of other nodes may have been lost: read the lists of members again.
    RefreshMemberLists,

    /// Control to workers: stop accepting connections, and ask clients to reconnect, spread over the configured time.
    Drain,
    /// Control to all threads: leave the event loop. The webhooks thread sends its pending events first.
    Stop,
    /// Confirms the receipt, then blocks the turn until the sender of the receiver's channel is dropped.
    #[cfg(test)]
    Stall(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>),
    /// Panics, to test the recovery.
    #[cfg(test)]
    Panic,
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
