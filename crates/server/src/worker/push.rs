//! `/api/push` and what is below it, as a worker sees it: a request goes to the push thread over the bus, and pieces of
//! the answer come back, as many as the client has room for.

use dunlin_net::{ConnId, Context, http};

use super::Worker;
use super::link::{Link, Role};
use super::reply::Answer;
use crate::api::ApiErrorCode;
use crate::metrics::Metric;
use crate::parcel::Parcel;
use crate::push::{Ask, PushMethod, Said, Saying, TraceParent, refusal};

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
            let (_, body) = refusal(&ApiErrorCode::NotFound.because(why), errors_as_status);
            return self.answer(cx, conn, &Answer::json(404, body));
        };
        let Some(pushes) = self.node.pushes.get() else {
            return self.push_overloaded(cx, conn);
        };
        let Some((call, admitted)) = pushes.admit(request.body.len()) else {
            return self.push_overloaded(cx, conn);
        };
        let body = request.body.into();
        let trace = request.headers.get_str("traceparent").and_then(TraceParent::read);
        let ask = Ask { call, conn, method, body, errors_as_status, trace, admitted };
        let to = self.node.push_endpoint();
        if self.endpoint.send(to, Parcel::Push(Box::new(ask))).is_err() {
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
        let (_, body) = refusal(&ApiErrorCode::LimitExceeded.because(why), true);
        let answer = Answer::json(503, body).header("Retry-After", "1");
        self.answer(cx, conn, &answer);
    }

    /// A piece of an answer has come.
    pub(super) fn push_said(&mut self, cx: &mut Context<Link>, said: Said) {
        let Said { call, conn, what } = said;
        // A connection of an earlier life of this worker had the same number, perhaps.
        let Some(known) = self.push_calls.get_mut(&conn).filter(|known| known.id == call) else {
            return;
        };
        match what {
            Saying::Answer(status, body) => {
                if body.starts_with(b"{\"error\"") {
                    self.count(Metric::ApiErrors);
                }
                self.push_over(cx, conn);
                self.answer(cx, conn, &Answer::json(status, body));
            }
            Saying::Lines(lines) => {
                let begins = !std::mem::replace(&mut known.begun, true);
                known.unread += lines.len();
                if !push_lines(cx, conn, begins, &lines) {
                    return cx.abort(conn);
                }
                self.push_writable(cx, conn);
            }
            Saying::End(lines) => {
                let begins = !known.begun;
                self.push_over(cx, conn);
                if !push_lines(cx, conn, begins, &lines) || cx.end_chunks(conn).is_err() {
                    cx.abort(conn);
                }
            }
            Saying::Cut => cx.abort(conn),
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
            self.tell_pushes(Parcel::PushRead { call, bytes });
        }
    }

    /// The connection of a call has ended before its answer.
    pub(super) fn push_gone(&mut self, conn: ConnId) {
        if let Some(PushCall { id: call, .. }) = self.push_calls.remove(&conn) {
            self.tell_pushes(Parcel::PushGone { call });
        }
    }

    /// Says which of these users have a session here.
    pub(super) fn who_is_online(&mut self, ask: u64, users: &[String]) {
        let here = |user: &String| self.hub.sessions_of(user).next().is_some();
        let online = (0u32..).zip(users).filter(|(_, user)| here(user)).map(|(at, _)| at);
        let online = online.collect();
        self.tell_pushes(Parcel::TheseAreOnline { ask, online });
    }

    /// The call has its answer: the connection is for requests again.
    fn push_over(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        self.push_calls.remove(&conn);
        if let Some(link) = cx.data(conn) {
            link.role = Role::Http;
        }
    }

    /// What finds no room on the bus is told later; it is little, and a batch waits for it.
    fn tell_pushes(&mut self, parcel: Parcel) {
        self.push_backlog.push_back(parcel);
        self.tell_pushes_what_waits();
    }

    pub(super) fn tell_pushes_what_waits(&mut self) {
        let to = self.node.push_endpoint();
        while let Some(parcel) = self.push_backlog.pop_front() {
            if let Err(refused) = self.endpoint.send(to, parcel) {
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
