//! Nodes: an engine each, with real connections, on one loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_engine::redis::{RedisConfig, RedisEngine, Topology};
use dunlin_engine::{
    EngineEvent, EnginePosition, EnginePublish, EngineRequest, LinkFull, Links, Retention, Server,
    ShardId,
};
use dunlin_hub::{Error, History, HistoryFilter, NewPublication, Published, StreamPosition};
use dunlin_net::redis::{Client, ClientConfig, Received};
use dunlin_net::{
    CloseReason, ConnId, ConnectConfig, Context, EventLoop, Handler, Limits, LoopConfig, Place,
    TimerId,
};

const TIMEOUT: Duration = Duration::from_secs(300);

pub const KEPT: Retention = Retention { size: 100, ttl_ms: 60_000, meta_ttl_ms: 600_000 };
pub const UNKEPT: Retention = Retention { size: 0, ttl_ms: 0, meta_ttl_ms: 0 };

pub struct Node {
    pub engine: RedisEngine,
    clients: BTreeMap<u16, Client>,
    pub events: Vec<EngineEvent>,
    auth: Option<(String, String)>,
    token: u64,
    /// Messages are dropped on their way until the next connection.
    deaf: bool,
}

struct NodeLinks<'a> {
    cx: &'a mut Context<()>,
    clients: &'a mut BTreeMap<u16, Client>,
    auth: &'a Option<(String, String)>,
}

impl NodeLinks<'_> {
    fn client(&mut self, shard: ShardId) -> (&mut Client, &mut Context<()>) {
        (self.clients.get_mut(&shard.0).expect("opened before it is used"), self.cx)
    }
}

impl Links for NodeLinks<'_> {
    fn open(&mut self, shard: ShardId, server: &Server) {
        let place = Place::Network { host: server.host.clone(), port: server.port };
        if let Some(client) = self.clients.get_mut(&shard.0) {
            return client.move_to(self.cx, place, connect_config());
        }
        let mut config = ClientConfig::at(place);
        config.connect = connect_config();
        (config.requeue, config.retry_ms_min, config.retry_ms_max) = (false, 10, 200);
        config.auth = self.auth.clone();
        let mut client = Client::new(config);
        client.connect(self.cx);
        self.clients.insert(shard.0, client);
    }

    fn reconnect(&mut self, shard: ShardId) {
        let (client, cx) = self.client(shard);
        client.reconnect(cx);
    }

    fn close(&mut self, shard: ShardId) {
        let (client, cx) = self.client(shard);
        client.close(cx);
    }

    fn command(&mut self, shard: ShardId, token: u64, arguments: &[&[u8]]) -> Result<(), LinkFull> {
        let (client, cx) = self.client(shard);
        client.command(cx, token, arguments).map_err(|_| LinkFull)
    }

    fn subscribe(&mut self, shard: ShardId, channel: &[u8], sharded: bool) {
        let (client, cx) = self.client(shard);
        match sharded {
            true => client.subscribe_sharded(cx, channel),
            false => client.subscribe(cx, channel),
        }
    }

    fn unsubscribe(&mut self, shard: ShardId, channel: &[u8], sharded: bool) {
        let (client, cx) = self.client(shard);
        match sharded {
            true => client.unsubscribe_sharded(cx, channel),
            false => client.unsubscribe(cx, channel),
        }
    }
}

fn connect_config() -> ConnectConfig {
    let limits = Limits { output_bytes_max: 16 << 20, ..Limits::default() };
    ConnectConfig { limits, ..ConnectConfig::default() }
}

impl Node {
    /// From now on no message reaches the engine by the connections that it has.
    pub fn deafen(&mut self) {
        self.deaf = true;
    }

    fn turn(&mut self, cx: &mut Context<()>) {
        let now_ms = cx.now_ms();
        for (&shard, client) in &mut self.clients {
            while let Some(lost) = client.poll_lost() {
                self.engine.handle_lost(now_ms, ShardId(shard), lost.token, lost.sent);
            }
        }
        if self.engine.poll_timeout().is_some_and(|at_ms| at_ms <= now_ms) {
            self.engine.handle_timeout(now_ms);
        }
        let Node { engine, clients, auth, .. } = self;
        engine.flush(now_ms, &mut NodeLinks { cx, clients, auth });
        while let Some(event) = self.engine.poll_event() {
            self.events.push(event);
        }
    }
}

#[derive(Default)]
pub struct Nodes(pub Vec<Node>);

impl Nodes {
    fn closed(&mut self, cx: &mut Context<()>, conn: ConnId) {
        for node in &mut self.0 {
            for (&shard, client) in &mut node.clients {
                if client.owns(conn) {
                    client.handle_close(cx, conn);
                    while let Some(lost) = client.poll_lost() {
                        node.engine.handle_lost(cx.now_ms(), ShardId(shard), lost.token, lost.sent);
                    }
                    let reason = client.last_error().unwrap_or_default();
                    node.engine.handle_closed(cx.now_ms(), ShardId(shard), reason);
                    return;
                }
            }
        }
    }
}

impl Handler for Nodes {
    type Data = ();

    fn on_connect(&mut self, cx: &mut Context<()>, conn: ConnId) {
        for client in self.0.iter_mut().flat_map(|node| node.clients.values_mut()) {
            client.handle_connect(cx, conn);
        }
    }

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        for node in &mut self.0 {
            let Node { engine, clients, deaf, .. } = node;
            for (&shard, client) in clients {
                let shard = ShardId(shard);
                client.handle_data(cx, conn, bytes, |_, cx, received| match received {
                    Received::Ready => {
                        *deaf = false;
                        engine.handle_ready(cx.now_ms(), shard);
                    }
                    Received::Message(_) if *deaf => {}
                    Received::Reply(token, reply) => {
                        engine.handle_reply(cx.now_ms(), shard, token, reply);
                    }
                    Received::Message(message) => {
                        let (channel, payload) = (message.channel, message.payload);
                        engine.handle_message(cx.now_ms(), shard, channel, payload);
                    }
                    Received::Push(push) => engine.handle_push(cx.now_ms(), shard, push),
                });
            }
        }
    }

    fn on_writable(&mut self, cx: &mut Context<()>, conn: ConnId) {
        for client in self.0.iter_mut().flat_map(|node| node.clients.values_mut()) {
            client.handle_writable(cx, conn);
        }
    }

    fn on_connect_failed(
        &mut self,
        cx: &mut Context<()>,
        conn: ConnId,
        (): (),
        error: &std::io::Error,
    ) {
        let text = error.to_string();
        for node in &mut self.0 {
            for (&shard, client) in &mut node.clients {
                if client.owns(conn) {
                    client.handle_connect_failed(cx, conn, error);
                    node.engine.handle_closed(cx.now_ms(), ShardId(shard), &text);
                    return;
                }
            }
        }
    }

    fn on_close(&mut self, cx: &mut Context<()>, conn: ConnId, (): (), _: CloseReason) {
        self.closed(cx, conn);
    }

    fn on_timer(&mut self, cx: &mut Context<()>, timer: TimerId, _: u64) {
        for client in self.0.iter_mut().flat_map(|node| node.clients.values_mut()) {
            client.handle_timer(cx, timer);
        }
    }

    fn on_tick(&mut self, cx: &mut Context<()>) {
        for node in &mut self.0 {
            node.turn(cx);
        }
    }
}

/// Nodes of one fleet.
pub struct Fleet {
    event_loop: EventLoop<Nodes>,
    pub nodes: Nodes,
}

impl Fleet {
    /// Nodes that wait until their engine is ready.
    pub fn new(topology: &Topology, nodes: usize) -> Fleet {
        let mut fleet = Fleet::starting(&RedisConfig::new(topology.clone()), nodes, None);
        fleet.until_ready();
        fleet
    }

    pub fn starting(config: &RedisConfig, nodes: usize, auth: Option<&(String, String)>) -> Fleet {
        let event_loop = EventLoop::new(LoopConfig::default()).unwrap();
        let mut fleet = Fleet { event_loop, nodes: Nodes::default() };
        for _ in 0..nodes {
            let cx = fleet.event_loop.context();
            let engine = RedisEngine::new(config.clone(), cx.random_u64(), cx.now_ms());
            let (clients, events, auth) = (BTreeMap::new(), Vec::new(), auth.cloned());
            fleet.nodes.0.push(Node {
                engine,
                clients,
                events,
                auth: auth.clone(),
                token: 0,
                deaf: false,
            });
        }
        fleet
    }

    pub fn until_ready(&mut self) {
        self.until("ready", |nodes| nodes.iter().all(|node| node.engine.is_ready()));
    }

    /// A turn that waits for nothing.
    pub fn turn_now(&mut self) {
        self.event_loop.turn(&mut self.nodes, Some(Duration::ZERO)).unwrap();
    }

    pub fn turn(&mut self) {
        self.event_loop.turn(&mut self.nodes, Some(Duration::from_millis(10))).unwrap();
    }

    pub fn until(&mut self, what: &str, so: impl Fn(&[Node]) -> bool) {
        let since = Instant::now();
        while !so(&self.nodes.0) {
            if since.elapsed() > TIMEOUT {
                for node in &self.nodes.0 {
                    for shard in node.engine.shards() {
                        eprintln!("{shard:?}");
                    }
                    let events = &node.events[node.events.len().saturating_sub(20)..];
                    eprintln!("{:?}\n{events:#?}", node.engine.stats());
                }
                panic!("it did not come about: {what}");
            }
            self.turn();
        }
    }

    pub fn ask(&mut self, node: usize, request: impl FnOnce(u64) -> EngineRequest) -> u64 {
        let now_ms = self.event_loop.context().now_ms();
        let node = &mut self.nodes.0[node];
        node.token += 1;
        let request = request(node.token);
        node.engine.handle_request(now_ms, request);
        node.token
    }

    /// The event that answers a request.
    pub fn answer<T>(
        &mut self,
        node: usize,
        what: &str,
        find: impl Fn(&EngineEvent) -> Option<T>,
    ) -> T {
        self.until(what, |nodes| nodes[node].events.iter().any(|event| find(event).is_some()));
        self.nodes.0[node].events.iter().find_map(find).expect("it is there")
    }

    pub fn send(
        &mut self,
        node: usize,
        channel: &str,
        retention: Retention,
        publish: NewPublication,
    ) -> u64 {
        let channel: Arc<str> = channel.into();
        self.ask(node, |token| {
            let time_ms = 1_700_000_000_000;
            EngineRequest::Publish(Box::new(EnginePublish {
                token,
                channel,
                retention,
                publish,
                time_ms,
            }))
        })
    }

    pub fn published(&mut self, node: usize, token: u64) -> Result<Published, Error> {
        self.answer(node, "published", |event| match event {
            EngineEvent::Published { token: of, result } if *of == token => Some(*result),
            _ => None,
        })
    }

    pub fn publish(&mut self, node: usize, channel: &str, data: &str) -> StreamPosition {
        let token = self.send(node, channel, KEPT, data_of(data));
        self.published(node, token).expect("published").position
    }

    pub fn subscribe(
        &mut self,
        node: usize,
        channel: &str,
        retention: Retention,
    ) -> EnginePosition {
        let token = self.begin_subscribe(node, channel, retention);
        self.answer(node, "subscribed", |event| match event {
            EngineEvent::Subscribed { token: of, result } if *of == token => {
                Some(result.clone().expect("subscribed"))
            }
            _ => None,
        })
    }

    pub fn begin_subscribe(&mut self, node: usize, channel: &str, retention: Retention) -> u64 {
        let channel = channel.into();
        self.ask(node, |token| EngineRequest::Subscribe { token, channel, retention })
    }

    /// Positions that a node was sent when it was subscribed anew.
    pub fn subscribed(&self, node: usize, token: u64) -> Vec<EnginePosition> {
        let events = self.nodes.0[node].events.iter();
        let position = |event: &EngineEvent| match event {
            EngineEvent::Subscribed { token: of, result } if *of == token => result.clone().ok(),
            _ => None,
        };
        events.filter_map(position).collect()
    }

    pub fn history(
        &mut self,
        node: usize,
        channel: &str,
        filter: HistoryFilter,
    ) -> Result<History, Error> {
        let channel = channel.into();
        let retention = KEPT;
        let token =
            self.ask(node, |token| EngineRequest::History { token, channel, retention, filter });
        self.answer(node, "history", |event| match event {
            EngineEvent::History { token: of, result } if *of == token => Some(result.clone()),
            _ => None,
        })
    }
}

pub fn data_of(data: &str) -> NewPublication {
    NewPublication { data: data.as_bytes().into(), ..NewPublication::default() }
}

/// Offset and payload of what was heard in a channel.
pub fn heard(node: &Node, channel: &str) -> Vec<(u64, String)> {
    let events = node.events.iter();
    let publication = |event: &EngineEvent| match event {
        EngineEvent::Publication { channel: of, publication, .. } if **of == *channel => {
            let data = String::from_utf8_lossy(&publication.data).into_owned();
            Some((publication.offset, data))
        }
        _ => None,
    };
    events.filter_map(publication).collect()
}
