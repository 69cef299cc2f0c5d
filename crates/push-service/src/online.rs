//! Queries which users are online. Every worker is asked, because sessions live where their connections are.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dunlin_api::online::{OnlineQuery, OnlineReply};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::thread::Shared;
use crate::message::{PushOutput, PushToWorker};

/// Time to wait for all workers. Sessions of a worker that has not answered by then count as absent: an extra push is
/// better than a missing one.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Queries in progress.
#[derive(Debug, Default)]
pub(super) struct OnlineQueries {
    begun: AtomicU64,
    open: Mutex<HashMap<u64, OpenQuery>>,
}

#[derive(Debug)]
struct OpenQuery {
    /// Whether each user is online, by index in the query.
    online: Vec<bool>,
    waiting: usize,
    answer: Option<oneshot::Sender<()>>,
}

impl Shared {
    /// Returns for each of these users whether the user has a session.
    pub(super) async fn online(&self, users: &Arc<[String]>) -> Vec<bool> {
        let online_queries = &self.online_queries;
        let ask = online_queries.begun.fetch_add(1, Relaxed);
        let (answer, answered) = oneshot::channel();
        // The control thread answers on behalf of the other nodes.
        let in_cluster = self.is_in_cluster();
        let waiting = self.workers + usize::from(in_cluster);
        let open = OpenQuery { online: vec![false; users.len()], waiting, answer: Some(answer) };
        online_queries.open.lock().unwrap_or_else(PoisonError::into_inner).insert(ask, open);
        let query = || OnlineQuery { request_id: ask, users: Arc::clone(users) };
        for worker in 0..self.workers {
            self.send(PushOutput::Worker(worker, PushToWorker::OnlineQuery(query())));
        }
        if in_cluster {
            self.send(PushOutput::Cluster(query()));
        }
        if timeout(TIMEOUT, answered).await.is_err() {
            tracing::warn!("a worker does not say who is connected; they count as offline");
        }
        let open = online_queries.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&ask);
        open.map_or_else(|| vec![false; users.len()], |open| open.online)
    }
}

impl OnlineQueries {
    /// Handles the answer of a worker or of the control thread.
    pub(super) fn handle(&self, reply: &OnlineReply) {
        let mut online_queries = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = online_queries.get_mut(&reply.request_id) else { return };
        for &at in &reply.online {
            if let Some(user) = open.online.get_mut(at as usize) {
                *user = true;
            }
        }
        open.waiting = open.waiting.saturating_sub(1);
        if open.waiting == 0
            && let Some(answer) = open.answer.take()
        {
            // The caller may have timed out.
            let _ = answer.send(());
        }
    }
}
