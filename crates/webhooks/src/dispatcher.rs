//! The dispatcher: batches events into requests, and selects member and time of each request.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use dunlin_config as config;
use dunlin_hub::{Now, TraceContext};
use dunlin_wire::backoff::{Backoff, Jitter};
use hashbrown::HashMap;

use crate::encoder::{DropReason, EventEncoder};
use crate::event::{HookEvent, HookEventBody};
use crate::health::Unhealthy;
use crate::hook::{Hook, QUEUES_PER_HOOK};
use crate::owner::Owner;
use crate::queue::QueueState;
use crate::result::DeliveryResult;
use crate::stats::{DeliveryStats, HookMetric};
use crate::upstream::{Failure, OpenCircuit, Pools, Selection, Upstream};

/// Maximum number of channels with cached hooks; beyond it the cache is cleared.
const CHANNELS_MAX: usize = 65_536;
/// Delay between two attempts of a request if its member's circuit is not open.
const REQUEST_BACKOFF: Backoff = Backoff { min_ms: 100, max_ms: 30_000 };

type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// The id of a hook's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueId {
    hook: u32,
    incarnation: u32,
    queue: u8,
}

/// A request to send.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Passed back with the result.
    pub tag: u64,
    /// The connection pool to use. Attempts with the same number have equal connection settings; different settings get
    /// a different number.
    pub pool: u64,
    /// Settings of the upstream: TLS, timeouts, connections.
    pub upstream: Arc<config::Upstream>,
    /// The member to send the request to.
    pub member: Arc<config::Member>,
    /// Settings of the hook: path, secret.
    pub hook: Arc<config::Hook>,
    /// The app whose key and secret sign the request, instead of the hook's.
    pub app: Option<Arc<config::PusherApp>>,
    /// The idempotency key; the same in each attempt of this batch.
    pub key: Arc<str>,
    /// A JSON array of events, or an object that contains one for an app; the same in each attempt of this batch.
    pub body: Arc<[u8]>,
    /// Number of the attempt, from 1. Attempts that were never sent are not counted.
    pub number: u32,
    /// The span that has caused the first of its events that are traced.
    pub trace: Option<TraceContext>,
}

/// Queues events for each hook and selects the member and the time of each request.
///
/// In each turn call [`handle_settings`](Dispatcher::handle_settings), [`handle_event`](Dispatcher::handle_event) and
/// [`handle_result`](Dispatcher::handle_result) for the input, then [`poll_attempt`](Dispatcher::poll_attempt) and
/// [`poll_unused_pool`](Dispatcher::poll_unused_pool) until each returns `None`. Pass exactly one result for each
/// attempt. Call [`handle_timeout`](Dispatcher::handle_timeout) no later than
/// [`poll_timeout`](Dispatcher::poll_timeout).
#[derive(Debug)]
pub struct Dispatcher {
    stats: Arc<DeliveryStats>,
    encoder: EventEncoder,
    settings: config::Webhooks,
    hooks: Vec<Option<Hook>>,
    /// Index in `hooks`, by name.
    indexes: HashMap<Arc<str>, u32>,
    incarnations: u32,
    /// Indexes of the hooks of a channel.
    routes: FastMap<Arc<str>, Arc<[u32]>>,
    upstreams: HashMap<Arc<str>, AwaitedUpstream>,
    pools: Pools,
    /// Requests in flight, by tag.
    in_flight: Vec<Option<InFlight>>,
    free_tags: Vec<u64>,
    /// Queues that may send, in order.
    ready: VecDeque<QueueId>,
    timers: BinaryHeap<Reverse<(u64, Timer)>>,
    jitter: Jitter,
}

/// An upstream, and the queues that wait for one of its members.
#[derive(Debug)]
struct AwaitedUpstream {
    members: Upstream,
    waiting: VecDeque<QueueId>,
}

#[derive(Debug)]
struct InFlight {
    queue: QueueId,
    upstream: Arc<str>,
    member: Arc<str>,
    pool: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// The back-off of a queue has ended.
    Queue(QueueId),
    /// The circuit of a member of this upstream closes.
    Upstream(Arc<str>),
}

impl Dispatcher {
    /// Creates a dispatcher without hooks. `seed` is any number; it varies the times of attempts.
    pub fn new(stats: Arc<DeliveryStats>, encoder: EventEncoder, seed: u64) -> Dispatcher {
        Dispatcher {
            stats,
            encoder,
            settings: config::Webhooks::default(),
            hooks: Vec::new(),
            indexes: HashMap::new(),
            incarnations: 0,
            routes: FastMap::default(),
            upstreams: HashMap::new(),
            pools: Pools::default(),
            in_flight: Vec::new(),
            free_tags: Vec::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            jitter: Jitter::new(seed),
        }
    }

    /// Applies new settings. Queued events are sent with the new settings; those of a removed hook are dropped.
    pub fn handle_settings(
        &mut self,
        new: &config::Webhooks,
        apps: &config::Map<config::PusherApp>,
    ) {
        let old = std::mem::replace(&mut self.settings, new.clone());
        let mut waiting = VecDeque::new();
        for (name, _, after) in new.upstreams.changes_from(&old.upstreams) {
            let pools = &mut self.pools;
            match (self.upstreams.get_mut(name), after) {
                (Some(upstream), Some(after)) => {
                    upstream.members.update(after, pools);
                    waiting.append(&mut upstream.waiting);
                }
                (None, Some(after)) => {
                    let members = Upstream::new(after, pools);
                    let waiting = VecDeque::new();
                    self.upstreams.insert(Arc::clone(name), AwaitedUpstream { members, waiting });
                }
                (Some(upstream), None) => {
                    upstream.members.clear(pools);
                    waiting.append(&mut upstream.waiting);
                    self.upstreams.remove(name);
                }
                (None, None) => {}
            }
            self.stats.retain_members(name, after.map(|after| &after.members));
        }
        for (name, before, after) in new.hooks.changes_from(&old.hooks) {
            match after {
                Some(after) => {
                    let index = self.index_of(name, after);
                    if let Some(hook) = &mut self.hooks[index as usize] {
                        hook.configure(after);
                    }
                    // Its queues may be waiting for a member of the previous upstream.
                    if let Some(before) = before.filter(|of| of.upstream != after.upstream)
                        && let Some(upstream) = self.upstreams.get_mut(&before.upstream)
                    {
                        waiting.append(&mut upstream.waiting);
                    }
                }
                None => self.remove_hook(name),
            }
            self.routes.clear();
        }
        for hook in self.hooks.iter_mut().flatten() {
            let name = hook.config.pusher_app.as_ref();
            let app = name.and_then(|name| apps.get_shared(name)).map(Arc::clone);
            if hook.app != app {
                hook.app = app;
                self.routes.clear();
            }
        }
        for id in waiting {
            self.make_ready(id, QueueState::AwaitingMember);
        }
    }

    /// Applies the health of the members of all upstreams.
    pub fn handle_health(&mut self, unhealthy: &Unhealthy) {
        let mut waiting = VecDeque::new();
        for (name, upstream) in &mut self.upstreams {
            upstream.members.handle_health(&unhealthy.of(name));
            waiting.append(&mut upstream.waiting);
        }
        for id in waiting {
            self.make_ready(id, QueueState::AwaitingMember);
        }
    }

    /// Queues an event for each hook that selects it.
    pub fn handle_event(&mut self, now: Now, event: &HookEvent) {
        if let HookEventBody::Missed { count, owner } = &event.body {
            for hook in self.hooks.iter_mut().flatten() {
                hook.add_missed(*count, owner.as_deref());
            }
            return;
        }
        let Some(kind) = event.body.kind() else { return };
        let Some(owner) = Owner::of(&event.body) else { return };
        let queue = (event.body.ordering_key() % QUEUES_PER_HOOK as u64) as u8;
        let route = event.body.channel().map(|channel| self.route(channel));
        let trace = match &event.body {
            HookEventBody::Publish { publication, .. } => publication.trace(),
            _ => None,
        };
        let mut encoded: Option<Arc<[u8]>> = None;
        let mut for_pusher: Option<Arc<[u8]>> = None;
        let indexes: &mut dyn Iterator<Item = u32> = match &route {
            Some(route) => &mut route.iter().copied(),
            None => &mut (0..self.hooks.len() as u32),
        };
        for index in indexes {
            let Some(hook) = &mut self.hooks[index as usize] else { continue };
            if !hook.kinds.contains(kind) || !hook.is_of(event.body.tenant()) {
                continue;
            }
            let json = match hook.config.pusher_app {
                Some(_) => for_pusher.get_or_insert_with(|| {
                    EventEncoder::encode_for_pusher(event).unwrap_or_default().into()
                }),
                None => encoded.get_or_insert_with(|| {
                    let json = self.encoder.encode(self.stats.next_id(), event);
                    json.unwrap_or_default().into()
                }),
            };
            if json.is_empty() {
                continue;
            }
            hook.push(now.ms, usize::from(queue), owner, (Arc::clone(json), trace));
            let id = QueueId { hook: index, incarnation: hook.incarnation, queue };
            let queue = &mut hook.queues[usize::from(queue)];
            if queue.state == QueueState::Idle && queue.has_events() {
                queue.state = QueueState::Ready;
                self.ready.push_back(id);
            }
        }
    }

    /// Handles the result of an attempt.
    pub fn handle_result(&mut self, now: Now, tag: u64, result: &DeliveryResult) {
        let Some(request) = self.in_flight.get_mut(tag as usize).and_then(Option::take) else {
            return;
        };
        self.free_tags.push(tag);
        self.update_member(now, &request, result);
        let QueueId { hook, incarnation, queue } = request.queue;
        let at = usize::from(queue);
        // The hook and its events may have been removed meanwhile.
        let hook = self.hooks[hook as usize].as_mut();
        let Some(hook) = hook.filter(|hook| hook.incarnation == incarnation) else { return };
        hook.stats.count_result(result, &request.member, now.unix_ms);
        let attempts_max = hook.config.attempts_max;
        let mut backoff_ms = None;
        let Some(batch) = &mut hook.queues[at].batch else { return };
        match result {
            DeliveryResult::Delivered => hook.delivered(at),
            DeliveryResult::Rejected { .. } => hook.drop_request(now.ms, at, DropReason::Rejected),
            DeliveryResult::Unreachable(_) | DeliveryResult::Cancelled => {}
            DeliveryResult::Busy { .. } | DeliveryResult::TimedOut | DeliveryResult::Broken(_) => {
                batch.attempts += 1;
                let attempts = batch.attempts;
                if attempts >= attempts_max {
                    hook.drop_request(now.ms, at, DropReason::GivenUp);
                } else if !result.opens_circuit() {
                    backoff_ms = Some(REQUEST_BACKOFF.jittered_ms(attempts, &mut self.jitter));
                }
            }
        }
        let queue = &mut hook.queues[at];
        if let Some(backoff_ms) = backoff_ms {
            let until_ms = now.ms + backoff_ms;
            queue.state = QueueState::BackingOff(until_ms);
            self.timers.push(Reverse((until_ms, Timer::Queue(request.queue))));
        } else if queue.has_events() {
            queue.state = QueueState::Ready;
            self.ready.push_back(request.queue);
        } else {
            queue.state = QueueState::Idle;
        }
    }

    /// Returns the next request to send.
    pub fn poll_attempt(&mut self, now: Now) -> Option<Attempt> {
        while let Some(id) = self.ready.pop_front() {
            let hook = self.hooks[id.hook as usize].as_mut();
            let Some(hook) = hook.filter(|hook| hook.incarnation == id.incarnation) else {
                continue;
            };
            let at = usize::from(id.queue);
            if hook.queues[at].state != QueueState::Ready {
                continue;
            }
            if hook.queues[at].batch.is_none() {
                let (encoder, stats) = (&self.encoder, &self.stats);
                hook.compose(
                    at,
                    || encoder.id(stats.next_id()),
                    |out, missed| {
                        encoder.encode_missed(out, stats.next_id(), now.unix_ms, missed);
                    },
                );
                if hook.config.pusher_app.is_some()
                    && let Some(batch) = &mut hook.queues[at].batch
                {
                    let mut body =
                        format!("{{\"time_ms\":{},\"events\":", now.unix_ms).into_bytes();
                    body.extend_from_slice(&batch.body);
                    body.push(b'}');
                    batch.body = body.into();
                }
            }
            let queue = &mut hook.queues[at];
            let Some(batch) = &mut queue.batch else {
                queue.state = QueueState::Idle;
                continue;
            };
            // Valid settings always have the upstream.
            let Some(upstream) = self.upstreams.get_mut(&hook.config.upstream) else { continue };
            let members = &mut upstream.members;
            // Prefer a member other than the one that failed.
            let selected = members.select(now.ms, batch.member.as_slice());
            let Some(selected) = selected.or_else(|| members.select(now.ms, &[])) else {
                queue.state = QueueState::AwaitingMember;
                upstream.waiting.push_back(id);
                continue;
            };
            queue.state = QueueState::InFlight;
            let Selection { name, config, pool } = selected;
            batch.member = Some(Arc::clone(&name));
            hook.stats.counters.count(HookMetric::Requests);
            let (key, body) = (Arc::clone(&batch.key), Arc::clone(&batch.body));
            let (number, trace) = (batch.attempts + 1, batch.trace);
            let upstream_name = Arc::clone(&hook.config.upstream);
            let request = InFlight { queue: id, upstream: upstream_name, member: name, pool };
            let tag = match self.free_tags.pop() {
                Some(tag) => {
                    self.in_flight[tag as usize] = Some(request);
                    tag
                }
                None => {
                    self.in_flight.push(Some(request));
                    self.in_flight.len() as u64 - 1
                }
            };
            return Some(Attempt {
                tag,
                pool,
                upstream: Arc::clone(upstream.members.config()),
                member: config,
                hook: Arc::clone(&hook.config),
                app: hook.app.clone(),
                key,
                body,
                number,
                trace,
            });
        }
        None
    }

    /// Returns a connection pool that no attempt will use again, so that its connections can be closed.
    pub fn poll_unused_pool(&mut self) -> Option<u64> {
        self.pools.poll_unused()
    }

    /// Returns the latest time to call [`Dispatcher::handle_timeout`], in milliseconds; `None`: never.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((at_ms, _))| *at_ms)
    }

    /// Ends back-offs and closes circuits whose time has passed.
    pub fn handle_timeout(&mut self, now: Now) {
        while let Some(Reverse((at_ms, _))) = self.timers.peek()
            && *at_ms <= now.ms
            && let Some(Reverse((at_ms, timer))) = self.timers.pop()
        {
            match timer {
                Timer::Queue(id) => self.make_ready(id, QueueState::BackingOff(at_ms)),
                Timer::Upstream(name) => {
                    let upstream = self.upstreams.get_mut(&name);
                    let waiting = upstream.map(|upstream| std::mem::take(&mut upstream.waiting));
                    for id in waiting.into_iter().flatten() {
                        self.make_ready(id, QueueState::AwaitingMember);
                    }
                }
            }
        }
    }

    /// Returns the number of events that are queued or in flight.
    pub fn pending_events(&self) -> u64 {
        self.hooks.iter().flatten().map(Hook::len).sum()
    }

    /// Returns the hooks of a channel. Patterns are matched once per channel.
    fn route(&mut self, channel: &Arc<str>) -> Arc<[u32]> {
        if let Some(route) = self.routes.get(channel) {
            return Arc::clone(route);
        }
        if self.routes.len() >= CHANNELS_MAX {
            self.routes.clear();
        }
        let hooks = (0..).zip(&self.hooks);
        let covers = |hook: &Option<Hook>| hook.as_ref().is_some_and(|hook| hook.covers(channel));
        let route: Arc<[u32]> =
            hooks.filter(|(_, hook)| covers(hook)).map(|(index, _)| index).collect();
        self.routes.insert(Arc::clone(channel), Arc::clone(&route));
        route
    }

    /// Returns the index of a hook, which is created if necessary.
    fn index_of(&mut self, name: &Arc<str>, config: &Arc<config::Hook>) -> u32 {
        if let Some(&index) = self.indexes.get(name) {
            return index;
        }
        self.incarnations = self.incarnations.wrapping_add(1);
        let hook = Hook::new(name, config, self.incarnations, self.stats.hook(name));
        let free = self.hooks.iter().position(Option::is_none);
        let index = free.unwrap_or(self.hooks.len());
        match free {
            Some(index) => self.hooks[index] = Some(hook),
            None => self.hooks.push(Some(hook)),
        }
        self.indexes.insert(Arc::clone(name), index as u32);
        index as u32
    }

    fn remove_hook(&mut self, name: &Arc<str>) {
        let index = self.indexes.remove(name);
        let Some(hook) = index.and_then(|index| self.hooks[index as usize].take()) else { return };
        let dropped = hook.len();
        hook.stats.counters.add(HookMetric::DroppedHookRemoved, dropped);
        if dropped > 0 {
            tracing::warn!(hook = %name, dropped, "a webhook was removed with events that waited for it");
        }
        self.stats.remove(name);
    }

    /// Makes a queue ready to send, if it is still in the given state.
    fn make_ready(&mut self, id: QueueId, waited_in: QueueState) {
        let hook = self.hooks[id.hook as usize].as_mut();
        let hook = hook.filter(|hook| hook.incarnation == id.incarnation);
        let queue = hook.map(|hook| &mut hook.queues[usize::from(id.queue)]);
        if let Some(queue) = queue.filter(|queue| queue.state == waited_in) {
            queue.state = QueueState::Ready;
            self.ready.push_back(id);
        }
    }

    /// Opens or resets the circuit of the member.
    fn update_member(&mut self, now: Now, request: &InFlight, result: &DeliveryResult) {
        let Some(upstream) = self.upstreams.get_mut(&request.upstream) else { return };
        if !result.opens_circuit() {
            if *result == DeliveryResult::Cancelled {
                upstream.members.handle_nothing(&request.member, request.pool);
            } else if upstream.members.handle_success(&request.member, request.pool) {
                self.stats.member_recovered(&request.upstream, &request.member);
                tracing::info!(upstream = %request.upstream, member = %request.member, "a webhook backend answers again");
            }
            for id in std::mem::take(&mut upstream.waiting) {
                self.make_ready(id, QueueState::AwaitingMember);
            }
            return;
        }
        let retry_after_ms = match result {
            DeliveryResult::Busy { retry_after_ms, .. } => *retry_after_ms,
            _ => None,
        };
        let failure = Failure { by: None, failures_max: 1, retry_after_ms };
        let opened =
            upstream.members.handle_failure(now.ms, &request.member, request.pool, failure);
        let Some(OpenCircuit { until_ms, failures }) = opened else { return };
        let member = (&request.upstream, &request.member);
        self.stats.member_failed(member, failures, now.unix_ms + (until_ms - now.ms), result);
        // The pauses double, which limits how often a member is logged.
        tracing::warn!(
            upstream = %request.upstream,
            member = %request.member,
            failures,
            pause_ms = until_ms - now.ms,
            "a webhook backend fails and gets no requests for a while: {result}"
        );
        self.timers.push(Reverse((until_ms, Timer::Upstream(Arc::clone(&request.upstream)))));
    }
}
