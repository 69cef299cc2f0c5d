//! Connections to the backends of proxies, on the worker's own loop: requests out, answers in.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use dunlin_config as config;
use dunlin_config::{Map, OnFailure, Proxy};
use dunlin_net::{Context, Tls};
use dunlin_pipeline::{
    Caller, Client, ClientConfig, Depth, ErrorKind, HostConfig, HostId, Outcome, Prepared, Request,
    RequestId, Requests, SendError,
};
use dunlin_webhooks::{Failure, Pools, Selection, Upstream};

use super::link::Link;
use super::parts::{Decisions, FastMap, ForwardedData, ForwardedFields};
use crate::metrics::log_gate::LogGate;
use crate::proxy::{Event, ProxiesStats, ProxyError, ProxyMetric, ProxyReply, ProxyStats};
use crate::state::webhooks::UpstreamsState;

/// Shorter than the 5 s after which servers commonly close idle connections: a request on a connection that is being closed
/// fails.
const IDLE_TIMEOUT_MS: u64 = 4_000;
/// The most members to which one request is sent.
const ATTEMPTS_MAX: usize = 8;
/// The most members that may receive a request and not answer: a request that crashes a backend must not crash all of them.
const UNANSWERED_MAX: u8 = 2;

/// The reply of a backend, or why there is none.
pub(super) type BackendResult = Result<ProxyReply, ProxyError>;

/// The backends of one worker.
pub(super) struct Backends {
    pub(super) client: Client<BackendResults>,
    /// Open connections of the client.
    pub(super) connections: usize,
    pub(super) decisions: Decisions,
    of: BTreeMap<Arc<str>, Backend>,
    /// Requests in flight, by tag.
    in_flight: FastMap<u64, InFlight>,
    workers: usize,
    /// The version of the members' health that is in use.
    health_version: u64,
}

/// Collects completed requests until the worker takes them.
#[derive(Default)]
pub(super) struct BackendResults {
    pub(super) ended: Vec<EndedRequest>,
}

/// A completed request.
pub(super) struct EndedRequest {
    pub(super) tag: u64,
    answer: BackendResult,
    /// The member has not processed it.
    unprocessed: bool,
}

/// A backend: the members of its upstream, or the single one of its endpoint.
struct Backend {
    config: Proxy,
    upstream: Upstream,
    pools: Pools,
    /// Hosts by pool of the member, for members that were asked; an error says why one cannot be.
    hosts: FastMap<u64, Result<HostId, Arc<str>>>,
    target: String,
    log: LogGate,
    stats: Arc<ProxyStats>,
}

/// A request in flight, and the members that were asked.
struct InFlight {
    proxy: Arc<str>,
    /// The connection of the client.
    of: u64,
    /// Its user or address, which has a share of the queue.
    flow: u64,
    is_question: bool,
    /// The members that were asked; the current one is last.
    tried: Vec<Arc<str>>,
    /// The pool of the current member.
    pool: u64,
    /// The number of members that received it without answering, or were unreachable.
    unanswered: u8,
    /// The request as it is sent.
    prepared: Prepared,
}

impl Caller for BackendResults {
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
            Outcome::Answered(answer) => {
                Ok(ProxyReply::Response(answer.status, answer.body.into()))
            }
            Outcome::NotSent(error) | Outcome::Failed(error) | Outcome::Uncertain(error) => {
                Err(match &error.kind {
                    ErrorKind::AnswerTimeout | ErrorKind::QueueTimeout => ProxyError::TimedOut,
                    ErrorKind::BodyTooLong => ProxyError::TooLong,
                    ErrorKind::Protocol(violation) => ProxyError::Malformed(violation.to_string()),
                    ErrorKind::QueueFull => ProxyError::Overflow,
                    ErrorKind::FlowFull => ProxyError::ShareFull,
                    ErrorKind::Removed | ErrorKind::Shutdown => ProxyError::Cancelled,
                    other => ProxyError::Unreachable(other.to_string()),
                })
            }
        };
        let unprocessed = matches!(outcome, Outcome::NotSent(_));
        self.ended.push(EndedRequest { tag, answer, unprocessed });
    }
}

impl Backends {
    pub(super) fn new(workers: usize) -> Backends {
        Backends {
            client: Client::new(ClientConfig::default(), BackendResults::default()),
            connections: 0,
            decisions: Decisions::default(),
            of: BTreeMap::new(),
            in_flight: FastMap::default(),
            workers,
            health_version: 0,
        }
    }

    /// Applies the settings. Connections of a changed proxy are closed if the change concerns them; requests that waited for one
    /// are sent again.
    pub(super) fn update(&mut self, worker: usize, new: &config::Config, stats: &ProxiesStats) {
        let gone = |name: &Arc<str>| !new.proxies.contains_key(name);
        let removed: Vec<Arc<str>> = self.of.keys().filter(|name| gone(name)).cloned().collect();
        for name in removed {
            drop(self.remove(&name));
        }
        for (name, config) in new.proxies.iter_shared() {
            if let Some(backend) = self.of.get_mut(name)
                && shares_connections(&backend.config, config)
            {
                backend.config = Proxy::clone(config);
                continue;
            }
            let stats = self.remove(name).unwrap_or_else(|| stats.begin(worker, name));
            let mut pools = Pools::default();
            let backend = Backend {
                upstream: Upstream::new(&upstream_of(config, &new.webhooks.upstreams), &mut pools),
                pools,
                hosts: FastMap::default(),
                target: target(&config.endpoint).to_owned(),
                config: Proxy::clone(config),
                log: LogGate::default(),
                stats,
            };
            self.of.insert(Arc::clone(name), backend);
            // Forces a reload of the members' health.
            self.health_version = 0;
        }
        self.update_upstreams(&new.webhooks.upstreams);
    }

    /// Applies a change of upstreams. Requests that waited for a removed member are sent to another one.
    pub(super) fn update_upstreams(&mut self, upstreams: &Map<config::Upstream>) {
        for backend in self.of.values_mut() {
            let Some(name) = &backend.config.upstream else { continue };
            let Some(upstream) = upstreams.get_shared(name) else { continue };
            backend.upstream.update(upstream, &mut backend.pools);
            while let Some(pool) = backend.pools.poll_unused() {
                if let Some(Ok(host)) = backend.hosts.remove(&pool) {
                    self.client.requests().remove(host);
                }
            }
        }
    }

    /// Applies the results of health checks since the last call.
    pub(super) fn follow_health(&mut self, state: &UpstreamsState) {
        let Some(unhealthy) = state.newer_than(&mut self.health_version) else { return };
        for backend in self.of.values_mut() {
            if let Some(name) = &backend.config.upstream {
                backend.upstream.handle_health(&unhealthy.of(name));
            }
        }
    }

    /// Removes a proxy. Returns its stats, for one that takes its place.
    fn remove(&mut self, proxy: &str) -> Option<Arc<ProxyStats>> {
        let backend = self.of.remove(proxy)?;
        for host in backend.hosts.into_values().flatten() {
            self.client.requests().remove(host);
        }
        Some(backend.stats)
    }

    /// The fields of client requests that proxies forward.
    pub(super) fn wanted(&self) -> ForwardedFields {
        let mut wanted = ForwardedFields::default();
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

    /// The decision without a reply. A proxy that does not exist decides nothing.
    pub(super) fn on_failure(&self, proxy: &str) -> OnFailure {
        self.of.get(proxy).map_or(OnFailure::Error, |backend| backend.config.on_failure)
    }

    /// Whether a proxy forwards the connection's meta.
    pub(super) fn wants_meta(&self, proxy: &str) -> bool {
        self.of.get(proxy).is_some_and(|backend| backend.config.include_connection_meta)
    }

    pub(super) fn stats(&self, proxy: &str) -> Option<&ProxyStats> {
        self.of.get(proxy).map(|backend| &*backend.stats)
    }

    /// Posts a request of the connection `of` and the user or address `flow`, at the end of this turn or when it is its turn; the
    /// reply has `tag`.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub(super) fn send(
        &mut self,
        now_ms: u64,
        proxy: &Arc<str>,
        (event, body): (Event, &[u8]),
        (passed, trace): (Option<&ForwardedData>, Option<&str>),
        (of, flow, tag): (u64, u64, u64),
    ) -> Result<(), ProxyError> {
        let Some(backend) = self.of.get_mut(proxy) else { return Err(ProxyError::Cancelled) };
        let mut headers = headers(&backend.config, passed);
        if let Some(trace) = trace {
            headers.retain(|(name, _)| !name.eq_ignore_ascii_case("traceparent"));
            headers.push(("traceparent", trace));
        }
        let request = Request {
            headers: &headers,
            idempotent: event.is_question(),
            ..Request::post(&backend.target, body)
        };
        let in_flight = InFlight {
            proxy: Arc::clone(proxy),
            of,
            flow,
            is_question: event.is_question(),
            tried: Vec::new(),
            pool: 0,
            unanswered: 0,
            // The member's address is set when the request is dispatched.
            prepared: Prepared::new("", &request),
        };
        self.dispatch(now_ms, tag, in_flight)
    }

    /// Sends a request to a member that has not received it.
    fn dispatch(
        &mut self,
        now_ms: u64,
        tag: u64,
        mut in_flight: InFlight,
    ) -> Result<(), ProxyError> {
        let Some(backend) = self.of.get_mut(&in_flight.proxy) else {
            return Err(ProxyError::Cancelled);
        };
        let mut fault = ProxyError::BreakerOpen;
        while in_flight.tried.len() < ATTEMPTS_MAX
            && let Some(selected) = backend.upstream.select(now_ms, &in_flight.tried)
        {
            let mut requests = self.client.requests();
            let host = backend.host(&selected, self.workers, &mut requests);
            in_flight.tried.push(Arc::clone(&selected.name));
            in_flight.pool = selected.pool;
            let sent =
                host.map_err(|why| ProxyError::Unreachable(why.to_string())).and_then(|host| {
                    in_flight.prepared = requests.prepare_again(host, &in_flight.prepared);
                    let sent = requests.send_of(in_flight.flow, host, &in_flight.prepared, tag);
                    sent.map_err(|error| match error {
                        SendError::Full => ProxyError::Overflow,
                        SendError::FlowFull => ProxyError::ShareFull,
                        _ => ProxyError::Cancelled,
                    })
                });
            match sent {
                Ok(_) => {
                    self.in_flight.insert(tag, in_flight);
                    return Ok(());
                }
                Err(why) => {
                    backend.upstream.handle_nothing(&selected.name, selected.pool);
                    fault = why;
                }
            }
        }
        Err(fault)
    }

    /// Handles a completed request and updates the state of its member. Returns the result, unless another member is asked; that
    /// is not done if the client has left.
    pub(super) fn settle(
        &mut self,
        (now_ms, now_unix_ms): (u64, u64),
        ended: EndedRequest,
        is_gone: bool,
        state: &UpstreamsState,
    ) -> Option<BackendResult> {
        let EndedRequest { tag, answer, unprocessed } = ended;
        let Some(mut in_flight) = self.in_flight.remove(&tag) else { return Some(answer) };
        if let Some(until_ms) = self.observe(now_ms, &in_flight, &answer) {
            let member = in_flight.tried.last().unwrap_or(&in_flight.proxy);
            let until_unix_ms = now_unix_ms + until_ms.saturating_sub(now_ms);
            state.circuit_opened((&in_flight.proxy, member), now_unix_ms, until_unix_ms);
        }
        in_flight.unanswered += u8::from(!unprocessed);
        if matches!(answer, Err(ProxyError::Cancelled)) {
            // Its connections had other settings; with the new ones it may be asked again.
            in_flight.tried.pop();
        }
        // A gateway that could not reach the server responds with these (RFC 9110 §15.6).
        let is_away = |status: &u16| matches!(status, 502..=504);
        let may_repeat = match &answer {
            Err(
                ProxyError::Overflow
                | ProxyError::ShareFull
                | ProxyError::TooLong
                | ProxyError::Malformed(_),
            ) => false,
            Err(_) => unprocessed || in_flight.is_question,
            Ok(ProxyReply::Response(status, _)) => in_flight.is_question && is_away(status),
            Ok(_) => false,
        };
        if is_gone || !may_repeat || in_flight.unanswered >= UNANSWERED_MAX {
            return Some(answer);
        }
        self.follow_health(state);
        let proxy = Arc::clone(&in_flight.proxy);
        if self.dispatch(now_ms, tag, in_flight).is_err() {
            return Some(answer);
        }
        if let Some(stats) = self.stats(&proxy) {
            stats.counters.count(ProxyMetric::Retried);
        }
        None
    }

    /// Updates the circuit breaker of the member. Returns until when it is open, if it opens.
    fn observe(&mut self, now_ms: u64, of: &InFlight, answer: &BackendResult) -> Option<u64> {
        let backend = self.of.get_mut(&of.proxy)?;
        let (upstream, member) = (&mut backend.upstream, of.tried.last()?);
        match answer {
            Err(ProxyError::Unreachable(_) | ProxyError::TimedOut) => {
                let failure = Failure {
                    by: Some(of.of),
                    failures_max: backend.config.breaker_failures_max,
                    retry_after_ms: None,
                };
                let opened = upstream.handle_failure(now_ms, member, of.pool, failure)?;
                return Some(opened.until_ms);
            }
            Err(
                ProxyError::Overflow
                | ProxyError::ShareFull
                | ProxyError::Cancelled
                | ProxyError::BreakerOpen,
            ) => {
                upstream.handle_nothing(member, of.pool);
            }
            _ => drop(upstream.handle_success(member, of.pool)),
        }
        None
    }

    /// Counts a failed call, and logs at most one a second.
    pub(super) fn report(&mut self, now_ms: u64, proxy: &str, fault: &ProxyError) {
        let Some(backend) = self.of.get_mut(proxy) else { return };
        backend.stats.counters.count(fault.metric());
        if let Some(before) = backend.log.pass(now_ms) {
            tracing::warn!(proxy, before, "a backend has not decided: {fault}");
        }
    }

    /// Publishes the number of queued calls, once a second.
    pub(super) fn publish_gauges(&mut self) {
        let requests = self.client.requests();
        for Backend { hosts, stats, .. } in self.of.values() {
            let hosts = hosts.values().flatten();
            let waiting = hosts.map(|host| requests.queued(*host)).sum::<usize>();
            stats.counters.set(ProxyMetric::Waiting, waiting as u64);
        }
    }
}

impl Backend {
    /// Returns the host of a member, configured as its pool.
    fn host(
        &mut self,
        selected: &Selection,
        workers: usize,
        requests: &mut Requests<'_>,
    ) -> Result<HostId, Arc<str>> {
        if let Some(host) = self.hosts.get(&selected.pool) {
            return host.clone();
        }
        let host = self.open(&selected.config.address, workers, requests);
        self.hosts.insert(selected.pool, host.clone());
        host
    }

    fn open(
        &self,
        address: &str,
        workers: usize,
        requests: &mut Requests<'_>,
    ) -> Result<HostId, Arc<str>> {
        let (config, upstream) = (&self.config, self.upstream.config());
        let tls = match &upstream.ca {
            Some(ca) if upstream.tls => Some(
                Tls::with_roots(ca.as_bytes())
                    .map_err(|error| format!("`ca` cannot be read: {error}"))?,
            ),
            _ => None,
        };
        let share = |of: u32| (of as usize).div_ceil(workers);
        let host = HostConfig {
            connections: u32::try_from(share(config.connections_max)).unwrap_or(u32::MAX),
            // No pipelining: a request must not wait behind a slow one while another connection is free.
            depth: Depth::Fixed(1),
            queue_max: share(config.queue_max).max(1),
            queue_bytes_max: usize::MAX,
            answer_timeout_ms: NonZeroU64::new(config.timeout_ms),
            queue_timeout_ms: NonZeroU64::new(config.queue_timeout_ms),
            connect_timeout_ms: NonZeroU64::new(config.connect_timeout_ms),
            connect_attempts: 1,
            idle_timeout_ms: NonZeroU64::new(IDLE_TIMEOUT_MS),
            replays_max: 1,
            body_bytes_max: config.answer_bytes_max,
            tls,
            ..HostConfig::default()
        };
        let scheme = if upstream.tls { "https" } else { "http" };
        let opened = requests.host(&format!("{scheme}://{address}"), host);
        opened.map_err(|error| error.to_string().into())
    }
}

/// The upstream that a proxy names, or one whose only member is at its endpoint.
fn upstream_of(proxy: &Proxy, upstreams: &Map<config::Upstream>) -> Arc<config::Upstream> {
    if let Some(name) = &proxy.upstream {
        // Settings that name a missing upstream are not valid.
        return upstreams.get_shared(name).cloned().unwrap_or_default();
    }
    let (scheme, rest) = proxy.endpoint.split_once("://").unwrap_or_default();
    let address = rest.split('/').next().unwrap_or_default().into();
    let member = config::Member { address, ..config::Member::default() };
    Arc::new(config::Upstream {
        tls: scheme == "https",
        ca: proxy.ca.clone(),
        members: [("endpoint", member)].into_iter().collect(),
        ..config::Upstream::default()
    })
}

/// Path and query of a URL.
fn target(endpoint: &str) -> &str {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    rest.find('/').map_or("/", |at| &rest[at..])
}

/// Whether connections with one proxy's settings can serve the other.
fn shares_connections(a: &Proxy, b: &Proxy) -> bool {
    let bounds = |of: &Proxy| {
        let times = (of.timeout_ms, of.connect_timeout_ms, of.queue_timeout_ms);
        (times, of.connections_max, of.queue_max, of.answer_bytes_max)
    };
    let of = |proxy: &Proxy| (proxy.endpoint.clone(), proxy.upstream.clone(), proxy.ca.clone());
    of(a) == of(b) && bounds(a) == bounds(b)
}

/// The headers of a request: those of the client with all their lines, then those it emulates, then the static ones. A header
/// has one of these sources.
fn headers<'a>(config: &'a Proxy, passed: Option<&'a ForwardedData>) -> Vec<(&'a str, &'a str)> {
    let mut headers = vec![("Content-Type", "application/json")];
    let is_in = |all: &[(&str, &str)], name: &str| {
        all.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    let is_wanted =
        |wanted: &[String], name: &str| wanted.iter().any(|of| of.eq_ignore_ascii_case(name));
    if let Some(passed) = passed {
        let own = passed.http_headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let own = own.filter(|(name, _)| is_wanted(&config.http_headers, name));
        headers.extend(own.filter(|(name, _)| !name.eq_ignore_ascii_case("Content-Type")));
        for (name, value) in &passed.emulated_headers {
            if is_wanted(&config.emulated_headers, name) && !is_in(&headers, name) {
                headers.push((name, value));
            }
        }
    }
    for (name, value) in config.static_headers.iter() {
        if !is_in(&headers, name) {
            headers.push((name, value.reveal()));
        }
    }
    headers
}
