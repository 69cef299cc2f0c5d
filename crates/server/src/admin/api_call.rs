//! `POST /api/{method}`: the server API, for operators.
//!
//! One worker executes the command as if a backend had sent it, and answers over the bus. A token of role `see` may use the
//! methods that list clients and channels; what changes something, and what shows messages, takes `operate`.

use dunlin_config::AdminRole;
use dunlin_net::ConnId;
use dunlin_net::http::{self, Method as HttpMethod};

use super::problem::{self, ProblemDetails};
use super::worker_query::WorkerQueries;
use super::{Admin, Cx, answer};
use crate::api::Method;
use crate::message::worker::WorkerMessage;

/// How long a worker, and the nodes that it asks, may take.
const TIMEOUT_MS: u64 = 10_000;
/// Most calls in flight.
const CALLS_MAX: usize = 64;

/// A call that waits for a worker.
#[derive(Debug)]
pub(super) struct ApiCall {
    conn: ConnId,
    response: Option<(u16, Vec<u8>)>,
}

pub(super) fn api_calls() -> WorkerQueries<ApiCall> {
    WorkerQueries::new(CALLS_MAX)
}

/// Returns the role that a method takes; `None` for one that is not served here.
pub(super) fn role_for(method: &str) -> Option<AdminRole> {
    Some(match Method::of(method)? {
        Method::Channels
        | Method::Connections
        | Method::Presence
        | Method::PresenceStats
        | Method::Info => AdminRole::See,
        Method::Publish
        | Method::Broadcast
        | Method::InboxPublish
        | Method::InboxCancel
        | Method::Subscribe
        | Method::Unsubscribe
        | Method::Disconnect
        | Method::Refresh
        | Method::History
        | Method::HistoryRemove
        | Method::Ack
        | Method::Unread
        | Method::Send
        | Method::RevokeToken
        | Method::InvalidateUserTokens
        | Method::BlockUser
        | Method::UnblockUser => AdminRole::Operate,
    })
}

impl Admin {
    pub(super) fn api_call(
        &mut self,
        cx: &Cx,
        conn: ConnId,
        request: &http::Request<'_>,
        name: &str,
    ) -> Result<(), ProblemDetails> {
        let Some(method) = Method::of(name) else {
            let names: Vec<_> = Method::ALL.iter().map(|method| method.name()).collect();
            let detail = format!("there is no method {name:?}; there are {}", names.join(", "));
            return Err(ProblemDetails::new(&problem::NOT_FOUND, detail));
        };
        if !matches!(request.method, HttpMethod::Post) {
            return Err(ProblemDetails::method("POST"));
        }
        let deadline_ms = cx.now_ms() + TIMEOUT_MS;
        let call = ApiCall { conn, response: None };
        let workers = self.state.workers();
        let Some((request_id, worker)) = self.api_calls.begin_one(deadline_ms, workers, call)
        else {
            let detail = "too many calls wait for the workers";
            return Err(ProblemDetails::new(&problem::OVERLOADED, detail).header("Retry-After", &1));
        };
        let params = request.body.into();
        let message = WorkerMessage::ApiCall { request_id, method, params };
        // If the ring is full, the call is answered at its deadline.
        let _ = self.endpoint.send(self.state.bus.worker(worker), message);
        Ok(())
    }

    pub(super) fn handle_api_reply(
        &mut self,
        cx: &mut Cx,
        request_id: u64,
        worker: usize,
        response: (u16, Vec<u8>),
    ) {
        let add = |call: &mut ApiCall| call.response = Some(response);
        let Some(query) = self.api_calls.handle_reply(request_id, worker, add) else { return };
        if let Some((status, body)) = query.replies.response {
            answer(cx, query.replies.conn, status, "application/json", &body);
        }
    }

    /// Answers calls that no worker has answered in time. Called once a second.
    pub(super) fn answer_overdue_api_calls(&mut self, cx: &mut Cx) {
        for query in self.api_calls.poll_overdue(cx.now_ms()) {
            let detail = format!("worker {} does not answer", query.unresponsive[0]);
            let problem = ProblemDetails::new(&problem::OVERLOADED, detail);
            problem.header("Retry-After", &1).answer(cx, query.replies.conn);
        }
    }
}
