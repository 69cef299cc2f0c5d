//! `/api/push` and what is below it, as a worker sees it: a request goes to the push thread over the bus, and pieces of
//! the answer come back, as many as the client has room for.

use std::time::Instant;

use dunlin_api::online::{OnlineQuery, OnlineReply};
use dunlin_net::{ConnId, Context, WriteError, http};
use dunlin_push_service::TraceParent;
use dunlin_push_service::message::{PushMessage, PushMethod, PushReply, PushRequest};

use super::api::errors_as_status;
use super::link::{Link, Role};
use super::parts::{PushCalls, PushStep};
use super::reply::PlainResponse;
use super::turn::{Core, Turn};
use crate::api::ApiErrorCode;
use crate::metrics::Metric;
use crate::metrics::labelled::ApiCall;
use crate::telemetry::BegunSpan;

/// JSON lines, as they come.
const LINES: [(&str, &str); 2] =
    [("Content-Type", "application/x-ndjson"), ("Cache-Control", "no-store")];

/// The machine of calls that the push thread handles.
#[derive(Default)]
pub(super) struct PushLink {
    push_calls: PushCalls,
}

impl PushLink {
    /// Hands a request below `/api/push` over.
    pub(super) fn push_api(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        path: &str,
        request: &http::Request<'_>,
    ) {
        turn.core.count(Metric::ApiCommands);
        let errors_as_status = errors_as_status(request);
        let Some(method) = PushMethod::find(path) else {
            let why = "below /api there are push, push/batch, push/outcomes/feed, push/scheduled/list and cancel, and push/devices/register, remove, list and feed";
            turn.core.count(Metric::ApiErrors);
            turn.core.api_answered("push", "unknown", ApiErrorCode::NotFound.code());
            let (_, body) = ApiErrorCode::NotFound.with_reason(why).response(errors_as_status);
            return turn.answer(conn, &PlainResponse::json(404, body));
        };
        let about = (method.path(), Instant::now());
        let admission = turn.core.state.push_admissions.admit(request.body.len());
        let Some((call, permit)) = admission else {
            return self.push_overloaded(turn, conn, method);
        };
        let body = request.body.into();
        let traceparent = request.headers.get_str("traceparent");
        let span = turn.core.state.telemetry.begin_request(traceparent).map(Box::new);
        let trace = match &span {
            Some(span) => Some(TraceParent {
                trace: span.context.trace,
                span: span.context.span,
                is_sampled: true,
            }),
            None => traceparent.and_then(TraceParent::read),
        };
        let request = PushRequest { call, conn, method, body, errors_as_status, trace, permit };
        let to = turn.core.state.bus.push();
        if turn.core.endpoint.send(to, PushMessage::Request(Box::new(request))).is_err() {
            turn.core.count(Metric::BusRefused);
            return self.push_overloaded(turn, conn, method);
        }
        if let Some(link) = turn.cx.data(conn) {
            link.role = Role::Push;
        }
        self.push_calls.begin(conn, call, about, span);
    }

    fn push_overloaded(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, method: PushMethod) {
        turn.core.count(Metric::ApiErrors);
        let code = ApiErrorCode::LimitExceeded.code();
        turn.core.api_answered("push", method.path(), code);
        let why = "too many pushes are under way; send again in a moment";
        let (_, body) = ApiErrorCode::LimitExceeded.with_reason(why).response(true);
        let answer = PlainResponse::json(503, body).header("Retry-After", "1");
        turn.answer(conn, &answer);
    }

    /// A piece of a response has come.
    pub(super) fn push_replied(&mut self, turn: &mut Turn<'_, '_>, reply: PushReply) {
        let conn = reply.conn;
        let about = self.push_calls.about(conn);
        let span = self.push_calls.span(conn);
        match self.push_calls.handle_reply(reply) {
            None => {}
            Some(PushStep::Respond { status, body }) => {
                let code = error_code(&body);
                if code > 0 {
                    turn.core.count(Metric::ApiErrors);
                }
                push_answered(turn.core, about, span, code);
                release(turn.cx, conn);
                turn.answer(conn, &PlainResponse::json(status, body));
            }
            Some(PushStep::Stream { lines, begins, ends }) => {
                if ends {
                    release(turn.cx, conn);
                    push_answered(turn.core, about, span, 0);
                }
                let written = turn.cx.outstanding(conn).and_then(|id| {
                    write_lines(turn.cx, id, begins, &lines)?;
                    if ends { turn.cx.end_chunks(id) } else { Ok(()) }
                });
                if written.is_err() {
                    return turn.cx.abort(conn);
                }
                if !ends {
                    self.push_writable(turn, conn);
                }
            }
            Some(PushStep::Abort) => turn.cx.abort(conn),
        }
    }

    /// Lets the push thread send more once the client's socket has taken everything.
    pub(super) fn push_writable(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        if !turn.cx.want_writable(conn) {
            self.push_calls.handle_drained(conn);
            self.transmit_to_push(turn.core);
        }
    }

    /// A connection has closed, before its response or after.
    pub(super) fn push_closed(&mut self, core: &mut Core<'_>, conn: ConnId) {
        self.push_calls.handle_closed(conn);
        self.transmit_to_push(core);
    }

    /// Replies which of these users have a session here.
    pub(super) fn query_online(&mut self, core: &mut Core<'_>, query: &OnlineQuery) {
        let here = |user: &String| core.hub.sessions_of(user).next().is_some();
        let online = (0u32..).zip(&*query.users).filter(|(_, user)| here(user)).map(|(at, _)| at);
        let online = online.collect();
        let reply = OnlineReply { request_id: query.request_id, online };
        self.push_calls.enqueue(reply.into());
        self.transmit_to_push(core);
    }

    /// Gives the push thread what waits for it, as far as its ring has room.
    pub(super) fn transmit_to_push(&mut self, core: &mut Core<'_>) {
        let to = core.state.bus.push();
        while let Some(message) = self.push_calls.poll_transmit() {
            if let Err(full) = core.endpoint.send(to, message) {
                return self.push_calls.put_back(full.into_value());
            }
        }
    }
}

/// Counts a call that was answered.
fn push_answered(
    core: &Core<'_>,
    about: Option<(&'static str, Instant)>,
    span: Option<BegunSpan>,
    code: u32,
) {
    let Some((method, began)) = about else { return };
    if let Some(span) = span {
        core.api_call_ended(span, ("push", method), std::iter::once((method, code)));
    }
    core.api_answered("push", method, code);
    let took = began.elapsed().as_nanos() as u64;
    core.labelled().api_calls.of(ApiCall { api: "push", method }).record(took);
}

/// Returns the code of an answer that consists of an error; 0: it is none.
fn error_code(body: &[u8]) -> u32 {
    let Some(rest) = body.strip_prefix(b"{\"error\"") else { return 0 };
    let digits = rest.iter().skip_while(|byte| !byte.is_ascii_digit());
    let digits = digits.take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |code: u32, digit| code.saturating_mul(10) + u32::from(digit - b'0'))
}

/// The call is over: the connection is for requests again.
fn release(cx: &mut Context<Link>, conn: ConnId) {
    if let Some(link) = cx.data(conn) {
        link.role = Role::Http;
    }
}

/// Writes lines of a response, its head before the first. An error: the connection is over.
fn write_lines(
    cx: &mut Context<Link>,
    id: http::RequestId,
    begins: bool,
    lines: &[u8],
) -> Result<(), WriteError> {
    if begins {
        let head = http::Response { status: 200, headers: &LINES, body: lines };
        return cx.start_chunked(id, &head);
    }
    cx.write_chunk(id, lines)
}
