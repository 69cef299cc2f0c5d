//! `GET /status/workers`: what each worker runs, how its loop does, and what lies on the bus between them.

use dunlin_bus::State as BusState;
use serde_json::{Value, json};

use super::Admin;
use crate::metrics::Metric;
use crate::node::Node;
use crate::pulse::{Spread, quantile_ns};

impl Admin {
    pub(super) fn workers_status(&self) -> Value {
        let node = &self.node;
        let workers: Vec<Value> =
            (0..node.workers()).map(|worker| status_of(node, worker)).collect();
        let hops: Vec<&Spread> = node.pulses.iter().map(|pulse| &pulse.hops).collect();
        json!({
            "revision": self.store.head().revision,
            "durable": self.durable,
            "committed": self.committed,
            "taken_back": self.taken_back,
            "watchers": self.watchers.len(),
            "workers": workers,
            "edges": edges(node),
            "hops": {
                "measured": hops.iter().map(|hops| hops.count()).sum::<u64>(),
                "p50_ns": quantile_ns(&hops, 0.5),
                "p99_ns": quantile_ns(&hops, 0.99),
            },
        })
    }
}

fn status_of(node: &Node, worker: usize) -> Value {
    let (pulse, counters) = (&node.pulses[worker], &node.counters[worker]);
    let standing = node.adoption.standing(worker);
    let state = match node.monitor.get().map(|monitor| monitor.state(worker)) {
        Some(BusState::Run) | None => "run",
        Some(BusState::Sleep) => "sleep",
        Some(BusState::Notified) => "notified",
        Some(BusState::Closed) => "closed",
    };
    let turn_us = |quantile| quantile_ns(&[&pulse.turns], quantile).div_ceil(1000);
    json!({
        "worker": worker,
        "state": state,
        "revision": pulse.revision(),
        "asleep": standing.asleep,
        "connections": counters.get(Metric::Connections),
        "sessions": counters.get(Metric::Sessions),
        "loop": {
            "turns": pulse.turns.count(),
            "sleeps": pulse.sleep_count(),
            "lag_ms": pulse.lag_ms(),
            "busy_ppm": pulse.busy_ppm(),
            "turn_us": {
                "p50": turn_us(0.5),
                "p99": turn_us(0.99),
                "max": pulse.turns.max_ns().div_ceil(1000),
            },
        },
        "restarts": counters.get(Metric::Restarts),
    })
}

fn edges(node: &Node) -> Vec<Value> {
    let name = |endpoint: usize| match endpoint.checked_sub(node.workers()) {
        None => json!(endpoint),
        Some(0) => json!("control"),
        Some(1) => json!("admin"),
        Some(2) => json!("push"),
        Some(_) => json!("webhooks"),
    };
    let edges = node.monitor.get().into_iter().flat_map(|monitor| monitor.edges());
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
