//! The state that all threads of one process share.

pub(crate) mod fanout_scheduler;
pub(crate) mod federation;
mod local_node;
pub(crate) mod memory;
mod node_name;
pub(crate) mod pressure;
pub(crate) mod settings;
pub(crate) mod webhooks;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use dunlin_bus::{Monitor, Rollout};
use dunlin_cluster::ClusterState;
use dunlin_config::Config;
use dunlin_hub::UserDirectory;
use dunlin_push_service::message::PushAdmissions;
use serde_json::{Value, json};

use self::federation::FederationState;
use crate::auth::derived_keys::DerivedKeys;
use crate::auth::revocation::Revocations;
use crate::engines::disk::DiskLogs;
use crate::engines::stats::EnginesStats;
use crate::limits::admission::Admissions;
use crate::limits::shared_buckets::SharedBuckets;
use crate::log::live::LiveTraces;
use crate::message::bus::Addresses;
use crate::metrics::effect_counts::EffectCounts;
use crate::metrics::labelled::LabelledCounters;
use crate::metrics::loop_stats::LoopStats;
use crate::metrics::namespaces::NamespaceGauges;
use crate::metrics::transports::TransportGauges;
use crate::metrics::{Counters, KeyCounters, Metric};
use crate::program::Program;
use crate::programs::ProgramsStats;
use crate::proxy::ProxiesStats;
use crate::state::fanout_scheduler::FanoutScheduler;
use crate::state::pressure::Pressure;
use crate::state::settings::Settings;
use crate::state::webhooks::{UpstreamsState, WebhooksState};
use crate::telemetry::Telemetry;

/// The lifecycle of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Lifecycle {
    /// Workers are starting; nothing is accepted yet.
    Starting = 0,
    /// All workers serve.
    Serving = 1,
    /// SIGTERM was received: clients are asked to reconnect elsewhere.
    Draining = 2,
}

impl Lifecycle {
    /// Returns the name that `/health` shows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Lifecycle::Starting => "starting",
            Lifecycle::Serving => "serving",
            Lifecycle::Draining => "draining",
        }
    }
}

/// The shared part of one Dunlin process: settings, counters, connection counts, lifecycle.
pub(crate) struct ServerState {
    /// The time that each command takes, in place of a measurement.
    #[cfg(test)]
    pub(crate) test_command_ns: AtomicU64,
    /// The snapshot every worker runs, or loads before it does anything else. Stored by
    /// [`ServerState::publish`] alone.
    pub(crate) settings: ArcSwap<Settings>,
    /// The snapshot that one worker runs in its place, while it is tried out.
    canary: ArcSwapOption<Canary>,
    /// Counts the publications of `settings` and `canary`.
    generation: AtomicU64,
    /// `server.client_addr` as it was when the process opened its listeners for it.
    pub(crate) boot_addr: SocketAddr,
    /// These listeners are closed, because that setting has changed.
    boot_closed: AtomicBool,
    /// Which generation each worker runs, and which workers sleep.
    pub(crate) rollout: Rollout,
    /// Per worker: why it runs another snapshot than the newest.
    rejections: Vec<Mutex<Option<Rejection>>>,
    /// One per worker.
    pub(crate) loop_stats: Vec<LoopStats>,
    /// Per worker: the number of sessions by the key that signed their token.
    token_keys: Vec<Mutex<Vec<(u64, u64)>>>,
    /// Which workers may have sessions of a user.
    pub(crate) users: Arc<UserDirectory>,
    /// The calls that the push thread handles.
    pub(crate) push_admissions: Arc<PushAdmissions>,
    /// The program that embeds the server.
    pub(crate) program: OnceLock<Program>,
    /// Where each thread is on the bus.
    pub(crate) bus: Addresses,
    /// The counters of the bus, once there is one.
    pub(crate) monitor: OnceLock<Monitor>,
    /// One set per worker.
    pub(crate) counters: Vec<Counters>,
    /// One set per worker, and that of the admin thread.
    pub(crate) labelled: Vec<LabelledCounters>,
    /// Per worker: its sessions by transport.
    pub(crate) transports: Vec<TransportGauges>,
    /// Per worker: what happens in each namespace.
    pub(crate) namespaces: Vec<NamespaceGauges>,
    /// Statistics and state of the webhooks.
    pub(crate) webhooks: WebhooksState,
    /// Which members of upstreams are not healthy.
    pub(crate) upstreams: UpstreamsState,
    /// Statistics of the calls of proxies.
    pub(crate) proxies: Arc<ProxiesStats>,
    /// Statistics of programs in Luau.
    pub(crate) programs: Arc<ProgramsStats>,
    /// How often each effect of a change of the settings was brought about.
    pub(crate) effects: Arc<EffectCounts>,
    /// What is shown of peers.
    pub(crate) federation: Arc<FederationState>,
    /// Statistics of the engines.
    pub(crate) engines: Arc<EnginesStats>,
    /// The logs of engines on a disk, once they are open.
    pub(crate) disks: OnceLock<DiskLogs>,
    /// Counts the connections of the whole process.
    pub(crate) admissions: Admissions,
    /// Decides which worker may broadcast.
    pub(crate) fanout_scheduler: FanoutScheduler,
    /// The buckets of users, addresses, namespaces and API keys.
    pub(crate) budgets: SharedBuckets,
    /// Channels that are behind, whose publishers wait.
    pub(crate) pressure: Pressure,
    /// The secrets of this process.
    pub(crate) keys: DerivedKeys,
    /// Revoked tokens.
    pub(crate) revocations: Revocations,
    /// Counters of the key sets.
    pub(crate) key_counters: Arc<KeyCounters>,
    /// The state of the cluster.
    pub(crate) cluster: Arc<ClusterState>,
    /// Traces for a collector.
    pub(crate) telemetry: Arc<Telemetry>,
    /// Live traces of users, clients and channels.
    pub(crate) live: LiveTraces,
    /// A random UUID made at the start of the process: the `uid` of the server API's `info`.
    pub(crate) uid: String,
    started: Instant,
    lifecycle: AtomicU8,
    ready: Vec<AtomicBool>,
    /// By worker: its last client has left.
    emptied: Vec<AtomicBool>,
    /// By worker: it has nothing more to answer either.
    drained: Vec<AtomicBool>,
}

/// A snapshot that one worker tries out.
struct Canary {
    worker: usize,
    settings: Arc<Settings>,
}

/// A generation that a worker could not switch to.
struct Rejection {
    generation: u64,
    reason: String,
}

/// Returns the number of cores that this process may run on.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl ServerState {
    pub(crate) fn new(settings: Settings, workers: usize, secret: [u8; 16], uid: String) -> Self {
        let started = Instant::now();
        let telemetry = Arc::new(Telemetry::new(&settings.config.otlp));
        Self {
            #[cfg(test)]
            test_command_ns: AtomicU64::new(0),
            boot_addr: settings.config.server.client_addr,
            boot_closed: AtomicBool::new(false),
            settings: ArcSwap::from_pointee(settings),
            canary: ArcSwapOption::empty(),
            generation: AtomicU64::new(1),
            rollout: Rollout::new(workers),
            rejections: (0..workers).map(|_| Mutex::new(None)).collect(),
            budgets: SharedBuckets::default(),
            pressure: Pressure::new(workers),
            loop_stats: (0..workers).map(|_| LoopStats::new(started)).collect(),
            token_keys: (0..workers).map(|_| Mutex::new(Vec::new())).collect(),
            push_admissions: Arc::default(),
            program: OnceLock::new(),
            bus: Addresses::new(workers),
            monitor: OnceLock::new(),
            counters: (0..workers).map(|_| Counters::default()).collect(),
            labelled: (0..=workers).map(|_| LabelledCounters::default()).collect(),
            transports: (0..workers).map(|_| TransportGauges::default()).collect(),
            namespaces: (0..workers).map(|_| NamespaceGauges::default()).collect(),
            proxies: Arc::default(),
            programs: Arc::default(),
            effects: Arc::default(),
            engines: Arc::default(),
            federation: Arc::default(),
            disks: OnceLock::new(),
            webhooks: WebhooksState::new(workers),
            upstreams: UpstreamsState::default(),
            admissions: Admissions::default(),
            fanout_scheduler: FanoutScheduler::new(workers, cores()),
            keys: DerivedKeys::of(&secret),
            users: Arc::new(UserDirectory::new(workers as u8)),
            revocations: Revocations::default(),
            key_counters: Arc::default(),
            cluster: Arc::default(),
            telemetry,
            live: LiveTraces::default(),
            uid,
            started,
            lifecycle: AtomicU8::new(Lifecycle::Starting as u8),
            ready: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            emptied: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            drained: (0..workers).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Returns the node number in session ids under these settings.
    pub(crate) fn node_number(&self, config: &Config) -> u16 {
        self.cluster.number().unwrap_or(config.server.node)
    }

    /// Returns the counters with labels of the admin thread.
    pub(crate) fn labelled_of_admin(&self) -> &LabelledCounters {
        &self.labelled[self.workers()]
    }

    /// Returns the number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.counters.len()
    }

    /// Whether the listeners that the process started with serve this address.
    pub(crate) fn is_boot(&self, address: SocketAddr) -> bool {
        address == self.boot_addr && !self.boot_closed.load(Ordering::Acquire)
    }

    /// Called before the listeners that the process started with are closed for good.
    pub(crate) fn boot_closes(&self) {
        self.boot_closed.store(true, Ordering::Release);
    }

    /// Makes a snapshot the one that every worker runs, and ends a trial. Awake workers switch at the end of their turn, sleeping
    /// ones before anything else; [`Rollout`] shows who has. Returns the generation. Only the admin thread calls this.
    pub(crate) fn publish(&self, settings: Arc<Settings>) -> u64 {
        self.settings.store(settings);
        self.canary.store(None);
        self.next_generation()
    }

    /// Makes one worker run another snapshot than the others. Only the admin thread calls this.
    pub(crate) fn publish_to(&self, worker: usize, settings: Arc<Settings>) -> u64 {
        self.canary.store(Some(Arc::new(Canary { worker, settings })));
        self.next_generation()
    }

    fn next_generation(&self) -> u64 {
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        self.rollout.published();
        generation
    }

    /// Returns the generation of the newest publication. A snapshot loaded after this call is at least as new.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the snapshot that a worker is to run.
    pub(crate) fn newest_for(&self, worker: usize) -> Arc<Settings> {
        match &*self.canary.load() {
            Some(canary) if canary.worker == worker => Arc::clone(&canary.settings),
            _ => self.settings.load_full(),
        }
    }

    /// Called by a worker that cannot switch to a generation, before it reports the generation as seen.
    pub(crate) fn reject(&self, worker: usize, generation: u64, reason: String) {
        let mut rejection = self.rejections[worker].lock().unwrap_or_else(PoisonError::into_inner);
        *rejection = Some(Rejection { generation, reason });
    }

    /// Returns why a worker did not switch to this generation, if it did not.
    pub(crate) fn rejection(&self, worker: usize, generation: u64) -> Option<String> {
        let rejection = self.rejections[worker].lock().unwrap_or_else(PoisonError::into_inner);
        rejection.as_ref().filter(|of| of.generation == generation).map(|of| of.reason.clone())
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        match self.lifecycle.load(Ordering::Acquire) {
            0 => Lifecycle::Starting,
            1 => Lifecycle::Serving,
            _ => Lifecycle::Draining,
        }
    }

    pub(crate) fn set_lifecycle(&self, lifecycle: Lifecycle) {
        self.lifecycle.store(lifecycle as u8, Ordering::Release);
    }

    /// Returns the number of workers that accept connections.
    pub(crate) fn workers_ready(&self) -> usize {
        self.ready.iter().filter(|ready| ready.load(Ordering::Acquire)).count()
    }

    /// Called by a worker that accepts connections.
    pub(crate) fn worker_ready(&self, worker: usize) {
        self.ready[worker].store(true, Ordering::Release);
    }

    /// Called when a worker has ended, before it is restarted.
    pub(crate) fn worker_gone(&self, worker: usize) {
        self.ready[worker].store(false, Ordering::Release);
    }

    /// Returns the number of workers that still have clients, or calls to answer.
    pub(crate) fn workers_left(&self) -> usize {
        self.drained.iter().filter(|drained| !drained.load(Ordering::Acquire)).count()
    }

    /// Called by a worker when its last client has left after SIGTERM. Returns whether that of every worker has: until then
    /// clients of others may send commands through this one.
    pub(crate) fn worker_emptied(&self, worker: usize) -> bool {
        self.emptied[worker].store(true, Ordering::Release);
        self.emptied.iter().all(|emptied| emptied.load(Ordering::Acquire))
    }

    /// Called by a worker that has nothing more to answer after SIGTERM, and by one that ends.
    pub(crate) fn worker_drained(&self, worker: usize) {
        self.emptied[worker].store(true, Ordering::Release);
        self.drained[worker].store(true, Ordering::Release);
    }

    /// Returns the milliseconds since the start of the process, the same for all threads.
    pub(crate) fn uptime_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Returns the whole seconds since the start of the process.
    pub(crate) fn uptime_s(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Publishes the number of a worker's sessions by key; called once a second.
    pub(crate) fn publish_keys(&self, worker: usize, keys: Vec<(u64, u64)>) {
        *self.token_keys[worker].lock().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// Returns the number of sessions, as of at most a second ago, for whose key `keeps` is false.
    pub(crate) fn sessions_without(&self, keeps: impl Fn(u64) -> bool) -> u64 {
        self.token_keys
            .iter()
            .flat_map(|keys| keys.lock().unwrap_or_else(PoisonError::into_inner).clone())
            .filter(|(key, _)| !keeps(*key))
            .map(|(_, sessions)| sessions)
            .sum()
    }

    /// Returns the sum of one metric over all workers.
    pub(crate) fn total(&self, metric: Metric) -> u64 {
        self.counters.iter().map(|counters| counters.get(metric)).sum()
    }

    /// Returns what `/info` shows.
    pub(crate) fn info(&self) -> Value {
        let settings = self.settings.load();
        let workers: Vec<Value> = self
            .counters
            .iter()
            .enumerate()
            .map(|(index, counters)| {
                json!({
                    "worker": index,
                    "connections": counters.get(Metric::Connections),
                    "sessions": counters.get(Metric::Sessions),
                    "subscriptions": counters.get(Metric::Subscriptions),
                    "channels": counters.get(Metric::Channels),
                    "outbox_bytes": counters.get(Metric::OutboxBytes),
                    "restarts": counters.get(Metric::Restarts),
                })
            })
            .collect();
        json!({
            "name": settings.node_name(),
            "revision": settings.revision,
            "uid": self.uid,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_s": self.uptime_s(),
            "state": self.lifecycle().name(),
            "client_addr": settings.config.server.client_addr.to_string(),
            "admin_addr": settings.config.server.admin_addr.to_string(),
            "connections": self.admissions.total(),
            "sessions": self.total(Metric::Sessions),
            "history": crate::engines::disk::history_place(&settings.config),
            "workers": workers,
        })
    }
}
