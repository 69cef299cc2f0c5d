//! The node whose users are pushed to, as the service sees it.

use std::sync::Arc;

use dunlin_config::Snapshot;
use dunlin_webhooks::EventFilter;

use crate::message::PushAdmissions;

/// What the service reads of its node. Each call returns the newest state.
pub trait PushNode: Send + Sync {
    /// The settings that the node runs.
    fn snapshot(&self) -> Arc<Snapshot>;
    /// `server.name`, or a name made from host and port.
    fn name(&self) -> Arc<str>;
    /// Which events the hooks subscribe to.
    fn event_filter(&self) -> Arc<EventFilter>;
    /// The calls that workers have handed over.
    fn push_admissions(&self) -> &Arc<PushAdmissions>;
    /// The number of workers.
    fn workers(&self) -> usize;
}
