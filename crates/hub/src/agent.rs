//! The home side of a channel that is stored in an engine.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::engine::{
    EngineConfig, EngineId, EngineRequest, Lineage, NamespaceEngine, POSITIONS_MAX,
};
use crate::message::{SubscribeRequest, WaiterId};
use crate::options::ChannelOptions;
use crate::pending_requests::PendingRequests;
use crate::position::{Epoch, StreamPosition};
use crate::publication::{Publication, PublicationParts};
use crate::session_id::SessionId;

/// This node's state of a channel that is stored in an engine. It exists from the first local subscriber until some
/// time after the last one. The [`Stream`](crate::history::Stream) of its home channel is the ring of recent
/// publications; the top of the stream is the last publication delivered to the workers.
pub(crate) struct Agent {
    pub(crate) engine: EngineId,
    /// The options of the latest subscription.
    pub(crate) options: Arc<ChannelOptions>,
    /// The request that establishes the engine subscription; `None` once it is established.
    pub(crate) joining: Option<u32>,
    /// The engine has confirmed the subscription, and publications are delivered.
    pub(crate) live: bool,
    /// Index in [`Engine::channels`].
    pub(crate) place: u32,
    /// A publication arrived since the last position check.
    pub(crate) heard: bool,
    /// The position checks without a publication since the last one, at most [`EAGER_CHECKS`] + 1.
    pub(crate) silent_checks: u8,
    /// The channel is a wildcard.
    pub(crate) is_wildcard: bool,
    /// The channel had no subscribers at the last position check.
    pub(crate) idle: bool,
    /// The read of the stream in progress, at most one.
    pub(crate) read: Option<RepairRead>,
    /// The stream in the engine has reached at least this offset.
    pub(crate) known_top: u64,
    pub(crate) inherits: Lineage,
    /// Subscriptions that wait for the engine's answer or for a read, in order of arrival.
    pub(crate) waiting: Vec<(u8, Box<SubscribeRequest>)>,
    /// Publications after a gap, by offset.
    pub(crate) held: VecDeque<EnginePublication>,
}

/// A publication received from the engine.
pub(crate) struct EnginePublication {
    pub(crate) epoch: Epoch,
    pub(crate) publication: Publication,
    /// The session that does not receive it.
    pub(crate) except: Option<SessionId>,
}

// There may be one for each channel of a worker.
const _: () = assert!(size_of::<Agent>() <= 152);

/// A read of a stream in progress.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RepairRead {
    /// The key of the request.
    pub(crate) key: u32,
    /// Publications after this offset are read.
    pub(crate) since: u64,
    /// The read repairs a gap; otherwise it serves a recovering subscriber.
    pub(crate) repairs: bool,
    /// A subscription that is ahead of this node arrived after the read was sent.
    pub(crate) late: bool,
}

/// The engines of a hub and their outstanding requests.
pub(crate) struct Engines {
    pub(crate) configs: Vec<Engine>,
    /// The engine of each namespace; channels of other namespaces are in memory.
    pub(crate) namespaces: HashMap<Arc<str>, NamespaceEngine, RandomState>,
    /// By index of the home channel.
    pub(crate) agents: HashMap<u32, Box<Agent>, RandomState>,
    pub(crate) pending: PendingRequests<EngineWaiter>,
    /// Requests for the caller to send.
    pub(crate) requests: VecDeque<(EngineId, EngineRequest)>,
}

/// One engine.
pub(crate) struct Engine {
    pub(crate) config: EngineConfig,
    /// Home channels with an agent, in any order.
    pub(crate) channels: Vec<u32>,
    /// How many of them, from the end, remain to be checked in the current round.
    pub(crate) unchecked: usize,
    pub(crate) round_began_ms: u64,
    /// The number of the current round.
    pub(crate) round: u32,
    pub(crate) next_check_ms: u64,
    /// Bytes of publications held back by its agents.
    pub(crate) held_bytes: usize,
    /// Agents of wildcards.
    pub(crate) wildcards: usize,
}

/// What waits for an engine's answer.
pub(crate) struct EngineWaiter {
    pub(crate) engine: EngineId,
    pub(crate) kind: EngineWaiterKind,
}

pub(crate) enum EngineWaiterKind {
    /// A worker's publish. The publication is recorded as a channel event after it is stored, if such events are
    /// recorded.
    Publish { from: u8, request: WaiterId, reported: Option<Box<(Arc<str>, PublicationParts)>> },
    /// A worker's history read.
    History { from: u8, request: WaiterId },
    /// A round of the cursors in the record of this name.
    Cursor(Arc<str>),
    /// A worker's history removal.
    RemoveHistory { from: u8, request: WaiterId },
    /// An agent's subscription.
    Join { at: u32, incarnation: u32 },
    /// An agent's read.
    Read { at: u32, incarnation: u32 },
    /// The position check of these channels: index and incarnation.
    Positions(Box<[(u32, u32)]>),
}

// One for each outstanding publication.
const _: () = assert!(size_of::<EngineWaiter>() <= 32);

impl Agent {
    pub(crate) fn new(engine: EngineId, options: Arc<ChannelOptions>) -> Self {
        Self {
            engine,
            is_wildcard: options.wildcard,
            options,
            place: 0,
            joining: None,
            live: false,
            heard: true,
            silent_checks: 0,
            idle: false,
            read: None,
            known_top: 0,
            inherits: Lineage::default(),
            waiting: Vec::new(),
            held: VecDeque::new(),
        }
    }

    /// Translates a client's position to the stream's epoch.
    pub(crate) fn translate(&self, since: StreamPosition, epoch: Epoch) -> StreamPosition {
        if self.inherits.contains(since) { StreamPosition { epoch, ..since } } else { since }
    }

    /// Whether the position is in an earlier epoch, beyond what the stream inherited from it.
    pub(crate) fn has_ended(&self, since: StreamPosition) -> bool {
        self.inherits.has_epoch(since) && !self.inherits.contains(since)
    }
}

/// A channel is checked at each interval for so many intervals after its last publication. After that it is at rest, and is
/// checked at one interval of [`REST_INTERVALS`].
const EAGER_CHECKS: u8 = 4;

/// See [`EAGER_CHECKS`].
pub(crate) const REST_INTERVALS: u32 = 4;

impl Agent {
    /// Whether the channel's position is to be read at this check, the number `round` of its engine. `at`: the index of the
    /// channel, so that those at rest are not all checked at the same interval.
    pub(crate) fn is_check_due(&mut self, at: u32, round: u32) -> bool {
        if std::mem::take(&mut self.heard) {
            self.silent_checks = 0;
            return false;
        }
        self.silent_checks = (self.silent_checks + 1).min(EAGER_CHECKS + 1);
        self.silent_checks <= EAGER_CHECKS || round.wrapping_add(at).is_multiple_of(REST_INTERVALS)
    }
}

impl Engine {
    pub(crate) fn new(config: EngineConfig, now_ms: u64) -> Self {
        Self {
            config,
            channels: Vec::new(),
            unchecked: 0,
            round_began_ms: now_ms,
            round: 0,
            next_check_ms: now_ms + config.position_check_ms,
            held_bytes: 0,
            wildcards: 0,
        }
    }

    /// Whether another wildcard may be subscribed to.
    pub(crate) fn takes_wildcard(&self) -> bool {
        self.wildcards < self.config.wildcards_max
    }

    /// The channels to check now. A round over all channels takes no longer than the interval between two checks.
    pub(crate) fn begin_check(&mut self, now_ms: u64) -> Vec<u32> {
        let interval_ms = self.config.position_check_ms;
        if self.unchecked == 0 {
            self.unchecked = self.channels.len();
            self.round_began_ms = now_ms;
            self.round = self.round.wrapping_add(1);
        }
        let slices = self.channels.len().div_ceil(POSITIONS_MAX).clamp(1, SLICES_MAX);
        let size = self.channels.len().div_ceil(slices).next_multiple_of(POSITIONS_MAX);
        let end = self.unchecked;
        self.unchecked = end.saturating_sub(size);
        let next_ms = match self.unchecked {
            0 => self.round_began_ms + interval_ms,
            _ => now_ms + interval_ms / (2 * SLICES_MAX as u64),
        };
        self.next_check_ms = next_ms.max(now_ms + 1);
        self.channels[self.unchecked..end].to_vec()
    }
}

/// Parts in which the channels of an engine are checked, so that a worker with a million channels is not blocked.
const SLICES_MAX: usize = 16;

impl Engines {
    pub(crate) fn new(requests_max: u32) -> Self {
        Self {
            configs: Vec::new(),
            namespaces: HashMap::default(),
            agents: HashMap::default(),
            pending: PendingRequests::new(0, requests_max),
            requests: VecDeque::new(),
        }
    }

    /// Adds an agent to a home channel without one.
    pub(crate) fn add(&mut self, at: u32, mut agent: Box<Agent>) {
        if let Some(engine) = self.get_mut(agent.engine) {
            agent.place = engine.channels.len() as u32;
            engine.channels.push(at);
            engine.wildcards += usize::from(agent.is_wildcard);
        }
        self.agents.insert(at, agent);
    }

    /// Removes the agent of a home channel.
    pub(crate) fn remove(&mut self, at: u32) -> Option<Box<Agent>> {
        let agent = self.agents.remove(&at)?;
        let place = agent.place as usize;
        let Some(engine) = self.get_mut(agent.engine) else { return Some(agent) };
        engine.wildcards -= usize::from(agent.is_wildcard);
        engine.channels.swap_remove(place);
        engine.unchecked = engine.unchecked.min(engine.channels.len());
        if let Some(&moved) = engine.channels.get(place)
            && let Some(moved) = self.agents.get_mut(&moved)
        {
            moved.place = place as u32;
        }
        Some(agent)
    }

    /// The engine of a namespace's channels; `None` if they are in memory.
    pub(crate) fn of(&self, namespace: &str) -> Option<EngineId> {
        if self.namespaces.is_empty() {
            return None;
        }
        self.namespaces.get(namespace).map(|of| of.id)
    }

    pub(crate) fn get(&self, id: EngineId) -> Option<&Engine> {
        self.configs.iter().find(|engine| engine.config.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: EngineId) -> Option<&mut Engine> {
        self.configs.iter_mut().find(|engine| engine.config.id == id)
    }

    /// Begins a request. Returns its key, or `None` if there are too many.
    pub(crate) fn begin(
        &mut self,
        now_ms: u64,
        engine: EngineId,
        kind: EngineWaiterKind,
    ) -> Option<u32> {
        let timeout_ms = self.get(engine)?.config.timeout_ms;
        if !self.pending.has_room() {
            return None;
        }
        let waiter = EngineWaiter { engine, kind };
        Some(self.pending.insert(now_ms + timeout_ms, waiter).key)
    }

    /// Ends a request.
    pub(crate) fn end(&mut self, engine: EngineId, token: u64) -> Option<EngineWaiterKind> {
        let key = u32::try_from(token).ok()?;
        let waiter = self.pending.cancel(key)?;
        debug_assert!(waiter.engine == engine, "an engine answers what it was asked");
        Some(waiter.kind)
    }

    pub(crate) fn send(&mut self, engine: EngineId, request: EngineRequest) {
        self.requests.push_back((engine, request));
    }

    /// Bytes of publications held back after gaps.
    pub(crate) fn held_bytes(&self) -> usize {
        self.configs.iter().map(|engine| engine.held_bytes).sum()
    }

    /// When the next position check is due, if there is any engine subscription.
    pub(crate) fn next_check_ms(&self) -> Option<u64> {
        if self.agents.is_empty() {
            return None;
        }
        self.configs.iter().map(|engine| engine.next_check_ms).min()
    }

    /// Drops the publications that an agent holds back.
    pub(crate) fn clear_held(&mut self, at: u32) {
        let Some(agent) = self.agents.get_mut(&at) else { return };
        let bytes: usize = agent.held.drain(..).map(|held| held.publication.cost()).sum();
        agent.held = VecDeque::new();
        let engine = agent.engine;
        if let Some(engine) = self.get_mut(engine) {
            engine.held_bytes -= bytes;
        }
    }
}
