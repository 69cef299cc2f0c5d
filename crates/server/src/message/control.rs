//! What the control thread receives.

use dunlin_cluster::message::ClusterMessage;

/// A message to the control thread.
pub(crate) enum ControlMessage {
    /// A worker has a token that names an unknown key.
    WantKeys,
    /// For the agent of the cluster.
    Cluster(ClusterMessage),
}

impl From<ClusterMessage> for ControlMessage {
    fn from(message: ClusterMessage) -> ControlMessage {
        ControlMessage::Cluster(message)
    }
}
