//! `/api/push` and what is below it, as a worker sees it: a request goes to the push thread over the bus, and pieces of
//! the answer come back, as many as the client has room for.

use dunlin_net::{ConnId, Context, http};

use super::Worker;
use super::link::{Link, Role};
use super::reply::Answer;
use crate::api::ApiErrorCode;
use crate::bus_message::BusMessage;
use crate::metrics::Metric;
use crate::push_message::{PushMethod, PushReply, PushReplyBody, PushRequest};
use crate::trace_parent::TraceParent;

/// JSON lines, as they come.
const LINES: [(&str, &str); 2] =
    [("Content-Type", "application/x-ndjson"), ("Cache-Control", "no-store")];

/// A call that the push thread has.
#[derive(Debug)]
pub(super) struct PushCall {
    id: u64,
    /// The head of a streamed answer has been sent.
    begun: bool,
    /// Bytes of it that the client's socket has not taken.
    unread: usize,
}

impl Worker<'_> {
    /// Hands a request below `/api/push` over.
    pub(super) fn push_api(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        path: &str,
        request: &http::Request<'_>,
    ) {
        self.count(Metric::ApiCommands);
        let mode = request.headers.get_str("X-Centrifugo-Error-Mode");
        let errors_as_status = mode.is_some_and(|mode| mode.eq_ignore_ascii_case("transport"));
        let Some(method) = PushMethod::find(path) else {
            let why = "below /api there are push, push/batch, and push/devices/register, remove, list and feed";
            self.count(Metric::ApiErrors);
            let (_, body) = ApiErrorCode::NotFound.with_reason(why).response(errors_as_status);
            return self.answer(cx, conn, &Answer::json(404, body));
        };
        let admission = self.state.push_admissions.admit(request.body.len());
        let Some((call, permit)) = admission else {
            return self.push_overloaded(cx, conn);
        };
        let body = request.body.into();
        let trace = request.headers.get_str("traceparent").and_then(TraceParent::read);
        let request = PushRequest { call, conn, method, body, errors_as_status, trace, permit };
        let to = self.state.push_endpoint();
        if self.endpoint.send(to, BusMessage::PushRequest(Box::new(request))).is_err() {
            self.count(Metric::BusRefused);
            return self.push_overloaded(cx, conn);
        }
        if let Some(link) = cx.data(conn) {
            link.role = Role::Push;
        }
        self.push_calls.insert(conn, PushCall { id: call, begun: false, unread: 0 });
    }

    fn push_overloaded(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        self.count(Metric::ApiErrors);
        let why = "too many pushes are under way; send again in a moment";
        let (_, body) = ApiErrorCode::LimitExceeded.with_reason(why).response(true);
        let answer = Answer::json(503, body).header("Retry-After", "1");
        self.answer(cx, conn, &answer);
    }

    /// A piece of an answer has come.
    pub(super) fn push_replied(&mut self, cx: &mut Context<Link>, reply: PushReply) {
        let PushReply { call, conn, body } = reply;
        // A connection of an earlier life of this worker had the same number, perhaps.
        let Some(known) = self.push_calls.get_mut(&conn).filter(|known| known.id == call) else {
            return;
        };
        match body {
            PushReplyBody::Complete(status, body) => {
                if body.starts_with(b"{\"error\"") {
                    self.count(Metric::ApiErrors);
                }
                self.push_over(cx, conn);
                self.answer(cx, conn, &Answer::json(status, body));
            }
            PushReplyBody::Lines(lines) => {
                let begins = !std::mem::replace(&mut known.begun, true);
                known.unread += lines.len();
                if !push_lines(cx, conn, begins, &lines) {
                    return cx.abort(conn);
                }
                self.push_writable(cx, conn);
            }
            PushReplyBody::LastLines(lines) => {
                let begins = !known.begun;
                self.push_over(cx, conn);
                if !push_lines(cx, conn, begins, &lines) || cx.end_chunks(conn).is_err() {
                    cx.abort(conn);
                }
            }
            PushReplyBody::Abort => cx.abort(conn),
        }
    }

    /// Tells the push thread what the client's socket has taken, if it has taken all.
    pub(super) fn push_writable(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        if cx.want_writable(conn) {
            return;
        }
        let Some(known) = self.push_calls.get_mut(&conn) else { return };
        let (call, bytes) = (known.id, std::mem::take(&mut known.unread));
        if bytes > 0 {
            self.send_to_push(BusMessage::PushReplyRead { call, bytes });
        }
    }

    /// The connection of a call has ended before its answer.
    pub(super) fn push_gone(&mut self, conn: ConnId) {
        if let Some(PushCall { id: call, .. }) = self.push_calls.remove(&conn) {
            self.send_to_push(BusMessage::PushCallerGone { call });
        }
    }

    /// Says which of these users have a session here.
    pub(super) fn query_online(&mut self, request_id: u64, users: &[String]) {
        let here = |user: &String| self.hub.sessions_of(user).next().is_some();
        let online = (0u32..).zip(users).filter(|(_, user)| here(user)).map(|(at, _)| at);
        let online = online.collect();
        self.send_to_push(BusMessage::OnlineReply { request_id, online });
    }

    /// The call has its answer: the connection is for requests again.
    fn push_over(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        self.push_calls.remove(&conn);
        if let Some(link) = cx.data(conn) {
            link.role = Role::Http;
        }
    }

    /// What finds no room on the bus is told later; it is little, and a batch waits for it.
    fn send_to_push(&mut self, message: BusMessage) {
        self.push_backlog.push_back(message);
        self.flush_push_backlog();
    }

    pub(super) fn flush_push_backlog(&mut self) {
        let to = self.state.push_endpoint();
        while let Some(message) = self.push_backlog.pop_front() {
            if let Err(refused) = self.endpoint.send(to, message) {
                self.push_backlog.push_front(refused.into_value());
                return;
            }
        }
    }
}

/// Writes lines of an answer, its head before the first. False: the connection is over.
fn push_lines(cx: &mut Context<Link>, conn: ConnId, begins: bool, lines: &[u8]) -> bool {
    if begins {
        let head = http::Response { status: 200, headers: &LINES, body: lines };
        return cx.start_chunked(conn, &head).is_ok();
    }
    cx.write_chunk(conn, lines).is_ok()
}
