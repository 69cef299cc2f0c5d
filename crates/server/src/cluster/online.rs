//! Who is connected somewhere in the cluster, for pushes that are for those who are not.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use tokio::time::Instant;

use super::agent::Agent;
use super::link::Commands;
use super::message::Message;
use crate::bus_message::BusMessage;

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
pub(super) struct OnlineQueries {
    begun: u64,
    /// Of this node's push thread.
    asked: HashMap<u64, Asked>,
    /// Of other nodes.
    served: HashMap<u64, Served>,
}

struct Asked {
    /// Of the push thread.
    request_id: u64,
    deadline: Instant,
    waiting: HashSet<Arc<str>>,
    online: BTreeSet<u32>,
}

struct Served {
    uid: Arc<str>,
    id: u64,
    since: Instant,
    workers: usize,
    online: BTreeSet<u32>,
}

impl OnlineQueries {
    /// When the first that this node has asked has waited long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.asked.values().map(|asked| asked.deadline).min()
    }
}

impl Agent {
    /// The push thread asks which of these users have a session on another node.
    pub(super) fn ask_online(&mut self, request_id: u64, users: &[String]) {
        let living = self.nodes.values().filter(|of| of.is_alive() && of.uid != self.lease.uid);
        let waiting: HashSet<_> = living.map(|node| Arc::clone(&node.uid)).collect();
        let request = to_raw_value(&Users { users: users.to_vec() });
        let Some(request) = request.ok().filter(|_| self.link.is_some() && !waiting.is_empty())
        else {
            return self.answer_online(request_id, BTreeSet::new());
        };
        self.online.begun += 1;
        let id = self.online.begun;
        let deadline = Instant::now() + self.call_timeout;
        let asked = Asked { request_id, deadline, waiting, online: BTreeSet::new() };
        self.online.asked.insert(id, asked);
        let message = Message {
            id,
            call: Some(CALL.into()),
            request: Some(&request),
            ..Message::from(&self.lease.uid)
        };
        let (payload, channel) = (message.encode(), format!("{}:calls", self.prefix));
        let mut commands = Commands::default();
        commands.push(&[b"PUBLISH", channel.as_bytes(), &payload]);
        self.spawn(commands);
    }

    /// A node has answered. False: it was another call's answer.
    pub(super) fn handle_online(&mut self, id: u64, uid: &str, response: &str) -> bool {
        let Ok(places) = serde_json::from_str::<Places>(response) else { return false };
        let Some(asked) = self.online.asked.get_mut(&id) else { return true };
        asked.online.extend(places.online);
        asked.waiting.remove(uid);
        if asked.waiting.is_empty()
            && let Some(Asked { request_id, online, .. }) = self.online.asked.remove(&id)
        {
            self.answer_online(request_id, online);
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
        self.online.served.retain(|_, served| served.since.elapsed() < self.call_timeout * 10);
    }

    fn answer_online(&self, request_id: u64, online: BTreeSet<u32>) {
        let online = online.into_iter().collect();
        let reply = BusMessage::OnlineReply { request_id, online };
        let _ = self.to_workers.send((self.state.push_endpoint(), reply));
    }

    /// Another node asks which of these users have a session here.
    pub(super) fn serve_online(&mut self, uid: Arc<str>, id: u64, request: &str) {
        let Ok(Users { users }) = serde_json::from_str(request) else { return };
        self.online.begun += 1;
        let (request_id, workers) = (self.online.begun, self.state.workers());
        let served = Served { uid, id, since: Instant::now(), workers, online: BTreeSet::new() };
        self.online.served.insert(request_id, served);
        let users: Arc<[String]> = users.into();
        self.tell_workers(|| BusMessage::OnlineQuery { request_id, users: Arc::clone(&users) });
    }

    /// A worker of this node has said so.
    pub(super) fn handle_worker_online(&mut self, request_id: u64, online: Vec<u32>) {
        let Some(served) = self.online.served.get_mut(&request_id) else { return };
        served.online.extend(online);
        served.workers -= 1;
        if served.workers > 0 {
            return;
        }
        let Some(Served { uid, id, online, .. }) = self.online.served.remove(&request_id) else {
            return;
        };
        let response = serde_json::to_vec(&Places { online }).unwrap_or_default();
        self.respond(&uid, id, &response);
    }
}
