//! What the federation thread shows of its peers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use dunlin_metrics::{Collector, DescriptorEncoder, LiveSeries, metrics};
use serde_json::{Value, json};

metrics! {
    /// A metric of each peer of `federation.peers`.
    PeerMetric,
    /// The metrics of one peer.
    PeerCounters;
    Up, Gauge, "federation_link_up", "1 while there is a link to the peer.";
    Queued, Gauge, "federation_queued_messages", "Messages to the peer that are not settled.";
    QueuedBytes, Gauge, "federation_queued_bytes", "Bytes of messages to the peer that are not settled.";
    Pending, Gauge, "federation_pending_messages", "Messages from the peer that their recipients' homes have not taken.";
    Sent, Counter, "federation_messages_sent_total", "Messages to the peer that were accepted.";
    Delivered, Counter, "federation_messages_delivered_total", "Messages to the peer that were delivered.";
    Failed, Counter, "federation_messages_failed_total", "Messages to the peer that have failed.";
    Received, Counter, "federation_messages_received_total", "Messages from the peer that were taken.";
    Refused, Counter, "federation_messages_refused_total", "Messages from the peer that were refused: recipients not there, budgets, what cannot be read.";
    Links, Counter, "federation_links_total", "Links made with the peer.";
    LinkErrors, Counter, "federation_link_errors_total", "Links that have ended, and attempts that have failed.";
}

/// What is shown of one peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerStatus {
    /// `up`, `down`, `blocked`, `waiting` for a peer that dials.
    pub(crate) state: &'static str,
    /// This side has dialed the link.
    pub(crate) dialed: bool,
    /// When it came to this state, in milliseconds since 1970.
    pub(crate) since_unix_ms: u64,
    pub(crate) queued: usize,
    pub(crate) queued_bytes: usize,
    /// The age of the oldest message in the queue.
    pub(crate) oldest_ms: Option<u64>,
    pub(crate) attempts: u32,
    /// Milliseconds until the next attempt to dial.
    pub(crate) next_attempt_ms: Option<u64>,
    pub(crate) last_error: Arc<str>,
    /// Messages a second, to and from the peer, over the last second.
    pub(crate) rates: (u64, u64),
}

/// The peers as of the last second.
#[derive(Debug, Default)]
pub(crate) struct FederationState {
    pub(crate) counters: LiveSeries<Arc<str>, PeerCounters>,
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    domain: Arc<str>,
    public_key: String,
    /// Why there is no listener, or nothing is stored.
    problem: Option<String>,
    peers: BTreeMap<Arc<str>, PeerStatus>,
}

impl FederationState {
    /// Publishes what there is. The federation thread calls this.
    pub(crate) fn publish(
        &self,
        (domain, public_key): (Arc<str>, String),
        problem: Option<String>,
        peers: BTreeMap<Arc<str>, PeerStatus>,
    ) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = Shown { domain, public_key, problem, peers };
    }

    /// Returns the peers, for `/federation`.
    pub(crate) fn status(&self) -> Value {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let counters = self.counters.live();
        let peers = shown.peers.iter().map(|(name, of)| {
            let counters = counters.iter().find(|(peer, _)| peer == name);
            let count = |metric| counters.map_or(0, |(_, counters)| counters.get(metric));
            json!({
                "peer": name,
                "state": of.state,
                "dialed": of.dialed,
                "since_unix_ms": of.since_unix_ms,
                "queued": of.queued,
                "queued_bytes": of.queued_bytes,
                "oldest_ms": of.oldest_ms,
                "attempts": of.attempts,
                "next_attempt_ms": of.next_attempt_ms,
                "last_error": of.last_error,
                "sent_per_second": of.rates.0,
                "received_per_second": of.rates.1,
                "delivered": count(PeerMetric::Delivered),
                "failed": count(PeerMetric::Failed),
                "received": count(PeerMetric::Received),
                "refused": count(PeerMetric::Refused),
            })
        });
        json!({
            "domain": shown.domain,
            "public_key": shown.public_key,
            "problem": shown.problem,
            "peers": peers.collect::<Vec<Value>>(),
        })
    }
}

impl Collector for FederationState {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let all = self.counters.live();
        if all.is_empty() {
            return Ok(());
        }
        let series = all.iter().map(|(name, counters)| ([("peer", name.to_string())], &**counters));
        PeerCounters::encode(&mut encoder, series)
    }
}
