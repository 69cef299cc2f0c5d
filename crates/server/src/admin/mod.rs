//! The admin port: health, metrics, information, status of the workers, and the config API.
//!
//! It is a separate thread with the same event loop as the workers: a change should complete within forty microseconds
//! from its client's send to its receive, most of them in the kernel. Only this thread owns the [`Store`] and publishes
//! settings.
//!
//! [`access`] authenticates callers, [`call`] parses requests, [`read`] serves reads and dry runs, [`commit`] executes
//! changes, [`trial`] tries a change on one worker first, [`sync`] waits for the disk, [`watch`] streams revisions.

mod access;
#[cfg(test)]
mod access_tests;
#[cfg(test)]
mod address_tests;
mod affected;
#[cfg(test)]
mod affected_tests;
mod api_call;
#[cfg(test)]
mod api_call_tests;
mod broadcasts;
mod call;
mod cluster_change;
mod cluster_scope;
mod commit;
#[cfg(test)]
mod effect_tests;
mod federation;
mod heap_trim;
mod live;
#[cfg(test)]
mod node_tests;
mod openapi;
pub(crate) mod operator;
mod overview;
mod page;
mod problem;
mod read;
mod reload;
pub(crate) mod reservations;
#[cfg(test)]
mod revocation_tests;
mod revocations;
#[cfg(test)]
mod rules_tests;
mod samples;
#[cfg(test)]
mod series_tests;
mod status;
mod sync;
#[cfg(test)]
mod tenant_tests;
#[cfg(test)]
mod tenant_transport_tests;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
mod time;
mod timer;
mod trial;
mod warnings;
mod watch;
pub(crate) mod worker_metrics;
mod worker_query;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU64;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dunlin_cluster::message::{ClusterToAdmin, StatusPage};
use dunlin_config::store::Store;
use dunlin_config::{AdminRole, Config, Effect, Effects, Log};
use dunlin_metrics::{Registry, text};
use dunlin_net::http::{self, Method};
use dunlin_net::{
    Admit, CloseReason, ConnId, Context, EventLoop, Handler, Http, HttpHandler, Inbox, Interest,
    ListenConfig, ListenerId, LoopConfig, Remote, Sleep, TimeoutMs, TimerId, free_heap_bytes,
    remote_pair, trim_heap,
};
use dunlin_push_service::PushHandle;

pub(crate) use self::access::OperatorAccess;
use self::affected::DryRun;
use self::api_call::ApiCall;
use self::broadcasts::BroadcastQuery;
use self::cluster_change::ClusterChanges;
use self::cluster_scope::StatusRequest;
use self::commit::CommitQueue;
use self::heap_trim::HeapTrim;
use self::live::{Explain, TraceReader};
use self::problem::ProblemDetails;
use self::samples::Samples;
use self::sync::Sync;
use self::timer::Timer;
use self::trial::CanaryTrial;
use self::watch::Watcher;
use self::worker_query::WorkerQueries;
use crate::admin::reservations::Reservations;
use crate::auth::revocation::RevocationLog;
use crate::clock::unix_ms;
use crate::log::{self, Entry, Kind};
use crate::message::admin::AdminMessage;
use crate::message::bus::Endpoint;
use crate::metrics::labelled::{AdminDuration, AdminRequest};
use crate::metrics::log_gate::LogGate;
use crate::metrics::{ConfigCounters, ConfigMetric};
use crate::state::settings::Settings;
use crate::state::{Lifecycle, ServerState};
use crate::tls::{Tls, file_times};
use crate::validation::Reload;

/// Most connections; a further one is closed.
const CONNECTIONS_MAX: usize = 4_096;
/// Most connections that have no response yet to a request that may need a token. A further one closes the oldest, so
/// that idle connections cannot lock out an operator or a load balancer.
const UNAUTHENTICATED_MAX: usize = 1_024;
/// Most bytes of bodies and responses of all connections together.
const BUFFERED_BYTES_MAX: usize = 512 << 20;
/// Most bytes of a response; the largest is a whole configuration.
const OUTPUT_BYTES_MAX: usize = 256 << 20;
/// Allows for a body of `config.body_bytes_max` over a slow connection.
const BODY_TIMEOUT_MS: TimeoutMs = NonZeroU64::new(60_000);
const KEEP_ALIVE_TIMEOUT_MS: TimeoutMs = NonZeroU64::new(300_000);
const HEARTBEAT_SECONDS: u64 = 10;
/// Interval between checks of the allocator's free memory.
const TRIM_SECONDS: u64 = 4;
/// A body of this size takes a millisecond or more; see [`Admin::lengthen_time_slice`].
const LARGE_BODY_BYTES: usize = 64 << 10;

/// The doorbell among the loop's foreign descriptors.
const DOORBELL: u64 = 0;

/// The admin thread's data of a connection.
#[derive(Debug, Default)]
pub(crate) struct AdminConnection {
    /// The client's address, even behind a proxy.
    from: Option<Arc<str>>,
    /// Whether it came through the Unix socket; `None` until checked.
    through_socket: Option<bool>,
    watching: bool,
    tracing: bool,
    /// Method and path of its request, if the log wants them, and when it came.
    method: Box<str>,
    path: Box<str>,
    began_ms: u64,
    has_access_log: bool,
    /// Its request, until that is answered.
    counted: Option<CountedRequest>,
}

/// A request as metrics have it.
struct CountedRequest {
    endpoint: &'static str,
    began: Instant,
    state: Arc<ServerState>,
}

impl std::fmt::Debug for CountedRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CountedRequest").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl CountedRequest {
    fn answered(self, status: u16) {
        let (endpoint, labelled) = (self.endpoint, self.state.labelled_of_admin());
        labelled.admin_requests.of(AdminRequest { endpoint, status: status.into() }).increment();
        let took = self.began.elapsed().as_nanos() as u64;
        labelled.admin_durations.of(AdminDuration { endpoint }).record(took);
    }
}

/// The context of the admin thread's loop.
type Cx = Context<AdminConnection>;

/// The state of the admin thread.
pub(crate) struct Admin {
    state: Arc<ServerState>,
    /// `None` without a state directory, as is `revocation_log`.
    operator: Option<OperatorAccess>,
    revocation_log: Option<RevocationLog>,
    /// `None` without a push thread.
    push: Option<PushHandle>,
    endpoint: Endpoint<AdminMessage>,
    store: Store,
    /// The newest revision that is known to be on disk.
    durable: u64,
    reservations: Reservations,
    commits: CommitQueue,
    cluster_changes: ClusterChanges,
    retired: Vec<Arc<Settings>>,
    /// Something large is in progress; see [`Admin::lengthen_time_slice`].
    long_time_slice: bool,
    trial: Option<CanaryTrial>,
    /// `None` without a state directory.
    sync: Option<Sync>,
    watchers: Vec<Watcher>,
    api_calls: WorkerQueries<ApiCall>,
    traces: Vec<TraceReader>,
    explains: WorkerQueries<Explain>,
    broadcast_requests: WorkerQueries<BroadcastQuery>,
    dry_runs: WorkerQueries<DryRun>,
    status_requests: WorkerQueries<StatusRequest>,
    on_log: Box<dyn Fn(&Log) + Send>,
    /// Reads the file anew; `None` without one.
    reload: Option<Reload>,
    /// What the file has, while that becomes the settings.
    reloading: Option<Config>,
    /// The listener on `server.admin_addr`, unless that is disabled.
    listener: Option<ListenerId>,
    /// The workers' initial listeners, until `server.client_addr` changes.
    boot: Vec<TcpListener>,
    body_bytes_max: usize,
    /// The files of `tls.certificates` with their modification times when they were last read.
    certificate_files: Vec<(Arc<str>, Option<SystemTime>)>,
    seconds: u64,
    samples: Samples,
    heap_trim: HeapTrim,
    accept_log: LogGate,
    /// Workers whose rings were full when tokens were revoked.
    unreached: Vec<usize>,
    counters: Arc<ConfigCounters>,
    registry: Registry,
}

/// The parameters of the admin thread.
pub(crate) struct AdminParams {
    pub(crate) state: Arc<ServerState>,
    pub(crate) push: Option<PushHandle>,
    pub(crate) endpoint: Endpoint<AdminMessage>,
    pub(crate) store: Store,
    pub(crate) reservations: Reservations,
    pub(crate) listener: TcpListener,
    /// The socket and the token of the operator; `None` without a state directory.
    pub(crate) operator: Option<OperatorAccess>,
    /// Keeps revocations on disk; `None` without a state directory.
    pub(crate) revocation_log: Option<RevocationLog>,
    /// The socket listens already.
    pub(crate) socket: Option<UnixListener>,
    /// Handles of the workers' listeners.
    pub(crate) boot: Vec<TcpListener>,
    /// Reads the configuration's file anew; `None` without one.
    pub(crate) reload: Option<Reload>,
    /// Called with `log` when it has changed.
    pub(crate) on_log: Box<dyn Fn(&Log) + Send>,
    /// The metrics of the configuration.
    pub(crate) counters: Arc<ConfigCounters>,
}

/// A handle of the admin thread.
pub(crate) struct AdminThread {
    remote: Remote<Admin>,
    thread: std::thread::JoinHandle<()>,
}

impl AdminThread {
    pub(crate) fn start(parts: AdminParams) -> io::Result<AdminThread> {
        let (remote, inbox) = remote_pair()?;
        let (handle, sync) = (remote.clone(), parts.store.sync_handle());
        let sync = sync.map(|sync| Sync::start(sync, remote.clone())).transpose()?;
        let thread = std::thread::Builder::new().name("dunlin-admin".into()).spawn(move || {
            if let Err(error) = run(parts, sync, inbox) {
                tracing::error!(%error, "the admin port is not served any more");
            }
        })?;
        Ok(AdminThread { remote: handle, thread })
    }

    /// Whether the thread has ended, which only happens on an error.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Reads the file of the configuration and those of certificates anew (SIGHUP).
    pub(crate) fn reload(&self) {
        let _ = self.remote.run(|admin, cx| admin.reload(cx));
    }

    /// Ends the thread and waits for it, within a bound.
    pub(crate) fn stop(self, bound: Duration) {
        let _ = self.remote.run(|_, cx| cx.stop());
        let deadline = Instant::now() + bound;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn run(parts: AdminParams, sync: Option<Sync>, inbox: Inbox<Admin>) -> io::Result<()> {
    let config = LoopConfig {
        connections_max: CONNECTIONS_MAX,
        unauthenticated_max: Some(UNAUTHENTICATED_MAX),
        buffered_bytes_max: BUFFERED_BYTES_MAX,
        ..LoopConfig::default()
    };
    let mut event_loop = EventLoop::with_inbox(config, inbox)?;
    let cx = event_loop.context();
    let AdminParams {
        state,
        push,
        endpoint,
        store,
        reservations,
        listener,
        boot,
        on_log,
        reload,
        counters,
        ..
    } = parts;
    let certificate_files = file_times(&store.head().config);
    let body_bytes_max = store.head().config.config.body_bytes_max;
    let listen = listen_config(&store.head().config, &state.settings.load().tls)?;
    if let Some(socket) = parts.socket {
        let listen = ListenConfig { tls: None, proxies: Arc::default(), ..listen.clone() };
        cx.adopt_listener(socket, &listen)?;
    }
    let listener = match store.head().config.server.admin_tcp {
        true => Some(cx.adopt_listener(listener, &listen)?),
        false => None,
    };
    cx.register_fd(endpoint.doorbell(), DOORBELL, Interest::READABLE)?;
    cx.run_every(1000, Timer::Second as u64);
    let registry = worker_metrics::registry(&state, &counters, push.as_ref());
    let cluster_changes = ClusterChanges::new(store.cluster_position());
    state.cluster.set_settings(cluster_changes.position(), None);
    let mut admin = Admin {
        state,
        operator: parts.operator,
        revocation_log: parts.revocation_log,
        push,
        endpoint,
        store,
        durable: 0,
        reservations,
        commits: CommitQueue::default(),
        cluster_changes,
        retired: Vec::new(),
        long_time_slice: false,
        trial: None,
        sync,
        watchers: Vec::new(),
        api_calls: api_call::api_calls(),
        traces: Vec::new(),
        explains: live::explains(),
        broadcast_requests: broadcasts::broadcast_requests(),
        dry_runs: affected::dry_runs(),
        status_requests: cluster_scope::status_requests(),
        on_log,
        reload,
        reloading: None,
        listener,
        boot,
        body_bytes_max,
        certificate_files,
        seconds: 0,
        samples: Samples::new(),
        heap_trim: HeapTrim::default(),
        accept_log: LogGate::default(),
        unreached: Vec::new(),
        counters,
        registry,
    };
    event_loop.run(&mut admin)
}

/// # Errors
/// The TLS of the admin port could not be built.
fn listen_config(settings: &Config, tls: &Tls) -> io::Result<ListenConfig> {
    let mut config = ListenConfig::http();
    let ingress = &settings.server.admin_ingress;
    config.tls = tls.server(ingress)?;
    if ingress.proxy_protocol {
        config.proxies = ingress.proxies().collect();
    }
    config.limits.http.body_bytes_max = settings.config.body_bytes_max as u64;
    config.limits.output_bytes_max = OUTPUT_BYTES_MAX;
    config.limits.body_timeout_ms = BODY_TIMEOUT_MS;
    config.limits.keep_alive_timeout_ms = KEEP_ALIVE_TIMEOUT_MS;
    Ok(config)
}

impl Admin {
    /// Keeps what the log needs of a request until it is answered.
    fn note_request(&self, cx: &mut Cx, conn: ConnId, head: &http::RequestHead<'_>) {
        if let Some(caller) = cx.data(conn) {
            caller.counted = Some(CountedRequest {
                endpoint: openapi::endpoint(head.path),
                began: Instant::now(),
                state: Arc::clone(&self.state),
            });
        }
        let has_access_log = self.store.head().config.server.admin_ingress.access_log;
        if !has_access_log && !log::is_enabled(Kind::AdminRefused) {
            return;
        }
        let now_ms = cx.now_ms();
        let Some(caller) = cx.data(conn) else { return };
        (caller.has_access_log, caller.began_ms) = (has_access_log, now_ms);
        caller.method = head.method.as_str().into();
        caller.path = head.path[..head.path.floor_char_boundary(256)].into();
    }

    fn route(&mut self, cx: &mut Cx, conn: ConnId, request: &http::Request<'_>) {
        let path = request.path;
        // A load balancer has no token; `/health` only shows that the process serves.
        if path == "/health" {
            return self.health(cx, conn, request.method);
        }
        if Admin::operator_page(cx, conn, request) {
            return;
        }
        let caller = match self.caller(cx, conn, request) {
            Ok(caller) => caller,
            Err(problem) => return problem.answer(cx, conn),
        };
        cx.mark_authenticated(conn);
        // A change of the settings is logged when it is in effect.
        let operates = access::below(path, "/config").is_none()
            && access::role_for(request).is_ok_and(|role| role >= AdminRole::Operate);
        let done = if let Some(rest) = access::below(path, "/config") {
            self.config(cx, conn, request, rest, caller)
        } else if let Some(rest) = access::below(path, "/broadcasts") {
            self.broadcasts(cx, conn, request, rest)
        } else if let Some(rest) = access::below(path, "/federation") {
            self.federation(cx, conn, request, rest)
        } else if path == "/revocations" {
            self.revocations(cx, conn, request)
        } else if let Some(method) = path.strip_prefix("/api/") {
            self.api_call(cx, conn, request, method)
        } else if path == "/whoami" {
            self.whoami(cx, conn, request, caller)
        } else if path == "/trace" {
            self.trace(cx, conn, request)
        } else if path == "/explain" {
            self.explain(cx, conn, request)
        } else {
            self.page(cx, conn, request)
        };
        match done {
            Ok(()) if operates => self.tell_operated(cx, conn, request),
            Ok(()) => {}
            Err(problem) => problem.answer(cx, conn),
        }
    }

    /// Tells the log of what an operator has done beside changing settings.
    fn tell_operated(&self, cx: &mut Cx, conn: ConnId, request: &http::Request<'_>) {
        if log::is_enabled(Kind::Operated) {
            let (key, origin) = (self.token_name(request), Admin::origin_of(cx, conn));
            let (method, path) = (request.method.as_str(), request.path);
            let entry = Entry { key: &key, origin: &origin, method, path, ..Entry::default() };
            log::write(Kind::Operated, &entry);
        }
    }

    /// Answers a request for a path without subpaths.
    fn page(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        request: &http::Request<'_>,
    ) -> Result<(), ProblemDetails> {
        if let Some(page) = StatusPage::of(request.path) {
            return self.status_page(cx, conn, request, page);
        }
        match request.path {
            "/metrics" => {
                let (media_type, text) = self.metrics(request.headers);
                answer(cx, conn, 200, media_type, text.as_bytes());
            }
            "/status/series" => {
                let series = self.samples.answer(request.query)?;
                answer(cx, conn, 200, "application/json", &series);
            }
            "/openapi.json" => {
                answer(cx, conn, 200, "application/json", openapi::document().as_bytes());
            }
            path => match path.strip_prefix("/problems/").and_then(problem::explanation) {
                Some(text) => answer(cx, conn, 200, "text/plain; charset=utf-8", text.as_bytes()),
                None => return Err(ProblemDetails::not_found(path)),
            },
        }
        Ok(())
    }

    fn health(&self, cx: &mut Cx, conn: ConnId, method: Method<'_>) {
        if !reads(method) {
            return ProblemDetails::method("GET, HEAD").answer(cx, conn);
        }
        let lifecycle = self.state.lifecycle();
        let status = match lifecycle {
            Lifecycle::Serving => 200,
            Lifecycle::Starting | Lifecycle::Draining => 503,
        };
        let mut health = serde_json::json!({ "status": lifecycle.name() });
        let engines = self.state.engines.health();
        if !engines.is_empty() {
            health["engines"] = serde_json::json!(engines);
        }
        let shards = self.state.engines.shard_states();
        if !shards.is_empty() {
            health["engine_shards"] = serde_json::json!(shards);
        }
        if let Some(cluster) = self.state.cluster.health() {
            health["cluster"] = cluster;
        }
        answer_json(cx, conn, status, &health);
    }

    /// Returns media type and text of `/metrics`.
    fn metrics(&self, headers: http::Headers<'_>) -> (&'static str, String) {
        self.counters.set(ConfigMetric::Revision, self.store.head().revision);
        self.counters.set(ConfigMetric::DurableRevision, self.durable);
        let expiry_s = self.state.settings.load().tls.first_expiry_s();
        self.counters.set(ConfigMetric::CertificateExpiry, expiry_s);
        let accept: Vec<_> = headers.list("Accept").map(String::from_utf8_lossy).collect();
        text::negotiate(&self.registry, Some(&accept.join(",")))
    }

    /// Returns the address of a connection for the history of revisions.
    fn origin_of(cx: &mut Cx, conn: ConnId) -> Arc<str> {
        if let Some(from) = cx.data(conn).and_then(|caller| caller.from.clone()) {
            return from;
        }
        if access::is_local_socket(cx, conn) { "local".into() } else { Arc::default() }
    }

    /// Applies a confirmed configuration to this thread: its own listener, the workers' initial listeners, admin tokens,
    /// the log.
    fn follow(&mut self, cx: &mut Cx, config: &Config, effects: Effects) {
        let next = self.reservations.serve(config);
        if effects.intersects(Effects::of(&[Effect::AdminPort, Effect::Tls])) {
            self.follow_port(cx, config, next);
        }
        if effects.contains(Effect::Listeners) {
            self.close_boot_listeners(config);
        }
        if effects.contains(Effect::AdminTokens) {
            self.end_watches(cx);
            self.end_traces(cx);
        }
        if effects.contains(Effect::Log) {
            (self.on_log)(&config.log);
        }
        if effects.contains(Effect::Otlp) {
            self.state.telemetry.follow(&config.otlp);
        }
        for effect in [Effect::AdminPort, Effect::AdminTokens, Effect::Log, Effect::Otlp] {
            if effects.contains(effect) {
                self.state.effects.count(effect);
            }
        }
    }

    fn follow_port(&mut self, cx: &mut Cx, config: &Config, next: Option<TcpListener>) {
        self.body_bytes_max = config.config.body_bytes_max;
        let tls = Arc::clone(&self.state.settings.load().tls);
        // Connections through a former listener stay.
        let followed = match (listen_config(config, &tls), next, self.listener) {
            (Ok(listen), Some(listener), former) => {
                cx.adopt_listener(listener, &listen).map(|next| {
                    self.listener = Some(next);
                    former.into_iter().for_each(|former| cx.close_listener(former));
                })
            }
            (Ok(listen), None, Some(listener)) if config.server.admin_tcp => {
                cx.update_listener(listener, &listen)
            }
            (Ok(_), None, None) => Ok(()),
            (listen, _, former) => {
                self.listener = None;
                former.into_iter().for_each(|former| cx.close_listener(former));
                if let Err(error) = listen {
                    tracing::error!(%error, "closed: the admin port; the operator's socket serves");
                }
                Ok(())
            }
        };
        if let Err(error) = followed {
            tracing::error!(%error, "the admin port stays as it was until the next start");
        }
    }

    fn close_boot_listeners(&mut self, config: &Config) {
        if config.server.client_addr != self.state.boot_addr && !self.boot.is_empty() {
            self.state.boot_closes();
            for listener in self.boot.drain(..) {
                // Workers hold the same socket: closing this handle would leave it listening.
                let ended = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
                if let Err(error) = ended {
                    tracing::debug!(%error, "a listener was not listening any more");
                }
            }
        }
    }

    /// Lengthens this thread's time slice until the end of the turn or of the commit in flight. Called before work that
    /// takes milliseconds: a worker that wakes on this core then preempts this thread at once.
    fn lengthen_time_slice(&mut self) {
        if !self.long_time_slice {
            self.long_time_slice = true;
            // A scheduler without time slices ignores it.
            let _ = dunlin_net::set_time_slice(Some(dunlin_net::TIME_SLICE_MAX));
        }
    }

    /// Frees settings that no worker holds any more. This thread keeps them until then, so that no worker frees ten
    /// thousand namespaces between two messages.
    fn free_retired(&mut self) {
        self.retired.retain(|settings| Arc::strong_count(settings) > 1);
    }

    /// Reloads certificates whose files have changed.
    fn reopen_certificates(&mut self) {
        let config = &self.store.head().config;
        let (times, settings) = (file_times(config), self.state.settings.load());
        if times == self.certificate_files && settings.tls.is_complete(config) {
            return;
        }
        self.certificate_files = times;
        match settings.tls.reopen(config) {
            Ok(()) => tracing::info!("the certificates of tls.certificates were read again"),
            Err(errors) => {
                self.counters.count(ConfigMetric::CertificatesRefused);
                let kept = "the one in use stays";
                errors.iter().for_each(|error| tracing::error!(kept, "{error}"));
            }
        }
    }

    fn second(&mut self, cx: &mut Cx) {
        self.seconds += 1;
        log::tell_suppressed();
        self.free_retired();
        self.reach_workers();
        self.answer_overdue_api_calls(cx);
        self.answer_overdue_broadcasts(cx);
        self.answer_overdue_status(cx);
        self.answer_overdue_explains(cx);
        self.advance_cluster_changes(cx);
        self.evaluate_trial(cx);
        self.sync_rest();
        if self.seconds.is_multiple_of(samples::STEP_S) {
            self.samples.take(&self.state, self.state.uptime_ms() * 1_000_000);
        }
        if self.seconds.is_multiple_of(TRIM_SECONDS) && self.heap_trim.is_due(free_heap_bytes()) {
            // Returns free memory to the kernel; a worker that allocates meanwhile waits.
            trim_heap();
            self.heap_trim.handle_trimmed(free_heap_bytes());
        }
        if self.seconds.is_multiple_of(HEARTBEAT_SECONDS) {
            self.notify_progress(cx);
            self.reopen_certificates();
        }
    }
}

impl Handler for Admin {
    type Data = AdminConnection;
    type Protocols = Http;

    fn on_accept(
        &mut self,
        _: &mut Cx,
        _: ListenerId,
        peer: Option<SocketAddr>,
        caller: &mut AdminConnection,
    ) -> Admit {
        caller.from = peer.map(|peer| peer.to_string().into());
        Admit::Accept
    }

    fn on_accept_failed(&mut self, cx: &mut Cx, _: ListenerId, error: &io::Error) {
        if let Some(before) = self.accept_log.pass(cx.now_ms()) {
            tracing::warn!(before, %error, "the admin port could not accept");
        }
    }

    fn on_writable(&mut self, cx: &mut Cx, conn: ConnId) {
        if cx.data(conn).is_some_and(|caller| caller.watching) {
            self.watcher_writable(cx, conn);
        } else if cx.data(conn).is_some_and(|caller| caller.tracing) {
            self.trace_writable(conn);
        }
    }

    fn on_close(&mut self, _: &mut Cx, conn: ConnId, caller: AdminConnection, _: CloseReason) {
        if caller.watching {
            self.remove_watcher(conn);
        }
        if caller.tracing {
            self.remove_trace(conn);
        }
    }

    fn on_timer(&mut self, cx: &mut Cx, _: TimerId, data: u64) {
        match Timer::from_u64(data) {
            Some(Timer::Second) => self.second(cx),
            Some(Timer::Commit) => self.handle_commit_timeout(cx),
            Some(Timer::DryRun) => {
                let now_ms = cx.now_ms();
                self.answer_overdue_dry_runs(cx, now_ms);
            }
            Some(Timer::Webhooks) => self.wake_webhooks(),
            Some(Timer::Trace) => self.read_traces(cx),
            None => debug_assert!(false, "a timer without a name"),
        }
    }

    fn on_tick(&mut self, cx: &mut Cx) {
        while let Some((_, message)) = self.endpoint.recv() {
            match message {
                AdminMessage::ApiReply { request_id, worker, status, response } => {
                    self.handle_api_reply(cx, request_id, worker, (status, response));
                }
                AdminMessage::BroadcastReply { request_id, worker, found, acted } => {
                    self.handle_broadcast_reply(cx, request_id, worker, found, acted);
                }
                AdminMessage::AffectedReply { request_id, worker, counts } => {
                    self.handle_affected_reply(cx, request_id, worker, *counts);
                }
                AdminMessage::Explained { request_id, story } => {
                    self.handle_explained(cx, request_id, *story);
                }
                AdminMessage::Revoke { worker, token, revocation } => {
                    self.handle_revoke(worker, token, &revocation);
                }
                AdminMessage::Unblock { worker, token, user } => {
                    self.handle_unblock(worker, token, &user);
                }
                AdminMessage::Cluster(ClusterToAdmin::StatusQuery { request_id, page }) => {
                    self.serve_status(request_id, page);
                }
                AdminMessage::Cluster(ClusterToAdmin::Status(status)) => {
                    self.handle_cluster_status(cx, *status);
                }
                AdminMessage::Cluster(ClusterToAdmin::SharedChangeEvent(event)) => {
                    self.handle_change_event(cx, *event);
                }
                // It has woken the thread.
                AdminMessage::SettingsAdopted => {}
            }
        }
        self.advance(cx);
        while self.handle_ended_changes(cx) {
            self.advance(cx);
        }
        self.endpoint.flush();
        if self.long_time_slice && self.commits.are_idle() {
            self.free_retired();
            self.long_time_slice = false;
            // Cannot fail if lengthening succeeded.
            let _ = dunlin_net::set_time_slice(None);
        }
    }

    fn on_sleep(&mut self, _: &mut Cx) -> Sleep {
        if self.endpoint.prepare_sleep() { Sleep::Block } else { Sleep::Poll }
    }

    fn on_wake(&mut self, _: &mut Cx) {
        self.endpoint.wake();
    }
}

impl HttpHandler for Admin {
    fn on_request_head(
        &mut self,
        cx: &mut Cx,
        id: http::RequestId,
        head: &http::RequestHead<'_>,
    ) -> Option<u64> {
        let conn = id.conn();
        self.note_request(cx, conn, head);
        if let Err(problem) = self.caller(cx, conn, head) {
            problem.answer(cx, conn);
            return None;
        }
        Some(u64::MAX)
    }

    fn on_request(&mut self, cx: &mut Cx, id: http::RequestId, request: &http::Request<'_>) {
        if request.body.len() >= LARGE_BODY_BYTES {
            self.lengthen_time_slice();
        }
        self.note_request(cx, id.conn(), request);
        self.route(cx, id.conn(), request);
    }

    fn on_http_error(&mut self, cx: &mut Cx, conn: ConnId, error: http::Error) {
        if error.status() != 413 {
            return cx.answer_http_error(conn, error);
        }
        let limit = self.body_bytes_max;
        let detail = format!("config.body_bytes_max is {limit}");
        ProblemDetails::new(&problem::TOO_LARGE, detail)
            .with("limit", limit)
            .answer_http_error(cx, conn);
    }
}

/// Tells the access log of a request.
fn tell_answered(cx: &mut Cx, conn: ConnId, response: &http::Response<'_>) {
    let (address, now_ms) = (cx.peer_addr(conn).map(|peer| peer.ip()), cx.now_ms());
    let Some(caller) = cx.data(conn).filter(|caller| caller.has_access_log) else { return };
    let entry = Entry {
        status: Some(response.status),
        address,
        method: &caller.method,
        path: &caller.path,
        listener: "admin",
        bytes: Some(response.body.len() as u64),
        duration_ms: Some(now_ms.saturating_sub(caller.began_ms)),
        ..Entry::default()
    };
    log::write(Kind::Request, &entry);
}

/// Tells the log of a request that is refused.
fn tell_refused(cx: &mut Cx, conn: ConnId, status: u16, reason: &str) {
    if log::is_enabled(Kind::AdminRefused) {
        let address = cx.peer_addr(conn).map(|peer| peer.ip());
        let caller = cx.data(conn);
        let (method, path) = caller.map_or(("", ""), |caller| (&*caller.method, &*caller.path));
        let status = Some(status);
        log::write(
            Kind::AdminRefused,
            &Entry { status, reason, address, method, path, ..Entry::default() },
        );
    }
}

/// Answers the outstanding request of a connection, unless the client has disconnected.
fn respond(cx: &mut Cx, conn: ConnId, status: u16, headers: &[(&str, &str)], body: &[u8]) {
    let response = http::Response { status, headers, body };
    if let Some(counted) = cx.data(conn).and_then(|caller| caller.counted.take()) {
        counted.answered(status);
    }
    tell_answered(cx, conn, &response);
    if cx.outstanding(conn).and_then(|id| cx.respond(id, &response)).is_err() {
        cx.abort(conn);
    }
}

fn answer(cx: &mut Cx, conn: ConnId, status: u16, kind: &str, body: &[u8]) {
    let headers = [("Content-Type", kind), ("Cache-Control", "no-store")];
    respond(cx, conn, status, &headers, body);
}

fn answer_json(cx: &mut Cx, conn: ConnId, status: u16, value: &serde_json::Value) {
    let body = format!("{value:#}\n");
    answer(cx, conn, status, "application/json", body.as_bytes());
}

fn reads(method: Method<'_>) -> bool {
    matches!(method, Method::Get | Method::Head)
}
