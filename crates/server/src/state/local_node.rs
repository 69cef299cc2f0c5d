//! The server as the cluster's agent and the push service see it.

use std::sync::Arc;

use dunlin_cluster::{ClusterState, LocalNode};
use dunlin_config::Snapshot;
use dunlin_push_service::PushNode;
use dunlin_push_service::message::PushAdmissions;
use dunlin_webhooks::EventFilter;

use super::ServerState;
use crate::auth::revocation::Revocations;
use crate::limits::shared_buckets::SharedBuckets;
use crate::limits::user_connections::UserConnections;
use crate::metrics::Metric;

impl LocalNode for ServerState {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(self.settings.load().snapshot())
    }

    fn name(&self) -> Arc<str> {
        Arc::clone(self.settings.load().node_name())
    }

    fn event_filter(&self) -> Arc<EventFilter> {
        Arc::clone(&self.settings.load().event_filter)
    }

    fn user_connections(&self) -> Option<Arc<UserConnections>> {
        self.settings.load().user_connections.clone()
    }

    fn cluster(&self) -> &ClusterState {
        &self.cluster
    }

    fn budgets(&self) -> &SharedBuckets {
        &self.budgets
    }

    fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    fn sessions(&self) -> u64 {
        self.total(Metric::Sessions)
    }

    fn uptime_ms(&self) -> u64 {
        self.uptime_ms()
    }

    fn workers(&self) -> usize {
        self.workers()
    }
}

impl PushNode for ServerState {
    fn snapshot(&self) -> Arc<Snapshot> {
        LocalNode::snapshot(self)
    }

    fn name(&self) -> Arc<str> {
        LocalNode::name(self)
    }

    fn event_filter(&self) -> Arc<EventFilter> {
        LocalNode::event_filter(self)
    }

    fn push_admissions(&self) -> &Arc<PushAdmissions> {
        &self.push_admissions
    }

    fn workers(&self) -> usize {
        self.workers()
    }
}
