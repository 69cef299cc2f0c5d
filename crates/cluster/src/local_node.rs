//! The node that the agent represents, as the agent sees it.

use std::sync::Arc;

use dunlin_access::auth::revocation::Revocations;
use dunlin_access::limits::shared_buckets::SharedBuckets;
use dunlin_access::limits::user_connections::UserConnections;
use dunlin_config::Snapshot;
use dunlin_webhooks::EventFilter;

use super::state::ClusterState;

/// What the agent reads and writes of its own node. Each call returns the newest state.
pub trait LocalNode: Send + Sync {
    /// A random UUID of this run of the process.
    fn uid(&self) -> &str;
    /// The settings that the node runs.
    fn snapshot(&self) -> Arc<Snapshot>;
    /// `server.name`, or a name made from host and port.
    fn name(&self) -> Arc<str>;
    /// Which events the hooks subscribe to.
    fn event_filter(&self) -> Arc<EventFilter>;
    /// The connections of each user, if they are counted.
    fn user_connections(&self) -> Option<Arc<UserConnections>>;
    /// The state of the cluster, for the other threads.
    fn cluster(&self) -> &ClusterState;
    /// The budgets that the nodes share.
    fn budgets(&self) -> &SharedBuckets;
    /// Revoked tokens.
    fn revocations(&self) -> &Revocations;
    /// The number of sessions.
    fn sessions(&self) -> u64;
    /// The milliseconds since the start of the process.
    fn uptime_ms(&self) -> u64;
    /// The number of workers.
    fn workers(&self) -> usize;
}
