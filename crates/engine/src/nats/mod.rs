//! An engine on NATS (2.9 or later).
//!
//! | subject | what it is |
//! |---|---|
//! | `PREFIX.p.CHANNEL` | what nodes subscribe to: unstored publications, and those of the stream, republished by the server once stored |
//! | `PREFIX.s.CHANNEL` | messages of the JetStream stream `PREFIX`, which stores the histories |
//! | `PREFIX.k` | claims of idempotency keys by unstored publications |
//! | `PREFIX.r.ID.*` | answers to one connection, and its messages to itself |
//!
//! `CHANNEL` is the namespace (and tenant) as one token of the subject and the tokens of the channel's own name behind it, so that a
//! wildcard of a namespace is a wildcard of NATS, and matches nothing beside it (`message::words`).
//!
//! **Publishers count the offsets, and the server checks them.** A message contains its offset and is stored only if the
//! channel's last message is the one that its sender continues (`Nats-Expected-Last-Subject-Sequence`). If two nodes publish at
//! once, one is refused, reads the last message, and continues after it. One message of a channel is in flight at a time; what
//! is published meanwhile leaves as one message after it.
//!
//! **The last message contains the whole state of a stream** (`message`): offset, epoch, what the epoch inherits, version, and
//! the sequences of the messages before it, by which a history is read backwards, eight messages at a time.
//!
//! **Equal offsets of different generations are never confused.** A single server may have lost messages when its process was
//! replaced: streams continue in another epoch, which inherits what the server has. An engine that has seen more of a stream
//! than the server has cuts it: the new epoch inherits nothing. A channel of which nothing is left begins in a new epoch.
//!
//! **An unanswered message is searched for** after a reconnect, by its nonce, so that publications are stored once.

mod answer;
mod channel_state;
mod config;
mod credentials;
mod greeting;
mod jetstream_error;
mod message;
mod raw;
mod read;
mod refusals;
mod session;
mod stored;
mod write;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dunlin_hub::engine::{EngineEvent, EnginePosition, EnginePublish, EngineRequest};
use dunlin_hub::{Epoch, Error, HistoryFilter, Published};
use dunlin_wire::nats::{PING, encode_subscribe, encode_unsubscribe};
use foldhash::fast::RandomState;

use self::answer::Pending;
use self::channel_state::{
    Batch, ChannelState, KnownTail, StreamRead, Subscription, UnstoredPublication, Work,
};
use self::read::{PositionQuery, Reader};
use self::session::{Phase, Session};
use crate::frame;
use crate::links::{LinkFull, Server, ShardId};
use crate::remembered::RecentStreams;
use crate::status::{ShardStatus, Stats};

pub use config::{Login, NatsConfig, StreamConfig, TlsMode};
pub use credentials::{Credentials, CredentialsError};
pub use greeting::{ServerInfo, greeting};
pub use jetstream_error::JetStreamError;
pub use message::word;
pub use raw::RawSubjects;
pub use refusals::of_text as refusal_of_text;

/// A connection for bytes, which the caller lends to the engine. There is one at a time.
pub trait Pipe {
    /// Connects to a server, by TLS from the first byte if `tls_first`. [`NatsEngine::handle_connected`],
    /// [`NatsEngine::handle_tls_failed`] or [`NatsEngine::handle_closed`] follows.
    fn open(&mut self, server: &Server, tls_first: bool);

    /// Begins TLS on the connection to this server. `unread` are bytes that arrived in plain text after the server's greeting:
    /// if there are any, TLS does not begin. [`NatsEngine::handle_secured`] or [`NatsEngine::handle_tls_failed`] follows; the
    /// engine receives no bytes before that.
    ///
    /// # Errors
    /// Returns why TLS does not begin. The connection is closed.
    fn begin_tls(&mut self, server: &Server, unread: &[u8]) -> Result<(), String>;

    /// Closes the connection. No event follows.
    fn close(&mut self);

    /// Sends bytes.
    ///
    /// # Errors
    /// [`LinkFull`]: nothing was taken.
    fn write(&mut self, bytes: &[u8]) -> Result<(), LinkFull>;
}

/// Maximum number of unanswered requests.
const IN_FLIGHT_MAX: usize = 16_384;

/// Maximum bytes that are written at once; the rest waits in queues from which it can be withdrawn.
const OUT_BYTES_MAX: usize = 1 << 20;

/// Milliseconds between two checks of the requests that wait for a connection.
const EXPIRY_MS: u64 = 50;

/// An engine on NATS: a state machine without I/O and without a clock; see the table of the crate.
#[derive(Debug)]
pub struct NatsEngine {
    config: NatsConfig,
    /// State of the random number generator.
    random: u64,
    /// Added to the caller's time to get Unix time.
    unix_ms: u64,
    /// Prefix of the subjects of answers.
    answers: String,
    session: Session,
    stream: StreamPhase,
    channel_states: HashMap<Arc<str>, ChannelState, RandomState>,
    /// Channels with something to send.
    dirty: Vec<Arc<str>>,
    /// Channels that wait for the stream.
    stalled: Vec<Arc<str>>,
    sids: HashMap<u64, Arc<str>, RandomState>,
    last_sid: u64,
    remembered: RecentStreams<KnownTail>,
    plain: VecDeque<UnstoredPublication>,
    positions: VecDeque<(u64, u64, Vec<Arc<str>>)>,
    /// Bytes of waiting publications.
    queue_bytes: usize,
    pending: HashMap<u64, Pending, RandomState>,
    /// Deadlines of requests.
    due: VecDeque<(u64, u64)>,
    last_token: u64,
    /// What the next `PONG` confirms, followed by what later ones do.
    unconfirmed: Vec<Confirmation>,
    pings: VecDeque<Vec<Confirmation>>,
    readers: HashMap<u64, Reader, RandomState>,
    gatherings: HashMap<u64, PositionQuery, RandomState>,
    expiry_ms: Option<u64>,
    /// Bytes to send.
    out: Vec<u8>,
    events: VecDeque<EngineEvent>,
    stats: Stats,
}

/// The state of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPhase {
    /// The stream has to be requested at this time.
    Wanted {
        at_ms: u64,
    },
    Asked,
    Ready,
}

/// What the server has processed once it answers the `PING` sent after it.
#[derive(Debug)]
enum Confirmation {
    Published { token: u64, subject: String },
    Subscribed(Arc<str>),
}

impl NatsEngine {
    /// Creates an engine without a connection; the first [`flush`](Self::flush) opens one. `seed` is random and different for
    /// each engine; `unix_ms` is the current Unix time.
    ///
    /// # Panics
    /// Without a server.
    pub fn new(config: NatsConfig, seed: u64, now_ms: u64, unix_ms: u64) -> NatsEngine {
        assert!(!config.servers.is_empty(), "an engine has a server");
        let mut engine = NatsEngine {
            random: seed,
            unix_ms: unix_ms.saturating_sub(now_ms),
            answers: String::new(),
            session: Session::new(now_ms),
            stream: StreamPhase::Wanted { at_ms: now_ms },
            channel_states: HashMap::default(),
            dirty: Vec::new(),
            stalled: Vec::new(),
            sids: HashMap::default(),
            last_sid: session::ANSWERS,
            remembered: RecentStreams::default(),
            plain: VecDeque::new(),
            positions: VecDeque::new(),
            queue_bytes: 0,
            pending: HashMap::default(),
            due: VecDeque::new(),
            last_token: 0,
            unconfirmed: Vec::new(),
            pings: VecDeque::new(),
            readers: HashMap::default(),
            gatherings: HashMap::default(),
            expiry_ms: None,
            out: Vec::new(),
            events: VecDeque::new(),
            stats: Stats::default(),
            config,
        };
        let id = engine.random();
        engine.answers = format!("{}.r.{id:x}.", engine.config.prefix);
        engine
    }

    /// Handles a request of the hub. The next [`flush`](Self::flush) sends the commands for it.
    pub fn handle_request(&mut self, now_ms: u64, request: EngineRequest) {
        match request {
            EngineRequest::Publish(request) => self.publish(now_ms, *request),
            EngineRequest::Subscribe { token, channel, retention, is_wildcard } => {
                self.last_sid += 1;
                let sid = self.last_sid;
                let channel_state = self.channel_state(&channel);
                let new = Subscription {
                    token,
                    retention,
                    sid,
                    is_wildcard,
                    connection: 0,
                    synced: false,
                    heard: 0,
                    verified: 0,
                };
                let subscription = channel_state.subscription.get_or_insert(new);
                (subscription.token, subscription.retention) = (token, retention);
                if subscription.connection > 0 {
                    // The channel is already subscribed to; the request is for its position.
                    match retention.keeps() {
                        true => channel_state.opening = true,
                        false => {
                            self.unconfirmed.push(Confirmation::Subscribed(channel.clone()));
                        }
                    }
                }
                if sid == self.channel_state(&channel).subscription.map_or(0, |of| of.sid) {
                    self.sids.insert(sid, channel.clone());
                }
                self.touch(&channel);
            }
            EngineRequest::Unsubscribe { channel } => {
                if let Some(channel_state) = self.channel_states.get_mut(&channel)
                    && let Some(subscription) = channel_state.subscription.take()
                {
                    channel_state.opening = false;
                    self.sids.remove(&subscription.sid);
                    if subscription.connection == self.session.connection && self.is_up() {
                        encode_unsubscribe(&mut self.out, subscription.sid);
                    }
                    self.touch(&channel);
                }
            }
            EngineRequest::History { token, channel, retention, filter, .. } => {
                self.read(now_ms, token, &channel, retention, filter);
            }
            EngineRequest::RemoveHistory { token, channel } => {
                if self.config.stream.is_none() {
                    let result = Err(Error::EngineRefused);
                    return self.events.push_back(EngineEvent::HistoryRemoved { token, result });
                }
                self.channel_state(&channel)
                    .work
                    .push_back(Work::Remove { token, since_ms: now_ms });
                self.touch(&channel);
            }
            EngineRequest::Positions { token, channels } => {
                self.positions.push_back((token, now_ms, channels));
            }
            _ => debug_assert!(false, "a request that this engine does not know"),
        }
    }

    fn read(
        &mut self,
        now_ms: u64,
        token: u64,
        channel: &Arc<str>,
        retention: dunlin_hub::engine::Retention,
        filter: HistoryFilter,
    ) {
        let is_before_all = filter.reverse && filter.since.is_some_and(|since| since.offset == 0);
        if is_before_all || self.config.stream.is_none() {
            let error = if is_before_all { Error::BadRequest } else { Error::EngineRefused };
            return self.events.push_back(EngineEvent::History { token, result: Err(error) });
        }
        let read = StreamRead { token, retention, filter, since_ms: now_ms };
        let channel_state = self.channel_state(channel);
        channel_state.reads.push(read);
        self.touch(channel);
    }

    fn publish(&mut self, now_ms: u64, request: EnginePublish) {
        let EnginePublish { token, channel, retention, publish, time_ms } = request;
        if self.queue_bytes > self.config.queue_bytes_max {
            return self.finish_publish(&[token], Err(Error::EngineUnavailable));
        }
        let keeps = retention.keeps();
        let needs_stream = keeps || publish.idempotency_key.is_some();
        if needs_stream && self.config.stream.is_none() {
            self.session.detail = "there is no stream: jetstream = false".to_owned();
            return self.finish_publish(&[token], Err(Error::EngineRefused));
        }
        if let Some(raw) = &self.config.raw
            && (keeps || publish.idempotency_key.is_some() || raw.of(&channel, false).is_none())
        {
            self.session.detail = format!("{channel:?} is no channel of raw subjects");
            return self.finish_publish(&[token], Err(Error::EngineRefused));
        }
        let mut encoded = Vec::with_capacity(publish.data.len() + 32);
        match &self.config.raw {
            Some(_) => encoded.extend_from_slice(&publish.data),
            None => frame::encode(&mut encoded, &publish, time_ms),
        }
        if encoded.len() + 1024 > self.session.max_payload {
            let bytes = encoded.len();
            self.session.detail = format!("a publication of {bytes} bytes is above max_payload");
            self.session.refusing = Some(refusals::TOO_LARGE);
            return self.finish_publish(&[token], Err(Error::EngineRefused));
        }
        self.queue_bytes += encoded.len();
        let (key, since_ms) = (publish.idempotency_key, now_ms);
        if !keeps {
            return self.plain.push_back(UnstoredPublication {
                token,
                channel,
                encoded,
                key,
                since_ms,
            });
        }
        let (nonce, max_payload) = (self.random(), self.session.max_payload);
        let channel_state = self.channel_state(&channel);
        if key.is_none()
            && publish.version == 0
            && let Some(Work::Publish(batch)) = channel_state.work.back_mut()
            && batch.takes_more()
            && batch.encoded.len() + encoded.len() + 1024 <= max_payload
        {
            batch.encoded.extend_from_slice(&encoded);
            return batch.tokens.push(token);
        }
        channel_state.work.push_back(Work::Publish(Box::new(Batch {
            tokens: vec![token],
            encoded,
            key,
            version: publish.version,
            version_epoch: publish.version_epoch,
            since_ms,
            nonce,
            sent_after: None,
            is_sought: false,
        })));
        self.touch(&channel);
    }

    /// Returns the channel's channel state; a new one starts with the remembered state of the stream.
    fn channel_state(&mut self, channel: &Arc<str>) -> &mut ChannelState {
        if !self.channel_states.contains_key(channel) {
            let known = self.remembered.get(channel);
            self.remembered.remove(channel);
            let is_fresh = known.is_some();
            let channel_state = ChannelState { known, is_fresh, ..ChannelState::default() };
            self.channel_states.insert(channel.clone(), channel_state);
        }
        self.channel_states.entry(channel.clone()).or_default()
    }

    fn touch(&mut self, channel: &Arc<str>) {
        if let Some(channel_state) = self.channel_states.get_mut(channel)
            && !channel_state.dirty
        {
            channel_state.dirty = true;
            self.dirty.push(channel.clone());
        }
    }

    fn finish_publish(&mut self, tokens: &[u64], result: Result<Published, Error>) {
        self.events.extend(self.stats.finish_publish(tokens, result));
    }

    /// Reports the result of a batch.
    fn finish_batch(&mut self, batch: &Batch, result: Result<Published, Error>) {
        self.queue_bytes = self.queue_bytes.saturating_sub(batch.encoded.len());
        self.finish_publish(&batch.tokens, result);
    }

    fn finish_plain(&mut self, plain: &UnstoredPublication, result: Result<Published, Error>) {
        self.queue_bytes = self.queue_bytes.saturating_sub(plain.encoded.len());
        self.finish_publish(&[plain.token], result);
    }

    fn subscribed(&mut self, channel: &str, result: Result<EnginePosition, Error>) {
        let channel_state = self.channel_states.get_mut(channel);
        if let Some(subscription) =
            channel_state.and_then(|channel_state| channel_state.subscription.as_mut())
        {
            let token = subscription.token;
            self.events.push_back(EngineEvent::Subscribed { token, result });
        }
    }

    fn is_up(&self) -> bool {
        self.session.phase == Phase::Up
    }

    fn takes_more(&self) -> bool {
        self.pending.len() < IN_FLIGHT_MAX && self.out.len() < OUT_BYTES_MAX
    }

    /// Subscribes to all channels on a connection that accepts requests.
    fn up(&mut self) {
        let heard: Vec<Arc<str>> = self.sids.values().cloned().collect();
        for channel in &heard {
            self.touch(channel);
        }
    }

    /// Handles the loss of the connection and of the unanswered requests.
    fn lost(&mut self, now_ms: u64) {
        let pending = std::mem::take(&mut self.pending);
        self.due.clear();
        for (_, pending) in pending {
            self.pending_lost(now_ms, pending, true);
        }
        let confirmations = self.pings.drain(..).flatten().chain(self.unconfirmed.drain(..));
        for confirmation in confirmations.collect::<Vec<_>>() {
            if let Confirmation::Published { token, .. } = confirmation {
                self.finish_publish(&[token], Err(Error::EngineUncertain));
            }
        }
        for channel_state in self.channel_states.values_mut() {
            channel_state.is_fresh &= channel_state.subscription.is_none();
        }
    }

    /// Handles a `PONG`: the server has processed what was sent before the `PING`.
    fn confirmed(&mut self) {
        for confirmation in self.pings.pop_front().unwrap_or_default() {
            match confirmation {
                Confirmation::Published { token, .. } => {
                    self.stats.publish_commands += 1;
                    let published = Published::default();
                    self.finish_publish(&[token], Ok(published));
                }
                Confirmation::Subscribed(channel) => {
                    self.subscribed(&channel, Ok(EnginePosition::default()));
                }
            }
        }
    }

    /// Returns the next event for the hub.
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    /// Returns the latest time for the next call of [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<u64> {
        let stream = match self.stream {
            StreamPhase::Wanted { at_ms } if self.is_up() && self.config.stream.is_some() => {
                Some(at_ms)
            }
            _ => None,
        };
        let due = self.due.front().map(|&(due_ms, _)| due_ms);
        let session = Some(self.session.due_ms());
        [stream, due, session, self.expiry_ms].into_iter().flatten().min()
    }

    /// Handles timeouts. Call [`flush`](Self::flush) afterwards.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        self.session_due(now_ms);
        while let Some(&(due_ms, token)) = self.due.front()
            && due_ms <= now_ms
        {
            self.due.pop_front();
            if let Some(pending) = self.pending.remove(&token) {
                self.pending_lost(now_ms, pending, false);
            }
        }
        if self.expiry_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            self.expire(now_ms);
        }
    }

    /// Fails the requests that have waited too long for a connection.
    fn expire(&mut self, now_ms: u64) {
        let hold_ms = self.config.hold_ms;
        let is_over = |since_ms: u64| since_ms + hold_ms <= now_ms;
        let no_stream = self.stream != StreamPhase::Ready || !self.is_up();
        if !self.is_up() {
            while self.plain.front().is_some_and(|plain| is_over(plain.since_ms))
                && let Some(plain) = self.plain.pop_front()
            {
                self.finish_plain(&plain, Err(Error::EngineUnavailable));
            }
        }
        if !no_stream {
            return;
        }
        let keyed = |plain: &UnstoredPublication| plain.key.is_some() && is_over(plain.since_ms);
        let (over, plain): (VecDeque<UnstoredPublication>, _) =
            std::mem::take(&mut self.plain).into_iter().partition(keyed);
        self.plain = plain;
        for plain in over {
            self.finish_plain(&plain, Err(Error::EngineUnavailable));
        }
        while self.positions.front().is_some_and(|&(_, since_ms, _)| is_over(since_ms))
            && let Some((token, ..)) = self.positions.pop_front()
        {
            let result = Err(Error::EngineUnavailable);
            self.events.push_back(EngineEvent::Positions { token, result });
        }
        for channel in [&self.dirty[..], &self.stalled[..]].concat() {
            let Some(channel_state) = self.channel_states.get_mut(&channel) else { continue };
            let mut over = Vec::new();
            while channel_state.work.front().is_some_and(|work| is_over(work.since_ms()))
                && let Some(work) = channel_state.work.pop_front()
            {
                over.push(work);
            }
            let reads = channel_state.reads.extract_if(.., |read| is_over(read.since_ms));
            let reads: Vec<u64> = reads.map(|read| read.token).collect();
            for work in over {
                self.fail_work(work, Error::EngineUnavailable);
            }
            for token in reads {
                let result = Err(Error::EngineUnavailable);
                self.events.push_back(EngineEvent::History { token, result });
            }
        }
    }

    /// Fails work that was not carried out, or whose outcome is unknown.
    fn fail_work(&mut self, work: Work, error: Error) {
        match work {
            Work::Publish(batch) => {
                let error = if batch.sent_after.is_some() { Error::EngineUncertain } else { error };
                self.finish_batch(&batch, Err(error));
            }
            Work::Remove { token, .. } => {
                self.events.push_back(EngineEvent::HistoryRemoved { token, result: Err(error) });
            }
        }
    }

    /// Returns the engine's counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns the number of unanswered requests.
    pub fn outstanding(&self) -> usize {
        self.pending.len() + self.pings.len()
    }

    /// Returns the state of the connection.
    pub fn shards(&self) -> impl Iterator<Item = ShardStatus> + '_ {
        let session = &self.session;
        std::iter::once(ShardStatus {
            shard: ShardId(0),
            server: self.server().clone(),
            state: session.state.clone(),
            since_ms: session.since_ms,
            detail: session.detail.clone(),
            version: session.version.clone(),
            eviction: String::new(),
            refusing: session.refusing,
            replica: None,
            partitions: 1,
            partitions_ready: u16::from(self.is_ready()),
            slots_moving: 0,
            channels_put_off: 0,
        })
    }

    /// Returns whether all channels can be published and subscribed to.
    pub fn is_ready(&self) -> bool {
        self.is_up() && (self.config.stream.is_none() || self.stream == StreamPhase::Ready)
    }

    fn random(&mut self) -> u64 {
        dunlin_wire::random::next(&mut self.random)
    }

    /// Creates an epoch that no stream has: 48 random bits.
    fn fresh_epoch(&mut self) -> Epoch {
        Epoch::from_u64((self.random() >> 16).max(1))
    }

    /// Sends everything that is due. Call it at the end of each turn in which any other method was called.
    pub fn flush(&mut self, now_ms: u64, pipe: &mut impl Pipe) {
        self.flush_session(now_ms, pipe);
        if self.is_up() {
            self.flush_stream(now_ms);
            for channel in std::mem::take(&mut self.dirty) {
                match self.takes_more() {
                    true => self.advance(now_ms, &channel),
                    false => self.dirty.push(channel),
                }
            }
            self.flush_plain(now_ms);
            self.flush_positions(now_ms);
            if !self.unconfirmed.is_empty() {
                self.out.extend_from_slice(PING);
                self.pings.push_back(std::mem::take(&mut self.unconfirmed));
            }
        }
        if !self.out.is_empty()
            && matches!(self.session.phase, Phase::Greeting | Phase::Up)
            && pipe.write(&self.out).is_ok()
        {
            self.out.clear();
            self.out.shrink_to(OUT_BYTES_MAX);
        }
        let waits = !self.dirty.is_empty()
            || !self.stalled.is_empty()
            || !self.plain.is_empty()
            || !self.positions.is_empty();
        self.expiry_ms = match (waits, self.expiry_ms) {
            (false, _) => None,
            (true, Some(at_ms)) if at_ms > now_ms => Some(at_ms),
            (true, _) => Some(now_ms + EXPIRY_MS),
        };
    }

    /// Subscribes to a channel on this connection.
    fn hear(&mut self, channel: &Arc<str>) {
        let connection = self.session.connection;
        let subscription =
            self.channel_states.get(channel).and_then(|channel_state| channel_state.subscription);
        let Some(subscription) = subscription.filter(|of| of.connection != connection) else {
            return;
        };
        let Some(subject) = self.heard_subject(channel, &subscription) else {
            return self.subscribed(channel, Err(Error::EngineRefused));
        };
        let Some(channel_state) = self.channel_states.get_mut(channel) else { return };
        let Some(subscription) = &mut channel_state.subscription else { return };
        encode_subscribe(&mut self.out, subject.as_bytes(), subscription.sid);
        (subscription.connection, subscription.synced) = (connection, false);
        (subscription.heard, subscription.verified) = (0, 0);
        match (subscription.retention.keeps(), &self.config.stream) {
            (true, Some(_)) => channel_state.opening = true,
            (true, None) => self.subscribed(channel, Err(Error::EngineRefused)),
            (false, _) => self.unconfirmed.push(Confirmation::Subscribed(channel.clone())),
        }
    }

    fn subject(&self, kind: char, channel: &str) -> String {
        format!("{}.{kind}.{}", self.config.prefix, message::words(channel))
    }

    /// Returns the subject to subscribe to for a channel, or for those that a wildcard matches.
    fn heard_subject(&self, channel: &str, subscription: &Subscription) -> Option<String> {
        match (&self.config.raw, subscription.is_wildcard) {
            (Some(raw), is_wildcard) => raw.of(channel, is_wildcard),
            (None, true) => {
                Some(format!("{}.p.{}", self.config.prefix, message::wildcard_words(channel)))
            }
            (None, false) => Some(self.subject('p', channel)),
        }
    }
}
