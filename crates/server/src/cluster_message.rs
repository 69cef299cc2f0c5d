//! What workers and the control thread say to each other about the cluster.

use std::sync::Arc;

use dunlin_hub::{ClientInfo, MemberEvent, PresenceStats};

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
