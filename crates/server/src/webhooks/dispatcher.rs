//! Which events go into which request, to whom, and when again: the webhooks without I/O and clock.
//!
//! Calls in this order, in each turn: `handle_settings`, `handle_happening` and `handle_verdict` as they come, then
//! [`Dispatcher::poll_attempt`] until `None`, each of which ends in one verdict; [`Dispatcher::poll_gone`] until
//! `None`; and [`Dispatcher::handle_timeout`] no later than [`Dispatcher::poll_timeout`] says.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use dunlin_config as config;
use dunlin_hub::Now;
use hashbrown::HashMap;

use super::board::Board;
use super::happening::{Happening, What};
use super::hook::{Hook, LANES};
use super::lane::State;
use super::spelling::{Cause, Speller};
use super::upstream::{Chosen, Endpoints, Upstream};
use super::verdict::Verdict;
use crate::metrics::HookMetric;

/// Channels whose hooks are remembered; beyond it all are forgotten and asked for again.
const CHANNELS_MAX: usize = 65_536;
/// How long a request rests that was answered with 5xx, at first and at most.
const REST_MS_MIN: u64 = 100;
const REST_MS_MAX: u64 = 30_000;

type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Names a lane of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneId {
    hook: u32,
    life: u32,
    lane: u8,
}

/// A request to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// Comes back with the verdict.
    pub(crate) tag: u64,
    /// The connections it is to be sent on; the same number means the same upstream's and member's settings, as far
    /// as they matter to connections.
    pub(crate) endpoint: u64,
    pub(crate) upstream: Arc<config::Upstream>,
    pub(crate) member: Arc<config::Member>,
    pub(crate) hook: Arc<config::Hook>,
    /// The same for each attempt at this batch.
    pub(crate) key: Arc<str>,
    pub(crate) body: Arc<[u8]>,
    /// Which attempt this is, from 1; those that never left are not counted.
    pub(crate) number: u32,
}

pub(crate) struct Dispatcher {
    board: Arc<Board>,
    speller: Speller,
    settings: config::Webhooks,
    hooks: Vec<Option<Hook>>,
    /// Places in `hooks`.
    places: HashMap<Arc<str>, u32>,
    lives: u32,
    /// Hooks that cover a channel.
    routes: FastMap<Arc<str>, Arc<[u32]>>,
    upstreams: HashMap<Arc<str>, Upstream>,
    endpoints: Endpoints,
    /// Requests under way, by their tags.
    flights: Vec<Option<Flight>>,
    free: Vec<u64>,
    /// Lanes whose turn has come.
    ready: VecDeque<LaneId>,
    alarms: BinaryHeap<Reverse<(u64, Alarm)>>,
    /// Spreads attempts that would come together.
    jitter: u64,
}

struct Flight {
    lane: LaneId,
    upstream: Arc<str>,
    member: Arc<str>,
    endpoint: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// A lane has rested.
    Lane(LaneId),
    /// A member of this upstream may be asked again.
    Upstream(Arc<str>),
}

impl Dispatcher {
    /// Without hooks. `seed` is any number.
    pub(crate) fn new(board: Arc<Board>, speller: Speller, seed: u64) -> Dispatcher {
        Dispatcher {
            board,
            speller,
            settings: config::Webhooks::default(),
            hooks: Vec::new(),
            places: HashMap::new(),
            lives: 0,
            routes: FastMap::default(),
            upstreams: HashMap::new(),
            endpoints: Endpoints::default(),
            flights: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            alarms: BinaryHeap::new(),
            jitter: seed | 1,
        }
    }

    /// Other settings hold from now on. What waits goes on under them; of a hook that is gone it is dropped.
    pub(crate) fn handle_settings(&mut self, new: &config::Webhooks) {
        let old = std::mem::replace(&mut self.settings, new.clone());
        let mut parked = VecDeque::new();
        for (name, _, after) in new.upstreams.changes_from(&old.upstreams) {
            let endpoints = &mut self.endpoints;
            match (self.upstreams.get_mut(name), after) {
                (Some(upstream), Some(after)) => {
                    upstream.update(after, endpoints);
                    parked.append(&mut upstream.parked);
                }
                (None, Some(after)) => {
                    self.upstreams.insert(Arc::clone(name), Upstream::new(after, endpoints));
                }
                (Some(upstream), None) => {
                    upstream.clear(endpoints);
                    parked.append(&mut upstream.parked);
                    self.upstreams.remove(name);
                }
                (None, None) => {}
            }
            self.board.forget(name, after.map(|after| &after.members));
        }
        for (name, before, after) in new.hooks.changes_from(&old.hooks) {
            match after {
                Some(after) => {
                    let place = self.place_of(name, after);
                    if let Some(hook) = &mut self.hooks[place as usize] {
                        hook.configure(after);
                    }
                    // Its lanes may wait for a member of the upstream that it had.
                    if let Some(before) = before.filter(|of| of.upstream != after.upstream)
                        && let Some(upstream) = self.upstreams.get_mut(&before.upstream)
                    {
                        parked.append(&mut upstream.parked);
                    }
                }
                None => self.remove(name),
            }
            self.routes.clear();
        }
        for id in parked {
            self.make_ready(id);
        }
    }

    /// Takes what has happened to the hooks that want to hear of it.
    pub(crate) fn handle_happening(&mut self, now: Now, happening: &Happening) {
        if let What::Missed(count) = happening.what {
            for hook in self.hooks.iter_mut().flatten() {
                hook.lanes[0].miss(count, Cause::Overflow);
            }
            return;
        }
        let Some(event) = happening.what.event() else { return };
        let lane = (happening.what.order() % LANES as u64) as u8;
        let route = happening.what.channel().map(|channel| self.route(channel));
        let mut spelled: Option<Arc<[u8]>> = None;
        let places: &mut dyn Iterator<Item = u32> = match &route {
            Some(route) => &mut route.iter().copied(),
            None => &mut (0..self.hooks.len() as u32),
        };
        for place in places {
            let Some(hook) = &mut self.hooks[place as usize] else { continue };
            if !hook.events.has(event) {
                continue;
            }
            let text = spelled.get_or_insert_with(|| {
                let text = self.speller.event(self.board.next_number(), happening);
                text.unwrap_or_default().into()
            });
            hook.push(now.ms, usize::from(lane), text);
            let id = LaneId { hook: place, life: hook.life, lane };
            let lane = &mut hook.lanes[usize::from(lane)];
            if lane.state == State::Idle && lane.has_events() {
                lane.state = State::Ready;
                self.ready.push_back(id);
            }
        }
    }

    /// What became of an attempt.
    pub(crate) fn handle_verdict(&mut self, now: Now, tag: u64, verdict: &Verdict) {
        let Some(flight) = self.flights.get_mut(tag as usize).and_then(Option::take) else {
            return;
        };
        self.free.push(tag);
        self.judge_member(now, &flight, verdict);
        let LaneId { hook, life, lane } = flight.lane;
        let at = usize::from(lane);
        // A hook may have gone meanwhile, and what it was told with it.
        let Some(hook) = self.hooks[hook as usize].as_mut().filter(|hook| hook.life == life) else {
            return;
        };
        hook.board.told(verdict, &flight.member, now.unix_ms);
        let attempts_max = hook.config.attempts_max;
        let mut rest_ms = None;
        let Some(batch) = &mut hook.lanes[at].batch else { return };
        match verdict {
            Verdict::Delivered => hook.delivered(at),
            Verdict::Refused { .. } => hook.give_up(now.ms, at, Cause::Refused),
            Verdict::Unreachable(_) | Verdict::Moved => {}
            Verdict::Busy { .. } | Verdict::TimedOut | Verdict::Broken(_) => {
                batch.attempts += 1;
                let attempts = batch.attempts;
                if attempts >= attempts_max {
                    hook.give_up(now.ms, at, Cause::GivenUp);
                } else if !leaves_alone(verdict) {
                    let doubled = REST_MS_MIN << (attempts - 1).min(16);
                    rest_ms = Some(doubled.min(REST_MS_MAX));
                }
            }
        }
        let lane = &mut hook.lanes[at];
        if let Some(rest_ms) = rest_ms {
            // Between half of it and all.
            self.jitter ^= self.jitter << 13;
            self.jitter ^= self.jitter >> 7;
            self.jitter ^= self.jitter << 17;
            let until_ms = now.ms + rest_ms - self.jitter % (rest_ms / 2 + 1);
            lane.state = State::Resting(until_ms);
            self.alarms.push(Reverse((until_ms, Alarm::Lane(flight.lane))));
        } else if lane.has_events() {
            lane.state = State::Ready;
            self.ready.push_back(flight.lane);
        } else {
            lane.state = State::Idle;
        }
    }

    /// The next request to be sent.
    pub(crate) fn poll_attempt(&mut self, now: Now) -> Option<Attempt> {
        while let Some(id) = self.ready.pop_front() {
            let Some(hook) = self.hooks[id.hook as usize].as_mut().filter(|of| of.life == id.life)
            else {
                continue;
            };
            let lane = &mut hook.lanes[usize::from(id.lane)];
            if lane.state != State::Ready {
                continue;
            }
            if lane.batch.is_none() {
                let (events_max, bytes_max) =
                    (hook.config.batch_events_max, hook.config.batch_bytes_max);
                let (speller, board) = (&self.speller, &self.board);
                lane.compose(
                    events_max,
                    bytes_max,
                    || speller.id(board.next_number()),
                    |out, count, cause| {
                        speller.missed(out, board.next_number(), now.unix_ms, count, cause);
                    },
                );
            }
            let Some(batch) = &mut lane.batch else {
                lane.state = State::Idle;
                continue;
            };
            // The configuration is not valid without it.
            let Some(upstream) = self.upstreams.get_mut(&hook.config.upstream) else { continue };
            let Some(chosen) = upstream.choose(now.ms, batch.member.as_deref()) else {
                lane.state = State::Parked;
                upstream.parked.push_back(id);
                continue;
            };
            lane.state = State::InFlight;
            let Chosen { name, config, endpoint } = chosen;
            batch.member = Some(Arc::clone(&name));
            hook.board.counters.count(HookMetric::Requests);
            let (key, body) = (Arc::clone(&batch.key), Arc::clone(&batch.body));
            let number = batch.attempts + 1;
            let upstream_name = Arc::clone(&hook.config.upstream);
            let flight = Flight { lane: id, upstream: upstream_name, member: name, endpoint };
            let tag = match self.free.pop() {
                Some(tag) => {
                    self.flights[tag as usize] = Some(flight);
                    tag
                }
                None => {
                    self.flights.push(Some(flight));
                    self.flights.len() as u64 - 1
                }
            };
            return Some(Attempt {
                tag,
                endpoint,
                upstream: Arc::clone(&upstream.config),
                member: config,
                hook: Arc::clone(&hook.config),
                key,
                body,
                number,
            });
        }
        None
    }

    /// Connections that are not needed any more.
    pub(crate) fn poll_gone(&mut self) -> Option<u64> {
        self.endpoints.poll_gone()
    }

    /// When [`Dispatcher::handle_timeout`] wants to be called.
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.alarms.peek().map(|Reverse((at_ms, _))| *at_ms)
    }

    /// Wakes what has waited long enough.
    pub(crate) fn handle_timeout(&mut self, now: Now) {
        while let Some(Reverse((at_ms, _))) = self.alarms.peek()
            && *at_ms <= now.ms
            && let Some(Reverse((at_ms, alarm))) = self.alarms.pop()
        {
            match alarm {
                Alarm::Lane(id) => {
                    let hook = self.hooks[id.hook as usize].as_mut();
                    let lane = hook.filter(|hook| hook.life == id.life);
                    let lane = lane.map(|hook| &mut hook.lanes[usize::from(id.lane)]);
                    if let Some(lane) = lane.filter(|lane| lane.state == State::Resting(at_ms)) {
                        lane.state = State::Ready;
                        self.ready.push_back(id);
                    }
                }
                Alarm::Upstream(name) => {
                    let upstream = self.upstreams.get_mut(&name);
                    let parked = upstream.map(|upstream| std::mem::take(&mut upstream.parked));
                    for id in parked.into_iter().flatten() {
                        self.make_ready(id);
                    }
                }
            }
        }
    }

    /// Events that wait or are under way.
    pub(crate) fn len(&self) -> u64 {
        self.hooks.iter().flatten().map(Hook::len).sum()
    }

    /// The hooks that cover a channel. Patterns are tried once a channel.
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
            hooks.filter(|(_, hook)| covers(hook)).map(|(place, _)| place).collect();
        self.routes.insert(Arc::clone(channel), Arc::clone(&route));
        route
    }

    /// The place of a hook, which is made if there is none.
    fn place_of(&mut self, name: &Arc<str>, config: &Arc<config::Hook>) -> u32 {
        if let Some(&place) = self.places.get(name) {
            return place;
        }
        self.lives = self.lives.wrapping_add(1);
        let hook = Hook::new(name, config, self.lives, self.board.hook(name));
        let free = self.hooks.iter().position(Option::is_none);
        let place = free.unwrap_or(self.hooks.len());
        match free {
            Some(place) => self.hooks[place] = Some(hook),
            None => self.hooks.push(Some(hook)),
        }
        self.places.insert(Arc::clone(name), place as u32);
        place as u32
    }

    fn remove(&mut self, name: &Arc<str>) {
        let place = self.places.remove(name);
        let Some(hook) = place.and_then(|place| self.hooks[place as usize].take()) else { return };
        let dropped = hook.len();
        hook.board.counters.add(HookMetric::DroppedHookRemoved, dropped);
        if dropped > 0 {
            tracing::warn!(hook = %name, dropped, "a hook was removed, and the events that waited for it");
        }
        self.board.remove(name);
    }

    fn make_ready(&mut self, id: LaneId) {
        let hook = self.hooks[id.hook as usize].as_mut().filter(|hook| hook.life == id.life);
        let lane = hook.map(|hook| &mut hook.lanes[usize::from(id.lane)]);
        if let Some(lane) = lane.filter(|lane| lane.state == State::Parked) {
            lane.state = State::Ready;
            self.ready.push_back(id);
        }
    }

    /// What an answer, or that there is none, says of the member.
    fn judge_member(&mut self, now: Now, flight: &Flight, verdict: &Verdict) {
        let Some(upstream) = self.upstreams.get_mut(&flight.upstream) else { return };
        if !leaves_alone(verdict) {
            if *verdict != Verdict::Moved && upstream.answered(&flight.member, flight.endpoint) {
                self.board.recovered(&flight.upstream, &flight.member);
                tracing::info!(upstream = %flight.upstream, member = %flight.member, "a webhook backend answers again");
            }
            return;
        }
        let pause_ms = match verdict {
            Verdict::Busy { after_ms, .. } => *after_ms,
            _ => None,
        };
        let until = upstream.failed(now.ms, &flight.member, flight.endpoint, pause_ms);
        let Some(until_ms) = until else { return };
        let failures = upstream.failures(&flight.member);
        let unix_ms = now.unix_ms + (until_ms - now.ms);
        self.board.failed(&flight.upstream, &flight.member, failures, unix_ms, verdict);
        // The pauses double, which bounds how often a member is told of.
        tracing::warn!(
            upstream = %flight.upstream,
            member = %flight.member,
            failures,
            pause_ms = until_ms - now.ms,
            "a webhook backend is left alone for a while: {verdict}"
        );
        self.alarms.push(Reverse((until_ms, Alarm::Upstream(Arc::clone(&flight.upstream)))));
    }
}

/// Whether a member that gave this answer, or none, is left alone for a while.
fn leaves_alone(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Unreachable(_) | Verdict::TimedOut | Verdict::Broken(_) => true,
        Verdict::Busy { status, after_ms } => matches!(status, 429 | 503) || after_ms.is_some(),
        Verdict::Delivered | Verdict::Refused { .. } | Verdict::Moved => false,
    }
}
