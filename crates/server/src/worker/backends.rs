//! Connections to the backends of proxies, on the worker's own loop: requests out, answers in.

use std::collections::BTreeMap;
use std::sync::Arc;

use dunlin_config::{Map, OnFailure, Proxy};
use dunlin_net::{Context, Tls};
use dunlin_pipeline::{
    Caller, Client, ClientConfig, Depth, ErrorKind, HostConfig, HostId, Outcome, Request,
    RequestId, Requests, SendError,
};

use super::link::Link;
use super::parts::{Passed, Wanted};
use crate::log_gate::LogGate;
use crate::proxy::{Answered, Breaker, Event, Fault, ProxiesStats, ProxyMetric, ProxyStats};

/// A backend's servers close connections that are idle for 5 s or more, as a rule; one that is used again in the moment
/// in which it closes fails.
const IDLE_TIMEOUT_MS: u64 = 4_000;

/// What has come in answer, or why nothing has.
pub(super) type Answer = Result<Answered, Fault>;

/// The backends of one worker.
pub(super) struct Backends {
    pub(super) client: Client<Answers>,
    of: BTreeMap<Arc<str>, Backend>,
    workers: usize,
}

/// Answers until the worker takes them.
#[derive(Default)]
pub(super) struct Answers {
    pub(super) ended: Vec<(u64, Answer)>,
}

struct Backend {
    config: Proxy,
    host: Result<HostId, Arc<str>>,
    target: String,
    breaker: Breaker,
    log: LogGate,
    stats: Arc<ProxyStats>,
}

impl Caller for Answers {
    type Data = Link;

    fn on_outcome(
        &mut self,
        _: &mut Context<Link>,
        _: &mut Requests<'_>,
        _: RequestId,
        tag: u64,
        outcome: &Outcome<'_>,
    ) {
        let answer = match outcome {
            Outcome::Answered(answer) => Ok(Answered::Response(answer.status, answer.body.into())),
            Outcome::NotSent(error) | Outcome::Failed(error) | Outcome::Uncertain(error) => {
                Err(match &error.kind {
                    ErrorKind::AnswerTimeout | ErrorKind::QueueTimeout => Fault::TimedOut,
                    ErrorKind::BodyTooLong => Fault::TooLong,
                    ErrorKind::Protocol(violation) => Fault::Malformed(violation.to_string()),
                    ErrorKind::QueueFull => Fault::Overflow,
                    ErrorKind::Removed | ErrorKind::Shutdown => Fault::Cancelled,
                    other => Fault::Unreachable(other.to_string()),
                })
            }
        };
        self.ended.push((tag, answer));
    }
}

impl Backends {
    pub(super) fn new(workers: usize) -> Backends {
        let client = Client::new(ClientConfig::default(), Answers::default());
        Backends { client, of: BTreeMap::new(), workers }
    }

    /// Follows the settings. Connections of a proxy that was changed are given up if the change concerns them.
    pub(super) fn update(&mut self, worker: usize, new: &Map<Proxy>, stats: &ProxiesStats) {
        let gone = |name: &Arc<str>| !new.contains_key(name);
        let removed: Vec<Arc<str>> = self.of.keys().filter(|name| gone(name)).cloned().collect();
        for name in removed {
            if let Some(Backend { host: Ok(host), .. }) = self.of.remove(&name) {
                self.client.requests().remove(host);
            }
        }
        for (name, config) in new.iter_shared() {
            if let Some(backend) = self.of.get_mut(name) {
                if shares_connections(&backend.config, config) {
                    backend.config = Proxy::clone(config);
                    continue;
                }
                if let Ok(host) = backend.host {
                    self.client.requests().remove(host);
                }
            }
            let backend = Backend {
                host: self.open(config),
                target: target(&config.endpoint).to_owned(),
                config: Proxy::clone(config),
                breaker: Breaker::default(),
                log: LogGate::default(),
                stats: stats.of(worker, name),
            };
            self.of.insert(Arc::clone(name), backend);
        }
    }

    /// What they want to be passed on.
    pub(super) fn wanted(&self) -> Wanted {
        let mut wanted = Wanted::default();
        let add = |to: &mut Vec<String>, names: &[String]| {
            for name in names {
                if !to.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                    to.push(name.clone());
                }
            }
        };
        for Backend { config, .. } in self.of.values() {
            add(&mut wanted.http_headers, &config.http_headers);
            add(&mut wanted.emulated_headers, &config.emulated_headers);
            wanted.meta |= config.include_connection_meta;
        }
        wanted
    }

    /// What is decided without an answer. A proxy that is not there decides nothing.
    pub(super) fn on_failure(&self, proxy: &str) -> OnFailure {
        self.of.get(proxy).map_or(OnFailure::Error, |backend| backend.config.on_failure)
    }

    /// Whether it wants the connection's meta.
    pub(super) fn wants_meta(&self, proxy: &str) -> bool {
        self.of.get(proxy).is_some_and(|backend| backend.config.include_connection_meta)
    }

    pub(super) fn stats(&self, proxy: &str) -> Option<&ProxyStats> {
        self.of.get(proxy).map(|backend| &*backend.stats)
    }

    /// Posts a request at the end of this turn; the answer comes with `tag`.
    ///
    /// # Errors
    /// It is not sent.
    pub(super) fn send(
        &mut self,
        now_ms: u64,
        proxy: &str,
        event: Event,
        body: &[u8],
        passed: Option<&Passed>,
        tag: u64,
    ) -> Result<(), Fault> {
        let Some(backend) = self.of.get_mut(proxy) else { return Err(Fault::Cancelled) };
        let host = match &backend.host {
            Ok(host) => *host,
            Err(why) => return Err(Fault::Unreachable(why.to_string())),
        };
        if !backend.breaker.admit(now_ms) {
            return Err(Fault::BreakerOpen);
        }
        let headers = headers(&backend.config, passed);
        let request = Request {
            headers: &headers,
            idempotent: event.is_question(),
            ..Request::post(&backend.target, body)
        };
        let mut requests = self.client.requests();
        let prepared = requests.prepare(host, &request);
        let sent = requests.send(host, &prepared, tag);
        sent.map(drop).map_err(|error| {
            backend.breaker.handle_nothing();
            match error {
                SendError::Full => Fault::Overflow,
                _ => Fault::Cancelled,
            }
        })
    }

    /// An answer has come, or none, to a request of the connection `of`: the breaker follows.
    pub(super) fn observe(&mut self, now_ms: u64, proxy: &str, of: u64, answer: &Answer) {
        let Some(backend) = self.of.get_mut(proxy) else { return };
        match answer {
            Err(Fault::Unreachable(_) | Fault::TimedOut) => {
                backend.breaker.handle_failure(now_ms, of, backend.config.breaker_failures_max);
            }
            Err(Fault::Overflow | Fault::Cancelled | Fault::BreakerOpen) => {
                backend.breaker.handle_nothing();
            }
            _ => backend.breaker.handle_answer(),
        }
    }

    /// A call has failed: it is counted, and logged once a second.
    pub(super) fn report(&mut self, now_ms: u64, proxy: &str, fault: &Fault) {
        let Some(backend) = self.of.get_mut(proxy) else { return };
        backend.stats.counters.count(fault.metric());
        if let Some(before) = backend.log.pass(now_ms) {
            tracing::warn!(proxy, before, "a backend has not decided: {fault}");
        }
    }

    /// Once a second: how many calls wait to leave.
    pub(super) fn publish_gauges(&mut self) {
        let requests = self.client.requests();
        for Backend { host, stats, .. } in self.of.values() {
            let waiting = host.as_ref().map_or(0, |host| requests.queued(*host));
            stats.counters.set(ProxyMetric::Waiting, waiting as u64);
        }
    }

    fn open(&mut self, config: &Proxy) -> Result<HostId, Arc<str>> {
        let tls = match &config.ca {
            Some(ca) => Some(
                Tls::with_roots(ca.as_bytes())
                    .map_err(|error| format!("`ca` cannot be read: {error}"))?,
            ),
            None => None,
        };
        let share = |of: u32| (of as usize).div_ceil(self.workers);
        let host = HostConfig {
            connections: u32::try_from(share(config.connections_max)).unwrap_or(u32::MAX),
            // A request must not wait behind a slow one while another connection is free.
            depth: Depth::Fixed(1),
            queue_max: share(config.queue_max).max(1),
            queue_bytes_max: usize::MAX,
            answer_timeout_ms: config.timeout_ms,
            queue_timeout_ms: config.queue_timeout_ms,
            connect_timeout_ms: config.connect_timeout_ms,
            connect_attempts: 1,
            idle_timeout_ms: IDLE_TIMEOUT_MS,
            replays_max: 1,
            body_bytes_max: config.answer_bytes_max,
            tls,
            ..HostConfig::default()
        };
        let opened = self.client.requests().host(&config.endpoint, host);
        opened.map_err(|error| error.to_string().into())
    }
}

/// Path and query of a URL.
fn target(endpoint: &str) -> &str {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    rest.find('/').map_or("/", |at| &rest[at..])
}

/// Whether connections under the one settings serve the other.
fn shares_connections(a: &Proxy, b: &Proxy) -> bool {
    let bounds = |of: &Proxy| {
        let times = (of.timeout_ms, of.connect_timeout_ms, of.queue_timeout_ms);
        (times, of.connections_max, of.queue_max, of.answer_bytes_max)
    };
    (&a.endpoint, &a.ca) == (&b.endpoint, &b.ca) && bounds(a) == bounds(b)
}

/// The headers of a request: the client's own go before those it emulates, both before the static ones.
fn headers<'a>(config: &'a Proxy, passed: Option<&'a Passed>) -> Vec<(&'a str, &'a str)> {
    let mut headers = vec![("Content-Type", "application/json")];
    let mut add = |wanted: Option<&[String]>, name: &'a str, value: &'a str| {
        let is_it = |known: &str| known.eq_ignore_ascii_case(name);
        let is_wanted = wanted.is_none_or(|wanted| wanted.iter().any(|of| is_it(of)));
        if is_wanted && !headers.iter().any(|(known, _)| is_it(known)) {
            headers.push((name, value));
        }
    };
    if let Some(passed) = passed {
        for (name, value) in &passed.http_headers {
            add(Some(&config.http_headers), name, value);
        }
        for (name, value) in &passed.emulated_headers {
            add(Some(&config.emulated_headers), name, value);
        }
    }
    for (name, value) in config.static_headers.iter() {
        add(None, name, value.reveal());
    }
    headers
}
