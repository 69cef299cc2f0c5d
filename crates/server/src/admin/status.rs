//! `GET /status/workers`: the revision and loop statistics of each worker, and the edges of the bus.

use dunlin_bus::EndpointState;
use dunlin_metrics::Snapshot;
use serde_json::{Value, json};

use super::Admin;
use crate::metrics::{ConfigMetric, Metric};
use crate::state::ServerState;

impl Admin {
    pub(super) fn workers_status(&self) -> Value {
        let state = &self.state;
        let workers: Vec<Value> =
            (0..state.workers()).map(|worker| status_of(state, worker)).collect();
        let mut hops = Snapshot::default();
        state.loop_stats.iter().for_each(|stats| hops.merge(&stats.hop_times.snapshot()));
        json!({
            "revision": self.store.head().revision,
            "durable": self.durable,
            "committed": self.counters.get(ConfigMetric::Changes),
            "rolled_back": self.counters.get(ConfigMetric::RolledBack),
            "watchers": self.watchers.len(),
            "workers": workers,
            "edges": edges(state),
            "hops": {
                "measured": hops.count(),
                "p50_ns": hops.quantile_ns(0.5).unwrap_or(0),
                "p99_ns": hops.quantile_ns(0.99).unwrap_or(0),
            },
        })
    }
}

fn status_of(state: &ServerState, worker: usize) -> Value {
    let (stats, counters) = (&state.loop_stats[worker], &state.counters[worker]);
    let standing = state.rollout.follower_state(worker);
    let run_state = match state.monitor.get().map(|monitor| monitor.state(worker)) {
        Some(EndpointState::Run) | None => "run",
        Some(EndpointState::Sleep) => "sleep",
        Some(EndpointState::Notified) => "notified",
        Some(EndpointState::Closed) => "closed",
    };
    let turn_times = stats.turn_times.snapshot();
    let turn_us = |share| turn_times.quantile_ns(share).unwrap_or(0).div_ceil(1000);
    json!({
        "worker": worker,
        "state": run_state,
        "revision": stats.revision(),
        "asleep": standing.asleep,
        "connections": counters.get(Metric::Connections),
        "sessions": counters.get(Metric::Sessions),
        "loop": {
            "turns": turn_times.count(),
            "sleeps": stats.sleep_count(),
            "lag_ms": stats.lag_ms(),
            "busy_ppm": stats.busy_ppm(),
            "turn_us": {
                "p50": turn_us(0.5),
                "p99": turn_us(0.99),
                "max": turn_times.max_ns().div_ceil(1000),
            },
        },
        "restarts": counters.get(Metric::Restarts),
    })
}

fn edges(state: &ServerState) -> Vec<Value> {
    let name = |endpoint: usize| match endpoint.checked_sub(state.workers()) {
        None => json!(endpoint),
        Some(0) => json!("control"),
        Some(1) => json!("admin"),
        Some(2) => json!("push"),
        Some(_) => json!("webhooks"),
    };
    let edges = state.monitor.get().into_iter().flat_map(|monitor| monitor.edges());
    edges
        .map(|edge| {
            json!({
                "from": name(edge.from),
                "to": name(edge.to),
                "depth": edge.depth,
                "sent": edge.sent,
                "refused": edge.refused,
                "wakes_sent": edge.wakes_sent,
                "wakes_suppressed": edge.wakes_suppressed,
            })
        })
        .collect()
}
