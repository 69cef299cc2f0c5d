//! What others may know of the webhooks: counters, and who does not answer. Written by the webhooks thread, read by
//! the admin thread; the transit counters by workers too.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunlin_config::{Map, Member};
use serde_json::{Value, json};

use super::verdict::Verdict;
use crate::metrics::{HookCounters, HookMetric, hook_exposition};

/// Bytes of events of one worker on their way to the webhooks thread. More is an overflow.
const TRANSIT_BYTES_MAX: u64 = 16 << 20;

/// The shared part of the webhooks.
#[derive(Debug)]
pub(crate) struct Board {
    /// One a worker.
    transits: Vec<Transit>,
    /// Events and requests numbered so far.
    numbers: AtomicU64,
    hooks: Mutex<BTreeMap<Arc<str>, Arc<HookBoard>>>,
    /// Sums over hooks that are gone, so that no counter falls.
    gone: HookCounters,
    /// Members that are left alone, or were and have not answered since.
    troubles: Mutex<Troubles>,
}

/// Bytes between a worker and the webhooks thread: each end counts for itself.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Transit {
    sent: AtomicU64,
    taken: AtomicU64,
}

/// What is known of one hook.
#[derive(Debug, Default)]
pub(crate) struct HookBoard {
    pub(crate) counters: HookCounters,
    failure: Mutex<Option<Failure>>,
}

/// The last request of a hook that was not delivered.
#[derive(Debug)]
struct Failure {
    unix_ms: u64,
    member: Arc<str>,
    why: String,
}

/// By upstream and member.
type Troubles = BTreeMap<(Arc<str>, Arc<str>), Trouble>;

#[derive(Debug)]
struct Trouble {
    failures: u32,
    until_unix_ms: u64,
    why: String,
}

impl Transit {
    /// For the worker alone: whether so much may follow. Counts it if it may.
    pub(crate) fn admit(&self, bytes: u64) -> bool {
        let sent = self.sent.load(Ordering::Relaxed);
        let room = sent.wrapping_sub(self.taken.load(Ordering::Relaxed)) < TRANSIT_BYTES_MAX;
        if room {
            self.sent.store(sent.wrapping_add(bytes), Ordering::Relaxed);
        }
        room
    }

    /// For the worker alone: what was admitted did not leave.
    pub(crate) fn take_back(&self, bytes: u64) {
        self.sent.store(self.sent.load(Ordering::Relaxed).wrapping_sub(bytes), Ordering::Relaxed);
    }

    /// For the webhooks thread alone.
    pub(crate) fn taken(&self, bytes: u64) {
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(bytes), Ordering::Relaxed);
    }
}

impl HookBoard {
    /// Counts how a request ended.
    pub(crate) fn told(&self, verdict: &Verdict, member: &Arc<str>, unix_ms: u64) {
        let metric = match verdict {
            Verdict::Delivered | Verdict::Moved => return,
            Verdict::Refused { .. } => HookMetric::RequestsRefused,
            Verdict::Busy { .. } => HookMetric::RequestsBusy,
            Verdict::Unreachable(_) => HookMetric::RequestsUnreachable,
            Verdict::TimedOut => HookMetric::RequestsTimedOut,
            Verdict::Broken(_) => HookMetric::RequestsBroken,
        };
        self.counters.count(metric);
        let why = verdict.to_string();
        *lock(&self.failure) = Some(Failure { unix_ms, member: Arc::clone(member), why });
    }
}

impl Board {
    pub(crate) fn new(workers: usize) -> Board {
        Board {
            transits: (0..workers).map(|_| Transit::default()).collect(),
            numbers: AtomicU64::new(0),
            hooks: Mutex::default(),
            gone: HookCounters::default(),
            troubles: Mutex::default(),
        }
    }

    /// The way from a worker to the webhooks thread.
    pub(crate) fn transit(&self, worker: usize) -> Option<&Transit> {
        self.transits.get(worker)
    }

    /// A number that no event and no request of this process had before.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The board of a hook, which is made if there is none.
    pub(crate) fn hook(&self, name: &Arc<str>) -> Arc<HookBoard> {
        Arc::clone(lock(&self.hooks).entry(Arc::clone(name)).or_default())
    }

    /// A hook is gone.
    pub(crate) fn remove(&self, name: &str) {
        let Some(hook) = lock(&self.hooks).remove(name) else { return };
        for &metric in HookMetric::ALL {
            if metric.kind() == crate::metrics::Kind::Counter {
                self.gone.add(metric, hook.counters.get(metric));
            }
        }
    }

    /// A member is left alone until then.
    pub(crate) fn failed(
        &self,
        upstream: &Arc<str>,
        member: &Arc<str>,
        failures: u32,
        until_unix_ms: u64,
        verdict: &Verdict,
    ) {
        let trouble = Trouble { failures, until_unix_ms, why: verdict.to_string() };
        lock(&self.troubles).insert((Arc::clone(upstream), Arc::clone(member)), trouble);
    }

    /// A member answers again.
    pub(crate) fn recovered(&self, upstream: &Arc<str>, member: &Arc<str>) {
        lock(&self.troubles).remove(&(Arc::clone(upstream), Arc::clone(member)));
    }

    /// Only these members of an upstream are there any more.
    pub(crate) fn forget(&self, upstream: &Arc<str>, members: Option<&Map<Member>>) {
        lock(&self.troubles).retain(|(of, name), _| {
            of != upstream || members.is_some_and(|members| members.contains_key(name))
        });
    }

    /// A new life of the thread begins without what waited in the last.
    pub(crate) fn restart(&self) {
        for hook in lock(&self.hooks).values() {
            hook.counters.set(HookMetric::QueueEvents, 0);
            hook.counters.set(HookMetric::QueueBytes, 0);
        }
        lock(&self.troubles).clear();
    }

    /// For `/metrics`: a series a hook, and one for all that are gone.
    pub(crate) fn exposition(&self) -> String {
        let hooks = lock(&self.hooks);
        let each = hooks.iter().map(|(name, hook)| (&**name, &hook.counters));
        hook_exposition(&each.chain([("", &self.gone)]))
    }

    /// For `/status/webhooks`.
    pub(crate) fn status(&self) -> Value {
        let hooks: serde_json::Map<String, Value> = lock(&self.hooks)
            .iter()
            .map(|(name, hook)| {
                let counters: serde_json::Map<String, Value> = HookMetric::ALL
                    .iter()
                    .map(|&metric| {
                        (metric.short_name().to_owned(), hook.counters.get(metric).into())
                    })
                    .collect();
                let mut status = Value::Object(counters);
                let failure = lock(&hook.failure);
                status["last_failure"] = failure.as_ref().map_or(Value::Null, |failure| {
                    json!({
                        "time_ms": failure.unix_ms,
                        "member": &*failure.member,
                        "why": failure.why,
                    })
                });
                (name.to_string(), status)
            })
            .collect();
        let mut troubles = serde_json::Map::new();
        for ((upstream, member), trouble) in lock(&self.troubles).iter() {
            troubles.entry(&**upstream).or_insert_with(|| json!({}))[&**member] = json!({
                "failures": trouble.failures,
                "left_alone_until_ms": trouble.until_unix_ms,
                "why": trouble.why,
            });
        }
        json!({ "hooks": hooks, "failing": troubles })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
