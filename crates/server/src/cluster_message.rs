//! What workers, the admin thread and the control thread say to each other about the cluster.

use std::sync::Arc;

use dunlin_hub::{ClientInfo, MemberEvent, PresenceStats};
use serde::{Deserialize, Serialize};

use crate::api::{ApiError, Method};

/// What a worker asks of all nodes.
#[derive(Debug)]
pub(crate) enum ClusterAsk {
    /// Carry out a command of the server API on each node that it concerns, this one among them.
    Command {
        method: Method,
        /// The body of the command.
        request: Arc<[u8]>,
        /// The node that has the only session which the command is about, by its number.
        node: Option<u16>,
    },
    /// Who is in a channel; at most so many bytes of them.
    Presence { channel: Arc<str>, bytes_max: usize },
    /// How many are in a channel.
    PresenceStats { channel: Arc<str> },
}

/// What became of it.
#[derive(Debug)]
pub(crate) enum ClusterAnswer {
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
