//! Messages between workers, the admin thread and the control thread about the cluster.

use std::sync::Arc;

use dunlin_config::store::Origin;
use dunlin_hub::{ClientInfo, MemberEvent, MemberListError, PresenceStats};
use dunlin_webhooks::HookEvent;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::online::{OnlineQuery, OnlineReply};
use crate::api::{AboutUser, ApiError, Method};

/// A message to the agent of the cluster.
pub(crate) enum ClusterMessage {
    /// A worker queries nodes of the cluster. The reply repeats `token`.
    Request { token: u64, request: Box<ClusterRequest> },
    /// The push thread queries which of these users have a session on other nodes.
    OnlineQuery(OnlineQuery),
    /// The admin thread queries the status of each other node.
    StatusQuery { request_id: u64, page: StatusPage },
    /// A step of the admin thread's change of settings on all nodes.
    SharedChangeRequest(SharedChangeRequest),
    /// The response of a worker or of the admin thread to a command or a query of another node.
    NodeReply { request_id: u64, response: Box<[u8]> },
    /// Counts of users' connections have changed.
    UsersChanged,
    /// Joins and leaves of channels that are at home on the sending worker.
    Members(Box<MembersReport>),
    /// Occupancy of channels that are at home on the sending worker, for webhooks.
    Occupancy(Vec<OccupancyChange>),
}

impl From<OnlineQuery> for ClusterMessage {
    fn from(query: OnlineQuery) -> ClusterMessage {
        ClusterMessage::OnlineQuery(query)
    }
}

/// A message of the agent to a worker.
pub(crate) enum ClusterToWorker {
    Reply {
        token: u64,
        reply: Box<ClusterReply>,
    },
    /// Execute a command for a node of the cluster.
    Command(Box<ClusterCommand>),
    /// A connection of a user that this worker accepted is counted on all nodes, and may stay.
    UserCounted(Box<str>),
    /// A user has more connections on all nodes than allowed, and this worker accepted the newest one of this node.
    UserOverLimit(Box<str>),
    /// Use the node number of the lease in new session ids.
    NodeNumber,
    /// List all members.
    ListMembers,
    /// A session on another node has joined a channel, or left it.
    RemoteMember(Box<RemoteMember>),
    /// The agent had no room for the worker's report.
    OccupancyRefused(Vec<OccupancyChange>),
    /// Report all that is occupied.
    ListOccupied,
    /// Joins and leaves of other nodes may have been lost: read the lists of members again.
    RefreshMemberLists,
}

/// A message of the agent to the admin thread.
pub(crate) enum ClusterToAdmin {
    /// Another node queries this one.
    StatusQuery {
        request_id: u64,
        page: StatusPage,
    },
    /// The responses of the nodes.
    Status(Box<ClusterStatus>),
    SharedChangeEvent(Box<SharedChangeEvent>),
}

/// A message of the agent, with its receiver.
pub(crate) enum ClusterOutput {
    Worker(usize, ClusterToWorker),
    Admin(ClusterToAdmin),
    Push(OnlineReply),
    Webhooks(Box<HookEvent>),
}

/// A request of a worker to the nodes of the cluster.
#[derive(Debug)]
pub(crate) enum ClusterRequest {
    /// Execute a command of the server API on each node that it concerns, which may include this one.
    Command {
        method: Method,
        /// The body of the command.
        request: Arc<[u8]>,
        to: TargetNodes,
        about: Option<AboutUser<'static>>,
    },
    /// List the members of a channel, in at most `bytes_max` bytes.
    Presence { channel: Arc<str>, bytes_max: usize },
    /// List the members of a channel on other nodes.
    OtherMembers { channel: Arc<str>, bytes_max: usize },
    /// Count the members of a channel.
    PresenceStats { channel: Arc<str> },
}

/// Which nodes execute a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TargetNodes {
    All,
    /// The node with this number, which has the only session that the command is about.
    Holder(u16),
    /// The nodes with these numbers.
    Nodes(Vec<u16>),
}

/// The reply to a [`ClusterRequest`]: the combined answers of the nodes.
#[derive(Debug)]
pub(crate) enum ClusterReply {
    /// The value of `result`, as JSON.
    Command(Result<Box<[u8]>, ApiError>),
    Presence(Result<Vec<Arc<ClientInfo>>, ApiError>),
    OtherMembers(Result<Vec<Arc<ClientInfo>>, MemberListError>),
    PresenceStats(Result<PresenceStats, ApiError>),
}

/// A command of the server API that a worker executes for a node of the cluster.
#[derive(Debug)]
pub(crate) struct ClusterCommand {
    /// Repeated in the reply.
    pub(crate) request_id: u64,
    pub(crate) method: Method,
    pub(crate) request: Arc<[u8]>,
}

/// The members of channels that are at home on a worker.
#[derive(Debug)]
pub(crate) enum MembersReport {
    /// The changes, in order.
    Changed(Vec<MemberEvent>),
    /// All members, as requested.
    All(Vec<MemberEvent>),
    /// Changes were dropped, or lost with a worker that died: request all members.
    Lost,
}

/// A channel has its first subscriber on this node or none any longer, or a user of a presence channel its first session.
#[derive(Debug)]
pub(crate) struct OccupancyChange {
    pub(crate) channel: Arc<str>,
    pub(crate) user: Option<Arc<str>>,
    pub(crate) edge: OccupancyEdge,
}

/// An end of an occupancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OccupancyEdge {
    Begun,
    /// It has begun before hooks wanted to know, or was reported before.
    Known,
    Ended,
}

/// A session on another node has joined a channel, or left it.
#[derive(Debug)]
pub(crate) struct RemoteMember {
    pub(crate) channel: Arc<str>,
    pub(crate) info: Arc<ClientInfo>,
    pub(crate) joined: bool,
}

/// A page of the admin port on which a node describes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StatusPage {
    Info,
    Cluster,
    Workers,
    Engines,
    Tenants,
    Upstreams,
    Webhooks,
}

impl StatusPage {
    pub(crate) fn of(path: &str) -> Option<StatusPage> {
        Some(match path {
            "/info" => StatusPage::Info,
            "/cluster" => StatusPage::Cluster,
            "/status/workers" => StatusPage::Workers,
            "/status/engines" => StatusPage::Engines,
            "/status/tenants" => StatusPage::Tenants,
            "/status/upstreams" => StatusPage::Upstreams,
            "/status/webhooks" => StatusPage::Webhooks,
            _ => return None,
        })
    }
}

/// The pages of the other nodes of the cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterStatus {
    /// The id of the query.
    pub(crate) request_id: u64,
    pub(crate) nodes: Vec<NodeStatus>,
    /// Names of the nodes that did not answer in time.
    pub(crate) unreachable: Vec<Arc<str>>,
}

/// The answer of a node: `{"page": ...}` or `{"error": {"message": ...}}`.
#[derive(Debug)]
pub(crate) struct NodeStatus {
    pub(crate) node: u16,
    pub(crate) name: Arc<str>,
    pub(crate) response: Box<[u8]>,
}

/// A change of settings on all nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SharedChange {
    /// Random; identifies changes that this node was the first to run.
    pub(crate) id: u64,
    /// As [`dunlin_config::Change::to_shared`] writes it.
    pub(crate) change: Value,
    pub(crate) origin: Origin,
}

/// Why a node's settings are behind the cluster's log of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutOfSync {
    /// The node refused a change.
    Refused(String),
    /// The node missed changes that are no longer kept, or that it cannot read.
    Missed(String),
}

/// A request of the admin thread that is a step of a change on all nodes.
#[derive(Debug)]
pub(crate) enum SharedChangeRequest {
    /// The exclusive claim to make a change, with its longest duration.
    Claim { hold_ms: u64 },
    /// Releases the claim: nothing was changed.
    Release,
    /// This node runs the change: append it to the log, and notify the others.
    Append(Box<SharedChange>),
}

/// The control thread's messages about changes on all nodes.
#[derive(Debug)]
pub(crate) enum SharedChangeEvent {
    Claimed,
    /// The claim was denied.
    Refused(ClaimError),
    /// The change is in the log under this number.
    Kept {
        log: u64,
        revision: u64,
    },
    /// The change is not in the log, or it is not known whether it is.
    Unkept(String),
    /// The change was announced; the answers of the other nodes.
    Answered(ClusterStatus),
    /// Changes made by other nodes.
    Offer(SharedChangeBatch),
}

/// Why a claim is denied: this node may not change all nodes now.
#[derive(Debug)]
pub(crate) enum ClaimError {
    /// Another node is making a change; the number of the newest change so far.
    UnderWay(u64),
    /// There is a newer change than this node has read; its number.
    Behind(u64),
    /// A node could not read it.
    OtherSecret(String),
    Unreachable(String),
}

/// Changes from the cluster's log, to be run in order.
#[derive(Debug)]
pub(crate) struct SharedChangeBatch {
    /// Repeated in the report of the newest change's outcome.
    pub(crate) request_id: u64,
    pub(crate) log: u64,
    /// By number; `None`: this node cannot read the change.
    pub(crate) changes: std::collections::VecDeque<(u64, Option<SharedChange>)>,
    /// Changes up to this number are no longer kept.
    pub(crate) since: u64,
    /// Some of these changes were refused before.
    pub(crate) again: bool,
}
