//! `?scope=cluster` on status pages: the pages of all live nodes in one response.
//!
//! The control thread queries the nodes through the cluster's engine; on each, the admin thread answers. Nodes that do
//! not answer within `cluster.call_timeout_ms` are listed.

use dunlin_cluster::message::{ClusterMessage, ClusterStatus, NodeStatus, StatusPage};
use dunlin_net::ConnId;
use dunlin_net::http::{self, query};
use serde_json::{Value, json};

use super::call;
use super::problem::{self, ProblemDetails};
use super::worker_query::WorkerQueries;
use super::{Admin, Cx, answer_json};

/// Most requests in flight.
const REQUESTS_MAX: usize = 16;
/// Most bytes of a page that one node sends another.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// How long the control thread may take beyond the time that it gives the nodes.
const CONTROL_TIMEOUT_MS: u64 = 5_000;
/// The control thread's index in the query: it is the only one that replies.
const CONTROL: usize = 0;

/// A request that waits for the other nodes.
#[derive(Debug)]
pub(super) struct StatusRequest {
    conn: ConnId,
    page: StatusPage,
    status: ClusterStatus,
}

pub(super) fn status_requests() -> WorkerQueries<StatusRequest> {
    WorkerQueries::new(REQUESTS_MAX)
}

impl Admin {
    /// Returns this node's page.
    fn status(&self, page: StatusPage) -> Value {
        let state = &self.state;
        match page {
            StatusPage::Info => state.info(),
            StatusPage::Cluster => state.cluster.status(state.uptime_ms()),
            StatusPage::Overview => self.overview(),
            StatusPage::Workers => self.workers_status(),
            StatusPage::Engines => json!(state.engines.status()),
            StatusPage::Tenants => json!(state.settings.load().tenants.status()),
            StatusPage::Upstreams => state.upstreams.status(super::unix_ms()),
            StatusPage::Webhooks => json!(state.webhooks.stats.status()),
        }
    }

    /// Answers with the page of this node, or of all nodes with `scope=cluster`.
    pub(super) fn status_page(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        request: &http::Request<'_>,
        page: StatusPage,
    ) -> Result<(), ProblemDetails> {
        let mut pairs = query::pairs(request.query.unwrap_or(""));
        let scope = pairs.find(|(name, _)| name == "scope");
        if scope.map_or(Ok(false), |(_, value)| call::scope(&value))? {
            return self.ask_nodes(cx, conn, page);
        }
        answer_json(cx, conn, 200, &self.status(page));
        Ok(())
    }

    fn ask_nodes(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        page: StatusPage,
    ) -> Result<(), ProblemDetails> {
        let timeout_ms = self.state.settings.load().config.cluster.call_timeout_ms;
        let deadline_ms = cx.now_ms() + timeout_ms + CONTROL_TIMEOUT_MS;
        let request = StatusRequest { conn, page, status: ClusterStatus::default() };
        let Some(request_id) = self.status_requests.begin(deadline_ms, CONTROL + 1, request) else {
            let detail = "too many requests wait for other nodes";
            return Err(ProblemDetails::new(&problem::OVERLOADED, detail).header("Retry-After", &1));
        };
        // If the ring is full, the request is answered at its deadline.
        let query = ClusterMessage::StatusQuery { request_id, page };
        let _ = self.endpoint.send(self.state.bus.control(), query);
        Ok(())
    }

    /// Handles the answers of the other nodes.
    pub(super) fn handle_cluster_status(&mut self, cx: &mut Cx, status: ClusterStatus) {
        let id = status.request_id;
        let add = |request: &mut StatusRequest| request.status = status;
        let Some(query) = self.status_requests.handle_reply(id, CONTROL, add) else { return };
        let StatusRequest { conn, page, status } = query.replies;
        let number = self.state.cluster.number();
        let settings = self.state.settings.load();
        let number = number.unwrap_or(settings.config.server.node);
        let own =
            json!({ "node": number, "name": settings.node_name(), "status": self.status(page) });
        let mut nodes = vec![own];
        nodes.extend(status.nodes.iter().map(status_of));
        nodes.sort_by_key(|of| of["node"].as_u64());
        let body = json!({ "nodes": nodes, "unreachable": status.unreachable });
        answer_json(cx, conn, 200, &body);
    }

    /// Answers requests that the control thread has not answered in time. Called once a second.
    pub(super) fn answer_overdue_status(&mut self, cx: &mut Cx) {
        for query in self.status_requests.poll_overdue(cx.now_ms()) {
            let detail = "the thread that speaks to other nodes does not answer";
            let problem = ProblemDetails::new(&problem::OVERLOADED, detail);
            problem.header("Retry-After", &1).answer(cx, query.replies.conn);
        }
    }

    /// Answers another node.
    pub(super) fn serve_status(&mut self, request_id: u64, page: StatusPage) {
        let mut response = json!({ "page": self.status(page) }).to_string();
        if response.len() > PAGE_BYTES_MAX {
            let why = format!(
                "the page has {} bytes, and nodes send each other {PAGE_BYTES_MAX} at most; ask this node itself",
                response.len()
            );
            response = json!({ "error": { "message": why } }).to_string();
        }
        let response = response.into_bytes().into();
        // If the ring is full, that node lists this one as unreachable.
        let reply = ClusterMessage::NodeReply { request_id, response };
        let _ = self.endpoint.send(self.state.bus.control(), reply);
    }
}

/// Returns the page of a node, or its error.
fn status_of(node: &NodeStatus) -> Value {
    let mut said: Value = serde_json::from_slice(&node.response).unwrap_or_default();
    match said.get_mut("page").map(Value::take) {
        Some(page) => json!({ "node": node.node, "name": node.name, "status": page }),
        None => {
            json!({ "node": node.node, "name": node.name, "error": said["error"]["message"] })
        }
    }
}
