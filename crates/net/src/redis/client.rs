//! A Redis client that keeps itself connected.

use std::collections::{BTreeSet, VecDeque};
use std::{error, fmt, io};

use dunlin_wire::resp::Value;

use crate::config::{ConnectConfig, Role};
use crate::conn::ConnId;
use crate::context::{Context, TimerId};
use std::net::SocketAddr;

/// How to reach a Redis server, and what may wait for it.
#[derive(Clone)]
pub struct ClientConfig {
    /// The server.
    pub addr: SocketAddr,
    /// Name and password, where it asks for them. The name of the default user is `default`.
    pub auth: Option<(String, String)>,
    /// How to connect: time-outs, TLS. The role is set to [`Role::Redis`].
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
        ClientConfig {
            addr,
            auth: None,
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
            .field("addr", &self.addr)
            .field("user", &self.auth.as_ref().map(|(name, _)| name))
            .field("connect", &self.connect)
            .field("outstanding_max", &self.outstanding_max)
            .field("queue_bytes_max", &self.queue_bytes_max)
            .field("retry_ms_min", &self.retry_ms_min)
            .field("retry_ms_max", &self.retry_ms_max)
            .finish()
    }
}

/// The commands that wait fill the queue. Try again when replies have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many commands wait for Redis; send less, or raise queue_bytes_max")
    }
}

impl error::Error for Full {}

/// A message of a channel subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The pattern it was found by, if by one.
    pub pattern: Option<&'a [u8]>,
    /// The channel it was published to.
    pub channel: &'a [u8],
    /// What was published.
    pub payload: &'a [u8],
}

/// A Redis client that keeps itself connected: commands in their order, pipelined; subscriptions that survive a
/// lost connection. Part of a [`Handler`](crate::Handler), which passes on to it what concerns its connection:
/// `on_open`, `on_reply`, `on_push`, `on_writable`, `on_close`, `on_connect_failed` and `on_timer` to the `handle_*` of
/// that name.
///
/// Each command taken ends once: its reply comes from [`handle_reply`](Client::handle_reply) with its token, or the
/// token comes from [`poll_lost`](Client::poll_lost), for it was on a connection that broke and nobody knows whether it
/// was carried out. Commands that had not left stay in the queue.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    conn: Option<ConnId>,
    /// Greeted, and the greeting answered.
    ready: bool,
    /// Replies of our own greeting still to come.
    greetings: usize,
    waiting: VecDeque<(u64, Vec<Vec<u8>>)>,
    waiting_bytes: usize,
    outstanding: VecDeque<u64>,
    lost: VecDeque<u64>,
    /// What is subscribed to.
    wanted: BTreeSet<Topic>,
    /// Of what the connection has yet to say whether it is wanted.
    unsaid: BTreeSet<Topic>,
    attempts: u32,
    timer: Option<TimerId>,
    /// What the server said to the greeting that failed last.
    refusal: Option<String>,
}

/// What can be subscribed to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    Channel(Vec<u8>),
    Pattern(Vec<u8>),
}

impl Client {
    /// A client that is not connected yet: [`Client::connect`].
    pub fn new(mut config: ClientConfig) -> Client {
        config.connect.role = Role::Redis;
        Client {
            config,
            conn: None,
            ready: false,
            greetings: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            outstanding: VecDeque::new(),
            lost: VecDeque::new(),
            wanted: BTreeSet::new(),
            unsaid: BTreeSet::new(),
            attempts: 0,
            timer: None,
            refusal: None,
        }
    }

    /// Connects, and from then on again and again whenever the connection is lost.
    pub fn connect<D: Default>(&mut self, cx: &mut Context<D>) {
        if self.conn.is_some() {
            return;
        }
        match cx.connect(self.config.addr, &self.config.connect) {
            Ok(conn) => self.conn = Some(conn),
            Err(_) => self.retry(cx),
        }
    }

    /// Sends a command, now or when there is a connection. Its reply comes with `token`. Not for `SUBSCRIBE` and its
    /// like: [`Client::subscribe`].
    ///
    /// # Errors
    ///
    /// [`Full`]: nothing was taken.
    pub fn command<D: Default>(
        &mut self,
        cx: &mut Context<D>,
        token: u64,
        arguments: &[&[u8]],
    ) -> Result<(), Full> {
        let room = self.outstanding.len() < self.config.outstanding_max;
        let first = self.unsaid.is_empty() && self.waiting.is_empty();
        if let Some(conn) = self.conn.filter(|_| self.ready && room && first)
            && cx.command(conn, arguments).is_ok()
        {
            self.outstanding.push_back(token);
            return Ok(());
        }
        let bytes: usize = arguments.iter().map(|argument| argument.len() + 16).sum();
        if !self.waiting.is_empty() && self.waiting_bytes + bytes > self.config.queue_bytes_max {
            return Err(Full);
        }
        self.waiting_bytes += bytes;
        self.waiting
            .push_back((token, arguments.iter().map(|argument| argument.to_vec()).collect()));
        Ok(())
    }

    /// Subscribes to a channel, now and after every reconnect. Messages come from [`Client::handle_push`].
    pub fn subscribe<D: Default>(&mut self, cx: &mut Context<D>, channel: &[u8]) {
        self.want(cx, Topic::Channel(channel.to_vec()), true);
    }

    /// Subscribes to all channels that a pattern of Redis fits, now and after every reconnect.
    pub fn subscribe_pattern<D: Default>(&mut self, cx: &mut Context<D>, pattern: &[u8]) {
        self.want(cx, Topic::Pattern(pattern.to_vec()), true);
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
        let changed = match wanted {
            true => self.wanted.insert(topic.clone()),
            false => self.wanted.remove(&topic),
        };
        // Without a connection it is said by the greeting of the next one.
        if changed && self.ready {
            self.unsaid.insert(topic);
            self.drain(cx);
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

    /// What the server said when it last refused to be greeted: a wrong password, most often.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Whether this is the connection of the client.
    pub fn owns(&self, conn: ConnId) -> bool {
        self.conn == Some(conn)
    }

    /// The connection is open: it is greeted, and told the subscriptions.
    pub fn handle_open<D: Default>(&mut self, cx: &mut Context<D>, conn: ConnId) {
        if !self.owns(conn) {
            return;
        }
        let sent = match &self.config.auth {
            Some((name, password)) => {
                cx.command(conn, &[b"HELLO", b"3", b"AUTH", name.as_bytes(), password.as_bytes()])
            }
            None => cx.command(conn, &[b"HELLO", b"3"]),
        };
        self.greetings = usize::from(sent.is_ok());
        if sent.is_err() {
            // Without a greeting it would never be ready.
            cx.abort(conn);
        }
    }

    /// A reply. Returns the token of its command; `None` when it was to the client's own greeting.
    pub fn handle_reply<D: Default>(
        &mut self,
        cx: &mut Context<D>,
        conn: ConnId,
        reply: &Value<'_>,
    ) -> Option<u64> {
        if !self.owns(conn) {
            return None;
        }
        if self.greetings == 0 {
            let token = self.outstanding.pop_front();
            self.drain(cx);
            return token;
        }
        self.greetings -= 1;
        if let Value::Error(error) = reply {
            self.refusal = Some((*error).to_owned());
            cx.close(conn);
            return None;
        }
        (self.ready, self.attempts, self.refusal) = (true, 0, None);
        self.unsaid = self.wanted.clone();
        self.drain(cx);
        None
    }

    /// The connection takes more: what waits is sent.
    pub fn handle_writable<D: Default>(&mut self, cx: &mut Context<D>, conn: ConnId) {
        if self.owns(conn) {
            self.drain(cx);
        }
    }

    /// Sends what waits, subscriptions first, as far as the connection takes it; `on_writable` follows when it takes
    /// more.
    fn drain<D: Default>(&mut self, cx: &mut Context<D>) {
        let Some(conn) = self.conn.filter(|_| self.ready) else { return };
        while let Some(topic) = self.unsaid.pop_first() {
            let (verb, name): (&[u8], _) = match (&topic, self.wanted.contains(&topic)) {
                (Topic::Channel(name), true) => (b"SUBSCRIBE", name),
                (Topic::Channel(name), false) => (b"UNSUBSCRIBE", name),
                (Topic::Pattern(name), true) => (b"PSUBSCRIBE", name),
                (Topic::Pattern(name), false) => (b"PUNSUBSCRIBE", name),
            };
            if cx.command(conn, &[verb, name]).is_err() {
                self.unsaid.insert(topic);
                return;
            }
        }
        while self.outstanding.len() < self.config.outstanding_max
            && let Some((token, arguments)) = self.waiting.front()
        {
            let slices: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            if cx.command(conn, &slices).is_err() {
                return;
            }
            self.waiting_bytes -= slices.iter().map(|argument| argument.len() + 16).sum::<usize>();
            self.outstanding.push_back(*token);
            self.waiting.pop_front();
        }
    }

    /// What the server said unasked: a message, if it is one; confirmations of subscriptions are not.
    pub fn handle_push<'a>(&self, conn: ConnId, push: &'a Value<'_>) -> Option<Message<'a>> {
        if !self.owns(conn) {
            return None;
        }
        match push.elements()? {
            [kind, channel, payload] if kind.text() == Some("message") => Some(Message {
                pattern: None,
                channel: channel.bytes()?,
                payload: payload.bytes()?,
            }),
            [kind, pattern, channel, payload] if kind.text() == Some("pmessage") => Some(Message {
                pattern: pattern.bytes(),
                channel: channel.bytes()?,
                payload: payload.bytes()?,
            }),
            _ => None,
        }
    }

    /// The connection has ended, or was not made. It is opened again in a while.
    pub fn handle_close<D: Default>(&mut self, cx: &mut Context<D>, conn: ConnId) {
        if self.owns(conn) {
            self.conn = None;
            (self.ready, self.greetings) = (false, 0);
            self.unsaid.clear();
            self.lost.append(&mut self.outstanding);
            self.retry(cx);
        }
    }

    /// As [`Client::handle_close`], for a connect that failed.
    pub fn handle_connect_failed<D: Default>(
        &mut self,
        cx: &mut Context<D>,
        conn: ConnId,
        _: &io::Error,
    ) {
        self.handle_close(cx, conn);
    }

    /// A timer has fired, perhaps the client's.
    pub fn handle_timer<D: Default>(&mut self, cx: &mut Context<D>, timer: TimerId) {
        if self.timer == Some(timer) {
            self.timer = None;
            self.connect(cx);
        }
    }

    /// The token of a command that was on a connection which broke: it may have been carried out or not.
    pub fn poll_lost(&mut self) -> Option<u64> {
        self.lost.pop_front()
    }

    fn retry<D: Default>(&mut self, cx: &mut Context<D>) {
        let min = self.config.retry_ms_min.max(1);
        let delay_ms = (min << self.attempts.min(16)).min(self.config.retry_ms_max.max(min));
        self.attempts += 1;
        // Many clients that lost the same server do not come back as one.
        let spread_ms = cx.random_u64() % (delay_ms / 2 + 1);
        self.timer = Some(cx.run_after(delay_ms - delay_ms / 4 + spread_ms / 2, 0));
    }
}
