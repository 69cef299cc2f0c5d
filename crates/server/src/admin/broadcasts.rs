//! `/broadcasts`: what the workers are broadcasting, and a hand on it.
//!
//! A broadcast belongs to its channel: each worker with subscribers has its part of it. So a request asks every
//! worker over the bus and is answered when all have, or when [`PATIENCE`] is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_hub::BroadcastStatus;
use dunlin_net::http::{self, Method, query};
use dunlin_net::{ConnId, Context};
use serde_json::{Value, json};

use super::problem::{self, Problem};
use super::{Admin, Caller, answer_json};
use crate::bus_message::{BroadcastCommand, BusMessage};

/// How long a worker may take to answer; one in a long turn is reported as silent.
const PATIENCE: Duration = Duration::from_secs(2);
/// Requests under way at once.
const ASKS_MAX: usize = 256;

/// A request that waits for the workers' answers.
pub(super) struct Ask {
    id: u64,
    conn: ConnId,
    action: BroadcastCommand,
    deadline: Instant,
    silent: Vec<usize>,
    found: Vec<(usize, BroadcastStatus)>,
    discarded: u64,
    acted: usize,
}

/// Requests about broadcasts.
#[derive(Default)]
pub(super) struct Asks {
    waiting: Vec<Ask>,
    begun: u64,
}

impl Admin {
    /// Answers what follows `/broadcasts` in a path.
    pub(super) fn broadcasts(
        &mut self,
        conn: ConnId,
        request: &http::Request<'_>,
        rest: &str,
    ) -> Result<(), Problem> {
        let is_read = matches!(request.method, Method::Get | Method::Head);
        let action = if rest.is_empty() {
            if !is_read {
                return Err(Problem::method("GET, HEAD"));
            }
            BroadcastCommand::List
        } else {
            let (channel, verb) = rest[1..].rsplit_once('/').unwrap_or((&rest[1..], ""));
            let channel: Arc<str> = query::decode_path(channel).into();
            let action = match verb {
                "pause" => BroadcastCommand::Pause(channel),
                "resume" => BroadcastCommand::Resume(channel),
                "cancel" => BroadcastCommand::Cancel(channel),
                _ => {
                    let detail = "use POST /broadcasts/{channel}/pause, /resume or /cancel, the channel percent-encoded";
                    return Err(Problem::new(&problem::NOT_FOUND, detail));
                }
            };
            if request.method != Method::Post {
                return Err(Problem::method("POST"));
            }
            action
        };
        if self.asks.waiting.len() >= ASKS_MAX {
            let detail = "too many requests about broadcasts wait for the workers";
            return Err(Problem::new(&problem::OVERLOADED, detail).header("Retry-After", &1));
        }
        self.asks.begun += 1;
        let id = self.asks.begun;
        let workers = self.state.workers();
        for worker in 0..workers {
            // A worker whose ring is full stays among the silent.
            let _ = self.endpoint.send(
                worker,
                BusMessage::BroadcastCommand { request_id: id, command: action.clone() },
            );
        }
        self.asks.waiting.push(Ask {
            id,
            conn,
            action,
            deadline: Instant::now() + PATIENCE,
            silent: (0..workers).collect(),
            found: Vec::new(),
            discarded: 0,
            acted: 0,
        });
        Ok(())
    }

    /// A worker has answered.
    pub(super) fn broadcasts_answered(
        &mut self,
        cx: &mut Context<Caller>,
        ask: u64,
        worker: usize,
        found: Vec<BroadcastStatus>,
        acted: Option<u64>,
    ) {
        let Some(at) = self.asks.waiting.iter().position(|waiting| waiting.id == ask) else {
            return;
        };
        let waiting = &mut self.asks.waiting[at];
        waiting.silent.retain(|&silent| silent != worker);
        waiting.found.extend(found.into_iter().map(|status| (worker, status)));
        waiting.acted += usize::from(acted.is_some());
        waiting.discarded += acted.unwrap_or(0);
        if waiting.silent.is_empty() {
            let ask = self.asks.waiting.swap_remove(at);
            ask.answer(cx);
        }
    }

    /// Answers with what there is where a worker keeps silent.
    pub(super) fn broadcasts_overdue(&mut self, cx: &mut Context<Caller>) {
        let now = Instant::now();
        for ask in self.asks.waiting.extract_if(.., |ask| ask.deadline <= now) {
            ask.answer(cx);
        }
    }
}

impl Ask {
    fn answer(self, cx: &mut Context<Caller>) {
        let channel = match &self.action {
            BroadcastCommand::List => {
                let mut body = json!({ "broadcasts": by_channel(&self.found) });
                if !self.silent.is_empty() {
                    body["silent_workers"] = json!(self.silent);
                }
                return answer_json(cx, self.conn, 200, &body);
            }
            BroadcastCommand::Pause(channel)
            | BroadcastCommand::Resume(channel)
            | BroadcastCommand::Cancel(channel) => channel,
        };
        if self.acted == 0 && self.silent.is_empty() {
            let detail = format!("no worker is broadcasting to the channel {channel:?}");
            return Problem::new(&problem::NOT_FOUND, detail).answer(cx, self.conn);
        }
        let mut body = json!({ "channel": &**channel, "workers": self.acted });
        if let BroadcastCommand::Cancel(_) = self.action {
            body["discarded"] = json!(self.discarded);
        }
        if !self.silent.is_empty() {
            body["silent_workers"] = json!(self.silent);
        }
        answer_json(cx, self.conn, 200, &body);
    }
}

/// The parts of each channel's broadcast, added up.
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
    use super::super::testkit::{Live, Subscriber};
    use super::*;

    const RATES: &str = "/config/channel/without_namespace/pacing";
    /// So slow that a broadcast is still under way whenever a test looks.
    const ONE_A_MINUTE: &str = r#"{"bytes_per_s":1,"burst_ms":1}"#;

    /// Two workers, and more subscribers than get a message of the first minute.
    fn audience() -> (Live, Vec<Subscriber>) {
        let live = Live::start(2);
        let slow = live.put(RATES, ONE_A_MINUTE);
        assert_eq!(slow.status, 200, "{slow:?}");
        let everyone = (0..16).map(|_| live.subscribe("all")).collect();
        (live, everyone)
    }

    fn listed(live: &Live) -> Value {
        live.get("/broadcasts").json()["broadcasts"].clone()
    }

    #[test]
    fn a_broadcast_is_listed_paused_and_goes_on_at_another_rate() {
        let (live, mut everyone) = audience();
        assert_eq!(listed(&live), json!([]));
        let published = live.publish("all", 1);
        assert!(published.contains("\"offset\":1"), "{published}");
        let all = &listed(&live)[0];
        assert_eq!((&all["channel"], &all["paused"]), (&json!("all"), &json!(false)));
        let counts = [&all["written"], &all["waiting"]].map(|count| count.as_u64().unwrap());
        assert!(counts[1] >= 8 && counts[0] + counts[1] == 16, "{all}");

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
    fn a_cancelled_broadcast_reaches_nobody_else_and_they_are_told() {
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
    fn what_is_not_there_and_what_is_misspelt_is_said() {
        let live = Live::start(1);
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
