//! What all threads of one process share.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use serde_json::{Value, json};

use crate::admission::Admissions;
use crate::metrics::{Counters, Metric};
use crate::settings::Settings;

/// Where the process stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Workers are starting; nothing is accepted yet.
    Starting = 0,
    /// All workers serve.
    Serving = 1,
    /// SIGTERM was received: clients are being told to reconnect elsewhere.
    Draining = 2,
}

impl State {
    /// As `/health` says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Serving => "serving",
            State::Draining => "draining",
        }
    }
}

/// The shared part of one Dunlin process: settings, counters, connection counts, life cycle.
pub(crate) struct Node {
    /// The snapshot every worker runs, or loads before it does anything else.
    pub(crate) settings: ArcSwap<Settings>,
    /// One set a worker.
    pub(crate) counters: Vec<Counters>,
    /// Connections of the whole process.
    pub(crate) admissions: Admissions,
    /// Secret of this process: makes session secrets and hash seeds unguessable.
    pub(crate) secret: [u8; 16],
    /// Shown to people and to clients; unique a process start.
    pub(crate) name: String,
    /// This process start as a random UUID: the `uid` of the server API's `info`.
    pub(crate) uid: String,
    started: Instant,
    state: AtomicU8,
    ready: Vec<AtomicBool>,
    drained: Vec<AtomicBool>,
}

impl Node {
    pub(crate) fn new(settings: Settings, workers: usize, secret: [u8; 16], uid: String) -> Self {
        Self {
            name: settings.node_name(),
            settings: ArcSwap::from_pointee(settings),
            counters: (0..workers).map(|_| Counters::default()).collect(),
            admissions: Admissions::default(),
            secret,
            uid,
            started: Instant::now(),
            state: AtomicU8::new(State::Starting as u8),
            ready: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            drained: (0..workers).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Starting,
            1 => State::Serving,
            _ => State::Draining,
        }
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Workers that accept connections.
    pub(crate) fn workers_ready(&self) -> usize {
        self.ready.iter().filter(|ready| ready.load(Ordering::Acquire)).count()
    }

    /// Said by a worker that accepts connections.
    pub(crate) fn worker_ready(&self, worker: usize) {
        self.ready[worker].store(true, Ordering::Release);
    }

    /// Workers whose clients have not all left yet.
    pub(crate) fn workers_left(&self) -> usize {
        self.drained.iter().filter(|drained| !drained.load(Ordering::Acquire)).count()
    }

    /// Said by a worker when its last client has left after SIGTERM.
    pub(crate) fn worker_drained(&self, worker: usize) {
        self.drained[worker].store(true, Ordering::Release);
    }

    /// Whole seconds since start.
    pub(crate) fn uptime_s(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Sum of one metric over all workers.
    pub(crate) fn total(&self, metric: Metric) -> u64 {
        self.counters.iter().map(|counters| counters.get(metric)).sum()
    }

    /// What `/info` shows.
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
            "name": self.name,
            "uid": self.uid,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_s": self.uptime_s(),
            "state": self.state().name(),
            "client_addr": settings.config.server.client_addr.to_string(),
            "admin_addr": settings.config.server.admin_addr.to_string(),
            "connections": self.admissions.total(),
            "sessions": self.total(Metric::Sessions),
            "workers": workers,
        })
    }
}
