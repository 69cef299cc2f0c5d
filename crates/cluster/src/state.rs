//! The state of the cluster that all threads share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dunlin_config::EngineKind;
use dunlin_config::store::ClusterPosition;
use dunlin_metrics::{Collector, DescriptorEncoder, Family, Kind, metrics};
use serde_json::{Value, json};

use super::address::StoreAddress;
use super::condition::Condition;
use super::lease::Node;
use crate::message::OutOfSync;

/// This node has no leased number: it is not in a cluster and uses `server.node`.
const NO_NUMBER: u16 = u16::MAX;

metrics! {
    /// A metric of this node in its cluster.
    ClusterMetric,
    /// Written by the control thread alone.
    ClusterCounters;
    Nodes, Gauge, "cluster_nodes", "Nodes of the cluster whose leases hold, this one included; 0: this node is alone.";
    Number, Gauge, "cluster_node_number", "The number of this node in session ids; 0: alone.";
    Lag, Gauge, "cluster_redis_round_trip_microseconds", "How long the last write of the lease took, there and back.";
    MembersPending, Gauge, "cluster_members_pending", "Members that came or went and are not stored yet.";
    Calls, Counter, "cluster_calls_total", "Calls of the server API that were asked of other nodes.";
    CallsIncomplete, Counter, "cluster_calls_incomplete_total", "Calls that not all nodes have answered.";
    CallsServed, Counter, "cluster_calls_served_total", "Calls that were carried out for other nodes.";
    CallsUnconcerned, Counter, "cluster_calls_unconcerned_total", "Calls of other nodes about a user who has no session here, answered without a worker.";
    Reconnects, Counter, "cluster_redis_reconnects_total", "Times the connection to where the nodes meet was opened again.";
    LeasesLost, Counter, "cluster_leases_lost_total", "Times the lease of this node had ended, or its record was gone.";
    Swept, Counter, "cluster_members_swept_total", "Members of dead nodes that this node has removed from presence.";
    SettingsRevision, Gauge, "cluster_settings_revision", "The newest change of all nodes' settings that this node runs.";
    BudgetsForgotten, Counter, "cluster_budget_charges_forgotten_total", "Charges of shared budgets that were not announced to other nodes: more than 65,536 budgets were used at once.";
    AnnouncementsDropped, Counter, "cluster_joins_leaves_dropped_total", "Messages with joins and leaves of other nodes that were dropped: 32 MiB waited for this node, or for its workers.";
    PresenceReads, Counter, "cluster_presence_reads_total", "Reads of who is in a channel, each for all who had asked.";
    PresenceRefused, Counter, "cluster_presence_refused_total", "Requests for presence that were refused: 16,384 others waited.";
    Resyncs, Counter, "cluster_member_resyncs_total", "Times all members of this node were compared with what is stored.";
}

/// The state of the cluster, written by the control thread and read by all others.
#[derive(Debug)]
pub struct ClusterState {
    number: AtomicU16,
    pub(crate) counters: ClusterCounters,
    /// Uptime in milliseconds at the last confirmed renewal; 0: none yet.
    written_ms: AtomicU64,
    /// A worker's report of its members was dropped on its way to the agent.
    members_dropped: AtomicBool,
    /// Connections of users are counted on all nodes.
    counts_users: AtomicBool,
    /// Until when the agent must not be replaced, because a shared change of settings is in progress.
    agent_kept: Mutex<Option<Instant>>,
    view: Mutex<View>,
    /// Written by the admin thread alone.
    settings: Mutex<(ClusterPosition, Option<OutOfSync>)>,
}

#[derive(Debug, Default)]
struct View {
    condition: Condition,
    /// The detail of the condition.
    detail: String,
    engine: Arc<str>,
    kind: EngineKind,
    prefix: Arc<str>,
    servers: String,
    lease_ms: u64,
    nodes: BTreeMap<u16, Node>,
    log_revision: u64,
}

impl Default for ClusterState {
    fn default() -> ClusterState {
        ClusterState {
            number: AtomicU16::new(NO_NUMBER),
            counters: ClusterCounters::default(),
            written_ms: AtomicU64::new(0),
            members_dropped: AtomicBool::new(false),
            counts_users: AtomicBool::new(false),
            agent_kept: Mutex::default(),
            view: Mutex::default(),
            settings: Mutex::default(),
        }
    }
}

impl ClusterState {
    /// Sets the position in the log of shared settings up to which this node has applied changes, and the error that stopped it.
    pub fn set_settings(&self, position: ClusterPosition, fault: Option<OutOfSync>) {
        self.counters.set(ClusterMetric::SettingsRevision, position.revision);
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = (position, fault);
    }

    pub(super) fn settings(&self) -> (ClusterPosition, Option<OutOfSync>) {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the newest change of the log.
    pub(super) fn set_log_revision(&self, revision: u64) {
        self.lock().log_revision = revision;
    }

    /// Names of nodes whose leases have expired and whose names no living node has.
    pub fn gone(&self) -> Vec<Arc<str>> {
        let view = self.lock();
        let is_back = |gone: &Node| {
            view.nodes.values().any(|node| node.is_alive() && node.facts.name == gone.facts.name)
        };
        let gone = view.nodes.values().filter(|node| !node.is_alive() && !is_back(node));
        let names: BTreeSet<_> = gone.map(|node| Arc::clone(&node.facts.name)).collect();
        names.into_iter().collect()
    }

    /// The numbers of the living nodes, including this one.
    pub fn living(&self) -> BTreeSet<u16> {
        let view = self.lock();
        let living = view.nodes.values().filter(|node| node.is_alive());
        living.map(|node| node.number).chain(self.number()).collect()
    }

    /// The node number for new session ids; `None`: `server.node`.
    pub fn number(&self) -> Option<u16> {
        Some(self.number.load(Ordering::Acquire)).filter(|&number| number != NO_NUMBER)
    }

    pub(crate) fn set_number(&self, number: Option<u16>) {
        self.number.store(number.unwrap_or(NO_NUMBER), Ordering::Release);
        self.counters.set(ClusterMetric::Number, number.unwrap_or(0).into());
    }

    /// Whether connections of users are counted on all nodes.
    pub fn counts_users(&self) -> bool {
        self.counts_users.load(Ordering::Acquire)
    }

    pub(super) fn set_counts_users(&self, counts: bool) {
        self.counts_users.store(counts, Ordering::Release);
    }

    /// Prevents the replacement of the agent for this time, because a shared change of settings is in progress.
    pub(super) fn keep_agent(&self, within: Duration) {
        *self.agent_kept.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Instant::now() + within);
    }

    pub(super) fn release_agent(&self) {
        *self.agent_kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn keeps_agent(&self) -> bool {
        let until = *self.agent_kept.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    pub(super) fn drop_members(&self) {
        self.members_dropped.store(true, Ordering::Release);
    }

    /// Returns whether reports of members were dropped since the last call.
    pub(super) fn take_members_dropped(&self) -> bool {
        self.members_dropped.swap(false, Ordering::AcqRel)
    }

    pub(super) fn set_place(
        &self,
        engine: Arc<str>,
        (address, servers): (&StoreAddress, String),
        lease_ms: u64,
    ) {
        let mut view = self.lock();
        let (kind, prefix) = (address.kind(), Arc::clone(address.prefix()));
        *view = View { engine, kind, prefix, servers, lease_ms, ..View::default() };
        view.condition = Condition::Joining;
        self.written_ms.store(0, Ordering::Release);
    }

    /// Resets the state to that of a node without a cluster.
    pub(super) fn leave(&self) {
        *self.lock() = View::default();
        self.set_number(None);
        self.set_counts_users(false);
        self.counters.set(ClusterMetric::Nodes, 0);
    }

    /// Returns `true` if the condition has changed.
    pub(super) fn set_condition(&self, condition: Condition, detail: &str) -> bool {
        let mut view = self.lock();
        let differs = view.condition != condition;
        view.condition = condition;
        detail.clone_into(&mut view.detail);
        differs
    }

    pub(super) fn set_nodes(&self, nodes: BTreeMap<u16, Node>, now_ms: u64) {
        let living = nodes.values().filter(|node| node.is_alive()).count();
        self.counters.set(ClusterMetric::Nodes, living as u64);
        self.written_ms.store(now_ms.max(1), Ordering::Release);
        self.lock().nodes = nodes;
    }

    pub(crate) fn condition(&self) -> Condition {
        self.lock().condition
    }

    /// The state for `/health`; `None` without a cluster.
    pub fn health(&self) -> Option<Value> {
        let condition = self.condition();
        (condition != Condition::Alone).then(|| json!(condition.name()))
    }

    /// The response of `/cluster`.
    pub fn status(&self, now_ms: u64) -> Value {
        let view = self.lock();
        if view.condition == Condition::Alone {
            return json!({ "condition": view.condition.name(), "nodes": [] });
        }
        let written_ms = self.written_ms.load(Ordering::Acquire);
        let age_ms = (written_ms > 0).then(|| now_ms.saturating_sub(written_ms));
        let lease_ms = i64::try_from(view.lease_ms).unwrap_or(i64::MAX);
        let since = i64::try_from(age_ms.unwrap_or(0)).unwrap_or(0);
        let nodes = view.nodes.values().map(|node| {
            let left_ms = node.left_ms - since;
            json!({
                "node": node.number,
                "uid": node.uid,
                "name": node.facts.name,
                "alive": left_ms >= 0,
                "age_ms": lease_ms - left_ms,
                "version": node.facts.version,
                "client_addr": node.facts.client_addr,
                "admin_addr": node.facts.admin_addr,
                "started_unix_s": node.facts.started_unix_s,
                "revision": node.facts.revision,
                "sessions": node.facts.sessions,
                "lag_us": node.facts.lag_us,
                "settings_revision": node.facts.settings_revision,
            })
        });
        json!({
            "condition": view.condition.name(),
            "detail": view.detail,
            "fix": view.condition.fix(view.kind),
            "engine": view.engine,
            "servers": view.servers,
            "prefix": view.prefix,
            "node": self.number(),
            "lease_ms": view.lease_ms,
            "written_ms_ago": age_ms,
            "settings_revision": view.log_revision,
            "nodes": nodes.collect::<Vec<_>>(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A node that is alone has no metrics of a cluster.
impl Collector for ClusterState {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let condition = self.condition();
        if condition == Condition::Alone {
            return Ok(());
        }
        for &metric in ClusterMetric::ALL {
            metric.family().encode_one(&mut encoder, self.counters.get(metric))?;
        }
        let family = Family {
            name: "cluster_condition",
            help: "1: how this node stands in its cluster; `member` when nothing is wrong.",
            kind: Kind::Gauge,
        };
        let samples = Condition::ALL
            .iter()
            .map(|of| ([("condition", of.name())], u64::from(*of == condition)));
        family.encode(&mut encoder, samples)
    }
}
