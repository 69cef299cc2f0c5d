//! The home side of a channel that lives in an engine.

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

/// This node's agent of a channel that lives in an engine. Exists from the first subscriber here until a while after the
/// last; the [`Stream`](crate::history::Stream) of its home channel is its ring of recent publications, and the
/// stream's top is what was dealt to the workers.
pub(crate) struct Agent {
    pub(crate) engine: EngineId,
    /// Of the newest subscription.
    pub(crate) options: Arc<ChannelOptions>,
    /// The request by which the subscription is being made; none once it has been.
    pub(crate) joining: Option<u32>,
    /// The engine's answer to it has come, and publications are dealt.
    pub(crate) live: bool,
    /// Its place in [`Engine::channels`].
    pub(crate) place: u32,
    /// Something was heard since the last check of positions.
    pub(crate) heard: bool,
    /// Of a wildcard.
    pub(crate) is_wildcard: bool,
    /// Nobody was subscribed at the last check of positions.
    pub(crate) idle: bool,
    /// A read of the stream under way. One at a time.
    pub(crate) read: Option<RepairRead>,
    /// The stream in the engine reaches at least this offset.
    pub(crate) known_top: u64,
    pub(crate) inherits: Lineage,
    /// Subscriptions that wait: for the engine's answer, or for a read. In the order in which they came.
    pub(crate) waiting: Vec<(u8, Box<SubscribeRequest>)>,
    /// Publications behind a gap, by offset.
    pub(crate) held: VecDeque<EnginePublication>,
}

/// A publication as the engine says it.
pub(crate) struct EnginePublication {
    pub(crate) epoch: Epoch,
    pub(crate) publication: Publication,
    /// The session that it is not for.
    pub(crate) except: Option<SessionId>,
}

// There may be one for each channel of a worker.
const _: () = assert!(size_of::<Agent>() <= 152);

/// A read of a stream under way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RepairRead {
    /// Of the request.
    pub(crate) key: u32,
    /// Everything after this offset is read.
    pub(crate) since: u64,
    /// In order to repair a gap, and not for a subscriber that recovers.
    pub(crate) repairs: bool,
    /// A subscription has come since it was sent that is ahead of this node.
    pub(crate) late: bool,
}

/// The engines of a hub, and what is under way there.
pub(crate) struct Engines {
    pub(crate) configs: Vec<Engine>,
    /// Where the channels of a namespace live; those of any other in memory.
    pub(crate) namespaces: HashMap<Arc<str>, NamespaceEngine, RandomState>,
    /// By index of the home channel.
    pub(crate) agents: HashMap<u32, Box<Agent>, RandomState>,
    pub(crate) pending: PendingRequests<EngineWaiter>,
    /// For the caller to take.
    pub(crate) requests: VecDeque<(EngineId, EngineRequest)>,
}

/// One engine.
pub(crate) struct Engine {
    pub(crate) config: EngineConfig,
    /// Home channels with an agent, in any order.
    pub(crate) channels: Vec<u32>,
    /// How many of them, from the end, are still to be checked in this round, which has begun then.
    pub(crate) unchecked: usize,
    pub(crate) round_began_ms: u64,
    pub(crate) next_check_ms: u64,
    /// Bytes of publications that its agents hold back.
    pub(crate) held_bytes: usize,
    /// Agents of wildcards.
    pub(crate) wildcards: usize,
}

/// Who waits for an answer of an engine.
pub(crate) struct EngineWaiter {
    pub(crate) engine: EngineId,
    pub(crate) kind: EngineWaiterKind,
}

pub(crate) enum EngineWaiterKind {
    /// A worker that publishes. The publication is reported once it is stored, if anybody wants it.
    Publish { from: u8, request: WaiterId, reported: Option<Box<(Arc<str>, PublicationParts)>> },
    /// A worker that reads.
    History { from: u8, request: WaiterId },
    /// A worker that removes.
    RemoveHistory { from: u8, request: WaiterId },
    /// An agent that subscribes.
    Join { at: u32, incarnation: u32 },
    /// An agent that reads.
    Read { at: u32, incarnation: u32 },
    /// The check of these channels: index and incarnation.
    Positions(Box<[(u32, u32)]>),
}

// One for each publication under way.
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
            idle: false,
            read: None,
            known_top: 0,
            inherits: Lineage::default(),
            waiting: Vec::new(),
            held: VecDeque::new(),
        }
    }

    /// A client's position in terms of the stream's epoch.
    pub(crate) fn translate(&self, since: StreamPosition, epoch: Epoch) -> StreamPosition {
        if self.inherits.contains(since) { StreamPosition { epoch, ..since } } else { since }
    }

    /// Whether the position is of an epoch before the stream's, and what was there was lost.
    pub(crate) fn has_ended(&self, since: StreamPosition) -> bool {
        self.inherits.has_epoch(since) && !self.inherits.contains(since)
    }
}

impl Engine {
    pub(crate) fn new(config: EngineConfig, now_ms: u64) -> Self {
        Self {
            config,
            channels: Vec::new(),
            unchecked: 0,
            round_began_ms: now_ms,
            next_check_ms: now_ms + config.position_check_ms,
            held_bytes: 0,
            wildcards: 0,
        }
    }

    /// Whether one more wildcard may be heard.
    pub(crate) fn takes_wildcard(&self) -> bool {
        self.wildcards < self.config.wildcards_max
    }

    /// The channels to be checked now. A round over all of them takes no longer than the time between two.
    pub(crate) fn begin_check(&mut self, now_ms: u64) -> Vec<u32> {
        let interval_ms = self.config.position_check_ms;
        if self.unchecked == 0 {
            self.unchecked = self.channels.len();
            self.round_began_ms = now_ms;
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

/// Parts in which the channels of an engine are checked, so that a worker with a million of them does other things in between.
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

    /// Adds an agent of a home channel that has none.
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

    /// Where the channels of a namespace live. `None`: in memory.
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

    /// A request begins: its key, if there is room for it.
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

    /// A request has ended.
    pub(crate) fn end(&mut self, engine: EngineId, token: u64) -> Option<EngineWaiterKind> {
        let key = u32::try_from(token).ok()?;
        let waiter = self.pending.cancel(key)?;
        debug_assert!(waiter.engine == engine, "an engine answers what it was asked");
        Some(waiter.kind)
    }

    pub(crate) fn send(&mut self, engine: EngineId, request: EngineRequest) {
        self.requests.push_back((engine, request));
    }

    /// Bytes of publications that wait behind a gap.
    pub(crate) fn held_bytes(&self) -> usize {
        self.configs.iter().map(|engine| engine.held_bytes).sum()
    }

    /// When the next position check is due, if any channel is heard.
    pub(crate) fn next_check_ms(&self) -> Option<u64> {
        if self.agents.is_empty() {
            return None;
        }
        self.configs.iter().map(|engine| engine.next_check_ms).min()
    }

    /// Drops what an agent holds back.
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
