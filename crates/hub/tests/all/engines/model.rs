//! A model of an engine, and nodes that share it.

#![allow(unreachable_pub, reason = "a module of tests has no outside")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use dunlin_hub::engine::{
    EngineConfig, EngineEvent, EngineId, EnginePosition, EngineRequest, NamespaceEngine, Retention,
};
use dunlin_hub::{
    ChannelOptions, ChannelRef, CursorOwner, CursorState, Epoch, Error, Event, History,
    NewPublication, Publication, PublicationParts, Published, SessionId, StreamPosition,
    SubscribeOptions, Subscribed,
};

use crate::kit::World;

pub const ENGINE: EngineId = EngineId(1);
pub const CONFIG: EngineConfig = EngineConfig {
    id: ENGINE,
    timeout_ms: 2_000,
    position_check_ms: 5_000,
    held_bytes_max: 1 << 20,
    shares_members: false,
    wildcards_max: 2,
    is_durable: false,
};

#[derive(Default)]
struct Stream {
    epoch: Epoch,
    top: u64,
    kept: VecDeque<Publication>,
}

/// The connection of one worker, first in, first out.
pub struct NodeLink {
    pub up: bool,
    /// Channels heard, and the tokens of their subscriptions.
    heard: BTreeMap<Arc<str>, (u64, Retention)>,
    /// On its way to the hub.
    pub events: VecDeque<EngineEvent>,
    /// Publications that are lost on the way, next.
    pub lose: usize,
    /// Requests that came while it was down.
    requests: VecDeque<EngineRequest>,
}

/// Nodes and their engine.
pub struct Fleet {
    pub nodes: Vec<World>,
    streams: BTreeMap<Arc<str>, Stream>,
    epochs: u64,
    links: BTreeMap<(usize, u8), NodeLink>,
    pub reads: usize,
    pub position_requests: usize,
    pub positions_read: usize,
}

impl Fleet {
    pub fn new(nodes: usize, workers: u8) -> Fleet {
        let nodes: Vec<World> = (0..nodes).map(|_| World::new(workers)).collect();
        let mut fleet = Fleet {
            links: BTreeMap::new(),
            streams: BTreeMap::new(),
            epochs: 0,
            reads: 0,
            position_requests: 0,
            positions_read: 0,
            nodes,
        };
        for node in 0..fleet.nodes.len() {
            for worker in 0..workers {
                let link = NodeLink {
                    up: true,
                    heard: BTreeMap::new(),
                    events: VecDeque::new(),
                    lose: 0,
                    requests: VecDeque::new(),
                };
                fleet.links.insert((node, worker), link);
            }
            fleet.use_engine(node, &CONFIG);
        }
        fleet
    }

    pub fn use_engine(&mut self, node: usize, config: &EngineConfig) {
        let world = &mut self.nodes[node];
        for hub in &mut world.hubs {
            hub.set_engines(
                world.now,
                &[*config],
                [("".into(), NamespaceEngine { id: config.id, wildcards: true, durability: None })],
            );
        }
        self.settle();
    }

    pub fn links(&mut self, node: usize) -> impl Iterator<Item = &mut NodeLink> {
        self.links.iter_mut().filter(move |((of, _), _)| *of == node).map(|(_, link)| link)
    }

    /// Delivers until nothing moves.
    pub fn settle(&mut self) {
        loop {
            for node in 0..self.nodes.len() {
                self.nodes[node].settle();
                self.take_requests(node);
            }
            let at: Vec<(usize, u8)> = self.links.keys().copied().collect();
            let mut moved = false;
            for (node, worker) in at {
                moved |= self.deliver(node, worker);
            }
            if !moved {
                return;
            }
        }
    }

    /// Hands one event to its hub.
    pub fn deliver(&mut self, node: usize, worker: u8) -> bool {
        let Some(link) = self.links.get_mut(&(node, worker)) else { return false };
        let Some(event) = link.events.pop_front() else { return false };
        let world = &mut self.nodes[node];
        let now = world.now;
        world.hub(worker).handle_engine(now, ENGINE, event);
        world.settle();
        self.take_requests(node);
        true
    }

    pub fn take_requests(&mut self, node: usize) {
        for worker in 0..self.nodes[node].hubs.len() as u8 {
            while let Some((_, request)) = self.nodes[node].hub(worker).poll_engine() {
                self.carry_out(node, worker, request);
            }
        }
    }

    fn stream(&mut self, channel: &Arc<str>) -> &mut Stream {
        let Self { streams, epochs, .. } = self;
        streams.entry(Arc::clone(channel)).or_insert_with(|| {
            *epochs += 1;
            Stream { epoch: Epoch::from_u64(1_000 + *epochs), ..Stream::default() }
        })
    }

    fn position(&mut self, channel: &Arc<str>, retention: Retention) -> StreamPosition {
        if !retention.keeps() {
            return StreamPosition::default();
        }
        let stream = self.stream(channel);
        StreamPosition { offset: stream.top, epoch: stream.epoch }
    }

    fn carry_out(&mut self, node: usize, worker: u8, request: EngineRequest) {
        let at = (node, worker);
        let link = self.links.get_mut(&at).expect("a link");
        if !link.up {
            match request {
                EngineRequest::Subscribe { token, channel, retention, .. } => {
                    link.heard.insert(channel, (token, retention));
                }
                EngineRequest::Unsubscribe { channel } => {
                    link.heard.remove(&channel);
                }
                other => link.requests.push_back(other),
            }
            return;
        }
        let event = match request {
            EngineRequest::Publish(publish) => {
                let new = publish.publish;
                let mut publication = PublicationParts {
                    data: new.data,
                    format: new.format,
                    tags: new.tags,
                    key: new.key,
                    info: new.info,
                    delta: new.delta,
                    time_ms: publish.time_ms,
                    ..PublicationParts::default()
                };
                let mut position = StreamPosition::default();
                if publish.retention.keeps() {
                    let stream = self.stream(&publish.channel);
                    stream.top += 1;
                    position = StreamPosition { offset: stream.top, epoch: stream.epoch };
                    publication.offset = stream.top;
                    stream.kept.push_back(publication.clone().into());
                    while stream.kept.len() > publish.retention.size as usize {
                        stream.kept.pop_front();
                    }
                }
                self.push(&publish.channel, position.epoch, &publication.into());
                let result = Ok(Published { position, suppressed: false, durability: None });
                EngineEvent::Published { token: publish.token, result }
            }
            EngineRequest::Subscribe { token, channel, retention, .. } => {
                link.heard.insert(Arc::clone(&channel), (token, retention));
                let position = self.position(&channel, retention);
                let result = Ok(EnginePosition { position, ..Default::default() });
                EngineEvent::Subscribed { token, result }
            }
            EngineRequest::Unsubscribe { channel } => {
                link.heard.remove(&channel);
                return;
            }
            EngineRequest::History { token, channel, filter, .. } => {
                self.reads += 1;
                let stream = self.stream(&channel);
                let position = StreamPosition { offset: stream.top, epoch: stream.epoch };
                let since = filter.since.unwrap_or_default();
                let result = if filter.since.is_some() && since.epoch != stream.epoch {
                    Err(Error::UnrecoverablePosition(position))
                } else {
                    let kept = stream.kept.iter().filter(|kept| kept.offset() > since.offset);
                    let mut publications: Vec<_> = kept.cloned().collect();
                    if filter.reverse {
                        publications.reverse();
                    }
                    publications.truncate(filter.limit.map_or(usize::MAX, |limit| limit as usize));
                    Ok(History { publications, position })
                };
                EngineEvent::History { token, result }
            }
            EngineRequest::RemoveHistory { token, channel } => {
                self.stream(&channel).kept.clear();
                for link in self.links.values_mut() {
                    if link.heard.contains_key(&channel) {
                        let channel = Arc::clone(&channel);
                        link.events.push_back(EngineEvent::Cleared { channel });
                    }
                }
                EngineEvent::HistoryRemoved { token, result: Ok(()) }
            }
            EngineRequest::Positions { token, channels } => {
                self.position_requests += 1;
                self.positions_read += channels.len();
                let of = |channel| {
                    self.streams.get(channel).map_or(StreamPosition::default(), |stream| {
                        StreamPosition { offset: stream.top, epoch: stream.epoch }
                    })
                };
                let result = Ok(channels.iter().map(of).collect());
                EngineEvent::Positions { token, result }
            }
            // Those of the asking node's kind know it by other ways.
            EngineRequest::Announce { channel, info, joined } => {
                for (&(other, _), link) in &mut self.links {
                    if other != node && link.heard.contains_key(&channel) {
                        let (channel, info) = (Arc::clone(&channel), Arc::clone(&info));
                        link.events.push_back(EngineEvent::Announced { channel, info, joined });
                    }
                }
                return;
            }
            other => panic!("{other:?}"),
        };
        self.links.get_mut(&at).expect("a link").events.push_back(event);
    }

    fn push(&mut self, channel: &Arc<str>, epoch: Epoch, publication: &Publication) {
        for link in self.links.values_mut() {
            if !link.up || !link.heard.contains_key(channel) {
                continue;
            }
            if link.lose > 0 {
                link.lose -= 1;
                continue;
            }
            let (channel, publication) = (Arc::clone(channel), publication.clone());
            link.events.push_back(EngineEvent::Publication {
                channel,
                epoch,
                publication,
                except: None,
            });
        }
    }

    /// A node's connections break: what was on its way is lost.
    pub fn cut(&mut self, node: usize) {
        for link in self.links(node) {
            link.up = false;
            for event in std::mem::take(&mut link.events) {
                if let EngineEvent::Published { token, .. } = event {
                    let result = Err(Error::EngineUncertain);
                    link.events.push_back(EngineEvent::Published { token, result });
                }
            }
        }
    }

    /// They are there again, and the engine subscribes anew.
    pub fn mend(&mut self, node: usize) {
        let at: Vec<(usize, u8)> = self.links.keys().copied().filter(|at| at.0 == node).collect();
        for at in at {
            let link = self.links.get_mut(&at).expect("a link");
            link.up = true;
            let (heard, requests) = (link.heard.clone(), std::mem::take(&mut link.requests));
            for (channel, (token, retention)) in heard {
                let request =
                    EngineRequest::Subscribe { token, channel, retention, is_wildcard: false };
                self.carry_out(at.0, at.1, request);
            }
            for request in requests {
                self.carry_out(at.0, at.1, request);
            }
        }
    }

    /// The engine's data is lost.
    pub fn forget(&mut self) {
        self.streams.clear();
    }

    /// It keeps no publication up to this offset any more.
    pub fn trim(&mut self, channel: &str, offset: u64) {
        if let Some(stream) = self.streams.get_mut(channel) {
            stream.kept.retain(|kept| kept.offset() > offset);
        }
    }

    pub fn pass(&mut self, ms: u64) {
        for world in &mut self.nodes {
            world.pass(ms);
        }
        self.settle();
    }

    pub fn subscribe(
        &mut self,
        node: usize,
        session: SessionId,
        channel: &str,
        options: &Arc<ChannelOptions>,
        subscribe: SubscribeOptions,
    ) -> Result<Subscribed, Error> {
        self.begin_subscribe(node, session, channel, options, subscribe);
        self.settle();
        self.subscribed(node, session).expect("an answer")
    }

    pub fn begin_subscribe(
        &mut self,
        node: usize,
        session: SessionId,
        channel: &str,
        options: &Arc<ChannelOptions>,
        subscribe: SubscribeOptions,
    ) {
        let world = &mut self.nodes[node];
        let now = world.now;
        let hub = world.hub(session.worker());
        hub.handle_subscribe(now, 77, session, ChannelRef::new(channel, options), subscribe);
        world.settle();
        self.take_requests(node);
    }

    pub fn subscribed(
        &mut self,
        node: usize,
        session: SessionId,
    ) -> Option<Result<Subscribed, Error>> {
        let events = &mut self.nodes[node].events;
        let at = events.iter().position(|(_, event)| {
            matches!(event, Event::Subscribed { token: 77, session: who, .. } if *who == session)
        });
        match events.remove(at?).1 {
            Event::Subscribed { result, .. } => Some(result),
            _ => unreachable!("just matched"),
        }
    }

    /// Acknowledges for a user's device, on any worker, or reads its cursor.
    pub fn cursor(
        &mut self,
        (node, worker): (usize, u8),
        (channel, options): (&str, &Arc<ChannelOptions>),
        (user, device): (&str, &str),
        acked: Option<StreamPosition>,
    ) -> Result<CursorState, Error> {
        self.begin_cursor((node, worker), (channel, options), (user, device), acked);
        self.settle();
        self.cursor_answers(node).pop().expect("an answer")
    }

    pub fn begin_cursor(
        &mut self,
        (node, worker): (usize, u8),
        (channel, options): (&str, &Arc<ChannelOptions>),
        (user, device): (&str, &str),
        acked: Option<StreamPosition>,
    ) {
        let world = &mut self.nodes[node];
        let (now, channel) = (world.now, ChannelRef::new(channel, options));
        let owner = CursorOwner { user: user.into(), device: device.into() };
        world.hub(worker).handle_cursor(now, 99, channel, owner, acked);
        world.settle();
        self.take_requests(node);
    }

    pub fn cursor_answers(&mut self, node: usize) -> Vec<Result<CursorState, Error>> {
        let events = &mut self.nodes[node].events;
        let ended = events.extract_if(.., |(_, event)| matches!(event, Event::Cursor { .. }));
        let result = |(_, event)| match event {
            Event::Cursor { result, .. } => result,
            other => panic!("{other:?}"),
        };
        ended.map(result).collect()
    }

    pub fn publish(
        &mut self,
        node: usize,
        channel: &str,
        options: &Arc<ChannelOptions>,
        publish: NewPublication,
    ) -> Result<Published, Error> {
        self.begin_publish(node, channel, options, publish);
        self.settle();
        self.published(node).expect("an answer")
    }

    pub fn begin_publish(
        &mut self,
        node: usize,
        channel: &str,
        options: &Arc<ChannelOptions>,
        publish: NewPublication,
    ) {
        let world = &mut self.nodes[node];
        let now = world.now;
        world.hub(0).handle_publish(now, 88, ChannelRef::new(channel, options), publish);
        world.settle();
        self.take_requests(node);
    }

    pub fn published(&mut self, node: usize) -> Option<Result<Published, Error>> {
        let events = &mut self.nodes[node].events;
        let is_it = |(_, event): &(u8, Event)| matches!(event, Event::Published { token: 88, .. });
        let at = events.iter().position(is_it)?;
        match events.remove(at).1 {
            Event::Published { result, .. } => Some(result),
            _ => unreachable!("just matched"),
        }
    }
}
