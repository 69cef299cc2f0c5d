//! Nodes with one engine each and real connections, on one event loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_engine::nats::{Credentials, CredentialsError, NatsConfig, NatsEngine, Pipe};
use dunlin_engine::redis::{RedisConfig, RedisEngine, Topology};
use dunlin_engine::{
    EngineEvent, EnginePosition, EnginePublish, EngineRequest, LinkFull, Links, Retention, Server,
    ShardId, ShardStatus, Stats,
};
use dunlin_hub::{Error, History, HistoryFilter, NewPublication, Published, StreamPosition};
use dunlin_net::redis::{Client, ClientConfig, Received};
use dunlin_net::{
    CloseReason, ConnId, ConnectConfig, Context, EventLoop, Handler, Limits, LoopConfig,
    ServerAddr, Tcp, TimerId, Tls,
};

/// The Unix time of all operations, in milliseconds.
const TIME_MS: u64 = 1_700_000_000_000;

const TIMEOUT: Duration = Duration::from_secs(300);

pub const KEPT: Retention =
    Retention { size: 100, ttl_ms: 60_000, meta_ttl_ms: 600_000, durability: None };
pub const UNKEPT: Retention = Retention { size: 0, ttl_ms: 0, meta_ttl_ms: 0, durability: None };

/// Any engine.
pub enum Machine {
    Redis(RedisEngine),
    Nats(NatsEngine),
}

/// How to create an engine.
#[derive(Clone)]
pub enum Setup {
    Redis(RedisConfig),
    Nats(NatsConfig),
}

impl From<&Topology> for Setup {
    fn from(topology: &Topology) -> Setup {
        Setup::Redis(RedisConfig::new(topology.clone()))
    }
}

impl From<&RedisConfig> for Setup {
    fn from(config: &RedisConfig) -> Setup {
        Setup::Redis(config.clone())
    }
}

impl From<&NatsConfig> for Setup {
    fn from(config: &NatsConfig) -> Setup {
        Setup::Nats(config.clone())
    }
}

impl From<&Setup> for Setup {
    fn from(setup: &Setup) -> Setup {
        setup.clone()
    }
}

/// Calls a method of either engine.
macro_rules! any {
    ($machine:expr, $engine:ident => $what:expr) => {
        match $machine {
            Machine::Redis($engine) => $what,
            Machine::Nats($engine) => $what,
        }
    };
}

impl Machine {
    pub fn stats(&self) -> Stats {
        any!(self, engine => engine.stats())
    }

    pub fn is_ready(&self) -> bool {
        any!(self, engine => engine.is_ready())
    }

    pub fn shards(&self) -> std::vec::IntoIter<ShardStatus> {
        any!(self, engine => engine.shards().collect::<Vec<_>>()).into_iter()
    }

    pub fn redis(&mut self) -> &mut RedisEngine {
        match self {
            Machine::Redis(engine) => engine,
            Machine::Nats(_) => panic!("not on Redis"),
        }
    }
}

pub struct Node {
    pub engine: Machine,
    clients: BTreeMap<u16, Client>,
    /// The connection of an engine on NATS.
    conn: Option<ConnId>,
    /// Why the connection could not be opened.
    failed: Option<String>,
    /// The TLS settings of the connection.
    tls: Option<Tls>,
    pub events: Vec<EngineEvent>,
    auth: Option<(String, String)>,
    token: u64,
    /// Drops received messages until the next connection.
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

struct NodePipe<'a> {
    cx: &'a mut Context<()>,
    conn: &'a mut Option<ConnId>,
    failed: &'a mut Option<String>,
    tls: &'a Option<Tls>,
}

impl Pipe for NodePipe<'_> {
    fn open(&mut self, server: &Server, tls_first: bool) {
        self.close();
        let tls = self.tls.as_ref().filter(|_| tls_first);
        let tls = tls.map(|tls| tls.client(&server.host).unwrap());
        let config = ConnectConfig { tls, ..connect_config() };
        match self.cx.connect_name(&server.host, server.port, &config) {
            Ok(conn) => *self.conn = Some(conn),
            Err(error) => *self.failed = Some(error.to_string()),
        }
    }

    fn begin_tls(&mut self, server: &Server, unread: &[u8]) -> Result<(), String> {
        let tls = self.tls.as_ref().expect("whom to trust").client(&server.host).unwrap();
        let conn = self.conn.expect("it is connected");
        self.cx.begin_tls(conn, &tls, unread, None).map_err(|error| error.to_string())
    }

    fn close(&mut self) {
        if let Some(conn) = self.conn.take() {
            self.cx.abort(conn);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), LinkFull> {
        let conn = self.conn.ok_or(LinkFull)?;
        self.cx.write(conn, bytes).map_err(|_| LinkFull)
    }
}

impl Links for NodeLinks<'_> {
    fn open(&mut self, shard: ShardId, server: &Server) {
        let place = ServerAddr::Network { host: server.host.clone(), port: server.port };
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
    /// Drops all messages that arrive on the current connections.
    pub fn deafen(&mut self) {
        self.deaf = true;
    }

    /// Handles a lost connection; returns whether it was this node's.
    fn lost(&mut self, cx: &mut Context<()>, conn: ConnId, reason: &str) -> bool {
        let is_ours = self.conn == Some(conn);
        if is_ours && let Machine::Nats(engine) = &mut self.engine {
            self.conn = None;
            engine.handle_closed(cx.now_ms(), reason);
        }
        is_ours
    }

    /// Handles a TLS failure; returns whether it was on this node's connection.
    fn tls_failed(&mut self, cx: &mut Context<()>, conn: ConnId, reason: &str) -> bool {
        let is_ours = self.conn == Some(conn);
        if is_ours && let Machine::Nats(engine) = &mut self.engine {
            self.conn = None;
            engine.handle_tls_failed(cx.now_ms(), reason);
        }
        is_ours
    }

    /// Closes the connection of an engine on NATS.
    pub fn cut(&mut self, cx: &mut Context<()>) {
        let Machine::Nats(engine) = &mut self.engine else { panic!("not on NATS") };
        cx.abort(self.conn.take().expect("it is connected"));
        engine.handle_closed(cx.now_ms(), "cut");
    }

    fn turn(&mut self, cx: &mut Context<()>) {
        let now_ms = cx.now_ms();
        let Node { engine, clients, auth, conn, failed, tls, .. } = self;
        match engine {
            Machine::Redis(engine) => {
                for (&shard, client) in &mut *clients {
                    while let Some(lost) = client.poll_lost() {
                        engine.handle_lost(now_ms, ShardId(shard), lost.token, lost.sent);
                    }
                }
                if engine.poll_timeout().is_some_and(|at_ms| at_ms <= now_ms) {
                    engine.handle_timeout(now_ms);
                }
                engine.flush(now_ms, &mut NodeLinks { cx, clients, auth });
            }
            Machine::Nats(engine) => {
                if engine.poll_timeout().is_some_and(|at_ms| at_ms <= now_ms) {
                    engine.handle_timeout(now_ms);
                }
                engine.flush(now_ms, &mut NodePipe { cx, conn, failed, tls });
                if let Some(reason) = failed.take() {
                    engine.handle_closed(now_ms, &reason);
                }
            }
        }
        while let Some(event) = any!(&mut self.engine, engine => engine.poll_event()) {
            self.events.push(event);
        }
    }
}

#[derive(Default)]
pub struct Nodes(pub Vec<Node>);

impl Nodes {
    fn closed(&mut self, cx: &mut Context<()>, conn: ConnId) {
        for node in &mut self.0 {
            if node.lost(cx, conn, "the connection has ended") {
                return;
            }
            for (&shard, client) in &mut node.clients {
                if client.owns(conn) {
                    client.handle_close(cx, conn);
                    let engine = node.engine.redis();
                    while let Some(lost) = client.poll_lost() {
                        engine.handle_lost(cx.now_ms(), ShardId(shard), lost.token, lost.sent);
                    }
                    let reason = client.last_error().unwrap_or_default();
                    engine.handle_closed(cx.now_ms(), ShardId(shard), reason);
                    return;
                }
            }
        }
    }
}

impl Handler for Nodes {
    type Data = ();
    type Protocols = Tcp;

    fn on_connect(&mut self, cx: &mut Context<()>, conn: ConnId) {
        for node in &mut self.0 {
            if node.conn == Some(conn)
                && let Machine::Nats(engine) = &mut node.engine
            {
                engine.handle_connected(cx.now_ms());
            }
        }
        for client in self.0.iter_mut().flat_map(|node| node.clients.values_mut()) {
            client.handle_connect(cx, conn);
        }
    }

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        for node in &mut self.0 {
            let Node { engine, clients, deaf, .. } = node;
            let engine = match engine {
                Machine::Nats(engine) => {
                    if node.conn == Some(conn) {
                        engine.handle_data(cx.now_ms(), bytes);
                    }
                    continue;
                }
                Machine::Redis(engine) => engine,
            };
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
            if error.kind() == std::io::ErrorKind::InvalidData && node.tls_failed(cx, conn, &text) {
                return;
            }
            if node.lost(cx, conn, &text) {
                return;
            }
            for (&shard, client) in &mut node.clients {
                if client.owns(conn) {
                    client.handle_connect_failed(cx, conn, error);
                    node.engine.redis().handle_closed(cx.now_ms(), ShardId(shard), &text);
                    return;
                }
            }
        }
    }

    fn on_secure(&mut self, cx: &mut Context<()>, conn: ConnId) {
        for node in &mut self.0 {
            if node.conn == Some(conn)
                && let Machine::Nats(engine) = &mut node.engine
            {
                engine.handle_secured(cx.now_ms());
            }
        }
    }

    fn on_tls_failed(&mut self, cx: &mut Context<()>, conn: ConnId, error: &std::io::Error) {
        for node in &mut self.0 {
            node.tls_failed(cx, conn, &error.to_string());
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

/// The nodes of one fleet.
pub struct Fleet {
    event_loop: EventLoop<Nodes>,
    pub nodes: Nodes,
}

impl Fleet {
    /// Creates nodes and waits until their engines are ready.
    pub fn new(setup: impl Into<Setup>, nodes: usize) -> Fleet {
        let mut fleet = Fleet::starting(setup, nodes, None);
        fleet.until_ready();
        fleet
    }

    pub fn starting(
        setup: impl Into<Setup>,
        nodes: usize,
        auth: Option<&(String, String)>,
    ) -> Fleet {
        let setup = setup.into();
        let event_loop = EventLoop::new(LoopConfig::default()).unwrap();
        let mut fleet = Fleet { event_loop, nodes: Nodes::default() };
        for _ in 0..nodes {
            let cx = fleet.event_loop.context();
            let (seed, now_ms) = (cx.random_u64(), cx.now_ms());
            let engine = match setup.clone() {
                Setup::Redis(config) => Machine::Redis(RedisEngine::new(config, seed, now_ms)),
                Setup::Nats(config) => {
                    Machine::Nats(NatsEngine::new(config, seed, now_ms, TIME_MS))
                }
            };
            let (clients, events, auth) = (BTreeMap::new(), Vec::new(), auth.cloned());
            fleet.nodes.0.push(Node {
                engine,
                clients,
                conn: None,
                failed: None,
                tls: None,
                events,
                auth: auth.clone(),
                token: 0,
                deaf: false,
            });
        }
        fleet
    }

    /// Creates nodes that connect to NATS with these TLS settings.
    pub fn by_tls(config: &NatsConfig, nodes: usize, tls: &Tls) -> Fleet {
        let mut fleet = Fleet::starting(config, nodes, None);
        fleet.nodes.0.iter_mut().for_each(|node| node.tls = Some(tls.clone()));
        fleet
    }

    /// Passes newly read credentials to a node's engine on NATS.
    pub fn read_credentials(&mut self, node: usize, read: Result<Credentials, CredentialsError>) {
        let now_ms = self.event_loop.context().now_ms();
        let Machine::Nats(engine) = &mut self.nodes.0[node].engine else { panic!("not on NATS") };
        engine.handle_credentials(now_ms, read);
    }

    /// Cuts a node's connection.
    pub fn cut(&mut self, node: usize) {
        self.nodes.0[node].cut(self.event_loop.context());
    }

    pub fn until_ready(&mut self) {
        self.until("ready", |nodes| nodes.iter().all(|node| node.engine.is_ready()));
    }

    /// Runs one turn without waiting.
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
        any!(&mut node.engine, engine => engine.handle_request(now_ms, request));
        node.token
    }

    /// Returns the event that answers a request.
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
            let time_ms = TIME_MS;
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
        self.ask(node, |token| EngineRequest::Subscribe {
            token,
            channel,
            retention,
            is_wildcard: false,
        })
    }

    /// Returns the positions that a node received for a subscription, the first and those after reconnects.
    pub fn subscribed(&self, node: usize, token: u64) -> Vec<EnginePosition> {
        subscribed(&self.nodes.0[node], token)
    }

    /// Waits for this number of positions of a subscription. A node is ready before it has subscribed again; messages published
    /// in between are not delivered but covered by the next position.
    pub fn until_subscribed(&mut self, node: usize, token: u64, times: usize) {
        self.until("subscribed", |nodes| subscribed(&nodes[node], token).len() >= times);
    }

    pub fn history(
        &mut self,
        node: usize,
        channel: &str,
        filter: HistoryFilter,
    ) -> Result<History, Error> {
        let token = self.begin_history(node, channel, filter, false);
        self.history_of(node, token)
    }

    /// Requests a part of a stream, from the primary if `latest`.
    pub fn begin_history(
        &mut self,
        node: usize,
        channel: &str,
        filter: HistoryFilter,
        latest: bool,
    ) -> u64 {
        let (channel, retention) = (channel.into(), KEPT);
        self.ask(node, |token| EngineRequest::History { token, channel, retention, filter, latest })
    }

    pub fn history_of(&mut self, node: usize, token: u64) -> Result<History, Error> {
        self.answer(node, "history", |event| match event {
            EngineEvent::History { token: of, result } if *of == token => Some(result.clone()),
            _ => None,
        })
    }
}

pub fn data_of(data: &str) -> NewPublication {
    NewPublication { data: data.as_bytes().into(), ..NewPublication::default() }
}

/// Returns the positions of a subscription to one channel, the first and those after reconnects.
pub fn subscribed(node: &Node, token: u64) -> Vec<EnginePosition> {
    let position = |event: &EngineEvent| match event {
        EngineEvent::Subscribed { token: of, result } if *of == token => result.clone().ok(),
        _ => None,
    };
    node.events.iter().filter_map(position).collect()
}

/// Returns offset and payload of the messages received in a channel.
pub fn heard(node: &Node, channel: &str) -> Vec<(u64, String)> {
    let events = node.events.iter();
    let publication = |event: &EngineEvent| match event {
        EngineEvent::Publication { channel: of, publication, .. } if **of == *channel => {
            let data = String::from_utf8_lossy(publication.data()).into_owned();
            Some((publication.offset(), data))
        }
        _ => None,
    };
    events.filter_map(publication).collect()
}
