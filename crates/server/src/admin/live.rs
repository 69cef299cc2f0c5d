//! `GET /trace`: what happens to a user, a client, an address or a channel, as lines of JSON; and `POST /explain`: how a
//! worker would decide what a client asks for.

use std::sync::Arc;

use dunlin_hub::tenant;
use dunlin_net::ConnId;
use dunlin_net::http::{self, query};
use serde::Deserialize;
use serde_json::{Value, json};

use super::problem::{self, ProblemDetails};
use super::timer::Timer;
use super::worker_query::{WorkerQueries, WorkerQuery};
use super::{Admin, Cx, answer_json};
use crate::log::live::{LiveTrace, Subject, TRACES_MAX};
use crate::message::worker::{ExplainQuestion, WorkerMessage};

/// How often readers get what has happened.
const READ_MS: u64 = 100;
/// How long a trace lasts, unless its reader says otherwise.
const DURATION_S: u64 = 60;
const DURATION_S_MAX: u64 = 3_600;
/// The most bytes of a trace.
const TRACE_BYTES_MAX: usize = 64 << 20;
/// Time for a worker to explain.
const EXPLAIN_TIMEOUT_MS: u64 = 2_000;
const EXPLAINS_MAX: usize = 64;

/// The reader of a trace.
pub(super) struct TraceReader {
    conn: ConnId,
    trace: Arc<LiveTrace>,
    ends_ms: u64,
    bytes_left: usize,
    /// Whether its connection is full; the trace keeps what it can until it is writable.
    behind: bool,
}

/// A question that waits for its worker.
pub(super) struct Explain {
    conn: ConnId,
    story: Value,
}

pub(super) fn explains() -> WorkerQueries<Explain> {
    WorkerQueries::new(EXPLAINS_MAX)
}

/// The body of `POST /explain`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainBody {
    action: String,
    channel: String,
    #[serde(default)]
    token: String,
    #[serde(default)]
    subscription_token: String,
    user: Option<String>,
    claims: Option<Value>,
    #[serde(default)]
    subscribed: bool,
}

impl Admin {
    /// Answers `GET /trace` with a stream of lines.
    pub(super) fn trace(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        request: &http::Request<'_>,
    ) -> Result<(), ProblemDetails> {
        let (subject, duration_s) = subject_of(request.query)?;
        let Some(trace) = self.state.live.open(subject) else {
            let detail = format!("{TRACES_MAX} traces are open already");
            return Err(
                ProblemDetails::new(&problem::OVERLOADED, detail).header("Retry-After", &10)
            );
        };
        let head = http::Response {
            status: 200,
            headers: &[("Content-Type", "application/x-ndjson"), ("Cache-Control", "no-store")],
            body: b"{\"event\":\"begin\"}\n",
        };
        let id = cx.outstanding(conn);
        if id.and_then(|id| cx.start_stream(id, &head, http::Framing::UntilClose)).is_err() {
            self.state.live.close(&trace);
            cx.abort(conn);
            return Ok(());
        }
        if self.traces.is_empty() {
            cx.run_after(READ_MS, Timer::Trace as u64);
        }
        if let Some(caller) = cx.data(conn) {
            caller.tracing = true;
        }
        let ends_ms = cx.now_ms() + duration_s * 1_000;
        let bytes_left = TRACE_BYTES_MAX;
        self.traces.push(TraceReader { conn, trace, ends_ms, bytes_left, behind: false });
        Ok(())
    }

    /// Gives readers what has happened, and ends traces whose time is over.
    pub(super) fn read_traces(&mut self, cx: &mut Cx) {
        let now_ms = cx.now_ms();
        let mut ended = Vec::new();
        for reader in &mut self.traces {
            if reader.behind {
                continue;
            }
            let lines = reader.trace.take();
            reader.bytes_left = reader.bytes_left.saturating_sub(lines.len());
            if !lines.is_empty() && cx.write(reader.conn, &lines).is_err() {
                reader.behind = true;
            }
            let why = match reader.bytes_left {
                0 => "it has as many bytes as a trace may have",
                _ if now_ms >= reader.ends_ms => "its time is over",
                _ => continue,
            };
            let _ = cx.write(
                reader.conn,
                format!("{}\n", json!({ "event": "end", "reason": why })).as_bytes(),
            );
            ended.push(reader.conn);
        }
        // Each forgets its trace when it closes.
        ended.into_iter().for_each(|conn| cx.close(conn));
        if !self.traces.is_empty() {
            cx.run_after(READ_MS, Timer::Trace as u64);
        }
    }

    /// A reader has room again.
    pub(super) fn trace_writable(&mut self, conn: ConnId) {
        if let Some(reader) = self.traces.iter_mut().find(|reader| reader.conn == conn) {
            reader.behind = false;
        }
    }

    /// Ends the trace of a reader that is gone.
    pub(super) fn remove_trace(&mut self, conn: ConnId) {
        for reader in self.traces.extract_if(.., |reader| reader.conn == conn) {
            self.state.live.close(&reader.trace);
        }
    }

    /// Ends all traces because the admin tokens have changed.
    pub(super) fn end_traces(&self, cx: &mut Cx) {
        self.traces.iter().for_each(|reader| cx.close(reader.conn));
    }

    /// Asks a worker how it would decide.
    pub(super) fn explain(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        request: &http::Request<'_>,
    ) -> Result<(), ProblemDetails> {
        let bad = |detail: String| ProblemDetails::new(&problem::MALFORMED, detail);
        let body: ExplainBody =
            serde_json::from_slice(request.body).map_err(|error| bad(error.to_string()))?;
        let claims = match (body.user, body.claims) {
            (None, None) => None,
            _ if !body.token.is_empty() => {
                return Err(bad("give `token`, or `user` and `claims`".to_owned()));
            }
            (user, claims) => {
                let mut claims = claims.unwrap_or_else(|| json!({}));
                let Some(object) = claims.as_object_mut() else {
                    return Err(bad("claims: should be an object".to_owned()));
                };
                if let Some(user) = user {
                    object.insert("sub".to_owned(), user.into());
                }
                Some(claims.to_string())
            }
        };
        let question = ExplainQuestion {
            action: body.action,
            channel: body.channel,
            token: body.token,
            subscription_token: body.subscription_token,
            claims,
            subscribed: body.subscribed,
        };
        let deadline_ms = cx.now_ms() + EXPLAIN_TIMEOUT_MS;
        let explain = Explain { conn, story: Value::Null };
        let Some(request_id) = self.explains.begin(deadline_ms, 1, explain) else {
            let detail = "too many questions wait for a worker";
            return Err(ProblemDetails::new(&problem::OVERLOADED, detail).header("Retry-After", &1));
        };
        let message = WorkerMessage::Explain { request_id, question: Box::new(question) };
        // A worker whose ring is full stays unresponsive.
        let _ = self.endpoint.send(self.state.bus.worker(0), message);
        Ok(())
    }

    /// Handles a worker's answer.
    pub(super) fn handle_explained(&mut self, cx: &mut Cx, request_id: u64, story: Value) {
        if let Some(query) = self.explains.handle_reply(request_id, 0, |of| of.story = story) {
            answer(cx, &query);
        }
    }

    /// Answers questions whose worker has not answered in time. Called once a second.
    pub(super) fn answer_overdue_explains(&mut self, cx: &mut Cx) {
        for query in self.explains.poll_overdue(cx.now_ms()) {
            answer(cx, &query);
        }
    }
}

fn answer(cx: &mut Cx, query: &WorkerQuery<Explain>) {
    let Explain { conn, story } = &query.replies;
    if !query.unresponsive.is_empty() {
        let detail = "the worker does not answer";
        return ProblemDetails::new(&problem::OVERLOADED, detail).answer(cx, *conn);
    }
    match story["error"].as_str() {
        Some(error) => ProblemDetails::new(&problem::MALFORMED, error).answer(cx, *conn),
        None => answer_json(cx, *conn, 200, story),
    }
}

/// Returns whom a trace is about, and how many seconds it lasts.
fn subject_of(query: Option<&str>) -> Result<(Subject, u64), ProblemDetails> {
    let bad = |detail: String| ProblemDetails::new(&problem::BAD_REQUEST, detail);
    let (mut subject, mut tenant, mut duration_s) = (Subject::default(), None, DURATION_S);
    for (name, value) in query::pairs(query.unwrap_or("")) {
        match &*name {
            "user" => subject.user = Some((&*value).into()),
            "channel" => subject.channel = Some((&*value).into()),
            "client" => match value.parse() {
                Ok(client) => subject.client = Some(client),
                Err(_) => return Err(bad(format!("client: {value:?} is no id of a client"))),
            },
            "address" => match value.parse() {
                Ok(address) => subject.address = Some(address),
                Err(_) => return Err(bad(format!("address: {value:?} is no IP address"))),
            },
            "tenant" => tenant = Some(value.into_owned()),
            "for_s" => match value.parse() {
                Ok(seconds @ 1..=DURATION_S_MAX) => duration_s = seconds,
                _ => return Err(bad(format!("for_s: is 1 to {DURATION_S_MAX} seconds"))),
            },
            other => {
                let known = "user, client, address, channel, tenant and for_s";
                return Err(bad(format!("{other} is no parameter; they are {known}")));
            }
        }
    }
    if subject.is_empty() {
        return Err(bad("name a user, a client, an address or a channel".to_owned()));
    }
    if let Some(tenant) = tenant {
        for name in [&mut subject.user, &mut subject.channel].into_iter().flatten() {
            *name = tenant::qualify(&tenant, name).into();
        }
    }
    Ok((subject, duration_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_names_whom_it_is_about_and_how_long_it_lasts() {
        let (subject, duration_s) =
            subject_of(Some("user=a%20b&tenant=t&address=10.0.0.7&for_s=5")).unwrap();
        assert_eq!(subject.user.as_deref(), Some(&*tenant::qualify("t", "a b")));
        assert_eq!((subject.address, duration_s), ("10.0.0.7".parse().ok(), 5));
        for wrong in
            ["", "for_s=5", "user=a&for_s=0", "user=a&for_s=4000", "client=x", "address=x", "who=a"]
        {
            assert!(subject_of(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
