//! `/broadcasts`: lists the broadcasts in progress, pauses, resumes and cancels them.
//!
//! Each worker with subscribers of a channel broadcasts to its own subscribers. So a request goes to every worker over
//! the bus, and is answered when all have replied, or after [`REPLY_TIMEOUT_MS`].

use std::collections::BTreeMap;
use std::sync::Arc;

use dunlin_hub::BroadcastStatus;
use dunlin_net::ConnId;
use dunlin_net::http::{self, Method, query};
use serde_json::{Value, json};

use super::problem::{self, ProblemDetails};
use super::worker_query::{WorkerQueries, WorkerQuery};
use super::{Admin, Cx, answer_json};
use crate::message::worker::{BroadcastCommand, WorkerMessage};

/// How long a worker may take to reply. One that does not is reported as unresponsive.
const REPLY_TIMEOUT_MS: u64 = 2_000;
/// Most requests in flight.
const REQUESTS_MAX: usize = 256;

/// A request that waits for the workers' replies.
pub(super) struct BroadcastQuery {
    conn: ConnId,
    command: BroadcastCommand,
    found: Vec<(usize, BroadcastStatus)>,
    /// Messages removed from outboxes.
    discarded: u64,
    /// Workers that had such a broadcast.
    acted: usize,
}

pub(super) fn broadcast_requests() -> WorkerQueries<BroadcastQuery> {
    WorkerQueries::new(REQUESTS_MAX)
}

impl Admin {
    /// Handles a request below `/broadcasts`; `rest` is the path behind it.
    pub(super) fn broadcasts(
        &mut self,
        cx: &Cx,
        conn: ConnId,
        request: &http::Request<'_>,
        rest: &str,
    ) -> Result<(), ProblemDetails> {
        let command = command_of(request, rest)?;
        let workers = self.state.workers();
        let pending = BroadcastQuery {
            conn,
            command: command.clone(),
            found: Vec::new(),
            discarded: 0,
            acted: 0,
        };
        let deadline_ms = cx.now_ms() + REPLY_TIMEOUT_MS;
        let Some(request_id) = self.broadcast_requests.begin(deadline_ms, workers, pending) else {
            let detail = "too many requests about broadcasts wait for the workers";
            return Err(ProblemDetails::new(&problem::OVERLOADED, detail).header("Retry-After", &1));
        };
        for worker in 0..workers {
            // A worker whose ring is full stays unresponsive.
            let message = WorkerMessage::BroadcastCommand { request_id, command: command.clone() };
            let _ = self.endpoint.send(self.state.bus.worker(worker), message);
        }
        Ok(())
    }

    /// Handles a worker's reply.
    pub(super) fn handle_broadcast_reply(
        &mut self,
        cx: &mut Cx,
        request_id: u64,
        worker: usize,
        found: Vec<BroadcastStatus>,
        acted: Option<u64>,
    ) {
        let done = self.broadcast_requests.handle_reply(request_id, worker, |request| {
            request.found.extend(found.into_iter().map(|status| (worker, status)));
            request.acted += usize::from(acted.is_some());
            request.discarded += acted.unwrap_or(0);
        });
        if let Some(query) = done {
            answer(cx, &query);
        }
    }

    /// Answers requests whose deadline has passed. Called once a second.
    pub(super) fn answer_overdue_broadcasts(&mut self, cx: &mut Cx) {
        for query in self.broadcast_requests.poll_overdue(cx.now_ms()) {
            answer(cx, &query);
        }
    }
}

fn command_of(request: &http::Request<'_>, rest: &str) -> Result<BroadcastCommand, ProblemDetails> {
    if rest.is_empty() {
        return match request.method {
            Method::Get | Method::Head => Ok(BroadcastCommand::List),
            _ => Err(ProblemDetails::method("GET, HEAD")),
        };
    }
    let (channel, verb) = rest[1..].rsplit_once('/').unwrap_or((&rest[1..], ""));
    let channel: Arc<str> = query::decode_path(channel).into();
    let command = match verb {
        "pause" => BroadcastCommand::Pause(channel),
        "resume" => BroadcastCommand::Resume(channel),
        "cancel" => BroadcastCommand::Cancel(channel),
        _ => {
            let detail = "use POST /broadcasts/{channel}/pause, /resume or /cancel, the channel percent-encoded";
            return Err(ProblemDetails::new(&problem::NOT_FOUND, detail));
        }
    };
    match request.method {
        Method::Post => Ok(command),
        _ => Err(ProblemDetails::method("POST")),
    }
}

fn answer(cx: &mut Cx, query: &WorkerQuery<BroadcastQuery>) {
    let WorkerQuery { unresponsive, replies: request, .. } = query;
    let mut body = match &request.command {
        BroadcastCommand::List => json!({ "broadcasts": by_channel(&request.found) }),
        BroadcastCommand::Pause(channel)
        | BroadcastCommand::Resume(channel)
        | BroadcastCommand::Cancel(channel) => {
            if request.acted == 0 && unresponsive.is_empty() {
                let detail = format!("no worker is broadcasting to the channel {channel:?}");
                return ProblemDetails::new(&problem::NOT_FOUND, detail).answer(cx, request.conn);
            }
            json!({ "channel": &**channel, "workers": request.acted })
        }
    };
    if let BroadcastCommand::Cancel(_) = request.command {
        body["discarded"] = json!(request.discarded);
    }
    if !unresponsive.is_empty() {
        body["unresponsive_workers"] = json!(unresponsive);
    }
    answer_json(cx, request.conn, 200, &body);
}

/// Combines the workers' broadcasts by channel.
fn by_channel(found: &[(usize, BroadcastStatus)]) -> Vec<Value> {
    let mut channels: BTreeMap<&str, Vec<&(usize, BroadcastStatus)>> = BTreeMap::new();
    for part in found {
        channels.entry(&part.1.channel).or_default().push(part);
    }
    channels
        .into_iter()
        .map(|(channel, parts)| {
            let sum = |of: fn(&BroadcastStatus) -> u64| -> u64 {
                parts.iter().map(|(_, status)| of(status)).sum()
            };
            json!({
                "channel": channel,
                "started_unix_ms": parts.iter().map(|(_, status)| status.started_unix_ms).min(),
                "paused": parts.iter().all(|(_, status)| status.paused),
                "publications": parts.iter().map(|(_, status)| status.publications).max(),
                "written": sum(|status| status.written),
                "written_bytes": sum(|status| status.written_bytes),
                "waiting": sum(|status| status.waiting),
                "workers": parts.iter().map(|(worker, _)| worker).collect::<Vec<_>>(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Subscriber, TIMEOUT, TestServer};
    use super::*;

    const RATES: &str = "/config/channel/without_namespace/pacing";
    /// So slow that a broadcast is in progress for the whole test.
    const ONE_A_MINUTE: &str = r#"{"bytes_per_s":1,"burst_ms":1}"#;

    /// Starts two workers, with more subscribers than are sent a message in the first minute.
    fn audience() -> (TestServer, Vec<Subscriber>) {
        let live = TestServer::start(2);
        let slow = live.put(RATES, ONE_A_MINUTE);
        assert_eq!(slow.status, 200, "{slow:?}");
        let everyone = (0..16).map(|_| live.subscribe("all")).collect();
        (live, everyone)
    }

    fn listed(live: &TestServer) -> Value {
        live.get("/broadcasts").json()["broadcasts"].clone()
    }

    #[test]
    fn a_broadcast_is_listed_paused_and_goes_on_at_another_rate() {
        let (live, mut everyone) = audience();
        assert_eq!(listed(&live), json!([]));
        let published = live.publish("all", 1);
        assert!(published.contains("\"offset\":1"), "{published}");
        // The publisher is answered before all workers have begun.
        let deadline = std::time::Instant::now() + TIMEOUT;
        let waiting = loop {
            let all = &listed(&live)[0];
            assert_eq!((&all["channel"], &all["paused"]), (&json!("all"), &json!(false)));
            let [written, waiting] =
                [&all["written"], &all["waiting"]].map(|count| count.as_u64().unwrap());
            if written + waiting == 16 {
                break waiting;
            }
            assert!(std::time::Instant::now() < deadline, "{all}");
        };
        assert!(waiting >= 8, "{waiting}");

        assert_eq!(live.call("POST", "/broadcasts/all/pause", &[], "").status, 200);
        assert_eq!(live.put(RATES, "{}").status, 200, "no rate any more, but paused");
        assert_eq!(listed(&live)[0]["paused"], true);
        assert_eq!(live.call("POST", "/broadcasts/all/resume", &[], "").status, 200);
        for subscriber in &mut everyone {
            assert_eq!(subscriber.publication()["data"], 1);
        }
        live.publish("all", 2);
        for subscriber in &mut everyone {
            assert_eq!(subscriber.publication()["offset"], 2, "each once, in order");
        }
    }

    #[test]
    fn a_cancelled_broadcast_reaches_nobody_else_and_they_are_reported() {
        let (live, mut everyone) = audience();
        live.publish("all", 1);
        let cancelled = live.call("POST", "/broadcasts/all/cancel", &[], "").json();
        let discarded = cancelled["discarded"].as_u64().unwrap();
        assert!((8..16).contains(&discarded), "{cancelled}");
        assert_eq!(live.put(RATES, "{}").status, 200);
        live.publish("all", 2);
        let mut missed = 0;
        for subscriber in &mut everyone {
            let first = subscriber.next().expect("a push");
            if first["pub"]["data"] == 1 {
                assert_eq!(subscriber.publication()["data"], 2);
            } else {
                missed += 1;
                assert_eq!(first["pub"]["data"], Value::Null, "{first}");
                assert_eq!(subscriber.publication()["data"], 2);
            }
        }
        assert_eq!(missed, discarded);
    }

    #[test]
    fn unknown_paths_and_methods_are_reported() {
        let live = TestServer::start(1);
        for (method, target, status) in [
            ("POST", "/broadcasts/all/pause", 404),
            ("GET", "/broadcasts/all/pause", 405),
            ("POST", "/broadcasts", 405),
            ("POST", "/broadcasts/all/stop", 404),
            ("POST", "/broadcasts/all", 404),
        ] {
            let answer = live.call(method, target, &[], "");
            assert_eq!(answer.status, status, "{method} {target}: {answer:?}");
        }
    }
}
