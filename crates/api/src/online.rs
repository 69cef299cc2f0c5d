//! Which users have a session: asked by the push thread, answered by workers and by the agent of the cluster.

use std::sync::Arc;

/// Which of these users have a session?
pub struct OnlineQuery {
    /// Repeated in the reply.
    pub request_id: u64,
    /// The users.
    pub users: Arc<[String]>,
}

/// The reply to an [`OnlineQuery`].
pub struct OnlineReply {
    /// As in the query.
    pub request_id: u64,
    /// Indexes in the query.
    pub online: Vec<u32>,
}
