//! Collects admin pages of all nodes for a request to one of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use dunlin_api::server_api::ApiErrorCode;
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use tokio::time::Instant;

use super::agent::Agent;
use super::node_message::NodeMessage;
use super::store::Destination;
use crate::message::{
    ClusterOutput, ClusterStatus, ClusterToAdmin, NodeStatus, SharedChangeEvent, StatusPage,
};

/// The name of the call between nodes; it is not a method of the server API.
pub(super) const CALL: &str = "status";

#[derive(Serialize, Deserialize)]
struct Request {
    page: StatusPage,
}

/// Queries of this node's admin port in progress, by call id.
#[derive(Default)]
pub(super) struct StatusQueries(HashMap<u64, StatusQuery>);

struct StatusQuery {
    /// The query collects the results of a shared change instead of a page.
    is_change: bool,
    /// The store has confirmed the change and its announcement. Nodes may have responded before that.
    is_announced: bool,
    deadline: Instant,
    /// Numbers and names of the nodes that have not responded, by uid.
    waiting: BTreeMap<Arc<str>, (u16, Arc<str>)>,
    status: ClusterStatus,
}

impl StatusQueries {
    /// The earliest deadline of the queries.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.values().filter(|query| query.is_announced).map(|query| query.deadline).min()
    }
}

impl Agent {
    /// Starts a query of the admin port for a page of the other nodes.
    pub(super) fn ask_status(&mut self, request_id: u64, page: StatusPage) {
        let query = self.query(request_id, self.call_timeout, false);
        let request = to_raw_value(&Request { page });
        let Some(request) =
            request.ok().filter(|_| self.store.is_some() && !query.waiting.is_empty())
        else {
            return self.answer_status(query);
        };
        let id = self.calls.new_id();
        let message = NodeMessage {
            id,
            call: Some(CALL.into()),
            request: Some(&request),
            ..NodeMessage::from(&self.lease.uid)
        };
        let payload = message.encode();
        let to = query.waiting.keys().map(|uid| Destination::Node(Arc::clone(uid)));
        let messages = to.map(|to| (to, payload.clone())).collect();
        self.status.0.insert(id, query);
        self.say(messages);
    }

    /// Creates a query to all living nodes.
    fn query(&self, request_id: u64, within: Duration, is_change: bool) -> StatusQuery {
        let living = self.nodes.values().filter(|of| of.is_alive() && of.uid != self.lease.uid);
        let waiting = living
            .map(|node| (Arc::clone(&node.uid), (node.number, Arc::clone(&node.facts.name))))
            .collect();
        let deadline = Instant::now() + within;
        let status = ClusterStatus { request_id, ..ClusterStatus::default() };
        StatusQuery { is_change, is_announced: !is_change, deadline, waiting, status }
    }

    /// Starts to collect the other nodes' results of a change that is about to be announced. Returns the call id.
    pub(super) fn await_change(&mut self, within: Duration) -> u64 {
        let id = self.calls.new_id();
        let query = self.query(0, within, true);
        self.status.0.insert(id, query);
        id
    }

    /// Records whether the change was announced.
    pub(super) fn handle_announced(&mut self, id: u64, announced: bool) {
        let Some(query) = self.status.0.get_mut(&id) else { return };
        query.is_announced = true;
        if (!announced || query.waiting.is_empty())
            && let Some(query) = self.status.0.remove(&id).filter(|_| announced)
        {
            self.answer_status(query);
        }
    }

    /// Takes the response of a node. Returns `false` if it belongs to another call.
    pub(super) fn handle_status(&mut self, id: u64, uid: &str, response: &str) -> bool {
        let Some(query) = self.status.0.get_mut(&id) else { return false };
        if let Some((node, name)) = query.waiting.remove(uid) {
            let response = response.as_bytes().into();
            query.status.nodes.push(NodeStatus { node, name, response });
        }
        if query.waiting.is_empty()
            && query.is_announced
            && let Some(query) = self.status.0.remove(&id)
        {
            self.answer_status(query);
        }
        true
    }

    /// Answers the queries whose deadline has passed.
    pub(super) fn expire_status(&mut self, now: Instant) {
        let due: Vec<_> = self
            .status
            .0
            .extract_if(|_, query| query.is_announced && query.deadline <= now)
            .collect();
        due.into_iter().for_each(|(_, query)| self.answer_status(query));
    }

    fn answer_status(&self, query: StatusQuery) {
        let StatusQuery { is_change, waiting, mut status, .. } = query;
        status.unreachable = waiting.into_values().map(|(_, name)| name).collect();
        if !self.has_joined {
            status.unreachable.push("nodes that are not known yet".into());
        }
        if is_change {
            self.node.cluster().release_agent();
        }
        let answer = match is_change {
            true => {
                ClusterToAdmin::SharedChangeEvent(Box::new(SharedChangeEvent::Answered(status)))
            }
            false => ClusterToAdmin::Status(Box::new(status)),
        };
        let _ = self.outbox.send(ClusterOutput::Admin(answer));
    }

    /// Passes another node's query to this node's admin thread.
    pub(super) fn serve_status(&mut self, uid: Arc<str>, id: u64, request: &str) {
        let Ok(Request { page }) = serde_json::from_str(request) else {
            let version = env!("CARGO_PKG_VERSION");
            let why = format_args!("this node is of version {version} and has no such page");
            let (_, body) = ApiErrorCode::NotAvailable.with_reason(why).response(false);
            return self.respond(&uid, id, &body);
        };
        self.served += 1;
        let request_id = self.served;
        self.serving.insert(request_id, (uid, id, Instant::now()));
        let query = ClusterToAdmin::StatusQuery { request_id, page };
        let _ = self.outbox.send(ClusterOutput::Admin(query));
    }
}
