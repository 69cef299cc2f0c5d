//! An engine on a disk of this machine: the channels of one node, in a log that all its workers share.
//!
//! A worker's [`DiskEngine`] appends to the log, which waits for nothing, and delivers a publication once the log has written
//! or synced it. Reads run on the log's thread for them. Both wake the worker through its [`DiskPort`].

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunlin_hub::engine::{
    EngineEvent, EnginePosition, EnginePublish, EngineRequest, Lineage, Retention,
};
use dunlin_hub::{
    Durability, Epoch, Error, HistoryFilter, NewPublication, Publication, PublicationParts,
    Published, SessionId, StreamPosition,
};
use dunlin_log::{
    Append, AppendError, Damage, Log, READ_RECORDS_MAX, ReadError, ReadRange, ReadResult, Reads,
    Trim,
};
use foldhash::fast::RandomState;

use crate::frame::{self, FrameError};
use crate::links::{Server, ServerRole, ShardId};
use crate::remembered::RecentStreams;
use crate::select::{StreamSlice, select_publications};
use crate::status::{RefusalReason, ShardState, ShardStatus, Stats};

/// How long an idempotency key is known if the publisher does not say.
const IDEMPOTENCY_TTL_MS: u64 = 5 * 60 * 1000;
/// The version of a record's body.
const BODY_VERSION: u8 = 1;

/// What of a disk engine its workers share.
#[derive(Clone)]
pub struct DiskLog {
    /// The log.
    pub log: Arc<Log>,
    /// Its reads.
    pub reads: Reads,
    /// What publications survive before they are delivered and acknowledged, unless their namespace or their publisher says
    /// otherwise.
    pub durability: Durability,
}

/// Where the log's threads leave what a worker waits for.
pub struct DiskPort {
    /// The worker waits for the log to write or to sync.
    waits: AtomicBool,
    done: Mutex<Vec<ReadEnd>>,
    ring: Box<dyn Fn() + Send + Sync>,
}

struct ReadEnd {
    token: u64,
    result: Result<ReadResult, ReadError>,
}

impl DiskPort {
    /// A port whose worker `ring` wakes, on any thread.
    pub fn new(ring: impl Fn() + Send + Sync + 'static) -> DiskPort {
        DiskPort { waits: AtomicBool::new(false), done: Mutex::default(), ring: Box::new(ring) }
    }

    /// The log has written or synced something.
    pub fn wake(&self) {
        if self.waits.swap(false, Ordering::AcqRel) {
            (self.ring)();
        }
    }

    fn finish(&self, end: ReadEnd) {
        self.done().push(end);
        (self.ring)();
    }

    fn done(&self) -> MutexGuard<'_, Vec<ReadEnd>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's part of an engine on a disk.
pub struct DiskEngine {
    shared: Option<DiskLog>,
    port: Arc<DiskPort>,
    /// The directory, for status.
    place: String,
    /// What waits until the log has written something, in its order.
    unwritten: VecDeque<InFlight>,
    /// What waits until the log has synced something, in its order.
    unsynced: VecDeque<InFlight>,
    /// Publications in flight, by channel.
    undelivered: HashMap<Arc<str>, u64, RandomState>,
    reads: HashMap<u64, PendingRead, RandomState>,
    next_read: u64,
    /// Subscribed channels, with what their publications survive before they are delivered.
    subscribed: HashMap<Arc<str>, Durability, RandomState>,
    /// Positions of publications by channel and idempotency key, with the key's expiry.
    keys: RecentStreams<(StreamPosition, u64)>,
    /// The last version of each channel that has versions.
    versions: RecentStreams<(u64, Box<str>)>,
    events: VecDeque<EngineEvent>,
    damaged: Vec<Damage>,
    stats: Stats,
    unix_ms: u64,
}

/// What is done when the log has come to `end`.
struct InFlight {
    end: u64,
    token: u64,
    channel: Arc<str>,
    position: StreamPosition,
    kind: InFlightKind,
}

enum InFlightKind {
    /// A publication is delivered, and with `answers` its publisher answered.
    Publish {
        publication: Publication,
        except: Option<SessionId>,
        answers: bool,
    },
    /// A publisher is answered, sooner or later than the publication is delivered.
    Answer,
    /// A second publication with the key of one in flight, or of an earlier one.
    Suppressed,
    Cleared,
}

struct PendingRead {
    token: u64,
    position: StreamPosition,
    size: u32,
    filter: HistoryFilter,
}

impl DiskEngine {
    /// The part of the worker with this port. Without a log everything is refused.
    pub fn new(shared: Option<DiskLog>, port: Arc<DiskPort>, place: String) -> DiskEngine {
        DiskEngine {
            shared,
            port,
            place,
            unwritten: VecDeque::new(),
            unsynced: VecDeque::new(),
            undelivered: HashMap::default(),
            reads: HashMap::default(),
            next_read: 0,
            subscribed: HashMap::default(),
            keys: RecentStreams::default(),
            versions: RecentStreams::default(),
            events: VecDeque::new(),
            damaged: Vec::new(),
            stats: Stats::default(),
            unix_ms: 0,
        }
    }

    /// Handles a request of the hub at this Unix time.
    pub fn handle_request(&mut self, unix_ms: u64, request: EngineRequest) {
        self.unix_ms = unix_ms;
        match request {
            EngineRequest::Publish(publish) => self.publish(*publish),
            EngineRequest::Subscribe { token, channel, retention, is_wildcard } => {
                let result = match is_wildcard {
                    true => Err(Error::EngineUnavailable),
                    false => self.position(&channel, retention),
                };
                if result.is_ok() {
                    let delivered = self.delivered(retention);
                    self.subscribed.insert(channel, delivered);
                }
                let result = result
                    .map(|position| EnginePosition { position, inherits: Lineage::default() });
                self.events.push_back(EngineEvent::Subscribed { token, result });
            }
            EngineRequest::Unsubscribe { channel } => drop(self.subscribed.remove(&channel)),
            EngineRequest::History { token, channel, retention, filter, .. } => {
                self.history(token, &channel, retention, filter);
            }
            EngineRequest::RemoveHistory { token, channel } => self.clear(token, channel),
            EngineRequest::Positions { token, channels } => {
                let positions = channels.iter().map(|channel| {
                    let delivered = self.subscribed.get(channel)?;
                    self.known_position(channel, *delivered)
                });
                let result = Ok(positions.map(Option::unwrap_or_default).collect());
                self.events.push_back(EngineEvent::Positions { token, result });
            }
            // There are no other servers.
            _ => {}
        }
    }

    fn publish(&mut self, publish: EnginePublish) {
        let EnginePublish { token, channel, retention, publish, time_ms } = publish;
        match self.accept(token, &channel, retention, publish, time_ms) {
            Ok(()) => {}
            Err(error) => {
                self.stats.refused += 1;
                self.events.push_back(EngineEvent::Published { token, result: Err(error) });
            }
        }
    }

    fn accept(
        &mut self,
        token: u64,
        channel: &Arc<str>,
        retention: Retention,
        publish: NewPublication,
        time_ms: u64,
    ) -> Result<(), Error> {
        let shared = self.shared.clone().ok_or(Error::EngineUnavailable)?;
        let delivered = self.delivered(retention);
        let answered = publish.durability.unwrap_or(delivered);
        let key = publish.idempotency_key.as_ref().map(|key| format!("{channel}\0{key}"));
        let ttl_ms = publish.idempotency_ttl_ms.map_or(IDEMPOTENCY_TTL_MS, u64::from);
        if let Some((position, expires_ms)) = key.as_ref().and_then(|key| self.keys.get(key))
            && expires_ms > self.unix_ms
        {
            // It survives what the one before it does, which may not have waited for as much.
            let end = match answered {
                Durability::Synced => shared.log.request_sync(),
                Durability::Written => {
                    let last = [self.unwritten.back(), self.unsynced.back()];
                    last.into_iter().flatten().map(|last| last.end).max().unwrap_or_default()
                }
            };
            let kind = InFlightKind::Suppressed;
            let channel = Arc::clone(channel);
            let suppressed = InFlight { end, token, channel, position, kind };
            self.queue(answered).push_back(suppressed);
            return Ok(());
        }
        let remembers = |engine: &mut DiskEngine, position| {
            if let Some(key) = key {
                engine.keys.set(&key.into(), (position, engine.unix_ms + ttl_ms));
            }
        };
        let except = publish.except;
        if !retention.keeps() {
            let position = StreamPosition::default();
            remembers(self, position);
            self.stats.published += 1;
            self.deliver(channel, position, parts(publish, 0, time_ms).into(), except);
            let result = Ok(Published { position, ..Published::default() });
            self.events.push_back(EngineEvent::Published { token, result });
            return Ok(());
        }
        if !self.is_newer_version(channel, &publish) {
            let position = self.known_position(channel, delivered).unwrap_or_default();
            let result = Ok(Published { position, suppressed: true, durability: None });
            self.events.push_back(EngineEvent::Published { token, result });
            return Ok(());
        }
        let mut body = vec![BODY_VERSION];
        frame::encode(&mut body, &publish, time_ms);
        let appended = shared.log.append(&Append {
            stream: channel,
            body: &body,
            expires_ms: time_ms.saturating_add(retention.ttl_ms),
            keep_ms: retention.meta_ttl_ms.saturating_sub(retention.ttl_ms),
            sync: delivered.max(answered) == Durability::Synced,
        });
        let appended = appended.map_err(|error| refusal(&error))?;
        if publish.version > 0 {
            let known = (publish.version, publish.version_epoch.clone());
            self.versions.set(channel, known);
        }
        let position = StreamPosition {
            offset: appended.offset,
            epoch: shared.epoch(appended.stream, delivered),
        };
        remembers(self, position);
        *self.undelivered.entry(Arc::clone(channel)).or_default() += 1;
        let publication = parts(publish, appended.offset, time_ms).into();
        let (end, answers) = (appended.end, delivered == answered);
        let in_flight =
            |kind| InFlight { end, token, channel: Arc::clone(channel), position, kind };
        let publish = in_flight(InFlightKind::Publish { publication, except, answers });
        self.queue(delivered).push_back(publish);
        if !answers {
            self.queue(answered).push_back(in_flight(InFlightKind::Answer));
        }
        Ok(())
    }

    /// What publications of a channel survive before they are delivered.
    fn delivered(&self, retention: Retention) -> Durability {
        let engine = self.shared.as_ref().map_or(Durability::Synced, |shared| shared.durability);
        retention.durability.unwrap_or(engine)
    }

    /// What waits for this.
    fn queue(&mut self, durability: Durability) -> &mut VecDeque<InFlight> {
        match durability {
            Durability::Written => &mut self.unwritten,
            Durability::Synced => &mut self.unsynced,
        }
    }

    fn is_newer_version(&self, channel: &str, publish: &NewPublication) -> bool {
        let Some((last, epoch)) = self.versions.get(channel) else { return true };
        let is_comparable = publish.version_epoch.is_empty() || publish.version_epoch == epoch;
        publish.version == 0 || !is_comparable || publish.version > last
    }

    fn deliver(
        &mut self,
        channel: &Arc<str>,
        position: StreamPosition,
        publication: Publication,
        except: Option<SessionId>,
    ) {
        if self.subscribed.contains_key(channel) {
            let (channel, epoch) = (Arc::clone(channel), position.epoch);
            self.events.push_back(EngineEvent::Publication { channel, epoch, publication, except });
        }
    }

    /// The position up to which publications were delivered. Creates the stream if `retention` stores any.
    fn position(&self, channel: &str, retention: Retention) -> Result<StreamPosition, Error> {
        let shared = self.shared.as_ref().ok_or(Error::EngineUnavailable)?;
        if !retention.keeps() {
            return Ok(StreamPosition::default());
        }
        if shared.log.stream(channel).is_none() {
            let created = shared.log.create(channel, self.unix_ms, retention.meta_ttl_ms);
            created.map_err(|error| refusal(&error))?;
        }
        Ok(self.known_position(channel, self.delivered(retention)).unwrap_or_default())
    }

    fn known_position(&self, channel: &str, delivered: Durability) -> Option<StreamPosition> {
        let shared = self.shared.as_ref()?;
        let stream = shared.log.stream(channel)?;
        let undelivered = self.undelivered.get(channel).copied().unwrap_or_default();
        let epoch = shared.epoch(stream.id, delivered);
        Some(StreamPosition { offset: stream.top.saturating_sub(undelivered), epoch })
    }

    fn history(&mut self, token: u64, channel: &str, retention: Retention, filter: HistoryFilter) {
        let (position, shared) = match (self.position(channel, retention), &self.shared) {
            (Ok(position), Some(shared)) => (position, shared),
            (Err(error), _) => {
                return self.events.push_back(EngineEvent::History { token, result: Err(error) });
            }
            (Ok(_), None) => return,
        };
        let since = filter.since.map_or(0, |since| since.offset);
        let first = position.offset.saturating_sub(u64::from(retention.size));
        let (after, before) = match filter.reverse && filter.since.is_some() {
            true => (first, since.min(position.offset + 1)),
            false => (first.max(since), position.offset + 1),
        };
        let range = ReadRange {
            after,
            before,
            limit: filter.limit.map_or(READ_RECORDS_MAX, |limit| limit as usize),
            bytes_max: filter.bytes_max.unwrap_or(usize::MAX),
            newest_first: filter.reverse,
        };
        self.next_read += 1;
        let number = self.next_read;
        let port = Arc::clone(&self.port);
        let done = Box::new(move |result| port.finish(ReadEnd { token: number, result }));
        let read = PendingRead { token, position, size: retention.size, filter };
        match shared.reads.start(channel, range, done) {
            Ok(()) => drop(self.reads.insert(number, read)),
            Err(_) => {
                let result = Err(Error::Overloaded);
                self.events.push_back(EngineEvent::History { token, result });
            }
        }
    }

    fn clear(&mut self, token: u64, channel: Arc<str>) {
        let Some(shared) = &self.shared else {
            let result = Err(Error::EngineUnavailable);
            return self.events.push_back(EngineEvent::HistoryRemoved { token, result });
        };
        let trim = Trim {
            stream: &channel,
            before: u64::MAX,
            now_ms: self.unix_ms,
            keep_ms: IDEMPOTENCY_TTL_MS,
            sync: shared.durability == Durability::Synced,
        };
        let awaited = shared.durability;
        match shared.log.trim(&trim) {
            Ok(appended) => {
                let position = StreamPosition::default();
                let kind = InFlightKind::Cleared;
                let end = appended.end;
                self.queue(awaited).push_back(InFlight { end, token, channel, position, kind });
            }
            Err(AppendError::NoStream) => {
                self.events.push_back(EngineEvent::HistoryRemoved { token, result: Ok(()) });
            }
            Err(error) => {
                let result = Err(refusal(&error));
                self.events.push_back(EngineEvent::HistoryRemoved { token, result });
            }
        }
    }

    /// Takes what the log's threads have done since the last time. Call it at the end of a turn.
    pub fn flush(&mut self) {
        self.progress();
        if !self.unwritten.is_empty() || !self.unsynced.is_empty() {
            self.port.waits.store(true, Ordering::Release);
            // The log may have advanced before it could see that.
            self.progress();
        }
    }

    fn progress(&mut self) {
        let Some(shared) = &self.shared else { return };
        // In this order: what is synced is written.
        let synced = shared.log.synced();
        let written = shared.log.written().max(synced);
        let has_failed = shared.log.failure().is_some();
        for (awaited, done) in [(Durability::Written, written), (Durability::Synced, synced)] {
            let ends = |first: &mut InFlight| first.end <= done || has_failed;
            while let Some(first) = self.queue(awaited).pop_front_if(ends) {
                let result = match first.end {
                    end if end > done => Err(Error::EngineUncertain),
                    end if end <= synced => Ok(Durability::Synced),
                    _ => Ok(Durability::Written),
                };
                self.end(first, result);
            }
        }
        let read = std::mem::take(&mut *self.port.done());
        for ReadEnd { token, result } in read {
            if let Some(read) = self.reads.remove(&token) {
                self.end_read(&read, result);
            }
        }
    }

    fn end(&mut self, done: InFlight, result: Result<Durability, Error>) {
        let InFlight { token, channel, position, kind, .. } = done;
        match kind {
            InFlightKind::Publish { publication, except, answers } => {
                if let Some(undelivered) = self.undelivered.get_mut(&channel) {
                    *undelivered -= 1;
                    if *undelivered == 0 {
                        self.undelivered.remove(&channel);
                    }
                }
                match result {
                    Ok(_) => {
                        self.stats.published += 1;
                        self.deliver(&channel, position, publication, except);
                    }
                    Err(_) => self.stats.uncertain += 1,
                }
                if answers {
                    let result = result.map(|of| answer(position, false, of));
                    self.events.push_back(EngineEvent::Published { token, result });
                }
            }
            InFlightKind::Answer => {
                let result = result.map(|of| answer(position, false, of));
                self.events.push_back(EngineEvent::Published { token, result });
            }
            InFlightKind::Suppressed => {
                let result = result.map(|of| answer(position, true, of));
                self.events.push_back(EngineEvent::Published { token, result });
            }
            InFlightKind::Cleared => {
                if result.is_ok() && self.subscribed.contains_key(&channel) {
                    self.events.push_back(EngineEvent::Cleared { channel });
                }
                let result = result.map(|_| ());
                self.events.push_back(EngineEvent::HistoryRemoved { token, result });
            }
        }
    }

    fn end_read(&mut self, read: &PendingRead, result: Result<ReadResult, ReadError>) {
        let &PendingRead { token, position, size, filter } = read;
        let result = result.map_err(|_| Error::EngineUnavailable).and_then(|mut read| {
            self.stats.unreadable += read.damaged.len() as u64;
            self.damaged.append(&mut read.damaged);
            if filter.reverse {
                read.records.reverse();
            }
            let mut records = read.records.iter().map(|record| -> Result<_, FrameError> {
                let decoded = decode(&record.body)?;
                Ok(PublicationParts { offset: record.offset, ..decoded })
            });
            let part = StreamSlice { position, inherits: &Lineage::default(), size };
            select_publications(&part, &mut records, &filter)
        });
        self.events.push_back(EngineEvent::History { token, result });
    }

    /// Returns the next event for the hub.
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        if self.events.is_empty() {
            self.progress();
        }
        self.events.pop_front()
    }

    /// It has no timeouts: the hub's are enough.
    pub fn poll_timeout(&self) -> Option<u64> {
        None
    }

    /// See [`DiskEngine::poll_timeout`].
    pub fn handle_timeout(&mut self, _: u64) {}

    /// Damaged records found since the last call.
    pub fn take_damaged(&mut self) -> Vec<Damage> {
        std::mem::take(&mut self.damaged)
    }

    /// What it has done.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Publications that wait for the log.
    pub fn outstanding(&self) -> usize {
        self.unwritten.len() + self.unsynced.len() + self.reads.len()
    }

    /// Whether publications are accepted.
    pub fn is_ready(&self) -> bool {
        self.refusal().is_none()
    }

    /// Why publications are refused.
    fn refusal(&self) -> Option<(RefusalReason, String)> {
        let Some(shared) = &self.shared else { return Some((NOT_OPENED, String::new())) };
        if let Some(failure) = shared.log.failure() {
            return Some((FAILED, failure.to_string()));
        }
        shared.log.full().map(|full| (FULL, full.to_string()))
    }

    /// The state of the disk, as of a server.
    pub fn shards(&self) -> impl Iterator<Item = ShardStatus> + use<> {
        let refusal = self.refusal();
        let is_ready = refusal.is_none();
        let (state, detail) = match refusal {
            Some((reason, detail)) => (ShardState::Refused(reason), detail),
            None => (ShardState::Ready, String::new()),
        };
        let server = Server { host: self.place.clone(), port: 0, role: ServerRole::Data };
        std::iter::once(ShardStatus {
            shard: ShardId(0),
            server,
            state,
            since_ms: 0,
            detail,
            version: String::new(),
            eviction: String::new(),
            refusing: None,
            replica: None,
            partitions: 1,
            partitions_ready: u16::from(is_ready),
            slots_moving: 0,
            channels_put_off: 0,
        })
    }
}

const NOT_OPENED: RefusalReason = RefusalReason {
    name: "not_opened",
    fix: "restart: the log of an engine on a disk is opened when the server starts",
};
const FAILED: RefusalReason = RefusalReason {
    name: "disk_failed",
    fix: "check the disk and restart; what was synced is there, and reads go on",
};
const FULL: RefusalReason = RefusalReason {
    name: "disk_full",
    fix: "make room on the disk, or raise `bytes_max` of the engine; reads go on",
};

impl DiskLog {
    /// The epoch of a stream whose publications are seen once they survive this.
    fn epoch(&self, stream: u64, delivered: Durability) -> Epoch {
        Epoch::from_u64(self.log.epoch(stream, delivered == Durability::Synced))
    }
}

fn answer(position: StreamPosition, suppressed: bool, durability: Durability) -> Published {
    Published { position, suppressed, durability: Some(durability) }
}

fn refusal(error: &AppendError) -> Error {
    match error {
        AppendError::Busy => Error::Overloaded,
        AppendError::TooLarge { .. } => Error::PublicationTooLarge,
        AppendError::Name => Error::ChannelName,
        AppendError::Closed => Error::EngineUnavailable,
        _ => Error::EngineRefused,
    }
}

fn parts(publish: NewPublication, offset: u64, time_ms: u64) -> PublicationParts {
    let NewPublication { data, format, delta, info, tags, key, trace, .. } = publish;
    let channel = None;
    PublicationParts { offset, data, format, delta, info, tags, key, channel, time_ms, trace }
}

fn decode(body: &[u8]) -> Result<PublicationParts, FrameError> {
    match body.split_first() {
        Some((&BODY_VERSION, publication)) => frame::decode_first(publication),
        _ => Err(FrameError::Version),
    }
}
