//! `GET /status/overview`: how this node does now, and its alarms.

use dunlin_config::Config;
use serde_json::{Value, json};

use super::samples::{NAMES, REFUSALS, STEP_S, Series};
use super::{Admin, unix_ms};
use crate::metrics::Metric;
use crate::state::memory::{Memory, MemoryBounds};
use crate::state::{Lifecycle, ServerState};

const DAY_S: u64 = 86_400;
/// A certificate that ends within this time is an alarm.
const EXPIRY_SOON_S: u64 = 14 * DAY_S;
/// The same, urgent.
const EXPIRY_URGENT_S: u64 = 3 * DAY_S;
/// Share of a bound from which on it is an alarm.
const NEARLY_FULL: f64 = 0.9;
/// A turn that has lasted this long is an alarm.
const LAG_MS: u64 = 1_000;

/// Something that an operator should see to.
struct Alarm {
    urgent: bool,
    what: String,
    fix: &'static str,
}

impl Admin {
    /// Returns the page of this node.
    pub(super) fn overview(&self) -> Value {
        let state = &self.state;
        let settings = state.settings.load();
        let config = &settings.config;
        let bounds = MemoryBounds::of(&config.limits);
        let memory = Memory::read();
        let transports = by_transport(state);
        let total = |metric| state.total(metric);
        let mut figures = serde_json::Map::new();
        let sampled = self.samples.newest().map(|(unix_ms, sample)| {
            figures.extend(
                NAMES.iter().zip(sample).map(|(name, value)| (name.to_string(), json!(*value))),
            );
            unix_ms
        });
        let refusals = REFUSALS.iter().filter_map(|(metric, name)| {
            let count = total(*metric);
            (count > 0).then(|| json!({ "reason": name, "total": count }))
        });
        let open_max = state.counters.iter().map(|of| of.get(Metric::Connections)).max();
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let alarms = self.alarms(config, memory.as_ref(), &bounds);
        json!({
            "name": settings.node_name(),
            "node": state.node_number(config),
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_s": state.uptime_s(),
            "state": state.lifecycle().name(),
            "revision": self.store.head().revision,
            "durable": self.durable,
            "client_addr": config.server.client_addr.to_string(),
            "sampled_unix_ms": sampled,
            "step_s": STEP_S,
            "figures": figures,
            "connections": {
                "open": state.admissions.total(),
                "max": config.limits.connections_max,
                "unauthenticated": total(Metric::Unauthenticated),
                "by_transport": transports,
            },
            "refusals": refusals.collect::<Vec<_>>(),
            "memory": {
                "resident": self.samples.value(Series::Resident) as u64,
                "max": memory.as_ref().map(|memory| memory.bytes_max),
                "history": { "bytes": total(Metric::HistoryBytes), "max": bounds.history_bytes_max },
                "outboxes": { "bytes": total(Metric::OutboxBytes) },
                "buffers": { "bytes": total(Metric::BufferedBytes), "max": bounds.buffered_bytes_max },
                "filters": { "bytes": total(Metric::FilterBytes) },
                "engines": { "bytes": total(Metric::EngineHeldBytes) },
            },
            "descriptors": {
                "busiest_worker": open_max,
                "max": descriptors,
            },
            "workers": self.workers_overview(),
            "engines": state.engines.health(),
            "cluster": state.cluster.health(),
            "alarms": alarms.iter().map(|of| {
                json!({ "level": if of.urgent { "urgent" } else { "warning" }, "what": of.what, "fix": of.fix })
            }).collect::<Vec<_>>(),
        })
    }

    fn workers_overview(&self) -> Vec<Value> {
        let state = &self.state;
        let recent = |worker: usize| self.samples.workers.get(worker).cloned().unwrap_or_default();
        let of = |(worker, counters): (usize, &crate::metrics::Counters)| {
            let sample = recent(worker);
            json!({
                "worker": worker,
                "connections": counters.get(Metric::Connections),
                "sessions": counters.get(Metric::Sessions),
                "subscriptions": counters.get(Metric::Subscriptions),
                "channels": counters.get(Metric::Channels),
                "outbox_bytes": counters.get(Metric::OutboxBytes),
                "busy": sample.busy,
                "turn_us": { "p50": sample.turn_us[0], "p99": sample.turn_us[1] },
                "lag_ms": state.loop_stats[worker].lag_ms(),
                "revision": state.loop_stats[worker].revision(),
                "restarts": counters.get(Metric::Restarts),
            })
        };
        state.counters.iter().enumerate().map(of).collect()
    }

    fn alarms(
        &self,
        config: &Config,
        memory: Option<&Memory>,
        bounds: &MemoryBounds,
    ) -> Vec<Alarm> {
        let state = &self.state;
        let mut alarms = Vec::new();
        let mut raise = |urgent, what: String, fix| alarms.push(Alarm { urgent, what, fix });
        if state.lifecycle() == Lifecycle::Draining {
            raise(
                false,
                "this node is shutting down".to_owned(),
                "clients move to other nodes; nothing is to do",
            );
        }
        let expiry_s = state.settings.load().tls.first_expiry_s();
        if expiry_s > 0 {
            let left_s = expiry_s.saturating_sub(unix_ms() / 1000);
            if left_s < EXPIRY_SOON_S {
                let what = match left_s {
                    0 => "a certificate of tls.certificates has expired".to_owned(),
                    left_s => {
                        format!("a certificate of tls.certificates ends in {} days", left_s / DAY_S)
                    }
                };
                raise(
                    left_s < EXPIRY_URGENT_S,
                    what,
                    "write the new one to its files; they are read again within ten seconds",
                );
            }
        }
        for (engine, condition) in state.engines.health() {
            if condition != "ready" {
                let what = format!("the engine {engine} is {condition}");
                raise(
                    true,
                    what,
                    "the tab Services names the server, what it said, and what mends it",
                );
            }
        }
        let condition = state.cluster.health();
        if let Some(condition) =
            condition.as_ref().and_then(Value::as_str).filter(|of| *of != "member")
        {
            raise(
                true,
                format!("this node is {condition} in its cluster"),
                "the nodes below say since when",
            );
        }
        for worker in 0..state.workers() {
            let (lag_ms, restarts) =
                (state.loop_stats[worker].lag_ms(), state.counters[worker].get(Metric::Restarts));
            if lag_ms > LAG_MS {
                let what = format!("worker {worker} is in one turn for {lag_ms} ms");
                raise(true, what, "its clients wait; report it with the log");
            }
            if restarts > 0 {
                let what =
                    format!("worker {worker} was restarted {restarts} times since the start");
                raise(false, what, "the log has the panic; report it");
            }
        }
        let webhooks = state.webhooks.stats.status();
        for (upstream, members) in webhooks["failing"].as_object().into_iter().flatten() {
            let members = members.as_object().map_or(0, serde_json::Map::len);
            let what = format!("{members} members of the upstream {upstream} do not take webhooks");
            raise(
                true,
                what,
                "the tab Services has their last errors; events wait and are sent again",
            );
        }
        let mut nearly_full = |what: &str, has: u64, max: u64, fix| {
            if max > 0 && has as f64 >= max as f64 * NEARLY_FULL {
                raise(has >= max, format!("{what}: {has} of {max}"), fix);
            }
        };
        let most = state.counters.iter().map(|of| of.get(Metric::Connections)).max().unwrap_or(0);
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        nearly_full(
            "connections",
            state.admissions.total(),
            config.limits.connections_max.into(),
            "raise limits.connections_max, or add a node",
        );
        nearly_full(
            "file descriptors of the busiest worker",
            most,
            descriptors.unwrap_or(0),
            "raise LimitNOFILE of the unit, or server.workers",
        );
        nearly_full(
            "bytes of memory",
            self.samples.value(Series::Resident) as u64,
            memory.map_or(0, |memory| memory.bytes_max),
            "lower the bounds in limits, or give the machine more",
        );
        nearly_full(
            "bytes of buffers",
            state.total(Metric::BufferedBytes),
            bounds.buffered_bytes_max as u64,
            "clients send or read slowly; see limits.buffered_bytes_max",
        );
        alarms
    }
}

/// Returns the sessions of all workers by transport.
fn by_transport(state: &ServerState) -> std::collections::BTreeMap<&'static str, u64> {
    let mut counts = std::collections::BTreeMap::new();
    for (transport, sessions) in state.transports.iter().flat_map(|of| of.counts()) {
        *counts.entry(transport).or_default() += sessions;
    }
    counts
}
