//! Which users have a session: asked by the push thread, answered by workers and by the agent of the cluster.

use std::sync::Arc;

/// Which of these users have a session?
pub(crate) struct OnlineQuery {
    /// Repeated in the reply.
    pub(crate) request_id: u64,
    pub(crate) users: Arc<[String]>,
}

/// The reply to an [`OnlineQuery`].
pub(crate) struct OnlineReply {
    pub(crate) request_id: u64,
    /// Indexes in the query.
    pub(crate) online: Vec<u32>,
}
