//! Who is connected: every worker is asked, for sessions are where their connections are.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::thread::Shared;
use crate::message::bus::BusMessage;

/// A worker that has not said so long later who is there is not waited for: better a push too many than one too few.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Questions under way.
#[derive(Debug, Default)]
pub(super) struct OnlineQueries {
    begun: AtomicU64,
    open: Mutex<HashMap<u64, OpenQuery>>,
}

#[derive(Debug)]
struct OpenQuery {
    /// By the places of the users in the question.
    online: Vec<bool>,
    waiting: usize,
    answer: Option<oneshot::Sender<()>>,
}

impl Shared {
    /// Which of these users have a session, by their places.
    pub(super) async fn online(&self, users: &Arc<[String]>) -> Vec<bool> {
        let online_queries = &self.online_queries;
        let ask = online_queries.begun.fetch_add(1, Relaxed);
        let (answer, answered) = oneshot::channel();
        // The control thread answers for the other nodes.
        let state = self.hook_events.state();
        let in_cluster = state.settings.load().config.cluster.engine.is_some();
        let others = in_cluster.then(|| state.control_endpoint());
        let waiting = self.workers + usize::from(in_cluster);
        let open = OpenQuery { online: vec![false; users.len()], waiting, answer: Some(answer) };
        online_queries.open.lock().unwrap_or_else(PoisonError::into_inner).insert(ask, open);
        for worker in (0..self.workers).chain(others) {
            self.send(
                worker,
                BusMessage::OnlineQuery { request_id: ask, users: Arc::clone(users) },
            );
        }
        if timeout(TIMEOUT, answered).await.is_err() {
            tracing::warn!("a worker does not say who is connected; they count as offline");
        }
        let open = online_queries.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&ask);
        open.map_or_else(|| vec![false; users.len()], |open| open.online)
    }
}

impl OnlineQueries {
    /// A worker has answered.
    pub(super) fn handle(&self, ask: u64, online: &[u32]) {
        let mut online_queries = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = online_queries.get_mut(&ask) else { return };
        for &at in online {
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
