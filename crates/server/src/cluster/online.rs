//! Who is connected somewhere in the cluster, for pushes that are for those who are not.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use tokio::time::Instant;

use super::agent::Agent;
use super::message::NodeMessage;
use super::store::Destination;
use crate::message::bus::BusMessage;

/// The name of the call between nodes; it is no method of the server API.
pub(super) const CALL: &str = "online";

/// Users, and of the answer the places of those that have a session.
#[derive(Serialize, Deserialize)]
struct Users {
    users: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Places {
    online: BTreeSet<u32>,
}

/// Questions under way, by their ids.
#[derive(Default)]
pub(super) struct ClusterOnlineQueries {
    /// Of this node's push thread.
    asked: HashMap<u64, AskedQuery>,
}

struct AskedQuery {
    /// Of the push thread.
    request_id: u64,
    deadline: Instant,
    waiting: HashSet<Arc<str>>,
    online: BTreeSet<u32>,
}

impl ClusterOnlineQueries {
    /// When the first that this node has asked has waited long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.asked.values().map(|asked| asked.deadline).min()
    }

    /// A node has answered a call. One that cannot say, as of another version, has nobody connected: better a push too many.
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

/// What an answer of a node was.
#[derive(Debug, PartialEq)]
enum Handled {
    /// Of a call that is no question about users.
    NotAsked,
    Waiting,
    /// The last that was waited for: of this request, and who is connected.
    Answered(u64, BTreeSet<u32>),
}

impl Agent {
    /// The push thread asks which of these users have a session on another node.
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

    /// A node has answered. False: it was another call's answer.
    pub(super) fn handle_online(&mut self, id: u64, uid: &str, response: &str) -> bool {
        match self.online.handle_response(id, uid, response) {
            Handled::NotAsked => return false,
            Handled::Waiting => {}
            Handled::Answered(request_id, online) => self.answer_online(request_id, online),
        }
        true
    }

    /// Answers what has waited long enough. Who is on a silent node counts as offline: better a push too many than one too
    /// few.
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
        let reply = BusMessage::OnlineReply { request_id, online };
        let _ = self.to_workers.send((self.state.push_endpoint(), reply));
    }

    /// Another node asks which of these users have a session here.
    pub(super) fn serve_online(&mut self, uid: &str, id: u64, request: &str) {
        let Ok(Users { users }) = serde_json::from_str(request) else { return };
        let settings = self.state.settings.load();
        let has = |user: &str| settings.user_connections.as_ref().is_some_and(|all| all.has(user));
        let online = (0..).zip(&users).filter(|(_, user)| has(user)).map(|(at, _)| at).collect();
        let response = serde_json::to_vec(&Places { online }).unwrap_or_default();
        self.respond(uid, id, &response);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer without users, as of a version that does not know the question, was taken for one to another call of the same
    /// number, for the two were counted apart; and the question waited for its deadline.
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
