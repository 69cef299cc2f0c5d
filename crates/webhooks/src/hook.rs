//! A hook with its queues and their common size limit.

use std::sync::Arc;

use dunlin_config as config;
use dunlin_hub::{glob, tenant};

use crate::encoder::DropReason;
use crate::filter::KindSet;
use crate::queue::{self, Batch, OrderedQueue};
use crate::stats::{HookMetric, HookStats};

/// Number of queues of a hook, which bounds its requests in flight.
pub(crate) const QUEUES_PER_HOOK: usize = 8;

#[derive(Debug)]
pub(crate) struct Hook {
    pub(crate) name: Arc<str>,
    pub(crate) config: Arc<config::Hook>,
    /// The app in whose Pusher format the hook posts.
    pub(crate) app: Option<Arc<config::PusherApp>>,
    pub(crate) kinds: KindSet,
    /// Distinguishes it from a removed hook that had the same index.
    pub(crate) incarnation: u32,
    pub(crate) queues: [OrderedQueue; QUEUES_PER_HOOK],
    /// Bytes of all queues, including requests in flight.
    bytes: usize,
    pub(crate) stats: Arc<HookStats>,
    /// Number of dropped events since the last log line about them, and the time of that line.
    unlogged: u64,
    logged_ms: Option<u64>,
}

/// Minimum interval between two log lines about dropped events of a hook, in milliseconds.
const LOG_INTERVAL_MS: u64 = 10_000;

impl Hook {
    pub(crate) fn new(
        name: &Arc<str>,
        config: &Arc<config::Hook>,
        incarnation: u32,
        stats: Arc<HookStats>,
    ) -> Hook {
        Hook {
            name: Arc::clone(name),
            config: Arc::clone(config),
            app: None,
            kinds: KindSet::of(&config.events),
            incarnation,
            queues: Default::default(),
            bytes: 0,
            stats,
            unlogged: 0,
            logged_ms: None,
        }
    }

    pub(crate) fn configure(&mut self, config: &Arc<config::Hook>) {
        self.config = Arc::clone(config);
        self.kinds = KindSet::of(&config.events);
    }

    /// Returns whether the hook selects events of this channel.
    pub(crate) fn covers(&self, channel: &str) -> bool {
        let of = |app: &config::PusherApp| {
            channel.split_once(':').is_some_and(|(namespace, _)| *namespace == *app.namespace)
        };
        let (tenant, channel) = tenant::split(channel);
        if !self.is_of(tenant) {
            return false;
        }
        // A hook of an app that does not exist receives no events.
        let is_its = |app: &config::PusherApp| app.tenant.as_deref() == tenant && of(app);
        let is_own = self.config.pusher_app.is_none() || self.app.as_deref().is_some_and(is_its);
        let pattern = self.config.channels.as_ref();
        is_own && pattern.is_none_or(|pattern| glob::matches(pattern.as_str(), channel))
    }

    /// Returns whether the hook receives events of this tenant, or with `None` those without a
    /// tenant.
    pub(crate) fn is_of(&self, tenant: Option<&str>) -> bool {
        self.config.tenant.as_deref() == tenant
    }

    /// Queues an event, or drops it if the queues are full.
    pub(crate) fn push(&mut self, now_ms: u64, queue: usize, event: &Arc<[u8]>) {
        let cost_bytes = queue::cost_bytes(event);
        if self.bytes + cost_bytes > self.config.queue_bytes_max {
            self.queues[queue].add_missed(1, DropReason::QueueFull);
            return self.count_dropped(now_ms, 1, HookMetric::DroppedQueueFull);
        }
        self.bytes += cost_bytes;
        self.queues[queue].push(Arc::clone(event));
        self.stats.counters.count(HookMetric::Events);
        self.update_gauges();
    }

    /// Removes the request of a queue after its delivery.
    pub(crate) fn delivered(&mut self, queue: usize) {
        if let Some(batch) = self.queues[queue].delivered() {
            self.stats.counters.add(HookMetric::Delivered, batch.events);
            self.release(&batch);
        }
    }

    /// Drops the request of a queue.
    pub(crate) fn drop_request(&mut self, now_ms: u64, queue: usize, reason: DropReason) {
        if let Some(batch) = self.queues[queue].drop_batch(reason) {
            let metric = match reason {
                DropReason::Rejected => HookMetric::DroppedRejected,
                _ => HookMetric::DroppedGivenUp,
            };
            self.count_dropped(now_ms, batch.events, metric);
            self.release(&batch);
        }
    }

    /// Returns the number of events that are queued or in flight.
    pub(crate) fn len(&self) -> u64 {
        self.queues.iter().map(OrderedQueue::len).sum()
    }

    fn release(&mut self, batch: &Batch) {
        self.bytes -= batch.cost_bytes;
        self.update_gauges();
    }

    fn update_gauges(&self) {
        self.stats.counters.set(HookMetric::QueueEvents, self.len());
        self.stats.counters.set(HookMetric::QueueBytes, self.bytes as u64);
    }

    fn count_dropped(&mut self, now_ms: u64, count: u64, metric: HookMetric) {
        self.stats.counters.add(metric, count);
        self.unlogged += count;
        if self.logged_ms.is_some_and(|at_ms| now_ms < at_ms + LOG_INTERVAL_MS) {
            return;
        }
        self.logged_ms = Some(now_ms);
        let dropped = std::mem::take(&mut self.unlogged);
        tracing::warn!(
            hook = %self.name,
            dropped,
            metric = metric.family().name,
            "webhook events are dropped; see /status/webhooks"
        );
    }
}
