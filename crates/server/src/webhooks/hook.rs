//! A hook: its lanes, and the bound over all of them.

use std::sync::Arc;

use dunlin_config as config;

use super::board::HookBoard;
use super::interest::EventSet;
use super::lane::{self, Batch, Lane};
use super::spelling::Cause;
use crate::metrics::HookMetric;

/// Requests of one hook that may be under way at once. Each lane keeps the order of its events.
pub(crate) const LANES: usize = 8;

pub(crate) struct Hook {
    pub(crate) name: Arc<str>,
    pub(crate) config: Arc<config::Hook>,
    pub(crate) events: EventSet,
    /// Tells it from the one that had its place before.
    pub(crate) life: u32,
    pub(crate) lanes: [Lane; LANES],
    /// Bytes of all lanes, requests under way included.
    bytes: usize,
    pub(crate) board: Arc<HookBoard>,
    /// Drops since the log told of them, and when it did.
    unlogged: u64,
    logged_ms: Option<u64>,
}

/// Milliseconds between two lines of the log about what one hook drops.
const LOG_INTERVAL_MS: u64 = 10_000;

impl Hook {
    pub(crate) fn new(
        name: &Arc<str>,
        config: &Arc<config::Hook>,
        life: u32,
        board: Arc<HookBoard>,
    ) -> Hook {
        Hook {
            name: Arc::clone(name),
            config: Arc::clone(config),
            events: EventSet::of(&config.events),
            life,
            lanes: Default::default(),
            bytes: 0,
            board,
            unlogged: 0,
            logged_ms: None,
        }
    }

    pub(crate) fn configure(&mut self, config: &Arc<config::Hook>) {
        self.config = Arc::clone(config);
        self.events = EventSet::of(&config.events);
    }

    /// Whether events of this channel are told.
    pub(crate) fn covers(&self, channel: &str) -> bool {
        self.config.channels.as_ref().is_none_or(|pattern| pattern.matches(channel))
    }

    /// Queues an event, if there is room.
    pub(crate) fn push(&mut self, now_ms: u64, lane: usize, event: &Arc<[u8]>) {
        let cost = lane::cost(event);
        if self.bytes + cost > self.config.queue_bytes_max {
            self.lanes[lane].miss(1, Cause::QueueFull);
            return self.dropped(now_ms, 1, HookMetric::DroppedQueueFull);
        }
        self.bytes += cost;
        self.lanes[lane].push(Arc::clone(event));
        self.board.counters.count(HookMetric::Events);
        self.gauge();
    }

    /// The request of a lane has reached the backend.
    pub(crate) fn delivered(&mut self, lane: usize) {
        if let Some(batch) = self.lanes[lane].delivered() {
            self.board.counters.add(HookMetric::Delivered, batch.events);
            self.release(&batch);
        }
    }

    /// The request of a lane is given up.
    pub(crate) fn give_up(&mut self, now_ms: u64, lane: usize, cause: Cause) {
        if let Some(batch) = self.lanes[lane].drop_batch(cause) {
            let metric = match cause {
                Cause::Refused => HookMetric::DroppedRefused,
                _ => HookMetric::DroppedGivenUp,
            };
            self.dropped(now_ms, batch.events, metric);
            self.release(&batch);
        }
    }

    /// Events that wait or are under way.
    pub(crate) fn len(&self) -> u64 {
        self.lanes.iter().map(Lane::len).sum()
    }

    fn release(&mut self, batch: &Batch) {
        self.bytes -= batch.cost;
        self.gauge();
    }

    fn gauge(&self) {
        self.board.counters.set(HookMetric::QueueEvents, self.len());
        self.board.counters.set(HookMetric::QueueBytes, self.bytes as u64);
    }

    fn dropped(&mut self, now_ms: u64, count: u64, metric: HookMetric) {
        self.board.counters.add(metric, count);
        self.unlogged += count;
        if self.logged_ms.is_some_and(|at_ms| now_ms < at_ms + LOG_INTERVAL_MS) {
            return;
        }
        self.logged_ms = Some(now_ms);
        let dropped = std::mem::take(&mut self.unlogged);
        tracing::warn!(
            hook = %self.name,
            dropped,
            counted = metric.name(),
            "webhook events are dropped; see /status/webhooks"
        );
    }
}
