//! Finds out which users are connected to any node, for pushes with `only_offline`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use dunlin_api::online::OnlineReply;
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use tokio::time::Instant;

use super::agent::Agent;
use super::node_message::NodeMessage;
use super::store::Destination;
use crate::message::ClusterOutput;

/// The name of the call between nodes; it is not a method of the server API.
pub(super) const CALL: &str = "online";

/// The users of a query; in a response, the indices of those with a session.
#[derive(Serialize, Deserialize)]
struct Users {
    users: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Places {
    online: BTreeSet<u32>,
}

/// Queries in progress, by id.
#[derive(Default)]
pub(super) struct ClusterOnlineQueries {
    /// Queries of this node's push thread.
    asked: HashMap<u64, AskedQuery>,
}

struct AskedQuery {
    /// The request id of the push thread.
    request_id: u64,
    deadline: Instant,
    waiting: HashSet<Arc<str>>,
    online: BTreeSet<u32>,
}

impl ClusterOnlineQueries {
    /// The earliest deadline of this node's queries.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.asked.values().map(|asked| asked.deadline).min()
    }

    /// Takes the response of a node. A node that cannot answer, for example one of another version, counts as having no user
    /// connected: a redundant push is better than a missing one.
    fn handle_response(&mut self, id: u64, uid: &str, response: &str) -> Handled {
        let Some(asked) = self.asked.get_mut(&id) else { return Handled::NotAsked };
        if let Ok(places) = serde_json::from_str::<Places>(response) {
            asked.online.extend(places.online);
        }
        asked.waiting.remove(uid);
        if !asked.waiting.is_empty() {
            return Handled::Waiting;
        }
        let answered = self.asked.remove(&id);
        answered.map_or(Handled::NotAsked, |of| Handled::Answered(of.request_id, of.online))
    }
}

/// What a response belonged to.
#[derive(Debug, PartialEq)]
enum Handled {
    /// It is not a response to a query about users.
    NotAsked,
    Waiting,
    /// The last awaited response: the request id, and the indices of connected users.
    Answered(u64, BTreeSet<u32>),
}

impl Agent {
    /// Starts a query of the push thread: which of these users have a session on another node.
    pub(super) fn ask_online(&mut self, request_id: u64, users: &[String]) {
        let living = self.nodes.values().filter(|of| of.is_alive() && of.uid != self.lease.uid);
        let waiting: HashSet<_> = living.map(|node| Arc::clone(&node.uid)).collect();
        let request = to_raw_value(&Users { users: users.to_vec() });
        let Some(request) = request.ok().filter(|_| self.store.is_some() && !waiting.is_empty())
        else {
            return self.answer_online(request_id, BTreeSet::new());
        };
        let id = self.calls.new_id();
        let deadline = Instant::now() + self.call_timeout;
        let asked = AskedQuery { request_id, deadline, waiting, online: BTreeSet::new() };
        self.online.asked.insert(id, asked);
        let message = NodeMessage {
            id,
            call: Some(CALL.into()),
            request: Some(&request),
            ..NodeMessage::from(&self.lease.uid)
        };
        self.say(vec![(Destination::All, message.encode())]);
    }

    /// Takes the response of a node. Returns `false` if it belongs to another call.
    pub(super) fn handle_online(&mut self, id: u64, uid: &str, response: &str) -> bool {
        match self.online.handle_response(id, uid, response) {
            Handled::NotAsked => return false,
            Handled::Waiting => {}
            Handled::Answered(request_id, online) => self.answer_online(request_id, online),
        }
        true
    }

    /// Answers queries whose deadline has passed. Users on a node that did not respond count as offline: a redundant push is
    /// better than a missing one.
    pub(super) fn expire_online(&mut self, now: Instant) {
        let due = self.online.asked.iter().filter(|(_, asked)| asked.deadline <= now);
        let due: Vec<u64> = due.map(|(id, _)| *id).collect();
        for id in due {
            let Some(asked) = self.online.asked.remove(&id) else { continue };
            let nodes = asked.waiting.len();
            tracing::warn!(
                nodes,
                "nodes do not say who is connected; their users count as offline"
            );
            self.answer_online(asked.request_id, asked.online);
        }
    }

    fn answer_online(&self, request_id: u64, online: BTreeSet<u32>) {
        let online = online.into_iter().collect();
        let _ = self.outbox.send(ClusterOutput::Push(OnlineReply { request_id, online }));
    }

    /// Answers another node's query: which of these users have a session here.
    pub(super) fn serve_online(&mut self, uid: &str, id: u64, request: &str) {
        let Ok(Users { users }) = serde_json::from_str(request) else { return };
        let connections = self.node.user_connections();
        let has = |user: &str| connections.as_ref().is_some_and(|all| all.has(user));
        let online = (0..).zip(&users).filter(|(_, user)| has(user)).map(|(at, _)| at).collect();
        let response = serde_json::to_vec(&Places { online }).unwrap_or_default();
        self.respond(uid, id, &response);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a response without users, such as that of a version that does not know the query, was matched to another
    /// call with the same id, because ids were counted separately. The query then waited for its deadline.
    #[test]
    fn an_answer_belongs_to_the_question_with_its_id_whatever_it_says() {
        let mut queries = ClusterOnlineQueries::default();
        let waiting = ["a", "b"].map(Arc::from).into();
        let asked = AskedQuery {
            request_id: 9,
            deadline: Instant::now(),
            waiting,
            online: BTreeSet::new(),
        };
        queries.asked.insert(5, asked);
        let unknown = r#"{"error":{"code":108,"message":"not available"}}"#;
        assert_eq!(queries.handle_response(6, "a", unknown), Handled::NotAsked);
        assert_eq!(queries.handle_response(5, "a", unknown), Handled::Waiting);
        let answered = queries.handle_response(5, "b", r#"{"online":[2]}"#);
        assert_eq!(answered, Handled::Answered(9, [2].into()));
        assert_eq!(queries.handle_response(5, "b", unknown), Handled::NotAsked);
    }
}
