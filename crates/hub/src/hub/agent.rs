//! Channels at home here that are stored in an engine.
//!
//! The home worker sends requests to the engine and passes its publications on. A subscription is answered at
//! the position up to which publications were passed on, so a subscriber receives each publication after it
//! exactly once. [`repair`](super::repair) handles gaps.

use std::sync::Arc;

use hashbrown::HashSet;

use super::Hub;
use super::streams::EvictableFor;
use crate::agent::{Agent, Engine, EnginePublication, EngineWaiterKind};
use crate::channel_event::ChannelEvent;
use crate::config::Now;
use crate::engine::{
    EngineConfig, EngineEvent, EngineId, EnginePosition, EnginePublish, EngineRequest,
    NamespaceEngine, POSITIONS_MAX, Retention,
};
use crate::error::Error;
use crate::event::Published;
use crate::idempotency::DEFAULT_TTL_MS;
use crate::message::{
    HistoryRequest, HubMessageKind, PublishRequest, ReplyContent, SubscribeRequest, WaiterId,
};
use crate::options::ChannelOptions;
use crate::position::StreamPosition;
use crate::publication::{ClientInfo, PublicationParts};
use crate::session_id::SessionId;

impl Hub {
    /// Sets the engines and the namespaces that use them; channels of other namespaces are in memory. If a
    /// channel moves to another engine, or its name changes its meaning, its subscribers are unsubscribed
    /// with [`UNSUBSCRIBE_INSUFFICIENT_STATE`](crate::code::UNSUBSCRIBE_INSUFFICIENT_STATE); they subscribe
    /// again and recover what is available. Outstanding requests to a removed engine fail.
    pub fn set_engines(
        &mut self,
        now: Now,
        configs: &[EngineConfig],
        namespaces: impl IntoIterator<Item = (Arc<str>, NamespaceEngine)>,
    ) {
        self.now = now;
        let mut kept = std::mem::take(&mut self.engines.configs);
        self.engines.configs = configs
            .iter()
            .map(|&config| {
                let known = kept.iter().position(|engine| engine.config.id == config.id);
                match known.map(|at| kept.swap_remove(at)) {
                    Some(engine) => Engine { config, next_check_ms: now.ms, ..engine },
                    None => Engine::new(config, now.ms),
                }
            })
            .collect();
        let before = std::mem::take(&mut self.engines.namespaces);
        self.engines.namespaces.extend(namespaces);
        let after = &self.engines.namespaces;
        let moved: HashSet<u32> = before
            .keys()
            .chain(after.keys())
            .filter(|name| before.get(*name) != after.get(*name))
            .map(|name| self.shares.namespace(name))
            .collect();
        if !moved.is_empty() {
            for at in self.homes.indices() {
                if self.homes.get(at).is_some_and(|home| moved.contains(&home.namespace)) {
                    self.home_gap(at);
                    self.end_agent(at, Error::EngineUnavailable);
                    self.end_stream(at);
                    self.remove_if_empty(at);
                }
            }
        }
        let Self { engines, .. } = self;
        let is_gone = |id| engines.get(id).is_none();
        for key in engines.pending.keys(|waiter| is_gone(waiter.engine)) {
            self.engine_silent(key);
        }
        self.run();
    }

    /// Returns the next request for an engine. Call until `None` after each input.
    pub fn poll_engine(&mut self) -> Option<(EngineId, EngineRequest)> {
        self.engines.requests.pop_front()
    }

    /// Handles an event of an engine.
    pub fn handle_engine(&mut self, now: Now, engine: EngineId, event: EngineEvent) {
        self.now = now;
        match event {
            EngineEvent::Publication { channel, epoch, publication, except } => {
                if let Some(at) = self.agent_of(engine, &channel) {
                    self.agent_publication(at, EnginePublication { epoch, publication, except });
                }
            }
            EngineEvent::Subscribed { token, result } => {
                self.agent_subscribed(engine, token, result);
            }
            EngineEvent::Cleared { channel } => {
                if let Some(at) = self.agent_of(engine, &channel) {
                    self.clear_history(at);
                }
            }
            EngineEvent::Announced { channel, info, joined } => {
                if self.agent_of(engine, &channel).is_some() {
                    self.note_remote(&channel, &info, joined);
                }
            }
            EngineEvent::Lineage { channel, epoch, inherits } => {
                if let Some(at) = self.agent_of(engine, &channel)
                    && self.homes[at].stream.as_ref().is_some_and(|stream| stream.epoch == epoch)
                    && let Some(agent) = self.engines.agents.get_mut(&at)
                {
                    agent.inherits = inherits;
                }
            }
            EngineEvent::Published { token, result } => match self.engines.end(engine, token) {
                Some(EngineWaiterKind::Publish { from, request, reported }) => {
                    self.engine_published(from, request, reported, result);
                }
                Some(EngineWaiterKind::Cursor(name)) => self.round_written(&name, result),
                _ => {}
            },
            EngineEvent::History { token, result } => match self.engines.end(engine, token) {
                Some(EngineWaiterKind::Cursor(name)) => self.round_read(&name, result),
                Some(EngineWaiterKind::History { from, request }) => {
                    let content = result.map_or_else(ReplyContent::Failed, ReplyContent::History);
                    self.reply(from, request, content);
                }
                Some(EngineWaiterKind::Read { at, incarnation }) => {
                    self.agent_read(at, incarnation, result);
                }
                _ => {}
            },
            EngineEvent::HistoryRemoved { token, result } => {
                let ended = self.engines.end(engine, token);
                if let Some(EngineWaiterKind::RemoveHistory { from, request }) = ended {
                    let content = match result {
                        Ok(()) => ReplyContent::HistoryRemoved,
                        Err(error) => ReplyContent::Failed(error),
                    };
                    self.reply(from, request, content);
                }
            }
            EngineEvent::Positions { token, result } => {
                let ended = self.engines.end(engine, token);
                if let (Some(EngineWaiterKind::Positions(channels)), Ok(positions)) =
                    (ended, result)
                {
                    self.agents_checked(&channels, &positions);
                }
            }
        }
        self.run();
    }

    /// Ends requests that have timed out, and checks positions.
    pub(super) fn engines_timeout(&mut self) {
        for key in self.engines.pending.expired(self.now.ms) {
            self.stats.engine_timeouts += 1;
            self.engine_silent(key);
        }
        if self.engines.next_check_ms().is_some_and(|at| at <= self.now.ms) {
            self.check_positions();
        }
    }

    pub(super) fn engine_publish(&mut self, engine: EngineId, from: u8, asked: PublishRequest) {
        let PublishRequest { request, channel, options, mut publish } = asked;
        let is_stored = options.keeps_history() && !publish.skip_history;
        let can_tell = self.engines.get(engine).is_some_and(|engine| engine.config.is_durable);
        if publish.durability.is_some() && !(is_stored && can_tell) {
            self.reply(from, request, ReplyContent::Failed(Error::NotDurable));
            return;
        }
        publish.delta |= options.delta_publish;
        if publish.idempotency_key.is_some() {
            publish.idempotency_ttl_ms.get_or_insert(DEFAULT_TTL_MS);
        }
        let retention = match publish.skip_history {
            true => Retention::default(),
            false => self.retention(&options),
        };
        let time_ms = self.now.unix_ms;
        let reported = self.channel_event_filter.publications.then(|| {
            let publication = PublicationParts {
                offset: 0,
                data: publish.data.clone(),
                format: publish.format,
                delta: publish.delta,
                info: publish.info.clone(),
                tags: publish.tags.clone(),
                key: publish.key.clone(),
                channel: None,
                time_ms,
                trace: publish.trace,
            };
            Box::new((Arc::clone(&channel), publication))
        });
        let waiter = EngineWaiterKind::Publish { from, request, reported };
        let Some(key) = self.engines.begin(self.now.ms, engine, waiter) else {
            return self.engine_refuses(from, request);
        };
        let namespace = self.shares.namespace(&options.namespace);
        self.shares.share_mut(namespace).publications += 1;
        let publish = EnginePublish { token: key.into(), channel, retention, publish, time_ms };
        self.engines.send(engine, EngineRequest::Publish(Box::new(publish)));
    }

    fn engine_published(
        &mut self,
        from: u8,
        request: WaiterId,
        reported: Option<Box<(Arc<str>, PublicationParts)>>,
        result: Result<Published, Error>,
    ) {
        if let Ok(Published { position, suppressed: false, .. }) = result {
            self.stats.publications += 1;
            if let Some(reported) = reported {
                let (channel, mut publication) = *reported;
                publication.offset = position.offset;
                let publication = publication.into();
                let epoch = position.epoch;
                let event = ChannelEvent::Published { channel, epoch, publication };
                self.channel_events.push_back(event);
            }
        }
        let content = result.map_or_else(ReplyContent::Failed, ReplyContent::Published);
        self.reply(from, request, content);
    }

    pub(super) fn engine_history(&mut self, engine: EngineId, from: u8, asked: &HistoryRequest) {
        let waiter = EngineWaiterKind::History { from, request: asked.request };
        let Some(key) = self.engines.begin(self.now.ms, engine, waiter) else {
            return self.engine_refuses(from, asked.request);
        };
        let retention = self.retention(&asked.options);
        let channel = Arc::clone(&asked.channel);
        let filter = asked.filter;
        let (token, latest) = (key.into(), false);
        let request = EngineRequest::History { token, channel, retention, filter, latest };
        self.engines.send(engine, request);
    }

    pub(super) fn engine_history_remove(
        &mut self,
        engine: EngineId,
        from: u8,
        request: WaiterId,
        channel: Arc<str>,
    ) {
        let waiter = EngineWaiterKind::RemoveHistory { from, request };
        let Some(key) = self.engines.begin(self.now.ms, engine, waiter) else {
            return self.engine_refuses(from, request);
        };
        self.engines.send(engine, EngineRequest::RemoveHistory { token: key.into(), channel });
    }

    /// Announces a join or a leave of this node to servers of another kind that share the channel.
    pub(super) fn share_announcement(&mut self, at: u32, info: &Arc<ClientInfo>, joined: bool) {
        let Some(engine) = self.engines.agents.get(&at).map(|agent| agent.engine) else { return };
        if self.engines.get(engine).is_some_and(|engine| engine.config.shares_members) {
            let (channel, info) = (Arc::clone(&self.homes[at].name), Arc::clone(info));
            self.engines.send(engine, EngineRequest::Announce { channel, info, joined });
        }
    }

    /// How much the engine of the options' namespace stores of a channel.
    pub(super) fn retention(&self, options: &ChannelOptions) -> Retention {
        let namespace = self.engines.namespaces.get(&options.namespace);
        let durability = namespace.and_then(|namespace| namespace.durability);
        Retention::new(options, self.config.history_meta_ttl_ms, durability)
    }

    /// Too many requests to the engine are outstanding.
    fn engine_refuses(&mut self, from: u8, request: WaiterId) {
        self.stats.overloaded += 1;
        self.reply(from, request, ReplyContent::Failed(Error::Overloaded));
    }

    /// An engine has not answered a request in time, or was removed.
    fn engine_silent(&mut self, key: u32) {
        let Some(waiter) = self.engines.pending.cancel(key) else { return };
        match waiter.kind {
            EngineWaiterKind::Publish { from, request, .. }
            | EngineWaiterKind::RemoveHistory { from, request } => {
                self.reply(from, request, ReplyContent::Failed(Error::EngineUncertain));
            }
            EngineWaiterKind::History { from, request } => {
                self.reply(from, request, ReplyContent::Failed(Error::EngineUnavailable));
            }
            EngineWaiterKind::Join { at, incarnation } => {
                if self.is_agent(at, incarnation) {
                    self.end_agent(at, Error::EngineUnavailable);
                    self.remove_if_empty(at);
                }
            }
            EngineWaiterKind::Read { at, incarnation } => {
                self.agent_read(at, incarnation, Err(Error::EngineUnavailable));
            }
            EngineWaiterKind::Cursor(name) => {
                let is_written = self.is_round_written(&name);
                let error =
                    if is_written { Error::EngineUncertain } else { Error::EngineUnavailable };
                self.fail_round(&name, error);
            }
            EngineWaiterKind::Positions(_) => {}
        }
    }

    pub(super) fn agent_subscribe(&mut self, engine: EngineId, from: u8, asked: SubscribeRequest) {
        let (options, owner) = (&asked.options, asked.owner);
        if let Some(error) = self.wildcard_error(engine, &asked) {
            self.reply(from, asked.request, ReplyContent::Failed(error));
            return;
        }
        let Some(at) = self.home_channel(&asked.channel, options, owner, EvictableFor::Empty)
        else {
            self.reply(from, asked.request, ReplyContent::Failed(Error::LimitExceeded));
            return;
        };
        if !self.engines.agents.contains_key(&at) {
            self.engines.add(at, Box::new(Agent::new(engine, Arc::clone(options))));
        }
        let Some(agent) = self.engines.agents.get_mut(&at) else { return };
        debug_assert!(agent.engine == engine, "a channel that moves has no agent any more");
        agent.options = Arc::clone(options);
        // A channel whose history was enabled later has no stream here yet.
        let begins = agent.live && options.keeps_history() && self.homes[at].stream.is_none();
        if begins {
            agent.live = false;
        }
        agent.waiting.push((from, Box::new(asked)));
        if agent.live {
            return self.answer_waiting(at, None);
        }
        if agent.joining.is_none() {
            self.join(at);
        }
    }

    /// Why a subscription is refused: too many wildcards, or a worker whose settings differ.
    fn wildcard_error(&self, engine: EngineId, asked: &SubscribeRequest) -> Option<Error> {
        let is_wildcard = asked.options.wildcard;
        let known = self.homes.find(&self.names, &asked.channel);
        if let Some(agent) = known.and_then(|at| self.engines.agents.get(&at)) {
            return (agent.is_wildcard != is_wildcard).then_some(Error::EngineUnavailable);
        }
        if !is_wildcard {
            return None;
        }
        let of = self.engines.namespaces.get(&asked.options.namespace);
        if !of.is_some_and(|of| of.wildcards) {
            return Some(Error::EngineUnavailable);
        }
        let has_room = self.engines.get(engine).is_some_and(Engine::takes_wildcard);
        (!has_room).then_some(Error::LimitExceeded)
    }

    /// Requests the engine to subscribe to a channel.
    pub(super) fn join(&mut self, at: u32) {
        let (channel, incarnation) = (Arc::clone(&self.homes[at].name), self.homes[at].incarnation);
        let Some(agent) = self.engines.agents.get(&at) else { return };
        let engine = agent.engine;
        let retention = self.retention(&agent.options);
        let waiter = EngineWaiterKind::Join { at, incarnation };
        let Some(key) = self.engines.begin(self.now.ms, engine, waiter) else {
            self.stats.overloaded += 1;
            self.end_agent(at, Error::Overloaded);
            return self.remove_if_empty(at);
        };
        let Some(agent) = self.engines.agents.get_mut(&at) else { return };
        agent.joining = Some(key);
        let token = subscription_token(at, incarnation);
        let is_wildcard = agent.is_wildcard;
        let request = EngineRequest::Subscribe { token, channel, retention, is_wildcard };
        self.engines.send(engine, request);
    }

    fn agent_subscribed(
        &mut self,
        engine: EngineId,
        token: u64,
        result: Result<EnginePosition, Error>,
    ) {
        let (at, incarnation) = ((token >> 32) as u32, token as u32);
        if !self.is_agent(at, incarnation) {
            return;
        }
        let Some(agent) = self.engines.agents.get_mut(&at).filter(|agent| agent.engine == engine)
        else {
            return;
        };
        let joining = agent.joining.take();
        let position = match result {
            Ok(position) => position,
            Err(error) => {
                // The engine repeats an established subscription itself.
                if !agent.live {
                    self.end_agent(at, error);
                    self.remove_if_empty(at);
                }
                return;
            }
        };
        if let Some(key) = joining {
            self.engines.pending.cancel(key);
        }
        let Some(agent) = self.engines.agents.get_mut(&at) else { return };
        if agent.live {
            return self.resynchronize(at, position, true);
        }
        agent.live = true;
        if agent.options.keeps_history() {
            let options = Arc::clone(&agent.options);
            let owner = agent.waiting.first().map_or(Default::default(), |(_, of)| of.owner);
            if self.ensure_stream(at, &options, owner).is_none() {
                self.end_agent(at, Error::LimitExceeded);
                return self.remove_if_empty(at);
            }
            self.restart_stream(at, position);
        }
        self.deal_held(at);
        self.answer_waiting(at, None);
    }

    /// Notifies every worker with subscribers of a gap, and sends them nothing more until they subscribe
    /// again.
    pub(super) fn home_gap(&mut self, at: u32) {
        for worker in self.homes[at].interest.iter() {
            let channel = Arc::clone(&self.homes[at].name);
            self.drop_interest(at, worker);
            self.send_to(worker, HubMessageKind::Gap { channel });
        }
    }

    /// Ends this node's agent of a channel. Waiting subscriptions are answered with `error`.
    pub(super) fn end_agent(&mut self, at: u32, error: Error) {
        self.engines.clear_held(at);
        let Some(agent) = self.engines.remove(at) else { return };
        let keys = agent.joining.into_iter().chain(agent.read.map(|read| read.key));
        for key in keys {
            self.engines.pending.cancel(key);
        }
        for (from, asked) in agent.waiting {
            self.reply(from, asked.request, ReplyContent::Failed(error));
        }
        let channel = Arc::clone(&self.homes[at].name);
        self.engines.send(agent.engine, EngineRequest::Unsubscribe { channel });
        // Further publications of the channel are not received.
        self.end_stream(at);
    }

    /// Cancels the waiting subscriptions of a worker without subscribers, or of a session that has left.
    pub(super) fn forget_waiting(&mut self, at: u32, from: u8, member: Option<SessionId>) {
        if let Some(agent) = self.engines.agents.get_mut(&at) {
            agent.waiting.retain(|(worker, asked)| {
                let of = asked.member.as_ref().map(|info| info.client);
                *worker != from || member.is_some_and(|member| of != Some(member))
            });
        }
    }

    /// Requests the positions of channels without recent publications, and ends agents without subscribers.
    /// Many channels are checked in slices.
    fn check_positions(&mut self) {
        let now_ms = self.now.ms;
        for engine in 0..self.engines.configs.len() {
            if self.engines.configs[engine].next_check_ms <= now_ms {
                let slice = self.engines.configs[engine].begin_check(now_ms);
                let Engine { config, round, .. } = self.engines.configs[engine];
                self.check_channels(config.id, round, &slice);
            }
        }
    }

    fn check_channels(&mut self, engine: EngineId, round: u32, slice: &[u32]) {
        let (mut silent, mut unused) = (Vec::new(), Vec::new());
        for &at in slice {
            let Some(agent) = self.engines.agents.get_mut(&at) else { continue };
            let home = &self.homes[at];
            if home.interest.is_empty() && agent.waiting.is_empty() {
                if std::mem::replace(&mut agent.idle, true) {
                    unused.push(at);
                }
                continue;
            }
            agent.idle = false;
            if agent.is_check_due(at, round) && agent.live && home.stream.is_some() {
                silent.push((at, home.incarnation));
            }
        }
        for at in unused {
            self.end_agent(at, Error::EngineUnavailable);
            self.remove_if_empty(at);
        }
        for channels in silent.chunks(POSITIONS_MAX) {
            let names = channels.iter().map(|&(at, _)| Arc::clone(&self.homes[at].name)).collect();
            let waiter = EngineWaiterKind::Positions(channels.into());
            let Some(key) = self.engines.begin(self.now.ms, engine, waiter) else { break };
            let request = EngineRequest::Positions { token: key.into(), channels: names };
            self.engines.send(engine, request);
        }
    }

    fn agents_checked(&mut self, channels: &[(u32, u32)], positions: &[StreamPosition]) {
        for (&(at, incarnation), &position) in channels.iter().zip(positions) {
            if !self.is_agent(at, incarnation) {
                continue;
            }
            let Some(stream) = &self.homes[at].stream else { continue };
            // Publications received since the read may be after it.
            if stream.epoch != position.epoch || stream.top < position.offset {
                self.resynchronize(at, EnginePosition { position, ..Default::default() }, false);
            }
        }
    }

    fn is_agent(&self, at: u32, incarnation: u32) -> bool {
        self.engines.agents.contains_key(&at)
            && self.homes.get(at).is_some_and(|home| home.incarnation == incarnation)
    }

    /// The channel that this node is subscribed to in the engine.
    fn agent_of(&self, engine: EngineId, channel: &str) -> Option<u32> {
        let at = self.homes.find(&self.names, channel)?;
        self.engines.agents.get(&at).filter(|agent| agent.engine == engine).map(|_| at)
    }
}

/// The token of a subscription in an engine.
fn subscription_token(at: u32, incarnation: u32) -> u64 {
    u64::from(at) << 32 | u64::from(incarnation)
}
