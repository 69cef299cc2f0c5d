//! A hook with its queues and their common size limit.

use std::collections::BTreeSet;
use std::sync::Arc;

use dunlin_config as config;
use dunlin_hub::{glob, tenant};
use hashbrown::HashMap;

use crate::encoder::DropReason;
use crate::filter::KindSet;
use crate::owner::{EventOwner, Owner, OwnerKind};
use crate::queue::{self, Batch, Missed, OrderedQueue, TracedEvent};
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
    shares: Shares,
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
            shares: Shares::default(),
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

    /// Queues an event. If the queues are full, the owner with the most bytes loses its newest events, or this one.
    pub(crate) fn push(&mut self, now_ms: u64, queue: usize, owner: Owner<'_>, event: TracedEvent) {
        let (flow, cost_bytes) = (owner.flow(), queue::cost_bytes(&event.0));
        while self.bytes + cost_bytes > self.config.queue_bytes_max {
            let busiest = self.shares.busiest(flow, cost_bytes as u64);
            if busiest.is_some_and(|busiest| self.drop_newest(now_ms, busiest)) {
                continue;
            }
            let owner = self.shares.owner(flow).unwrap_or_else(|| Arc::new(owner.into()));
            let owner = Some(owner);
            let missed = Missed { count: 1, reason: DropReason::QueueFull, owner };
            self.queues[queue].add_missed_of(flow, missed);
            return self.count_dropped(now_ms, 1, HookMetric::DroppedQueueFull);
        }
        self.bytes += cost_bytes;
        self.shares.add(owner, cost_bytes as u64);
        self.queues[queue].push(flow, event);
        self.stats.counters.count(HookMetric::Events);
        self.update_gauges();
    }

    /// Drops the newest event of an owner, in the queue that has most of it. Returns whether there was one.
    fn drop_newest(&mut self, now_ms: u64, flow: u64) -> bool {
        let missed =
            Missed { count: 1, reason: DropReason::QueueFull, owner: self.shares.owner(flow) };
        let queue = self.queues.iter_mut().max_by_key(|queue| queue.bytes_of(flow));
        let dropped = queue.and_then(|queue| queue.drop_newest(flow, missed));
        let Some(bytes) = dropped else { return false };
        self.bytes -= bytes;
        self.shares.release(flow, bytes as u64);
        self.count_dropped(now_ms, 1, HookMetric::DroppedQueueFull);
        true
    }

    /// Counts events that the producer has dropped. Only hooks of its tenant read who caused them.
    pub(crate) fn add_missed(&mut self, count: u64, owner: Option<&EventOwner>) {
        let owner = owner.filter(|owner| self.is_of(owner.tenant.as_deref()));
        let owner = owner.map(|owner| Arc::new(owner.clone()));
        self.queues[0].add_missed(Missed { count, reason: DropReason::Overflow, owner });
    }

    /// Creates a request of the first events of a queue.
    pub(crate) fn compose(
        &mut self,
        queue: usize,
        key: impl FnOnce() -> String,
        missed: impl FnMut(&mut Vec<u8>, &Missed),
    ) {
        let bounds = (self.config.batch_events_max, self.config.batch_bytes_max);
        let shares = &mut self.shares;
        let taken = |flow, bytes| shares.release(flow, bytes as u64);
        self.queues[queue].compose(bounds, key, missed, taken);
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

/// The bytes of each owner's queued events, without those in flight.
#[derive(Debug, Default)]
struct Shares {
    owners: HashMap<u64, Share, foldhash::fast::RandomState>,
    /// Bytes and flows of the owners, by [`OwnerKind`]; the greatest is last.
    by_bytes: [BTreeSet<(u64, u64)>; 2],
    /// Bytes of all owners, by [`OwnerKind`].
    bytes: [u64; 2],
}

#[derive(Debug)]
struct Share {
    bytes: u64,
    owner: Arc<EventOwner>,
}

impl Shares {
    fn add(&mut self, owner: Owner<'_>, bytes: u64) {
        let (flow, kind) = (owner.flow(), owner.kind() as usize);
        let share = self.owners.entry(flow);
        let share = share.or_insert_with(|| Share { bytes: 0, owner: Arc::new(owner.into()) });
        self.by_bytes[kind].remove(&(share.bytes, flow));
        share.bytes += bytes;
        self.by_bytes[kind].insert((share.bytes, flow));
        self.bytes[kind] += bytes;
    }

    fn release(&mut self, flow: u64, bytes: u64) {
        let Some(share) = self.owners.get_mut(&flow) else { return };
        let kind = OwnerKind::of_flow(flow) as usize;
        self.by_bytes[kind].remove(&(share.bytes, flow));
        share.bytes -= bytes;
        self.bytes[kind] -= bytes;
        if share.bytes > 0 {
            self.by_bytes[kind].insert((share.bytes, flow));
        } else {
            self.owners.remove(&flow);
        }
        if self.owners.is_empty() {
            self.owners = HashMap::default();
        }
    }

    fn owner(&self, flow: u64) -> Option<Arc<EventOwner>> {
        self.owners.get(&flow).map(|share| Arc::clone(&share.owner))
    }

    /// Returns who loses an event, so that one of `flow` has room: the busiest owner of the kind with more bytes. `None`: the
    /// owner of the event itself.
    fn busiest(&self, flow: u64, bytes: u64) -> Option<u64> {
        let kind = OwnerKind::of_flow(flow);
        let own = self.owners.get(&flow).map_or(0, |share| share.bytes) + bytes;
        let is_of_other = self.bytes[kind.other() as usize] > self.bytes[kind as usize] + bytes;
        let pays = if is_of_other { kind.other() } else { kind };
        let &(busiest_bytes, busiest) = self.by_bytes[pays as usize].last()?;
        (is_of_other || busiest_bytes > own).then_some(busiest)
    }
}
