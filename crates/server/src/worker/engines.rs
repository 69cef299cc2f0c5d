//! Engines on the worker's own event loop: their requests, connections and events.
//!
//! A worker has one connection to each server of an engine. The requests of a turn are written at its end, in one write.

use std::collections::VecDeque;
use std::num::{NonZeroU8, NonZeroU64};
use std::sync::Arc;

use dunlin_config::{EngineKind, EngineLayout, EngineReadFrom, EngineTopology, Map};
use dunlin_engine::disk::DiskEngine;
use dunlin_engine::nats::NatsEngine;
use dunlin_engine::redis::{Layout, ReadFrom, RedisConfig, RedisEngine, Topology};
use dunlin_engine::{
    EngineConfig, EngineEvent, EngineId, EngineRequest, LinkFull, Links, Server, ServerRole,
    ShardId,
};
use dunlin_engine_servers::servers::{nats_config, servers};
use dunlin_engine_servers::tls::PeerTls;
use dunlin_hub::engine::NamespaceEngine;
use dunlin_hub::{ChannelOptions, Now, wildcard};
use dunlin_net::redis::{Client, ClientConfig, Received};
use dunlin_net::{ConnId, ConnectConfig, Context, Limits, ServerAddr, TimerId};

use super::turn::{Core, Turn};

use super::link::{Link, Role};
use super::nats::NatsConnection;
use crate::engines::disk::DiskLogs;
use crate::engines::stats::{EngineSample, EngineStats};
use crate::state::ServerState;
use crate::state::settings::EngineOf;

/// The name of a connection in a server's `CLIENT LIST`.
const NAME: &str = "dunlin";
/// The most events of engines handled per turn, before sockets get theirs.
pub(super) const EVENTS_PER_TURN: usize = 4096;
/// The shortest and the longest delay between attempts to connect, in milliseconds.
const RETRY_MS: (u64, u64) = (50, 1_000);
/// The most commands that await a reply on one connection.
const OUTSTANDING_MAX: usize = 1 << 17;

/// The engines of one worker.
#[derive(Default)]
pub(super) struct Engines {
    running: Vec<RunningEngine>,
    ids: u32,
    /// Events that the hub has not handled yet.
    said: VecDeque<(EngineId, EngineEvent)>,
    /// Open connections of all engines.
    connections: usize,
}

/// An engine with its connections.
struct RunningEngine {
    id: EngineId,
    name: Arc<str>,
    config: Arc<dunlin_config::Engine>,
    machine: Machine,
    /// How often a connection was established.
    made: u64,
    stats: Arc<EngineStats>,
}

/// An engine of any kind, and its connections.
enum Machine {
    Redis(Box<RedisEngine>, RedisConnections),
    Nats(Box<NatsEngine>, Box<NatsConnection>),
    Disk(Box<DiskEngine>),
}

/// Applies an expression to the engine of either kind.
macro_rules! any {
    ($machine:expr, $engine:ident => $what:expr) => {
        match $machine {
            Machine::Redis($engine, _) => $what,
            Machine::Nats($engine, _) => $what,
            Machine::Disk($engine) => $what,
        }
    };
}

impl Machine {
    fn new(
        cx: &mut Context<Link>,
        config: &Arc<dunlin_config::Engine>,
        now: Now,
        disk: impl FnOnce() -> DiskEngine,
    ) -> Machine {
        let seed = cx.random_u64();
        match config.kind {
            EngineKind::Redis => Machine::Redis(
                Box::new(RedisEngine::new(redis_config(config), seed, now.ms)),
                RedisConnections::new(Arc::clone(config)),
            ),
            EngineKind::Nats => Machine::Nats(
                Box::new(NatsEngine::new(nats_config(config), seed, now.ms, now.unix_ms)),
                Box::new(NatsConnection::new(config)),
            ),
            EngineKind::Disk => Machine::Disk(Box::new(disk())),
        }
    }

    fn close(&mut self, cx: &mut Context<Link>) {
        match self {
            Machine::Redis(_, connections) => {
                for client in connections.clients.iter_mut().flatten() {
                    client.close(cx);
                }
            }
            Machine::Nats(_, connection) => connection.close(cx),
            Machine::Disk(_) => {}
        }
    }

    /// Returns the shard id of a connection, if it belongs to this engine.
    fn shard_of(&self, conn: ConnId) -> Option<ShardId> {
        match self {
            Machine::Redis(_, connections) => {
                let owns = |it: &Option<Client>| it.as_ref().is_some_and(|it| it.owns(conn));
                connections.clients.iter().position(owns).map(|at| ShardId(at as u16))
            }
            Machine::Nats(_, connection) => connection.owns(conn).then_some(ShardId(0)),
            Machine::Disk(_) => None,
        }
    }

    fn poll_event(&mut self) -> Option<EngineEvent> {
        any!(self, engine => engine.poll_event())
    }
}

/// Connections, indexed by shard id.
struct RedisConnections {
    config: Arc<dunlin_config::Engine>,
    tls: PeerTls,
    clients: Vec<Option<Client>>,
    /// Commands of connections that were closed for good, not yet reported to the engine.
    lost: Vec<(ShardId, u64, bool)>,
}

/// The connections together with the event loop's context.
struct RedisConnectionsOnLoop<'a> {
    connections: &'a mut RedisConnections,
    cx: &'a mut Context<Link>,
}

impl Engines {
    /// Returns the number of open connections.
    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    /// Applies the settings. An engine whose place has changed gets a new id.
    fn update(
        &mut self,
        cx: &mut Context<Link>,
        now: Now,
        worker: usize,
        wanted: &Map<dunlin_config::Engine>,
        state: &ServerState,
    ) {
        let stats = &state.engines;
        self.running.retain_mut(|running| {
            let config = wanted.get_shared(&running.name);
            match config.filter(|config| config.is_same_place(&running.config)) {
                Some(config) => {
                    running.config = Arc::clone(config);
                    if let Machine::Redis(engine, _) = &mut running.machine {
                        let replicas = NonZeroU8::new(config.wait_replicas);
                        engine.set_wait(replicas, config.wait_timeout_ms);
                        engine.set_read_from(read_from(config));
                    }
                }
                None => {
                    running.machine.close(cx);
                    return false;
                }
            }
            true
        });
        for (name, config) in wanted.iter_shared() {
            if self.running.iter().any(|running| running.name == *name) {
                continue;
            }
            self.ids += 1;
            let config = Arc::clone(config);
            self.running.push(RunningEngine {
                id: EngineId(self.ids),
                name: Arc::clone(name),
                machine: Machine::new(cx, &config, now, || {
                    let none = DiskLogs::default();
                    state.disks.get().unwrap_or(&none).engine(name, &config, worker)
                }),
                made: 0,
                stats: stats.begin(worker, name),
                config,
            });
        }
    }

    fn id_of(&self, name: &str) -> Option<EngineId> {
        let found = self.running.iter().find(|running| *running.name == *name);
        found.map(|running| running.id)
    }

    /// Returns the index of the engine that a connection belongs to, and its shard id there.
    fn owner(&self, conn: ConnId) -> Option<(usize, ShardId)> {
        self.running
            .iter()
            .enumerate()
            .find_map(|(at, running)| Some((at, running.machine.shard_of(conn)?)))
    }

    fn handle_request(&mut self, now: Now, id: EngineId, request: EngineRequest) {
        // Requests to an engine that was removed have been answered already.
        if let Some(running) = self.running.iter_mut().find(|running| running.id == id) {
            match &mut running.machine {
                Machine::Redis(engine, _) => engine.handle_request(now.ms, request),
                Machine::Nats(engine, _) => engine.handle_request(now.ms, request),
                Machine::Disk(engine) => engine.handle_request(now.unix_ms, request),
            }
        }
    }

    fn poll_event(&mut self) -> Option<(EngineId, EngineEvent)> {
        if self.said.is_empty() {
            for RunningEngine { id, machine, .. } in &mut self.running {
                self.said
                    .extend(std::iter::from_fn(|| machine.poll_event()).map(|event| (*id, event)));
            }
        }
        self.said.pop_front()
    }

    /// Whether other programs may publish to its channels.
    fn is_raw(&self, id: EngineId) -> bool {
        self.running.iter().any(|running| running.id == id && running.config.raw)
    }

    /// Counts a message that is not a publication for any channel.
    fn count_unreadable(&mut self, id: EngineId) {
        let running = self.running.iter_mut().find(|running| running.id == id);
        if let Some(Machine::Nats(engine, _)) = running.map(|running| &mut running.machine) {
            engine.count_unreadable();
        }
    }

    fn flush(&mut self, cx: &mut Context<Link>) {
        let now_ms = cx.now_ms();
        for RunningEngine { id, machine, .. } in &mut self.running {
            if any!(&*machine, engine => engine.poll_timeout()).is_some_and(|at| at <= now_ms) {
                any!(&mut *machine, engine => engine.handle_timeout(now_ms));
            }
            match machine {
                Machine::Redis(engine, connections) => {
                    engine.flush(now_ms, &mut RedisConnectionsOnLoop { connections, cx });
                    for (shard, token, sent) in std::mem::take(&mut connections.lost) {
                        engine.handle_lost(now_ms, shard, token, sent);
                    }
                }
                Machine::Nats(engine, connection) => connection.flush(cx, now_ms, engine),
                Machine::Disk(engine) => engine.flush(),
            }
            // Events that need no reply of a server are handled in the next turn.
            self.said.extend(std::iter::from_fn(|| machine.poll_event()).map(|event| (*id, event)));
        }
    }

    /// Returns when the first of the engines needs a turn.
    pub(super) fn poll_timeout(&self) -> Option<u64> {
        let timeout =
            |running: &RunningEngine| any!(&running.machine, engine => engine.poll_timeout());
        self.running.iter().filter_map(timeout).min()
    }

    fn handle_data(&mut self, cx: &mut Context<Link>, conn: ConnId, bytes: &[u8]) {
        let Some((at, shard)) = self.owner(conn) else { return };
        let now_ms = cx.now_ms();
        let RunningEngine { machine, made, .. } = &mut self.running[at];
        let (engine, connections) = match machine {
            Machine::Redis(engine, connections) => (engine, connections),
            Machine::Nats(engine, _) => return engine.handle_data(now_ms, bytes),
            Machine::Disk(_) => return,
        };
        let Some(client) = &mut connections.clients[usize::from(shard.0)] else { return };
        client.handle_data(cx, conn, bytes, |_, _, received| match received {
            Received::Ready => {
                *made += 1;
                engine.handle_ready(now_ms, shard);
            }
            Received::Reply(token, reply) => engine.handle_reply(now_ms, shard, token, reply),
            Received::Message(message) => {
                engine.handle_message(now_ms, shard, message.channel, message.payload);
            }
            Received::Push(push) => engine.handle_push(now_ms, shard, push),
        });
    }

    /// Handles the end of a connection, or a failed attempt to connect.
    fn handle_closed(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        error: Option<&std::io::Error>,
    ) {
        let Some((at, shard)) = self.owner(conn) else { return };
        let now_ms = cx.now_ms();
        let (engine, connections) = match &mut self.running[at].machine {
            Machine::Redis(engine, connections) => (engine, connections),
            Machine::Disk(_) => return,
            Machine::Nats(engine, connection) => {
                connection.lost();
                let reason = error.map_or_else(String::new, ToString::to_string);
                // The event loop reports failures of TLS with this kind.
                let is_tls =
                    error.is_some_and(|error| error.kind() == std::io::ErrorKind::InvalidData);
                return match is_tls {
                    true => engine.handle_tls_failed(now_ms, &reason),
                    false => engine.handle_closed(now_ms, &reason),
                };
            }
        };
        let Some(client) = &mut connections.clients[usize::from(shard.0)] else { return };
        match error {
            Some(error) => client.handle_connect_failed(cx, conn, error),
            None => client.handle_close(cx, conn),
        }
        while let Some(lost) = client.poll_lost() {
            engine.handle_lost(now_ms, shard, lost.token, lost.sent);
        }
        engine.handle_closed(now_ms, shard, client.last_error().unwrap_or_default());
    }
}

impl RedisConnections {
    fn new(config: Arc<dunlin_config::Engine>) -> RedisConnections {
        let tls = PeerTls::of_engine(&config);
        RedisConnections { config, tls, clients: Vec::new(), lost: Vec::new() }
    }

    fn client_config(&self, server: &Server) -> ClientConfig {
        let config = &*self.config;
        let (user, password, database) = match server.role {
            ServerRole::Data | ServerRole::Replica => {
                (&config.user, &config.password, config.database)
            }
            ServerRole::Sentinel => (&config.sentinel_user, &config.sentinel_password, 0),
        };
        let auth = password.as_ref().map(|password| {
            (user.as_deref().unwrap_or("default").to_owned(), password.reveal().to_owned())
        });
        let tls = self.tls.client(&server.host);
        let limits = Limits { output_bytes_max: config.queue_bytes_max, ..Limits::default() };
        ClientConfig {
            auth,
            database,
            name: Some(NAME.to_owned()),
            requeue: false,
            connect: ConnectConfig {
                limits,
                timeout_ms: NonZeroU64::new(config.connect_timeout_ms),
                tls,
                ..ConnectConfig::default()
            },
            outstanding_max: OUTSTANDING_MAX,
            queue_bytes_max: config.queue_bytes_max,
            retry_ms_min: RETRY_MS.0,
            retry_ms_max: RETRY_MS.1,
            ..ClientConfig::at(place(server))
        }
    }
}

impl Links for RedisConnectionsOnLoop<'_> {
    fn open(&mut self, shard: ShardId, server: &Server) {
        let at = usize::from(shard.0);
        if self.connections.clients.len() <= at {
            self.connections.clients.resize_with(at + 1, || None);
        }
        let config = self.connections.client_config(server);
        if let Some(client) = &mut self.connections.clients[at] {
            return client.move_to(self.cx, config.server, config.connect);
        }
        let mut client = Client::new(config);
        client.connect(self.cx);
        self.connections.clients[at] = Some(client);
    }

    fn reconnect(&mut self, shard: ShardId) {
        if let Some(Some(client)) = self.connections.clients.get_mut(usize::from(shard.0)) {
            client.reconnect(self.cx);
        }
    }

    fn close(&mut self, shard: ShardId) {
        let client = self.connections.clients.get_mut(usize::from(shard.0));
        if let Some(mut client) = client.and_then(Option::take) {
            client.close(self.cx);
            while let Some(lost) = client.poll_lost() {
                self.connections.lost.push((shard, lost.token, lost.sent));
            }
        }
    }

    fn command(&mut self, shard: ShardId, token: u64, arguments: &[&[u8]]) -> Result<(), LinkFull> {
        let Some(Some(client)) = self.connections.clients.get_mut(usize::from(shard.0)) else {
            return Err(LinkFull);
        };
        client.command(self.cx, token, arguments).map_err(|_| LinkFull)
    }

    fn subscribe(&mut self, shard: ShardId, channel: &[u8], sharded: bool) {
        let Some(Some(client)) = self.connections.clients.get_mut(usize::from(shard.0)) else {
            return;
        };
        match sharded {
            true => client.subscribe_sharded(self.cx, channel),
            false => client.subscribe(self.cx, channel),
        }
    }

    fn unsubscribe(&mut self, shard: ShardId, channel: &[u8], sharded: bool) {
        let Some(Some(client)) = self.connections.clients.get_mut(usize::from(shard.0)) else {
            return;
        };
        match sharded {
            true => client.unsubscribe_sharded(self.cx, channel),
            false => client.unsubscribe(self.cx, channel),
        }
    }
}

impl Engines {
    /// Applies the settings of engines, and of the namespaces that use them.
    pub(super) fn apply_engines(&mut self, turn: &mut Turn<'_, '_>) {
        let settings = turn.core.settings.snapshot();
        let now = turn.now();
        self.update(turn.cx, now, turn.core.index, &settings.config.engines, &turn.core.state);
        let configs: Vec<EngineConfig> = self
            .running
            .iter()
            .map(|of| engine_config(of.id, &of.config, turn.core.state.workers()))
            .collect();
        let named = settings.engines.iter_shared();
        let namespaces: Vec<(Arc<str>, NamespaceEngine)> = named
            .filter_map(|(namespace, of)| {
                let &EngineOf { ref name, wildcards, durability } = &**of;
                let id = self.id_of(name)?;
                Some((Arc::clone(namespace), NamespaceEngine { id, wildcards, durability }))
            })
            .collect();
        turn.core.hub.set_engines(now, &configs, namespaces);
    }

    /// Whether a connection, established or not, is one of an engine.
    pub(super) fn is_engine(&self, conn: ConnId) -> bool {
        self.owner(conn).is_some()
    }

    /// Handles an established connection. Returns `false` if it does not belong to an engine.
    pub(super) fn engine_connected(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) -> bool {
        let Some((at, shard)) = self.owner(conn) else { return false };
        if let Some(link) = turn.cx.data(conn) {
            link.role = Role::Engine;
        }
        self.connections += 1;
        let RunningEngine { machine, made, .. } = &mut self.running[at];
        match machine {
            Machine::Redis(_, connections) => {
                if let Some(client) = &mut connections.clients[usize::from(shard.0)] {
                    client.handle_connect(turn.cx, conn);
                }
            }
            Machine::Nats(engine, _) => {
                *made += 1;
                engine.handle_connected(turn.cx.now_ms());
            }
            Machine::Disk(_) => {}
        }
        true
    }

    /// Handles the completed TLS handshake on a connection of an engine.
    pub(super) fn engine_secure(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let Some((at, _)) = self.owner(conn) else { return };
        if let Machine::Nats(engine, _) = &mut self.running[at].machine {
            engine.handle_secured(turn.cx.now_ms());
        }
    }

    /// Handles a failure of TLS on an open connection, if it belongs to an engine.
    pub(super) fn engine_tls_failed(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        error: &std::io::Error,
    ) {
        let Some((at, _)) = self.owner(conn) else { return };
        if let Machine::Nats(engine, connection) = &mut self.running[at].machine {
            connection.lost();
            engine.handle_tls_failed(turn.cx.now_ms(), &error.to_string());
        }
    }

    /// Handles a failed attempt to connect. Returns `false` if it does not belong to an engine.
    pub(super) fn engine_connect_failed(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        error: &std::io::Error,
    ) -> bool {
        let is_ours = self.owner(conn).is_some();
        if is_ours {
            self.handle_closed(turn.cx, conn, Some(error));
        }
        is_ours
    }

    pub(super) fn engine_data(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, bytes: &[u8]) {
        self.handle_data(turn.cx, conn, bytes);
    }

    pub(super) fn engine_writable(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let Some((at, shard)) = self.owner(conn) else { return };
        // For NATS, the flush at the end of the turn writes what waits.
        if let Machine::Redis(_, connections) = &mut self.running[at].machine
            && let Some(client) = &mut connections.clients[usize::from(shard.0)]
        {
            client.handle_writable(turn.cx, conn);
        }
    }

    pub(super) fn engine_closed(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        self.connections -= 1;
        self.handle_closed(turn.cx, conn, None);
    }

    /// Handles a timer, which may be that of a reconnect.
    pub(super) fn engine_timer(&mut self, turn: &mut Turn<'_, '_>, timer: TimerId) {
        for running in &mut self.running {
            if let Machine::Redis(_, connections) = &mut running.machine {
                for client in connections.clients.iter_mut().flatten() {
                    client.handle_timer(turn.cx, timer);
                }
            }
        }
    }

    /// Passes an event of an engine to the hub. Returns `false` if there is none.
    pub(super) fn receive_from_engines(&mut self, turn: &mut Turn<'_, '_>) -> bool {
        let Some((id, event)) = self.poll_event() else { return false };
        let now = turn.now();
        if self.takes(turn.core, id, &event) {
            turn.core.hub.handle_engine(now, id, event);
        } else {
            self.count_unreadable(id);
        }
        true
    }

    /// Whether an event is accepted. A publication must match its wildcard and, if other programs may publish, not exceed the
    /// size limit of its namespace. Other events always are.
    fn takes(&self, core: &Core<'_>, id: EngineId, event: &EngineEvent) -> bool {
        let EngineEvent::Publication { channel: name, publication, .. } = event else {
            return true;
        };
        let namespace = |name| core.settings.namespace(name).map(|of| &of.options);
        let bytes = publication.data().len();
        let fits = |of: &Arc<ChannelOptions>| {
            let bytes_max = of.publication_bytes_max as usize;
            bytes_max == 0 || bytes <= bytes_max
        };
        let is_small = || !self.is_raw(id) || namespace(name).is_some_and(fits);
        let Some(channel) = publication.channel() else { return is_small() };
        wildcard::may_match(channel)
            && is_small()
            && namespace(name).zip(namespace(channel)).is_some_and(|(of, matched)| {
                of.wildcard && !matched.wildcard && of.namespace == matched.namespace
            })
    }

    /// Passes the hub's requests to the engines, and flushes their connections.
    pub(super) fn send_to_engines(&mut self, turn: &mut Turn<'_, '_>) {
        if self.running.is_empty() {
            return;
        }
        let now = turn.now();
        while let Some((id, request)) = turn.core.hub.poll_engine() {
            self.handle_request(now, id, request);
        }
        self.flush(turn.cx);
    }

    /// Whether events of engines wait, so that the worker must not sleep.
    pub(super) fn has_engine_events(&self) -> bool {
        !self.said.is_empty()
    }

    /// Publishes the gauges of the engines, once a second.
    pub(super) fn publish_engine_gauges(&mut self, turn: &mut Turn<'_, '_>) {
        let now_ms = turn.cx.now_ms();
        for RunningEngine { machine, made, stats, name, .. } in &mut self.running {
            if let Machine::Disk(engine) = machine {
                for damage in engine.take_damaged() {
                    tracing::error!(%name, "{damage}");
                }
            }
            let machine = &*machine;
            let outstanding = match machine {
                Machine::Redis(_, connections) => {
                    connections.clients.iter().flatten().map(Client::outstanding).sum()
                }
                Machine::Nats(engine, _) => engine.outstanding(),
                Machine::Disk(engine) => engine.outstanding(),
            };
            let shards = any!(machine, engine => engine.shards().collect());
            let (done, is_ready) = any!(machine, engine => (engine.stats(), engine.is_ready()));
            let sample = EngineSample { shards, stats: done, is_ready, made: *made, outstanding };
            stats.publish(now_ms, sample);
        }
    }
}

fn place(server: &Server) -> ServerAddr {
    match server.host.starts_with('/') {
        true => ServerAddr::Unix((&*server.host).into()),
        false => ServerAddr::Network { host: server.host.clone(), port: server.port },
    }
}

fn engine_config(id: EngineId, config: &dunlin_config::Engine, workers: usize) -> EngineConfig {
    EngineConfig {
        id,
        timeout_ms: config.timeout_ms,
        position_check_ms: config.position_check_ms,
        held_bytes_max: config.held_bytes_max,
        shares_members: config.layout == EngineLayout::Centrifugo,
        wildcards_max: (config.wildcards_max as usize).div_ceil(workers),
        is_durable: config.kind == EngineKind::Disk,
    }
}

fn read_from(config: &dunlin_config::Engine) -> ReadFrom {
    match config.read_from {
        EngineReadFrom::Primary => ReadFrom::Primary,
        EngineReadFrom::ReplicaPreferred => ReadFrom::ReplicaPreferred,
    }
}

fn redis_config(config: &dunlin_config::Engine) -> RedisConfig {
    let servers = |role| servers(config, role);
    let topology = match config.topology {
        EngineTopology::Servers => Topology::Servers(servers(ServerRole::Data)),
        EngineTopology::Sentinel => Topology::Sentinel {
            sentinels: servers(ServerRole::Sentinel),
            primaries: config.sentinel_primaries.to_vec(),
        },
        EngineTopology::Cluster => Topology::Cluster {
            seeds: servers(ServerRole::Data),
            partitions: config.cluster_partitions_max,
        },
    };
    RedisConfig {
        prefix: config.prefix.to_string(),
        layout: match config.layout {
            EngineLayout::Dunlin => Layout::Dunlin,
            EngineLayout::Centrifugo => Layout::Centrifugo,
        },
        database: config.database,
        // A command that waits for a connection fails before the hub's timeout, which shows that nothing was stored.
        hold_ms: config.timeout_ms / 2,
        queue_bytes_max: config.queue_bytes_max,
        wait_replicas: NonZeroU8::new(config.wait_replicas),
        wait_timeout_ms: config.wait_timeout_ms,
        read_from: read_from(config),
        ..RedisConfig::new(topology)
    }
}
