//! Messages between the agent and the threads of its node.

use std::sync::Arc;

use dunlin_config::store::Origin;
use dunlin_hub::{ClientInfo, MemberEvent, MemberListError, PresenceStats};
use dunlin_webhooks::HookEvent;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use dunlin_api::online::{OnlineQuery, OnlineReply};
use dunlin_api::server_api::{AboutUser, ApiError, Method};

/// A message to the agent of the cluster.
pub enum ClusterMessage {
    /// A worker queries nodes of the cluster. The reply repeats `token`.
    Request {
        /// Repeated in the reply.
        token: u64,
        /// The request.
        request: Box<ClusterRequest>,
    },
    /// The push thread queries which of these users have a session on other nodes.
    OnlineQuery(OnlineQuery),
    /// The admin thread queries the status of each other node.
    StatusQuery {
        /// Repeated in the reply.
        request_id: u64,
        /// The page that the nodes return.
        page: StatusPage,
    },
    /// A step of the admin thread's change of settings on all nodes.
    SharedChangeRequest(SharedChangeRequest),
    /// The response of a worker or of the admin thread to a command or a query of another node.
    NodeReply {
        /// As in the command or query.
        request_id: u64,
        /// JSON, as the server API has it.
        response: Box<[u8]>,
    },
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
pub enum ClusterToWorker {
    /// The reply to a request of this worker.
    Reply {
        /// As in the request.
        token: u64,
        /// The reply.
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
pub enum ClusterToAdmin {
    /// Another node queries this one.
    StatusQuery {
        /// Repeated in the response.
        request_id: u64,
        /// The page that it wants.
        page: StatusPage,
    },
    /// The responses of the nodes.
    Status(Box<ClusterStatus>),
    /// What has happened to a change of settings on all nodes.
    SharedChangeEvent(Box<SharedChangeEvent>),
}

/// A message of the agent, with its receiver.
pub enum ClusterOutput {
    /// To the worker with this number.
    Worker(usize, ClusterToWorker),
    /// To the admin thread.
    Admin(ClusterToAdmin),
    /// To the push thread.
    Push(OnlineReply),
    /// To the webhooks thread.
    Webhooks(Box<HookEvent>),
}

/// A request of a worker to the nodes of the cluster.
#[derive(Debug)]
pub enum ClusterRequest {
    /// Execute a command of the server API on each node that it concerns, which may include this one.
    Command {
        /// The method of the server API.
        method: Method,
        /// The body of the command.
        request: Arc<[u8]>,
        /// The nodes that execute it.
        to: TargetNodes,
        /// The user whose sessions it is limited to: nodes without any answer by themselves.
        about: Option<AboutUser<'static>>,
    },
    /// List the members of a channel, in at most `bytes_max` bytes.
    Presence {
        /// The channel.
        channel: Arc<str>,
        /// The bound of the list.
        bytes_max: usize,
    },
    /// List the members of a channel on other nodes, in at most `bytes_max` bytes.
    OtherMembers {
        /// The channel.
        channel: Arc<str>,
        /// The bound of the list.
        bytes_max: usize,
    },
    /// Count the members of a channel.
    PresenceStats {
        /// The channel.
        channel: Arc<str>,
    },
}

/// Which nodes execute a command.
#[derive(Debug, PartialEq, Eq)]
pub enum TargetNodes {
    /// All nodes, this one included.
    All,
    /// The node with this number, which has the only session that the command is about.
    Holder(u16),
    /// The nodes with these numbers.
    Nodes(Vec<u16>),
}

/// The reply to a [`ClusterRequest`]: the combined answers of the nodes.
#[derive(Debug)]
pub enum ClusterReply {
    /// The value of `result`, as JSON.
    Command(Result<Box<[u8]>, ApiError>),
    /// The members of the channel.
    Presence(Result<Vec<Arc<ClientInfo>>, ApiError>),
    /// Its members on other nodes.
    OtherMembers(Result<Vec<Arc<ClientInfo>>, MemberListError>),
    /// How many members it has.
    PresenceStats(Result<PresenceStats, ApiError>),
}

/// A command of the server API that a worker executes for a node of the cluster.
#[derive(Debug)]
pub struct ClusterCommand {
    /// Repeated in the reply.
    pub request_id: u64,
    /// The method of the server API.
    pub method: Method,
    /// Its body.
    pub request: Arc<[u8]>,
}

/// The members of channels that are at home on a worker.
#[derive(Debug)]
pub enum MembersReport {
    /// The changes, in order.
    Changed(Vec<MemberEvent>),
    /// All members, as requested.
    All(Vec<MemberEvent>),
    /// Changes were dropped, or lost with a worker that died: request all members.
    Lost,
}

/// A channel has its first subscriber on this node or none any longer, or a user of a presence channel its first session.
#[derive(Debug)]
pub struct OccupancyChange {
    /// The channel.
    pub channel: Arc<str>,
    /// The user; `None`: it is about the channel.
    pub user: Option<Arc<str>>,
    /// Whether the occupancy begins or ends.
    pub edge: OccupancyEdge,
}

/// An end of an occupancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OccupancyEdge {
    /// It begins.
    Begun,
    /// It has begun before hooks wanted to know, or was reported before.
    Known,
    /// It ends.
    Ended,
}

/// A session on another node has joined a channel, or left it.
#[derive(Debug)]
pub struct RemoteMember {
    /// The channel.
    pub channel: Arc<str>,
    /// The session.
    pub info: Arc<ClientInfo>,
    /// `false`: it has left.
    pub joined: bool,
}

/// A page of the admin port on which a node describes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatusPage {
    /// `/info`.
    Info,
    /// `/cluster`.
    Cluster,
    /// `/status/overview`.
    Overview,
    /// `/status/workers`.
    Workers,
    /// `/status/engines`.
    Engines,
    /// `/status/tenants`.
    Tenants,
    /// `/status/upstreams`.
    Upstreams,
    /// `/status/webhooks`.
    Webhooks,
}

impl StatusPage {
    /// Returns the page at a path of the admin port.
    pub fn of(path: &str) -> Option<StatusPage> {
        Some(match path {
            "/info" => StatusPage::Info,
            "/cluster" => StatusPage::Cluster,
            "/status/overview" => StatusPage::Overview,
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
pub struct ClusterStatus {
    /// The id of the query.
    pub request_id: u64,
    /// The answers.
    pub nodes: Vec<NodeStatus>,
    /// Names of the nodes that did not answer in time.
    pub unreachable: Vec<Arc<str>>,
}

/// The answer of a node: `{"page": ...}` or `{"error": {"message": ...}}`.
#[derive(Debug)]
pub struct NodeStatus {
    /// The number of the node.
    pub node: u16,
    /// The name of the node.
    pub name: Arc<str>,
    /// The answer.
    pub response: Box<[u8]>,
}

/// A change of settings on all nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SharedChange {
    /// Random; identifies changes that this node was the first to run.
    pub id: u64,
    /// As [`dunlin_config::Change::to_shared`] writes it.
    pub change: Value,
    /// Who has made it.
    pub origin: Origin,
}

/// Why a node's settings are behind the cluster's log of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutOfSync {
    /// The node refused a change.
    Refused(String),
    /// The node missed changes that are no longer kept, or that it cannot read.
    Missed(String),
}

/// A request of the admin thread that is a step of a change on all nodes.
#[derive(Debug)]
pub enum SharedChangeRequest {
    /// The exclusive claim to make a change, with its longest duration.
    Claim {
        /// The longest duration.
        hold_ms: u64,
    },
    /// Releases the claim: nothing was changed.
    Release,
    /// This node runs the change: append it to the log, and notify the others.
    Append(Box<SharedChange>),
}

/// The control thread's messages about changes on all nodes.
#[derive(Debug)]
pub enum SharedChangeEvent {
    /// The claim was granted.
    Claimed,
    /// The claim was denied.
    Refused(ClaimError),
    /// The change is in the log under this number.
    Kept {
        /// Which log: a store that was emptied begins another one.
        log: u64,
        /// The number of the change.
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
pub enum ClaimError {
    /// Another node is making a change; the number of the newest change so far.
    UnderWay(u64),
    /// There is a newer change than this node has read; its number.
    Behind(u64),
    /// A node could not read it.
    OtherSecret(String),
    /// This node is not in touch with the others, or another one does not answer.
    Unreachable(String),
}

/// Changes from the cluster's log, to be run in order.
#[derive(Debug)]
pub struct SharedChangeBatch {
    /// Repeated in the report of the newest change's outcome.
    pub request_id: u64,
    /// Which log they are from.
    pub log: u64,
    /// By number; `None`: this node cannot read the change.
    pub changes: std::collections::VecDeque<(u64, Option<SharedChange>)>,
    /// Changes up to this number are no longer kept.
    pub since: u64,
    /// Some of these changes were refused before.
    pub again: bool,
}
