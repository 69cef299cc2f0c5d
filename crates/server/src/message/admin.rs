//! What the admin thread receives.

use dunlin_cluster::message::ClusterToAdmin;

use super::worker::AffectedCounts;
use crate::auth::revocation::Revocation;

/// A message to the admin thread. A `request_id` is the admin thread's own, a `token` is repeated in the reply.
pub(crate) enum AdminMessage {
    /// A worker has adopted or rejected the generation that the admin thread awaits.
    SettingsAdopted,
    /// A worker's response to a call of the server API.
    ApiReply { request_id: u64, worker: usize, status: u16, response: Vec<u8> },
    /// A worker's reply to a command about broadcasts.
    BroadcastReply {
        request_id: u64,
        worker: usize,
        /// The broadcasts, if the command was to list them.
        found: Vec<dunlin_hub::BroadcastStatus>,
        /// Messages removed from outboxes; `None`: no such broadcast here.
        acted: Option<u64>,
    },
    /// A worker's count of the sessions that a change affects.
    AffectedReply { request_id: u64, worker: usize, counts: Box<AffectedCounts> },
    /// A worker has explained a decision.
    Explained { request_id: u64, story: Box<serde_json::Value> },
    /// Revoke tokens.
    Revoke { worker: usize, token: u64, revocation: Box<Revocation> },
    /// End the block of a user.
    Unblock { worker: usize, token: u64, user: Box<str> },
    /// From the agent of the cluster.
    Cluster(ClusterToAdmin),
}

impl From<ClusterToAdmin> for AdminMessage {
    fn from(message: ClusterToAdmin) -> AdminMessage {
        AdminMessage::Cluster(message)
    }
}
