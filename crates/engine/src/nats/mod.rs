//! An engine on NATS (2.9 or later).
//!
//! | subject | what it is |
//! |---|---|
//! | `PREFIX.p.CHANNEL` | what nodes subscribe to: publications that are not kept, and those of the stream, said by the server once it has them |
//! | `PREFIX.s.CHANNEL` | messages of the stream `PREFIX` of JetStream, in which histories are |
//! | `PREFIX.k` | claims of idempotency keys by publications that are not kept |
//! | `PREFIX.r.ID.*` | answers to one connection, and its messages to itself |
//!
//! `CHANNEL` is the namespace (and tenant) as one token of the subject and the tokens of the channel's own name behind it, so that a
//! wildcard of a namespace is a wildcard of NATS, and matches nothing beside it (`message::words`).
//!
//! **Offsets are counted by who publishes, and checked by the server.** A message says its offset and is stored only if the
//! channel's last message is the one that its sender continues (`Nats-Expected-Last-Subject-Sequence`). Of two nodes that publish
//! at once, one is refused, reads the last message, and goes on behind it. One message of a channel is out at a time; what is
//! published meanwhile leaves as one message behind it.
//!
//! **The last message has all that is to be known of a stream** (`message`): offset, epoch, what the epoch inherits, version,
//! and the sequences of the messages before it, by which a history is read backwards, eight messages at a time.
//!
//! **Equal numbers of different generations never pass for the same.** A server that is alone may have lost messages when it is another
//! process: streams go on in another epoch, which inherits what the server has. An engine that has seen more of a stream than the
//! server has cuts it: the new epoch inherits nothing. A channel of which nothing is left begins in an epoch of its own.
//!
//! **A message without an answer is looked for** when the connection is back, by the nonce in it: publications are stored once.

mod answer;
mod config;
mod credentials;
mod greeting;
mod jetstream_error;
mod lane;
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
use self::lane::{Batch, KnownTail, Lane, StreamRead, Subscription, UnstoredPublication, Work};
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

/// A connection for bytes, as the engine is lent it. Of one at a time.
pub trait Pipe {
    /// Connects to a server, by TLS from the first byte if `tls_first`. [`NatsEngine::handle_connected`],
    /// [`NatsEngine::handle_tls_failed`] or [`NatsEngine::handle_closed`] follows.
    fn open(&mut self, server: &Server, tls_first: bool);

    /// Begins TLS on the connection, which leads to this server. `unread` came behind the server's greeting, in plain text:
    /// where there is any, TLS does not begin. [`NatsEngine::handle_secured`] or [`NatsEngine::handle_tls_failed`] follows;
    /// no bytes are handed to the engine before.
    ///
    /// # Errors
    /// Why it does not begin. The connection is given up.
    fn begin_tls(&mut self, server: &Server, unread: &[u8]) -> Result<(), String>;

    /// Closes the connection. Nothing follows.
    fn close(&mut self);

    /// Sends bytes.
    ///
    /// # Errors
    /// [`LinkFull`]: nothing was taken.
    fn write(&mut self, bytes: &[u8]) -> Result<(), LinkFull>;
}

/// Requests out and not answered.
const IN_FLIGHT_MAX: usize = 16_384;

/// Bytes that are said at once; what comes on top of it waits where it can be withdrawn.
const OUT_BYTES_MAX: usize = 1 << 20;

/// Milliseconds between two looks at what waits for a connection.
const EXPIRY_MS: u64 = 50;

/// An engine on NATS: a machine without I/O and without a clock, see the table of the crate.
#[derive(Debug)]
pub struct NatsEngine {
    config: NatsConfig,
    /// State of the generator of random numbers.
    random: u64,
    /// What the caller's time is to be increased by for Unix time.
    unix_ms: u64,
    /// What subjects of answers begin with.
    answers: String,
    session: Session,
    stream: StreamPhase,
    lanes: HashMap<Arc<str>, Lane, RandomState>,
    /// Channels for which something is to be sent.
    dirty: Vec<Arc<str>>,
    /// Channels that wait for the stream.
    stalled: Vec<Arc<str>>,
    sids: HashMap<u64, Arc<str>, RandomState>,
    last_sid: u64,
    remembered: RecentStreams<KnownTail>,
    plain: VecDeque<UnstoredPublication>,
    positions: VecDeque<(u64, u64, Vec<Arc<str>>)>,
    /// Bytes of publications that wait.
    queue_bytes: usize,
    pending: HashMap<u64, Pending, RandomState>,
    /// Requests by when they have failed.
    due: VecDeque<(u64, u64)>,
    last_token: u64,
    /// What the next `PONG` confirms, and those behind it.
    unconfirmed: Vec<Confirmation>,
    pings: VecDeque<Vec<Confirmation>>,
    readers: HashMap<u64, Reader, RandomState>,
    gatherings: HashMap<u64, PositionQuery, RandomState>,
    expiry_ms: Option<u64>,
    /// To be sent.
    out: Vec<u8>,
    events: VecDeque<EngineEvent>,
    stats: Stats,
}

/// How far the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPhase {
    /// It is to be asked for then.
    Wanted {
        at_ms: u64,
    },
    Asked,
    Ready,
}

/// What the server has taken once it answers the `PING` behind it.
#[derive(Debug)]
enum Confirmation {
    Published { token: u64, subject: String },
    Subscribed(Arc<str>),
}

impl NatsEngine {
    /// An engine without a connection: the first [`flush`](Self::flush) opens one. `seed` is random, and another for each
    /// engine; `unix_ms` is Unix time now.
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
            lanes: HashMap::default(),
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

    /// Takes a request of the hub. What it needs of a server is sent by the next [`flush`](Self::flush).
    pub fn handle_request(&mut self, now_ms: u64, request: EngineRequest) {
        match request {
            EngineRequest::Publish(request) => self.publish(now_ms, *request),
            EngineRequest::Subscribe { token, channel, retention, is_wildcard } => {
                self.last_sid += 1;
                let sid = self.last_sid;
                let lane = self.lane(&channel);
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
                let subscription = lane.subscription.get_or_insert(new);
                (subscription.token, subscription.retention) = (token, retention);
                if subscription.connection > 0 {
                    // It is heard already: the position is what is asked for.
                    match retention.keeps() {
                        true => lane.opening = true,
                        false => {
                            self.unconfirmed.push(Confirmation::Subscribed(channel.clone()));
                        }
                    }
                }
                if sid == self.lane(&channel).subscription.map_or(0, |of| of.sid) {
                    self.sids.insert(sid, channel.clone());
                }
                self.touch(&channel);
            }
            EngineRequest::Unsubscribe { channel } => {
                if let Some(lane) = self.lanes.get_mut(&channel)
                    && let Some(subscription) = lane.subscription.take()
                {
                    lane.opening = false;
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
                self.lane(&channel).work.push_back(Work::Remove { token, since_ms: now_ms });
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
        let lane = self.lane(channel);
        lane.reads.push(read);
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
        let lane = self.lane(&channel);
        if key.is_none()
            && publish.version == 0
            && let Some(Work::Publish(batch)) = lane.work.back_mut()
            && batch.takes_more()
            && batch.encoded.len() + encoded.len() + 1024 <= max_payload
        {
            batch.encoded.extend_from_slice(&encoded);
            return batch.tokens.push(token);
        }
        lane.work.push_back(Work::Publish(Box::new(Batch {
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

    /// The channel's lane, an old one or a new one with what is remembered.
    fn lane(&mut self, channel: &Arc<str>) -> &mut Lane {
        if !self.lanes.contains_key(channel) {
            let known = self.remembered.get(channel);
            self.remembered.remove(channel);
            let is_fresh = known.is_some();
            let lane = Lane { known, is_fresh, ..Lane::default() };
            self.lanes.insert(channel.clone(), lane);
        }
        self.lanes.entry(channel.clone()).or_default()
    }

    fn touch(&mut self, channel: &Arc<str>) {
        if let Some(lane) = self.lanes.get_mut(channel)
            && !lane.dirty
        {
            lane.dirty = true;
            self.dirty.push(channel.clone());
        }
    }

    fn finish_publish(&mut self, tokens: &[u64], result: Result<Published, Error>) {
        self.events.extend(self.stats.finish_publish(tokens, result));
    }

    /// A batch leaves the engine.
    fn finish_batch(&mut self, batch: &Batch, result: Result<Published, Error>) {
        self.queue_bytes = self.queue_bytes.saturating_sub(batch.encoded.len());
        self.finish_publish(&batch.tokens, result);
    }

    fn finish_plain(&mut self, plain: &UnstoredPublication, result: Result<Published, Error>) {
        self.queue_bytes = self.queue_bytes.saturating_sub(plain.encoded.len());
        self.finish_publish(&[plain.token], result);
    }

    fn subscribed(&mut self, channel: &str, result: Result<EnginePosition, Error>) {
        let lane = self.lanes.get_mut(channel);
        if let Some(subscription) = lane.and_then(|lane| lane.subscription.as_mut()) {
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

    /// The connection takes requests: all that is heard is to be heard on it.
    fn up(&mut self) {
        let heard: Vec<Arc<str>> = self.sids.values().cloned().collect();
        for channel in &heard {
            self.touch(channel);
        }
    }

    /// The connection is gone, and with it what was out.
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
        for lane in self.lanes.values_mut() {
            lane.is_fresh &= lane.subscription.is_none();
        }
    }

    /// The server has taken what was said before the `PING` that it answers.
    fn confirmed(&mut self) {
        for confirmation in self.pings.pop_front().unwrap_or_default() {
            match confirmation {
                Confirmation::Published { token, .. } => {
                    self.stats.publish_commands += 1;
                    let published = Published { position: Default::default(), suppressed: false };
                    self.finish_publish(&[token], Ok(published));
                }
                Confirmation::Subscribed(channel) => {
                    self.subscribed(&channel, Ok(EnginePosition::default()));
                }
            }
        }
    }

    /// What to tell the hub.
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest.
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

    /// Time has passed. [`flush`](Self::flush) follows.
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

    /// What has waited for a connection for too long fails.
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
            let Some(lane) = self.lanes.get_mut(&channel) else { continue };
            let mut over = Vec::new();
            while lane.work.front().is_some_and(|work| is_over(work.since_ms()))
                && let Some(work) = lane.work.pop_front()
            {
                over.push(work);
            }
            let reads = lane.reads.extract_if(.., |read| is_over(read.since_ms));
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

    /// Ends what was not carried out, or of which nobody knows whether it was.
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

    /// What has been done so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Requests that were not answered.
    pub fn outstanding(&self) -> usize {
        self.pending.len() + self.pings.len()
    }

    /// How the connection is.
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

    /// Whether all channels can be published to and subscribed to.
    pub fn is_ready(&self) -> bool {
        self.is_up() && (self.config.stream.is_none() || self.stream == StreamPhase::Ready)
    }

    fn random(&mut self) -> u64 {
        dunlin_wire::random::next(&mut self.random)
    }

    /// An epoch that no stream has: 48 random bits.
    fn fresh_epoch(&mut self) -> Epoch {
        Epoch::from_u64((self.random() >> 16).max(1))
    }

    /// Sends what is to be sent. Call it at the end of each turn in which any other method was called.
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

    /// Hears a channel on this connection.
    fn hear(&mut self, channel: &Arc<str>) {
        let connection = self.session.connection;
        let subscription = self.lanes.get(channel).and_then(|lane| lane.subscription);
        let Some(subscription) = subscription.filter(|of| of.connection != connection) else {
            return;
        };
        let Some(subject) = self.heard_subject(channel, &subscription) else {
            return self.subscribed(channel, Err(Error::EngineRefused));
        };
        let Some(lane) = self.lanes.get_mut(channel) else { return };
        let Some(subscription) = &mut lane.subscription else { return };
        encode_subscribe(&mut self.out, subject.as_bytes(), subscription.sid);
        (subscription.connection, subscription.synced) = (connection, false);
        (subscription.heard, subscription.verified) = (0, 0);
        match (subscription.retention.keeps(), &self.config.stream) {
            (true, Some(_)) => lane.opening = true,
            (true, None) => self.subscribed(channel, Err(Error::EngineRefused)),
            (false, _) => self.unconfirmed.push(Confirmation::Subscribed(channel.clone())),
        }
    }

    fn subject(&self, kind: char, channel: &str) -> String {
        format!("{}.{kind}.{}", self.config.prefix, message::words(channel))
    }

    /// What is subscribed to in order to hear a channel, or those that a wildcard matches.
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
