//! Messages between workers, the admin thread and the control thread about the cluster.

use std::borrow::Cow;
use std::sync::Arc;

use dunlin_config::store::Origin;
use dunlin_hub::{ClientInfo, MemberEvent, PresenceStats};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::{ApiError, Method};

/// A request of a worker to the nodes of the cluster.
#[derive(Debug)]
pub(crate) enum ClusterRequest {
    /// Carry out a command of the server API on each node that it concerns, this one among them.
    Command {
        method: Method,
        /// The body of the command.
        request: Arc<[u8]>,
        to: TargetNodes,
        about: Option<AboutUser<'static>>,
    },
    /// Who is in a channel; at most so many bytes of them.
    Presence { channel: Arc<str>, bytes_max: usize },
    /// How many are in a channel.
    PresenceStats { channel: Arc<str> },
}

/// Which nodes carry a command out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TargetNodes {
    All,
    /// The one that has the only session which the command is about, by its number.
    Holder(u16),
    /// Those of these numbers.
    Nodes(Vec<u16>),
}

/// A command is about the sessions of one user alone. A node that has none of them answers without looking further.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AboutUser<'a> {
    /// As sessions have it; never empty.
    #[serde(borrow)]
    pub(crate) user: Cow<'a, str>,
    /// The tokens that the user has had until now are barred on every node.
    pub(crate) bars: bool,
}

/// The reply to a [`ClusterRequest`]: what the nodes have answered together.
#[derive(Debug)]
pub(crate) enum ClusterReply {
    /// The value of `result`, JSON.
    Command(Result<Box<[u8]>, ApiError>),
    Presence(Result<Vec<Arc<ClientInfo>>, ApiError>),
    PresenceStats(Result<PresenceStats, ApiError>),
}

/// A command of the server API that a worker carries out for a node of the cluster.
#[derive(Debug)]
pub(crate) struct ClusterCommand {
    /// Comes back with the reply.
    pub(crate) request_id: u64,
    pub(crate) method: Method,
    pub(crate) request: Arc<[u8]>,
}

/// Members of channels at home on a worker.
#[derive(Debug)]
pub(crate) enum MembersReport {
    /// What has changed, in order.
    Changed(Vec<MemberEvent>),
    /// All there are; asked for.
    All(Vec<MemberEvent>),
    /// Some of what has changed was dropped, or forgotten with a worker that died: ask for all.
    Lost,
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

/// What the other nodes of the cluster have said of themselves.
#[derive(Debug, Default)]
pub(crate) struct ClusterStatus {
    /// Of the query.
    pub(crate) request_id: u64,
    pub(crate) nodes: Vec<NodeStatus>,
    /// Names of nodes that have not answered in time.
    pub(crate) unreachable: Vec<Arc<str>>,
}

/// What a node has answered: `{"page": ...}` or `{"error": {"message": ...}}`.
#[derive(Debug)]
pub(crate) struct NodeStatus {
    pub(crate) node: u16,
    pub(crate) name: Arc<str>,
    pub(crate) response: Box<[u8]>,
}

/// A change of settings for all nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SharedChange {
    /// Random: by it a node knows what it was the first to run.
    pub(crate) id: u64,
    /// As [`dunlin_config::Change::to_shared`] writes it.
    pub(crate) change: Value,
    pub(crate) origin: Origin,
}

/// Why a node's settings are behind its cluster's log of changes, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutOfSync {
    /// It has refused a change.
    Refused(String),
    /// It has missed changes that are not kept any more, or that it cannot read.
    Missed(String),
}

/// A request of the admin thread that is part of a change of all nodes.
#[derive(Debug)]
pub(crate) enum SharedChangeRequest {
    /// The exclusive claim to make a change, with its longest duration.
    Claim { hold_ms: u64 },
    /// Gives the right back: nothing was changed.
    Release,
    /// This node runs it: keep it, and tell the others.
    Append(Box<SharedChange>),
}

/// The control thread's side of changes of all nodes.
#[derive(Debug)]
pub(crate) enum SharedChangeEvent {
    Claimed,
    /// The claim was denied.
    Refused(ClaimError),
    /// The change is kept under this number of a log.
    Kept {
        log: u64,
        revision: u64,
    },
    /// The change is not kept, or whether it is kept is not known.
    Unkept(String),
    /// The change was announced; what the others have answered.
    Answered(ClusterStatus),
    /// Changes that other nodes have made.
    Offer(SharedChangeBatch),
}

/// Why a claim is denied: this node may not make a change for all nodes now.
#[derive(Debug)]
pub(crate) enum ClaimError {
    /// Another node makes a change; the number of the newest change so far.
    UnderWay(u64),
    /// There is a newer change than this node has read.
    Behind(u64),
    /// A node could not read it.
    OtherSecret(String),
    Unreachable(String),
}

/// Changes from the cluster's log, to be run in order.
#[derive(Debug)]
pub(crate) struct SharedChangeBatch {
    /// Goes back with the outcome of the newest.
    pub(crate) request_id: u64,
    pub(crate) log: u64,
    /// By number; `None`: this node cannot read it.
    pub(crate) changes: std::collections::VecDeque<(u64, Option<SharedChange>)>,
    /// Those up to this one are not kept any more.
    pub(crate) since: u64,
    /// Changes that were refused before are among them.
    pub(crate) again: bool,
}
