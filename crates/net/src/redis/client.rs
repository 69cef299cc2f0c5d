//! A Redis client that keeps itself connected.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::{fmt, io};

use dunlin_wire::backoff::{Backoff, Jitter};
use dunlin_wire::resp::Value;

use super::connection::{Connection, Event, InvalidCommand};
use crate::{ConnId, ConnectConfig, Context, ServerAddr, TimerId, WriteError};

/// Channels named in one command to subscribe.
const CHANNELS_PER_COMMAND: usize = 128;

/// How to reach a Redis server, and what may wait for it.
#[derive(Clone)]
pub struct ClientConfig {
    /// The server. A name is resolved for each connection.
    pub server: ServerAddr,
    /// Name and password, where it asks for them. The name of the default user is `default`.
    pub auth: Option<(String, String)>,
    /// The database; of a cluster there is only 0. Channels know nothing of databases.
    pub database: u32,
    /// What the connection is called in `CLIENT LIST`: without spaces.
    pub name: Option<String>,
    /// Commands that had not left when a connection broke leave on the next one. If not, they are lost, and known not to
    /// have been carried out.
    pub requeue: bool,
    /// How to connect: time-outs, TLS.
    pub connect: ConnectConfig,
    /// Commands out and not answered. Beyond it they wait as those without a connection do.
    pub outstanding_max: usize,
    /// Bytes of commands that wait. Beyond it [`Client::command`] refuses.
    pub queue_bytes_max: usize,
    /// Milliseconds from a lost connection to the next attempt; doubled after each that fails, up to `retry_ms_max`,
    /// and spread by up to a half.
    pub retry_ms_min: u64,
    /// Milliseconds between attempts at most.
    pub retry_ms_max: u64,
}

impl ClientConfig {
    /// The defaults, for a server at this address.
    pub fn new(addr: SocketAddr) -> ClientConfig {
        ClientConfig::at(ServerAddr::Network { host: addr.ip().to_string(), port: addr.port() })
    }

    /// The defaults, for a server at this place.
    pub fn at(server: ServerAddr) -> ClientConfig {
        ClientConfig {
            server,
            auth: None,
            database: 0,
            name: None,
            requeue: true,
            connect: ConnectConfig::default(),
            outstanding_max: 1 << 16,
            queue_bytes_max: 1 << 20,
            retry_ms_min: 50,
            retry_ms_max: 5000,
        }
    }
}

impl fmt::Debug for ClientConfig {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("server", &self.server)
            .field("user", &self.auth.as_ref().map(|(name, _)| name))
            .field("database", &self.database)
            .field("name", &self.name)
            .field("requeue", &self.requeue)
            .field("connect", &self.connect)
            .field("outstanding_max", &self.outstanding_max)
            .field("queue_bytes_max", &self.queue_bytes_max)
            .field("retry_ms_min", &self.retry_ms_min)
            .field("retry_ms_max", &self.retry_ms_max)
            .finish()
    }
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The commands that wait fill the queue. Try again when replies have come.
    #[error("too many commands wait for Redis; send less, or raise queue_bytes_max")]
    Full,
    /// It can be answered by any number of values.
    #[error("{0}")]
    Invalid(InvalidCommand),
}

/// What a client received.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Received<'a> {
    /// There is a connection, and it was greeted. Subscriptions have been asked for again, as far as the socket took them;
    /// commands follow them.
    Ready,
    /// The reply to the command sent with this token.
    Reply(u64, &'a Value<'a>),
    /// A message of a channel subscribed to.
    Message(PubSubMessage<'a>),
    /// Anything else the server pushed: confirmations of subscriptions, and the errors by which it refuses them.
    Push(&'a Value<'a>),
}

/// A command without a reply: its connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostCommand {
    /// What it was sent with.
    pub token: u64,
    /// Whether it had left, at least in part, so that nobody knows whether it was carried out. If not, it was not.
    pub sent: bool,
}

/// A message of a channel subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PubSubMessage<'a> {
    /// The pattern it was found by, if by one.
    pub pattern: Option<&'a [u8]>,
    /// The channel it was published to.
    pub channel: &'a [u8],
    /// What was published.
    pub payload: &'a [u8],
}

/// A Redis client that keeps itself connected: commands in their order, pipelined; subscriptions that survive a
/// lost connection. Part of a [`Handler`](crate::Handler), which forwards what concerns its connection: `on_connect`,
/// `on_data`, `on_writable`, `on_close`, `on_connect_failed` and `on_timer`, each to the `handle_*` of that name;
/// [`forward_to_redis`](crate::forward_to_redis) does so for all but `on_data`.
///
/// Each command taken ends once: its reply comes from [`handle_data`](Client::handle_data) with its token, or the
/// token comes from [`poll_lost`](Client::poll_lost): its connection broke, and nobody knows whether it was carried out.
/// Commands that had not left stay in the queue, unless [`ClientConfig::requeue`] is off.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    conn: Option<ConnId>,
    connection: Connection,
    /// The beginning of a value that is cut.
    input: Vec<u8>,
    /// Greeted, and the greeting answered.
    ready: bool,
    /// Replies of our own greeting still to come.
    greetings: usize,
    waiting: VecDeque<(u64, Vec<Vec<u8>>)>,
    waiting_bytes: usize,
    outstanding: VecDeque<u64>,
    lost: VecDeque<LostCommand>,
    /// What is subscribed to.
    wanted: BTreeSet<Topic>,
    /// Subscriptions that changed and whose command has not left.
    changed: BTreeSet<Topic>,
    attempts: u32,
    timer: Option<TimerId>,
    /// Why there is no connection: what the server answered to the greeting, or what failed.
    last_error: Option<String>,
}

/// What can be subscribed to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    Channel(Vec<u8>),
    Pattern(Vec<u8>),
    ShardChannel(Vec<u8>),
}

impl Topic {
    fn name(&self) -> &[u8] {
        match self {
            Topic::Channel(name) | Topic::Pattern(name) | Topic::ShardChannel(name) => name,
        }
    }

    /// The command that begins or ends a subscription.
    fn command(&self, wanted: bool) -> &'static [u8] {
        match (self, wanted) {
            (Topic::Channel(_), true) => b"SUBSCRIBE",
            (Topic::Channel(_), false) => b"UNSUBSCRIBE",
            (Topic::Pattern(_), true) => b"PSUBSCRIBE",
            (Topic::Pattern(_), false) => b"PUNSUBSCRIBE",
            (Topic::ShardChannel(_), true) => b"SSUBSCRIBE",
            (Topic::ShardChannel(_), false) => b"SUNSUBSCRIBE",
        }
    }
}

impl Client {
    /// A client that is not connected yet: [`Client::connect`].
    pub fn new(config: ClientConfig) -> Client {
        Client {
            config,
            conn: None,
            connection: Connection::new(),
            input: Vec::new(),
            ready: false,
            greetings: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            outstanding: VecDeque::new(),
            lost: VecDeque::new(),
            wanted: BTreeSet::new(),
            changed: BTreeSet::new(),
            attempts: 0,
            timer: None,
            last_error: None,
        }
    }

    /// Connects, and from then on again and again whenever the connection is lost.
    pub fn connect<D: Default>(&mut self, cx: &mut Context<D>) {
        if self.conn.is_some() {
            return;
        }
        (self.connection, self.input) = (Connection::new(), Vec::new());
        let connect = &self.config.connect;
        let begun = match &self.config.server {
            ServerAddr::Network { host, port } => cx.connect_name(host, *port, connect),
            ServerAddr::Unix(path) => cx.connect_unix(path, connect),
        };
        match begun {
            Ok(conn) => self.conn = Some(conn),
            Err(error) => {
                self.last_error = Some(error.to_string());
                self.retry(cx);
            }
        }
    }

    /// Connects to another server from now on, with the same subscriptions. `connect` has the name that its certificate is to
    /// bear.
    pub fn move_to<D: Default>(
        &mut self,
        cx: &mut Context<D>,
        server: ServerAddr,
        connect: ConnectConfig,
    ) {
        (self.config.server, self.config.connect, self.attempts) = (server, connect, 0);
        self.reconnect(cx);
    }

    /// Gives the connection up and makes another.
    pub fn reconnect<D: Default>(&mut self, cx: &mut Context<D>) {
        match self.conn {
            Some(conn) => cx.abort(conn),
            None => {
                if let Some(timer) = self.timer.take() {
                    cx.cancel(timer);
                }
                self.connect(cx);
            }
        }
    }

    /// Closes the connection and makes no other. What was out is lost; subscriptions are forgotten.
    pub fn close<D: Default>(&mut self, cx: &mut Context<D>) {
        if let Some(timer) = self.timer.take() {
            cx.cancel(timer);
        }
        if let Some(conn) = self.conn.take() {
            cx.close(conn);
        }
        self.config.requeue = false;
        self.disconnected();
        (self.wanted, self.attempts) = (BTreeSet::new(), 0);
    }

    /// Sends a command, now or when there is a connection. Its reply comes with `token`. Not for `SUBSCRIBE` and its
    /// like: [`Client::subscribe`].
    ///
    /// # Errors
    ///
    /// [`CommandError`]: nothing was taken.
    pub fn command<D: Default>(
        &mut self,
        cx: &mut Context<D>,
        token: u64,
        arguments: &[&[u8]],
    ) -> Result<(), CommandError> {
        Connection::check(arguments).map_err(CommandError::Invalid)?;
        let room = self.outstanding.len() < self.config.outstanding_max;
        let first = self.changed.is_empty() && self.waiting.is_empty();
        if let Some(conn) = self.conn.filter(|_| self.ready && room && first)
            && self.send(cx, conn, arguments).is_ok()
        {
            self.outstanding.push_back(token);
            return Ok(());
        }
        let bytes = command_bytes(arguments);
        if !self.waiting.is_empty() && self.waiting_bytes + bytes > self.config.queue_bytes_max {
            return Err(CommandError::Full);
        }
        self.waiting_bytes += bytes;
        self.waiting
            .push_back((token, arguments.iter().map(|argument| argument.to_vec()).collect()));
        Ok(())
    }

    /// Subscribes to a channel, now and after every reconnect. Messages come from [`Client::handle_data`]. Said again, it is
    /// sent again, for a server may have ended a subscription unasked.
    pub fn subscribe<D: Default>(&mut self, cx: &mut Context<D>, channel: &[u8]) {
        self.want(cx, Topic::Channel(channel.to_vec()), true);
    }

    /// Subscribes to all channels that a pattern of Redis fits, now and after every reconnect.
    pub fn subscribe_pattern<D: Default>(&mut self, cx: &mut Context<D>, pattern: &[u8]) {
        self.want(cx, Topic::Pattern(pattern.to_vec()), true);
    }

    /// Subscribes to a sharded channel of a cluster (Redis 7), now and after every reconnect.
    pub fn subscribe_sharded<D: Default>(&mut self, cx: &mut Context<D>, channel: &[u8]) {
        self.want(cx, Topic::ShardChannel(channel.to_vec()), true);
    }

    /// Ends a subscription to a sharded channel.
    pub fn unsubscribe_sharded<D: Default>(&mut self, cx: &mut Context<D>, channel: &[u8]) {
        self.want(cx, Topic::ShardChannel(channel.to_vec()), false);
    }

    /// Ends a subscription to a channel.
    pub fn unsubscribe<D: Default>(&mut self, cx: &mut Context<D>, channel: &[u8]) {
        self.want(cx, Topic::Channel(channel.to_vec()), false);
    }

    /// Ends a subscription to a pattern.
    pub fn unsubscribe_pattern<D: Default>(&mut self, cx: &mut Context<D>, pattern: &[u8]) {
        self.want(cx, Topic::Pattern(pattern.to_vec()), false);
    }

    fn want<D: Default>(&mut self, cx: &mut Context<D>, topic: Topic, wanted: bool) {
        // Asked for once more, a subscription is made once more: a server may have ended it.
        let changed = match wanted {
            true => self.wanted.insert(topic.clone()) || self.ready,
            false => self.wanted.remove(&topic),
        };
        // Without a connection it is said by the greeting of the next one.
        if changed && self.ready {
            self.changed.insert(topic);
            self.send_waiting(cx);
        }
    }

    /// Commands out and not answered.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Whether commands leave at once.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Why the last attempt failed, while there is no connection: a wrong password, a server that does not run.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Whether this is the connection of the client.
    pub fn owns(&self, conn: ConnId) -> bool {
        self.conn == Some(conn)
    }

    /// The connection is open: sends the greeting, and the subscriptions behind it.
    pub fn handle_connect<D: Default>(&mut self, cx: &mut Context<D>, conn: ConnId) {
        if !self.owns(conn) {
            return;
        }
        let auth = self.config.auth.clone();
        let name = self.config.name.clone();
        let mut hello: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if let Some((user, password)) = &auth {
            hello.extend([&b"AUTH"[..], user.as_bytes(), password.as_bytes()]);
        }
        if let Some(name) = &name {
            hello.extend([&b"SETNAME"[..], name.as_bytes()]);
        }
        let mut sent = self.send(cx, conn, &hello);
        self.greetings = 1;
        if sent.is_ok() && self.config.database > 0 {
            let database = self.config.database.to_string();
            sent = self.send(cx, conn, &[b"SELECT", database.as_bytes()]);
            self.greetings = 2;
        }
        if sent.is_err() {
            // Without a greeting it would never be ready.
            cx.abort(conn);
        }
    }

    /// Bytes of the server. `on_received` is called for each reply and push in them; it may send commands.
    pub fn handle_data<D: Default>(
        &mut self,
        cx: &mut Context<D>,
        conn: ConnId,
        bytes: &[u8],
        mut on_received: impl FnMut(&mut Client, &mut Context<D>, Received<'_>),
    ) {
        if !self.owns(conn) {
            return;
        }
        let mut kept = std::mem::take(&mut self.input);
        let carried = !kept.is_empty();
        if carried {
            kept.extend_from_slice(bytes);
        }
        let bytes = if carried { &kept } else { bytes };
        let mut at = 0;
        while at < bytes.len() && self.owns(conn) {
            match self.connection.handle_input(&bytes[at..]) {
                Ok(None) => break,
                Ok(Some((event, length))) => {
                    at += length;
                    self.handle_event(cx, conn, &event, &mut on_received);
                }
                Err(error) => {
                    self.last_error = Some(error.to_string());
                    return cx.abort(conn);
                }
            }
        }
        if self.owns(conn) {
            if carried {
                kept.drain(..at);
                self.input = kept;
            } else {
                self.input.extend_from_slice(&bytes[at..]);
            }
        }
    }

    fn handle_event<D: Default>(
        &mut self,
        cx: &mut Context<D>,
        conn: ConnId,
        event: &Event<'_>,
        on_received: &mut impl FnMut(&mut Client, &mut Context<D>, Received<'_>),
    ) {
        match event {
            Event::Push(push) => {
                let received = message(push).map_or(Received::Push(push), Received::Message);
                on_received(self, cx, received);
            }
            Event::Reply(reply) if self.greetings == 0 => {
                let token = self.outstanding.pop_front();
                self.send_waiting(cx);
                if let Some(token) = token {
                    on_received(self, cx, Received::Reply(token, reply));
                }
            }
            Event::Reply(Value::Error(error)) => {
                // The reason; what follows of the greeting only fails with it.
                self.last_error.get_or_insert_with(|| (*error).to_owned());
                cx.close(conn);
            }
            Event::Reply(_) if self.greetings > 1 => self.greetings -= 1,
            Event::Reply(_) => {
                self.greetings = 0;
                (self.ready, self.attempts, self.last_error) = (true, 0, None);
                self.changed = self.wanted.clone();
                self.send_waiting(cx);
                on_received(self, cx, Received::Ready);
            }
        }
    }

    /// The connection takes more: what waits is sent.
    pub fn handle_writable<D: Default>(&mut self, cx: &mut Context<D>, conn: ConnId) {
        if self.owns(conn) {
            self.send_waiting(cx);
        }
    }

    /// Sends what waits, subscriptions first, as far as the connection takes it; `on_writable` follows when it takes
    /// more.
    fn send_waiting<D: Default>(&mut self, cx: &mut Context<D>) {
        let Some(conn) = self.conn.filter(|_| self.ready) else { return };
        while let Some(first) = self.changed.pop_first() {
            let command = first.command(self.wanted.contains(&first));
            let mut topics = vec![first];
            while topics.len() < CHANNELS_PER_COMMAND
                && let Some(topic) = self.changed.first()
                && topic.command(self.wanted.contains(topic)) == command
            {
                topics.extend(self.changed.pop_first());
            }
            // Channels of different slots do not stand in one command.
            if matches!(topics[0], Topic::ShardChannel(_)) {
                self.changed.extend(topics.drain(1..));
            }
            let arguments: Vec<&[u8]> =
                std::iter::once(command).chain(topics.iter().map(Topic::name)).collect();
            if self.send(cx, conn, &arguments).is_err() {
                self.changed.extend(topics);
                return;
            }
        }
        while self.outstanding.len() < self.config.outstanding_max
            && let Some((token, arguments)) = self.waiting.pop_front()
        {
            let slices: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            if self.send(cx, conn, &slices).is_err() {
                self.waiting.push_front((token, arguments));
                return;
            }
            self.waiting_bytes -= command_bytes(&slices);
            self.outstanding.push_back(token);
        }
    }

    fn send<D: Default>(
        &mut self,
        cx: &mut Context<D>,
        conn: ConnId,
        arguments: &[&[u8]],
    ) -> Result<(), WriteError> {
        cx.write_with(conn, command_bytes(arguments), |out| {
            let encoded = self.connection.encode_command(out, arguments);
            debug_assert!(encoded.is_ok(), "commands are checked when they are taken");
        })
    }

    /// The connection has ended, or was not made. It is opened again in a while.
    pub fn handle_close<D: Default>(&mut self, cx: &mut Context<D>, conn: ConnId) {
        if self.owns(conn) {
            self.conn = None;
            self.disconnected();
            self.retry(cx);
        }
    }

    fn disconnected(&mut self) {
        (self.ready, self.greetings) = (false, 0);
        self.changed.clear();
        self.lost.extend(self.outstanding.drain(..).map(|token| LostCommand { token, sent: true }));
        if !self.config.requeue {
            let unsent =
                self.waiting.drain(..).map(|(token, _)| LostCommand { token, sent: false });
            self.lost.extend(unsent);
            self.waiting_bytes = 0;
        }
    }

    /// As [`Client::handle_close`], for a connect that failed.
    pub fn handle_connect_failed<D: Default>(
        &mut self,
        cx: &mut Context<D>,
        conn: ConnId,
        error: &io::Error,
    ) {
        if self.owns(conn) {
            self.last_error = Some(error.to_string());
            self.handle_close(cx, conn);
        }
    }

    /// A timer has fired, perhaps the client's.
    pub fn handle_timer<D: Default>(&mut self, cx: &mut Context<D>, timer: TimerId) {
        if self.timer == Some(timer) {
            self.timer = None;
            self.connect(cx);
        }
    }

    /// A command whose connection broke, in the order they were sent.
    pub fn poll_lost(&mut self) -> Option<LostCommand> {
        self.lost.pop_front()
    }

    fn retry<D: Default>(&mut self, cx: &mut Context<D>) {
        let min_ms = self.config.retry_ms_min.max(1);
        let backoff = Backoff { min_ms, max_ms: self.config.retry_ms_max.max(min_ms) };
        self.attempts += 1;
        // Many clients that lost the same server do not come back as one.
        let delay_ms = backoff.jittered_ms(self.attempts, &mut Jitter::new(cx.random_u64()));
        self.timer = Some(cx.run_after(delay_ms, 0));
    }
}

/// About how many bytes a command takes.
fn command_bytes(arguments: &[&[u8]]) -> usize {
    arguments.iter().map(|argument| argument.len() + 16).sum()
}

/// The message of a channel that a push is, if it is one.
fn message<'a>(push: &'a Value<'_>) -> Option<PubSubMessage<'a>> {
    match push.elements()? {
        [kind, channel, payload] if matches!(kind.text(), Some("message" | "smessage")) => {
            Some(PubSubMessage {
                pattern: None,
                channel: channel.bytes()?,
                payload: payload.bytes()?,
            })
        }
        [kind, pattern, channel, payload] if kind.text() == Some("pmessage") => {
            Some(PubSubMessage {
                pattern: pattern.bytes(),
                channel: channel.bytes()?,
                payload: payload.bytes()?,
            })
        }
        _ => None,
    }
}
