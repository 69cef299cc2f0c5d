//! What workers, the webhooks thread and the admin thread share about webhooks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use dunlin_webhooks::{DeliveryStats, Unhealthy, UpstreamStats};
use serde_json::{Value, json};

use crate::message::in_transit::InTransit;

/// Delivery statistics, and what is on its way to the webhooks thread.
#[derive(Debug)]
pub(crate) struct WebhooksState {
    pub(crate) stats: Arc<DeliveryStats>,
    in_transit: Vec<InTransit>,
}

impl WebhooksState {
    pub(crate) fn new(workers: usize) -> WebhooksState {
        let in_transit = (0..workers).map(|_| InTransit::default()).collect();
        WebhooksState { stats: Arc::default(), in_transit }
    }

    /// Bytes between a worker and the webhooks thread.
    pub(crate) fn in_transit(&self, worker: usize) -> Option<&InTransit> {
        self.in_transit.get(worker)
    }
}

/// Until when the circuits of proxies are open, in milliseconds since 1970, by proxy and member.
type OpenCircuits = BTreeMap<(Arc<str>, Arc<str>), u64>;

/// What checks have found of the members of upstreams. The webhooks thread writes, workers follow.
#[derive(Debug, Default)]
pub(crate) struct UpstreamsState {
    pub(crate) stats: Arc<UpstreamStats>,
    unhealthy: ArcSwap<Unhealthy>,
    /// Grows with each publication.
    version: AtomicU64,
    circuits: Mutex<OpenCircuits>,
}

impl UpstreamsState {
    pub(crate) fn publish(&self, unhealthy: &Unhealthy) {
        self.unhealthy.store(Arc::new(unhealthy.clone()));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Who is not healthy, if it may be others than at this version, which then is the newest.
    pub(crate) fn newer_than(&self, version: &mut u64) -> Option<Arc<Unhealthy>> {
        let newest = self.version.load(Ordering::Acquire);
        (std::mem::replace(version, newest) != newest).then(|| self.unhealthy.load_full())
    }

    /// A worker gives the member of a proxy no requests until then.
    pub(crate) fn circuit_opened(
        &self,
        (proxy, member): (&Arc<str>, &Arc<str>),
        now_unix_ms: u64,
        until_unix_ms: u64,
    ) {
        let mut circuits = self.circuits.lock().unwrap_or_else(PoisonError::into_inner);
        // Now and then those are removed whose time is over.
        if circuits.len() >= 64 && circuits.len().is_power_of_two() {
            circuits.retain(|_, until_ms| *until_ms > now_unix_ms);
        }
        let until = circuits.entry((Arc::clone(proxy), Arc::clone(member))).or_default();
        *until = until_unix_ms.max(*until);
    }

    /// For `/status/upstreams`.
    pub(crate) fn status(&self, now_unix_ms: u64) -> Value {
        let circuits = self.circuits.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = serde_json::Map::new();
        for ((proxy, member), until_ms) in circuits.iter().filter(|(_, at)| **at > now_unix_ms) {
            open.entry(&**proxy).or_insert_with(|| json!({}))[&**member] =
                json!({ "circuit_open_until_ms": until_ms });
        }
        json!({ "upstreams": self.stats.status(&self.unhealthy.load()), "proxies": open })
    }
}
