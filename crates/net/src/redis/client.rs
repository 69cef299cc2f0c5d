//! A Redis client that reconnects automatically.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::{fmt, io};

use dunlin_wire::backoff::{Backoff, Jitter};
use dunlin_wire::resp::{Limits, Value};

use super::connection::{Connection, Event, InvalidCommand};
use crate::{ConnId, ConnectConfig, Context, ServerAddr, TimerId, Tls, Url, WriteError};

/// Maximum number of channels in one subscribe command.
const CHANNELS_PER_COMMAND: usize = 128;

/// Configuration of a Redis client: its connection, and limits.
#[derive(Clone)]
pub struct ClientConfig {
    /// The server. A host name is resolved for each connection.
    pub server: ServerAddr,
    /// User name and password, if the server requires them. The name of the default user is `default`.
    pub auth: Option<(String, String)>,
    /// The database number. A cluster has only 0. Pub/sub channels are shared by all databases.
    pub database: u32,
    /// The name of the connection in `CLIENT LIST`. It must not contain spaces.
    pub name: Option<String>,
    /// Whether commands that were not yet written when a connection broke are sent on the next connection. If
    /// `false`, they are lost; Redis has not executed them.
    pub requeue: bool,
    /// Timeouts and TLS of the connection.
    pub connect: ConnectConfig,
    /// Maximum number of commands without a reply. Further ones wait in the queue.
    pub outstanding_max: usize,
    /// Maximum number of bytes of commands in the queue. Beyond it, [`Client::command`] returns [`CommandError::Full`].
    pub queue_bytes_max: usize,
    /// Maximum number of bytes of a reply or message. A longer reply is skipped as it arrives, and its command is
    /// answered with an error; a longer message is skipped and reported as a push of `Null`.
    pub value_bytes_max: usize,
    /// Milliseconds from a lost connection to the next attempt. The delay doubles after each failed attempt, up to
    /// `retry_ms_max`, and varies randomly by up to a half.
    pub retry_ms_min: u64,
    /// Maximum number of milliseconds between two attempts.
    pub retry_ms_max: u64,
}

/// The port of a URL that has none.
const PORT: u16 = 6379;

impl ClientConfig {
    /// Creates the default configuration for a server at this address.
    pub fn new(addr: SocketAddr) -> ClientConfig {
        ClientConfig::at(ServerAddr::Network { host: addr.ip().to_string(), port: addr.port() })
    }

    /// Creates the configuration for the URL of a server: `redis://user:password@host:port/database`, `rediss://` for TLS that
    /// trusts the system's roots, or `unix:` and the path of a socket. The login is percent-encoded (RFC 3986 §2.1).
    ///
    /// ```
    /// use dunlin_net::ServerAddr;
    /// use dunlin_net::redis::ClientConfig;
    ///
    /// let config = ClientConfig::from_url("redis://ada:p%40ss@10.0.0.7/2")?;
    /// assert_eq!(config.server, ServerAddr::Network { host: "10.0.0.7".into(), port: 6379 });
    /// assert_eq!(config.auth, Some(("ada".into(), "p@ss".into())));
    /// assert_eq!(config.database, 2);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The URL cannot be read, or there are no roots to trust. The error does not contain the URL, which may have a password.
    pub fn from_url(url: &str) -> io::Result<ClientConfig> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
        if let Some(path) = url.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return Ok(ClientConfig::at(ServerAddr::Unix(path.into())));
        }
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        if !matches!(scheme, "redis" | "rediss") {
            return Err(wrong("the URL begins with none of redis://, rediss:// and unix:"));
        }
        let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, host) = place.rsplit_once('@').unwrap_or(("", place));
        // As for a URL of HTTP, with another port.
        let as_http: Url = format!("http://{host}").parse()?;
        let ServerAddr::Network { host: name, port } = as_http.server else {
            return Err(wrong("the URL has no host"));
        };
        let has_port = host[host.rfind(']').unwrap_or(0)..].contains(':');
        let mut config = ClientConfig::at(ServerAddr::Network {
            host: name,
            port: if has_port { port } else { PORT },
        });
        if !login.is_empty() {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            let decoded = |text: &str| {
                decoded(text).ok_or_else(|| wrong("the percent-encoding of the login is broken"))
            };
            let user = decoded(user)?;
            let user = if user.is_empty() { "default".to_owned() } else { user };
            config.auth = Some((user, decoded(password)?));
        }
        if !database.is_empty() {
            let number = database.parse();
            config.database = number.map_err(|_| wrong("the database of the URL is no number"))?;
        }
        if scheme == "rediss"
            && let ServerAddr::Network { host, .. } = &config.server
        {
            config.connect.tls = Some(Tls::system()?.client(host)?);
        }
        Ok(config)
    }

    /// Creates the default configuration for a server at this host or Unix socket.
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
            value_bytes_max: Limits::default().value_bytes_max,
            retry_ms_min: 50,
            retry_ms_max: 5000,
        }
    }
}

/// Decodes percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let digits =
            part.get(..2).filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Debug for ClientConfig {
    /// Omits the password.
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
            .field("value_bytes_max", &self.value_bytes_max)
            .field("retry_ms_min", &self.retry_ms_min)
            .field("retry_ms_max", &self.retry_ms_max)
            .finish()
    }
}

/// Why a command was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The queue is full. Try again after replies have arrived.
    #[error("too many commands wait for Redis; send less, or raise queue_bytes_max")]
    Full,
    /// It is unknown how many values would answer the command.
    #[error("{0}")]
    Invalid(InvalidCommand),
}

/// An event of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Received<'a> {
    /// The connection is established and the greeting was answered. The subscriptions have been sent again, as many as
    /// the socket accepts at once; the rest follows, and then commands.
    Ready,
    /// The reply to the command sent with this token.
    Reply(u64, &'a Value<'a>),
    /// A message of a subscribed channel.
    Message(PubSubMessage<'a>),
    /// Any other push of the server: the confirmation of a subscription, or the error that rejects it.
    Push(&'a Value<'a>),
}

/// A command that gets no reply because its connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostCommand {
    /// The token of the command.
    pub token: u64,
    /// Whether the command was written, at least in part. If `true`, Redis may or may not have executed it. If
    /// `false`, it has not.
    pub sent: bool,
}

/// A message of a subscribed channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PubSubMessage<'a> {
    /// The pattern that matched, for a pattern subscription.
    pub pattern: Option<&'a [u8]>,
    /// The channel of the message.
    pub channel: &'a [u8],
    /// The payload of the message.
    pub payload: &'a [u8],
}

/// A Redis client that reconnects automatically. Commands are pipelined in order; subscriptions are restored after a
/// lost connection.
///
/// The client is a field of a [`Handler`](crate::Handler). The handler forwards `on_connect`, `on_data`,
/// `on_writable`, `on_close`, `on_connect_failed` and `on_timer` to the `handle_*` method of the same name.
/// [`forward_to_redis`](crate::forward_to_redis) does so for all but `on_data`.
///
/// Each accepted command ends exactly once. Either [`handle_data`](Client::handle_data) reports its reply with its
/// token, or [`poll_lost`](Client::poll_lost) returns the token because the connection broke. Commands that were not
/// yet written stay in the queue, unless [`ClientConfig::requeue`] is off.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    conn: Option<ConnId>,
    connection: Connection,
    /// The beginning of an incomplete value.
    input: Vec<u8>,
    /// The greeting has been answered.
    ready: bool,
    /// Replies to the greeting that have not arrived.
    greetings: usize,
    waiting: VecDeque<(u64, Vec<Vec<u8>>)>,
    waiting_bytes: usize,
    outstanding: VecDeque<u64>,
    lost: VecDeque<LostCommand>,
    /// The current subscriptions.
    wanted: BTreeSet<Topic>,
    /// Changed subscriptions whose command has not been written.
    changed: BTreeSet<Topic>,
    attempts: u32,
    timer: Option<TimerId>,
    /// Why there is no connection: the server's reply to the greeting, or the error of the attempt.
    last_error: Option<String>,
}

/// The target of a subscription.
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

    /// Returns the command that begins or ends a subscription.
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
    /// Creates a client that is not connected. Call [`Client::connect`] to connect it.
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

    /// Connects, and reconnects each time the connection is lost.
    pub fn connect<D: Default>(&mut self, cx: &mut Context<D>) {
        if self.conn.is_some() {
            return;
        }
        let value_bytes_max = self.config.value_bytes_max;
        let limits = Limits { value_bytes_max, ..Limits::default() };
        (self.connection, self.input) = (Connection::with_limits(&limits), Vec::new());
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

    /// Connects to another server and keeps the subscriptions. `connect` contains the name to verify in the server's
    /// certificate.
    pub fn move_to<D: Default>(
        &mut self,
        cx: &mut Context<D>,
        server: ServerAddr,
        connect: ConnectConfig,
    ) {
        (self.config.server, self.config.connect, self.attempts) = (server, connect, 0);
        self.reconnect(cx);
    }

    /// Aborts the connection and opens a new one.
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

    /// Closes the connection and stops reconnecting. Outstanding commands are lost; subscriptions are removed.
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

    /// Sends a command now, or when the client is connected. The reply is reported with `token`. Do not use it for
    /// commands such as `SUBSCRIBE`; use [`Client::subscribe`].
    ///
    /// # Errors
    ///
    /// Returns [`CommandError`] if the command was not accepted.
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

    /// Subscribes to a channel, now and after each reconnect. [`Client::handle_data`] reports its messages. A
    /// repeated call sends the command again, because the server may have ended the subscription.
    pub fn subscribe<D: Default>(&mut self, cx: &mut Context<D>, channel: &[u8]) {
        self.want(cx, Topic::Channel(channel.to_vec()), true);
    }

    /// Subscribes to all channels that match a glob pattern, now and after each reconnect.
    pub fn subscribe_pattern<D: Default>(&mut self, cx: &mut Context<D>, pattern: &[u8]) {
        self.want(cx, Topic::Pattern(pattern.to_vec()), true);
    }

    /// Subscribes to a sharded channel of a cluster (Redis 7), now and after each reconnect.
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
        // A repeated subscription is sent again: the server may have ended it.
        let changed = match wanted {
            true => self.wanted.insert(topic.clone()) || self.ready,
            false => self.wanted.remove(&topic),
        };
        // Without a connection it is sent after the greeting of the next one.
        if changed && self.ready {
            self.changed.insert(topic);
            self.send_waiting(cx);
        }
    }

    /// Returns the number of commands without a reply.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Returns whether commands are sent immediately.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Returns why the last attempt failed, while there is no connection: for example a wrong password or a refused
    /// connection.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Returns whether `conn` is the client's connection.
    pub fn owns(&self, conn: ConnId) -> bool {
        self.conn == Some(conn)
    }

    /// Handles a connection that has opened: sends the greeting.
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
            // Without a greeting the client would never become ready.
            cx.abort(conn);
        }
    }

    /// Handles bytes received from the server. Calls `on_received` for each reply and push; it may send commands.
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
            Event::Skipped => {}
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
                // Keep the first error; it makes the rest of the greeting fail.
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

    /// Handles a connection with room for output: sends commands from the queue.
    pub fn handle_writable<D: Default>(&mut self, cx: &mut Context<D>, conn: ConnId) {
        if self.owns(conn) {
            self.send_waiting(cx);
        }
    }

    /// Sends subscriptions and then commands until the connection accepts no more. `on_writable` follows when it has
    /// room.
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
            // Channels of different slots cannot be in one command.
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

    /// Handles a connection that has ended or was not established: schedules the next attempt.
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

    /// Like [`Client::handle_close`], for a failed attempt to connect.
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

    /// Handles a timer that has fired. Ignores timers of others.
    pub fn handle_timer<D: Default>(&mut self, cx: &mut Context<D>, timer: TimerId) {
        if self.timer == Some(timer) {
            self.timer = None;
            self.connect(cx);
        }
    }

    /// Returns the next command that was lost with its connection, in the order of sending.
    pub fn poll_lost(&mut self) -> Option<LostCommand> {
        self.lost.pop_front()
    }

    fn retry<D: Default>(&mut self, cx: &mut Context<D>) {
        let min_ms = self.config.retry_ms_min.max(1);
        let backoff = Backoff { min_ms, max_ms: self.config.retry_ms_max.max(min_ms) };
        self.attempts += 1;
        // The jitter prevents many clients from reconnecting to a server at the same moment.
        let delay_ms = backoff.jittered_ms(self.attempts, &mut Jitter::new(cx.random_u64()));
        self.timer = Some(cx.run_after(delay_ms, 0));
    }
}

/// Returns the approximate size of an encoded command in bytes.
fn command_bytes(arguments: &[&[u8]]) -> usize {
    arguments.iter().map(|argument| argument.len() + 16).sum()
}

/// Returns the message in a push, if it is one.
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
