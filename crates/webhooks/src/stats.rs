//! Statistics of deliveries: counters of each hook, and members that do not respond. Written by one thread, read by
//! any.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunlin_config::{Map, Member};
use dunlin_metrics::{Collector, DescriptorEncoder, Kind, metrics};
use serde_json::{Value, json};

use crate::result::DeliveryResult;

metrics! {
    /// A metric of each hook of `webhooks.hooks`.
    HookMetric,
    /// The metrics of one hook.
    HookCounters;
    QueueEvents, Gauge, "webhook_queue_events", "Events of a hook that wait or are in flight.";
    QueueBytes, Gauge, "webhook_queue_bytes", "Bytes of these events, of the hook's queue_bytes_max.";
    Events, Counter, "webhook_events_total", "Events queued for a hook.";
    Delivered, Counter, "webhook_delivered_total", "Events that a backend has answered with 2xx.";
    DroppedQueueFull, Counter, "webhook_dropped_queue_full_total", "Events dropped: the hook's queue was full.";
    DroppedRejected, Counter, "webhook_dropped_rejected_total", "Events dropped: a backend answered 1xx, 3xx or 4xx.";
    DroppedGivenUp, Counter, "webhook_dropped_given_up_total", "Events dropped: they were sent attempts_max times.";
    DroppedHookRemoved, Counter, "webhook_dropped_hook_removed_total", "Events dropped: their hook was removed.";
    Requests, Counter, "webhook_requests_total", "Requests to backends, each attempt counted.";
    RequestsRejected, Counter, "webhook_requests_rejected_total", "Requests answered with 1xx, 3xx or 4xx.";
    RequestsBusy, Counter, "webhook_requests_busy_total", "Requests answered with 408, 425, 429 or 5xx, which are retried.";
    RequestsUnreachable, Counter, "webhook_requests_unreachable_total", "Requests never sent: the name, the connection or TLS failed.";
    RequestsTimedOut, Counter, "webhook_requests_timed_out_total", "Requests without a response within timeout_ms.";
    RequestsBroken, Counter, "webhook_requests_broken_total", "Requests whose connection ended, or whose response was not HTTP.";
}

impl HookMetric {
    /// Returns the name of the metric in the status of a hook.
    fn short_name(self) -> &'static str {
        let name = self.family().name;
        let name = name.strip_prefix("webhook_").unwrap_or(name);
        name.strip_suffix("_total").unwrap_or(name)
    }
}

/// Counters of all hooks, and members with an open circuit. They outlive the [`Dispatcher`](crate::Dispatcher), so that
/// counters never decrease and ids are never reused when it restarts.
#[derive(Debug, Default)]
pub struct DeliveryStats {
    /// The number of ids assigned to events and requests.
    ids: AtomicU64,
    hooks: Mutex<BTreeMap<Arc<str>, Arc<HookStats>>>,
    /// Sums of removed hooks, so that counters never decrease.
    removed: HookCounters,
    failing: Mutex<FailingMembers>,
}

/// The statistics of one hook.
#[derive(Debug, Default)]
pub(crate) struct HookStats {
    pub(crate) counters: HookCounters,
    last_error: Mutex<Option<LastError>>,
}

/// The last failed request of a hook.
#[derive(Debug)]
struct LastError {
    unix_ms: u64,
    member: Arc<str>,
    error: String,
}

/// Members whose circuit has opened and that have not responded since, by upstream and member.
type FailingMembers = BTreeMap<(Arc<str>, Arc<str>), FailingMember>;

#[derive(Debug)]
struct FailingMember {
    failures: u32,
    circuit_open_until_unix_ms: u64,
    error: String,
}

impl HookStats {
    /// Counts the result of a request.
    pub(crate) fn count_result(&self, result: &DeliveryResult, member: &Arc<str>, unix_ms: u64) {
        let metric = match result {
            DeliveryResult::Delivered | DeliveryResult::Cancelled => return,
            DeliveryResult::Rejected { .. } => HookMetric::RequestsRejected,
            DeliveryResult::Busy { .. } => HookMetric::RequestsBusy,
            DeliveryResult::Unreachable(_) => HookMetric::RequestsUnreachable,
            DeliveryResult::TimedOut => HookMetric::RequestsTimedOut,
            DeliveryResult::Broken(_) => HookMetric::RequestsBroken,
        };
        self.counters.count(metric);
        let member = Arc::clone(member);
        *lock(&self.last_error) = Some(LastError { unix_ms, member, error: result.to_string() });
    }
}

impl DeliveryStats {
    /// Returns a number that no event or request of this process has used.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the statistics of a hook, created if necessary.
    pub(crate) fn hook(&self, name: &Arc<str>) -> Arc<HookStats> {
        Arc::clone(lock(&self.hooks).entry(Arc::clone(name)).or_default())
    }

    /// Removes a hook. Its counters are added to those of removed hooks.
    pub(crate) fn remove(&self, name: &str) {
        let Some(hook) = lock(&self.hooks).remove(name) else { return };
        for &metric in HookMetric::ALL {
            if metric.family().kind == Kind::Counter {
                self.removed.add(metric, hook.counters.get(metric));
            }
        }
    }

    /// Records that the circuit of a member is open until the given time.
    pub(crate) fn member_failed(
        &self,
        (upstream, member): (&Arc<str>, &Arc<str>),
        failures: u32,
        circuit_open_until_unix_ms: u64,
        result: &DeliveryResult,
    ) {
        let failing =
            FailingMember { failures, circuit_open_until_unix_ms, error: result.to_string() };
        lock(&self.failing).insert((Arc::clone(upstream), Arc::clone(member)), failing);
    }

    /// Records that a member responds again.
    pub(crate) fn member_recovered(&self, upstream: &Arc<str>, member: &Arc<str>) {
        lock(&self.failing).remove(&(Arc::clone(upstream), Arc::clone(member)));
    }

    /// Removes members that no longer exist. `members` are those of the upstream; `None` if it was removed.
    pub(crate) fn retain_members(&self, upstream: &Arc<str>, members: Option<&Map<Member>>) {
        lock(&self.failing).retain(|(of, name), _| {
            of != upstream || members.is_some_and(|members| members.contains_key(name))
        });
    }

    /// Records that the dispatcher was restarted and has lost its queues.
    pub fn restart(&self) {
        for hook in lock(&self.hooks).values() {
            hook.counters.set(HookMetric::QueueEvents, 0);
            hook.counters.set(HookMetric::QueueBytes, 0);
        }
        lock(&self.failing).clear();
    }

    /// Returns the status for `/status/webhooks`.
    pub fn status(&self) -> Value {
        let mut hooks = serde_json::Map::new();
        for (name, hook) in lock(&self.hooks).iter() {
            let counters = HookMetric::ALL
                .iter()
                .map(|&metric| (metric.short_name().to_owned(), hook.counters.get(metric).into()));
            let mut status = Value::Object(counters.collect());
            status["last_error"] = lock(&hook.last_error).as_ref().map_or(Value::Null, |last| {
                json!({ "time_ms": last.unix_ms, "member": &*last.member, "error": last.error })
            });
            hooks.insert(name.to_string(), status);
        }
        let mut failing = serde_json::Map::new();
        for ((upstream, name), member) in lock(&self.failing).iter() {
            failing.entry(&**upstream).or_insert_with(|| json!({}))[&**name] = json!({
                "failures": member.failures,
                "circuit_open_until_ms": member.circuit_open_until_unix_ms,
                "error": member.error,
            });
        }
        json!({ "hooks": hooks, "failing": failing })
    }
}

/// Encodes a series for each hook, and one with an empty name for all removed hooks.
impl Collector for DeliveryStats {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let hooks = lock(&self.hooks);
        let hooks = hooks.iter().map(|(name, hook)| ([("hook", &**name)], &hook.counters));
        HookCounters::encode(&mut encoder, hooks.chain([([("hook", "")], &self.removed)]))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
