//! An engine on Redis (6.2 or later) or Valkey: one server, several by the hash of the channel, primaries that Sentinels know, or a
//! cluster.
//!
//! A stream is a list of messages and a hash with its epoch and top offset (`keys`). Scripts change both in one step (`lua/`)
//! and also send the publications to subscribers, so that the order of delivery is that of the offsets. Publications of one
//! channel that wait for the same flush leave as one message, which is one entry of the list.
//!
//! **The common publication is one script of three writes.** It increments the hash field named after the epoch that the engine
//! remembers. If the stream has another epoch, the field is new, and the script detects that. Each node renews the times to
//! live after an eighth of them has passed, not with each publication.
//!
//! **Equal offsets of different generations are never confused.** A server's data belong to a generation, which is read on each
//! new connection and with each probe, and which changes whenever the process or its replication history does. In a new
//! generation each stream continues in a new epoch, which inherits the offsets up to the end of the data. An engine that has
//! seen more of a stream than the data contain cuts it: the new epoch inherits nothing, and all nodes are notified.
//!
//! **Liveness is measured**: each connection sends itself a message, and is closed if the message does not return.

mod centrifugo;
mod centrifugo_message;
mod config;
mod encode;
mod history;
mod keys;
mod known;
mod moving;
mod operation;
mod partition;
mod put_off;
mod queue_bytes;
mod replica_reads;
mod replicas;
mod reply;
mod scripts;
mod send;
#[cfg(test)]
mod tests;
mod topology;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dunlin_hub::engine::{EngineEvent, EnginePublish, EngineRequest, Retention};
use dunlin_hub::{Epoch, Error, HistoryFilter, StreamPosition};
use dunlin_wire::resp::{ServerError, Value};
use foldhash::fast::RandomState;

use self::history::HistoryRead;
use self::keys::Keys;
use self::known::KnownStream;
use self::operation::{Batch, Check, Opening, Operation, Positions, Queued};
use self::partition::{Doubt, Partition, PartitionState, ServerLink};
use self::put_off::DeferredAttempt;
use self::queue_bytes::QueueBytes;
use self::replica_reads::ReplicaRead;
use self::scripts::Scripts;
use self::topology::Discovery;
use crate::frame::{Frame, FrameKind};
use crate::links::{Links, ServerRole, ShardId};
use crate::remembered::RecentStreams;
use crate::status::{ShardState, ShardStatus, Stats};

pub use centrifugo_message::centrifugo_client;
pub use config::{Layout, ReadFrom, RedisConfig, Topology};

/// Maximum age of evidence of data loss, in milliseconds before the last moment at which a server's data were known to be
/// complete. Older observations of a stream are ignored.
const EVIDENCE_MS: u64 = 60_000;

/// Milliseconds until a server that refuses requests is asked again.
const RETRY_MS: u64 = 250;

/// Milliseconds until a connection without a greeting, or whose server does not answer, is reopened.
const GREETING_MS: u64 = 10_000;

/// Maximum size of a publish command in bytes without its payload and the names of its channel: keys, tags, publisher info.
const COMMAND_BYTES: usize = 8 << 10;

/// An engine on Redis: a state machine without I/O and without a clock; see the table of the crate.
#[derive(Debug)]
pub struct RedisEngine {
    config: RedisConfig,
    keys: Keys,
    scripts: Scripts,
    /// State of the random number generator.
    random: u64,
    /// Of this engine among all that have connections to the servers.
    id: u64,
    links: Vec<ServerLink>,
    partitions: Vec<Partition>,
    discovery: Discovery,
    /// Bytes of all unanswered requests.
    queue_bytes: QueueBytes,
    /// Partitions with something to send.
    dirty: Vec<usize>,
    /// Subscriptions that began (true) or ended (false) and have not been passed to the connections yet.
    topics: Vec<(Arc<str>, bool)>,
    /// Subscriptions that moved away from a connection.
    moved_topics: Vec<(ShardId, Arc<str>)>,
    remembered: RecentStreams<KnownStream>,
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
    gatherings: HashMap<u64, PositionQuery, RandomState>,
    events: VecDeque<EngineEvent>,
    stats: Stats,
}

/// A subscribed channel.
#[derive(Debug)]
struct Subscription {
    token: u64,
    retention: Retention,
    known: Option<KnownStream>,
    /// The partition's latest sync that returned this channel's position.
    synced: u32,
}

/// A request for positions that is under way at several partitions.
#[derive(Debug)]
struct PositionQuery {
    positions: Vec<StreamPosition>,
    left: usize,
    failed: Option<Error>,
}

/// A command that was sent and is not answered.
#[derive(Debug)]
enum Pending {
    /// The reply is ignored.
    Ignored,
    /// Reads the generation of a partition.
    Generation(usize),
    Operation(usize, Queued),
    /// An operation sent to the node that imports the slot.
    Asked(DeferredAttempt),
    /// A deferred operation sent to the slot's source again.
    TriedAgain(DeferredAttempt),
    /// A page of a history, read from a replica.
    Replica(Box<ReplicaRead>),
    /// Checks whether a replica can be read from.
    ReplicaCheck,
    /// Asks for the address of a partition's primary.
    Primary(usize),
    /// Asks for the slots of a cluster.
    Slots,
    /// Asks how many replicas have what this connection wrote.
    Wait(ShardId),
}

impl Pending {
    fn operation(&self) -> Option<&Operation> {
        match self {
            Pending::Operation(_, queued) => Some(&queued.operation),
            Pending::Asked(attempt) | Pending::TriedAgain(attempt) => Some(attempt.operation()),
            _ => None,
        }
    }
}

impl RedisEngine {
    /// Creates an engine without connections; the first [`flush`](Self::flush) opens them. `seed` is random and different for
    /// each engine.
    pub fn new(config: RedisConfig, seed: u64, now_ms: u64) -> RedisEngine {
        let keys = Keys::new(&config);
        let mut partitions = Vec::new();
        partitions.resize_with(keys.partitions(), Partition::default);
        let mut engine = RedisEngine {
            scripts: Scripts::new(keys.is_sharded(), config.layout),
            keys,
            random: seed,
            id: 0,
            links: Vec::new(),
            partitions,
            discovery: Discovery::default(),
            queue_bytes: QueueBytes::default(),
            dirty: Vec::new(),
            topics: Vec::new(),
            moved_topics: Vec::new(),
            remembered: RecentStreams::default(),
            pending: Vec::new(),
            free: Vec::new(),
            gatherings: HashMap::default(),
            events: VecDeque::new(),
            stats: Stats::default(),
            config,
        };
        engine.id = engine.random();
        engine.begin_topology(now_ms);
        engine
    }

    /// Handles a request of the hub. The next [`flush`](Self::flush) sends the commands for it.
    pub fn handle_request(&mut self, now_ms: u64, request: EngineRequest) {
        match request {
            EngineRequest::Publish(request) => self.publish(now_ms, *request),
            EngineRequest::Subscribe { token, channel, retention, .. } => {
                let partition = self.keys.partition(&channel);
                let known = self.remembered.get(&channel);
                let place = &mut self.partitions[partition];
                match place.subscriptions.get_mut(&channel) {
                    Some(subscription) => {
                        (subscription.token, subscription.retention) = (token, retention);
                    }
                    None => {
                        let synced = place.syncs.wrapping_sub(1);
                        let subscription = Subscription { token, retention, known, synced };
                        place.subscriptions.insert(channel.clone(), subscription);
                        self.remembered.remove(&channel);
                        self.topics.push((channel.clone(), true));
                    }
                }
                self.partitions[partition].opening.push(Opening { channel, seen: None });
                self.touch(partition);
            }
            EngineRequest::Unsubscribe { channel } => {
                let partition = self.keys.partition(&channel);
                if let Some(subscription) =
                    self.partitions[partition].subscriptions.remove(&channel)
                {
                    if let Some(known) = subscription.known {
                        self.remembered.set(&channel, known);
                    }
                    self.topics.push((channel, false));
                }
            }
            EngineRequest::History { token, channel, retention, filter, latest } => {
                let operation = match filter {
                    HistoryFilter { since: Some(since), reverse: true, .. }
                        if since.offset == 0 =>
                    {
                        let result = Err(Error::BadRequest);
                        return self.events.push_back(EngineEvent::History { token, result });
                    }
                    _ => {
                        let channel = channel.clone();
                        Operation::History(Box::new(HistoryRead::new(
                            token, channel, retention, filter, latest,
                        )))
                    }
                };
                self.enqueue(now_ms, self.keys.partition(&channel), operation);
            }
            EngineRequest::Announce { channel, info, joined } => {
                let message = self.config.layout.encode_member(&info, joined);
                let partition = self.keys.partition(&channel);
                self.enqueue(now_ms, partition, Operation::Announce { channel, message });
            }
            EngineRequest::RemoveHistory { token, channel } => {
                let partition = self.keys.partition(&channel);
                self.enqueue(now_ms, partition, Operation::Remove { token, channel });
            }
            EngineRequest::Positions { token, channels } => {
                self.read_positions(now_ms, token, channels);
            }
            _ => debug_assert!(false, "a request that this engine does not know"),
        }
    }

    fn publish(&mut self, now_ms: u64, request: EnginePublish) {
        let EnginePublish { token, channel, retention, publish, time_ms } = request;
        let partition = self.keys.partition(&channel);
        let check = Check::of(&publish, retention);
        // The connection never has room for it.
        let bytes_max =
            self.config.queue_bytes_max.saturating_sub(COMMAND_BYTES + 3 * channel.len());
        if publish.data.len() > bytes_max {
            self.refuse_too_large(partition);
            return self.finish_publish(&[token], Err(Error::EngineRefused));
        }
        if self.queue_bytes.get() + publish.data.len() > self.config.queue_bytes_max {
            return self.finish_publish(&[token], Err(Error::EngineUnavailable));
        }
        if check.is_none()
            && let Some(Queued { operation: Operation::Publish(batch), share, .. }) =
                self.partitions[partition].joinable(&channel)
            && batch.takes(retention)
            && batch.encoded.len() + publish.data.len() <= bytes_max
        {
            let before = batch.encoded.len();
            self.config.layout.encode(&mut batch.encoded, &publish, time_ms);
            batch.tokens.push(token);
            let added = batch.encoded.len() - before;
            return share.grow(added);
        }
        let mut encoded = Vec::with_capacity(publish.data.len() + 32);
        self.config.layout.encode(&mut encoded, &publish, time_ms);
        let (tokens, epoch) = (vec![token], Epoch::NONE);
        let uncertain = false;
        let batch = Batch { channel, retention, tokens, encoded, check, epoch, uncertain };
        self.enqueue(now_ms, partition, Operation::Publish(Box::new(batch)));
    }

    /// What is said of the connection until something else was published.
    fn refuse_too_large(&mut self, partition: usize) {
        let Some(shard) = self.partitions[partition].link else { return };
        self.links[usize::from(shard.0)].refusing = Some(ServerError::TooLarge.into());
    }

    fn read_positions(&mut self, now_ms: u64, token: u64, channels: Vec<Arc<str>>) {
        let mut parts: Vec<(usize, Positions)> = Vec::new();
        let count = channels.len();
        for (index, channel) in channels.into_iter().enumerate() {
            let partition = self.keys.partition(&channel);
            let place = match parts.iter().position(|(other, _)| *other == partition) {
                Some(place) => place,
                None => {
                    let positions =
                        Positions { gathering: token, indices: Vec::new(), channels: Vec::new() };
                    parts.push((partition, positions));
                    parts.len() - 1
                }
            };
            parts[place].1.indices.push(index as u32);
            parts[place].1.channels.push(channel);
        }
        let gathering = PositionQuery {
            positions: vec![StreamPosition::default(); count],
            left: parts.len().max(1),
            failed: None,
        };
        self.gatherings.insert(token, gathering);
        if parts.is_empty() {
            self.gathered(token, None);
        }
        for (partition, positions) in parts {
            self.enqueue(now_ms, partition, Operation::Positions(Box::new(positions)));
        }
    }

    /// Records that one partition has answered its part of a request for positions, or failed to.
    fn gathered(&mut self, token: u64, failed: Option<Error>) {
        let Some(gathering) = self.gatherings.get_mut(&token) else { return };
        gathering.failed = gathering.failed.or(failed);
        gathering.left -= 1;
        if gathering.left == 0
            && let Some(gathering) = self.gatherings.remove(&token)
        {
            let result = gathering.failed.map_or(Ok(gathering.positions), Err);
            self.events.push_back(EngineEvent::Positions { token, result });
        }
    }

    fn enqueue(&mut self, now_ms: u64, partition: usize, operation: Operation) {
        if self.queue_bytes.get() > self.config.queue_bytes_max {
            return self.fail(operation, Error::EngineUnavailable);
        }
        let queued = Queued::new(operation, now_ms, &self.queue_bytes);
        self.partitions[partition].push(queued);
        self.touch(partition);
    }

    fn touch(&mut self, partition: usize) {
        let place = &mut self.partitions[partition];
        if !place.dirty {
            place.dirty = true;
            self.dirty.push(partition);
        }
    }

    /// Fails an operation that was not carried out, or whose outcome is unknown.
    fn fail(&mut self, operation: Operation, error: Error) {
        match operation {
            Operation::Publish(batch) => {
                let error = if batch.uncertain { Error::EngineUncertain } else { error };
                self.finish_publish(&batch.tokens, Err(error));
            }
            Operation::Open(openings) | Operation::Confirm(openings) => {
                for opening in openings {
                    self.subscribed(&opening.channel, Err(error));
                }
            }
            Operation::History(read) => {
                let (token, result) = (read.token, Err(error));
                self.events.push_back(EngineEvent::History { token, result });
            }
            Operation::Remove { token, .. } => {
                self.events.push_back(EngineEvent::HistoryRemoved { token, result: Err(error) });
            }
            Operation::Announce { .. } => {}
            Operation::Positions(positions) => self.gathered(positions.gathering, Some(error)),
        }
    }

    fn finish_publish(&mut self, tokens: &[u64], result: Result<dunlin_hub::Published, Error>) {
        self.events.extend(self.stats.finish_publish(tokens, result));
    }

    /// Handles a connection that was greeted. Its subscriptions have been requested again.
    pub fn handle_ready(&mut self, now_ms: u64, shard: ShardId) {
        let Some(link) = self.links.get_mut(usize::from(shard.0)) else { return };
        (link.is_up, link.load) = (true, true);
        if link.server.role == ServerRole::Replica {
            return self.replica_connected(now_ms, shard);
        }
        // What a server has refused it may refuse again: the state is that until it does not.
        let is_used = self.partitions.iter().any(|place| place.link == Some(shard));
        if !matches!(link.state, ShardState::Refused(_)) {
            // A connection that serves no partition does not need the greeting that reads a generation.
            let ready = !is_used && link.server.role == ServerRole::Data;
            link.enter(now_ms, if ready { ShardState::Ready } else { ShardState::Greeting });
        }
        (link.probe.since_ms, link.probe.next_ms) = (None, now_ms + GREETING_MS);
        if link.server.role == ServerRole::Sentinel {
            return self.sentinel_ready(now_ms, shard);
        }
        self.cluster_ready(shard);
        for partition in 0..self.partitions.len() {
            if self.partitions[partition].link == Some(shard) {
                let place = &mut self.partitions[partition];
                (place.state, place.doubt) = (PartitionState::Draining, Doubt::None);
                self.touch(partition);
            }
        }
    }

    /// Handles a connection that was lost or could not be opened, for `reason`. Call [`handle_lost`](Self::handle_lost) for its
    /// commands first. The connection reopens by itself.
    pub fn handle_closed(&mut self, now_ms: u64, shard: ShardId, reason: &str) {
        self.waits_lost(shard);
        let Some(link) = self.links.get_mut(usize::from(shard.0)) else { return };
        (link.is_up, link.probe.next_ms) = (false, now_ms + GREETING_MS);
        if !reason.is_empty() {
            match ServerError::parse(reason) {
                ServerError::Other => {
                    reason.clone_into(&mut link.detail);
                    link.enter(now_ms, ShardState::Connecting);
                }
                error => link.refuse(now_ms, error, reason),
            }
        } else if matches!(link.state, ShardState::Ready | ShardState::Greeting) {
            link.enter(now_ms, ShardState::Connecting);
        }
        if link.server.role == ServerRole::Replica {
            return self.replica_unreachable(now_ms, shard);
        }
        self.disconnected(now_ms, shard);
    }

    /// Handles a message from publish/subscribe.
    pub fn handle_message(&mut self, now_ms: u64, shard: ShardId, channel: &[u8], payload: &[u8]) {
        let Some(name) = self.keys.channel(channel) else {
            return self.handle_other_message(now_ms, shard, channel, payload);
        };
        let partition = self.keys.partition(name);
        let place = &self.partitions[partition];
        let Some((channel, subscription)) = place.subscriptions.get_key_value(name) else { return };
        let is_synced = subscription.synced == place.syncs;
        let channel = channel.clone();
        self.stats.messages += 1;
        if self.config.layout == Layout::Centrifugo {
            return self.handle_centrifugo(now_ms, channel, is_synced, payload);
        }
        let frame = match Frame::parse(payload) {
            Ok(frame) => frame,
            Err(_) => return self.stats.unreadable += 1,
        };
        match frame.kind {
            FrameKind::Publications => {
                let Ok(publications) = frame.publications() else {
                    return self.stats.unreadable += 1;
                };
                if frame.position.offset > 0 {
                    // The position that is being read covers messages before it, perhaps in an epoch whose inheritance is not
                    // known here yet.
                    if !is_synced {
                        return;
                    }
                    self.learn(now_ms, partition, &channel, frame.position, None);
                }
                let epoch = frame.position.epoch;
                for (publication, except) in publications {
                    let (channel, publication) = (channel.clone(), publication.into());
                    self.events.push_back(EngineEvent::Publication {
                        channel,
                        epoch,
                        publication,
                        except,
                    });
                }
            }
            FrameKind::Cleared => self.events.push_back(EngineEvent::Cleared { channel }),
            // The hub is notified of the new epoch as of a new subscription.
            FrameKind::EpochChanged => {
                self.partitions[partition].opening.push(Opening { channel, seen: None });
                self.touch(partition);
            }
            FrameKind::Unknown => self.stats.unreadable += 1,
        }
    }

    /// Handles any other unsolicited message of a server: confirmations of subscriptions, and errors that refuse them.
    pub fn handle_push(&mut self, now_ms: u64, shard: ShardId, push: &Value<'_>) {
        if let Value::Error(text) = push {
            let Some(link) = self.links.get_mut(usize::from(shard.0)) else { return };
            let error = ServerError::parse(text);
            if let ServerError::Moved { slot, .. } = error {
                self.resubscribe_slot(slot);
                return self.refresh_topology(now_ms);
            }
            link.refuse(now_ms, error, text);
            // The error does not name the subscription, so all are requested again.
            link.is_up = false;
            link.reconnect = true;
            self.refresh_topology(now_ms);
        } else if let Some([kind, list, ..]) = push.elements()
            && kind.text() == Some("sunsubscribe")
            && let Some(channel) = list.bytes().and_then(|list| self.keys.channel(list))
            && self.subscription(channel).is_some()
        {
            // Unsolicited: the slot has moved.
            let partition = self.keys.partition(channel);
            self.partitions[partition].resubscribe = true;
            self.refresh_topology(now_ms);
        }
    }

    /// Returns the next event for the hub.
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    /// Returns the latest time for the next call of [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<u64> {
        let refused =
            |link: &&ServerLink| matches!(link.state, ShardState::Refused(_)) || link.closed;
        let is_replica = |link: &&ServerLink| link.server.role == ServerRole::Replica;
        let probes = self.links.iter().filter(|link| !refused(link) && !is_replica(link));
        let probes = probes.map(|link| link.probe.next_ms);
        let replicas = self.links.iter().filter(is_replica).filter_map(ServerLink::replica_due_ms);
        let partitions = self.partitions.iter().filter_map(|partition| match partition.state {
            PartitionState::Ready => None,
            PartitionState::Refused { retry_ms } => Some(retry_ms),
            _ => partition.waits_since_ms().map(|since_ms| since_ms + self.config.hold_ms),
        });
        let moving =
            self.partitions.iter().filter_map(|place| Some(place.moving.as_ref()?.due_ms()));
        probes.chain(replicas).chain(partitions).chain(moving).chain(self.topology_timeout()).min()
    }

    /// Handles timeouts. Call [`flush`](Self::flush) afterwards.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        for at in 0..self.links.len() {
            match self.links[at].server.role {
                ServerRole::Replica => self.replica_timeout(now_ms, ShardId(at as u16)),
                ServerRole::Data | ServerRole::Sentinel => self.probe(now_ms, at),
            }
        }
        for partition in 0..self.partitions.len() {
            self.moving_timeout(now_ms, partition);
            let place = &mut self.partitions[partition];
            match place.state {
                PartitionState::Ready => continue,
                PartitionState::Refused { retry_ms } if retry_ms <= now_ms => {
                    place.state = PartitionState::Draining;
                    self.touch(partition);
                }
                _ => {}
            }
            self.expire(now_ms, partition);
        }
        self.topology_due(now_ms);
    }

    /// Fails the requests that have waited too long for a connection.
    fn expire(&mut self, now_ms: u64, partition: usize) {
        let Some(since_ms) = now_ms.checked_sub(self.config.hold_ms) else { return };
        while let Some(queued) = self.partitions[partition].pop_since(since_ms) {
            self.fail(queued.operation, Error::EngineUnavailable);
        }
    }

    /// Sends a connection a message through itself when a probe is due. Closes the connection if no probe returned in time, or
    /// if it was not greeted in time.
    fn probe(&mut self, now_ms: u64, at: usize) {
        let link = &mut self.links[at];
        if now_ms < link.probe.next_ms || link.closed {
            return;
        }
        match link.state {
            ShardState::Refused(_) => return,
            ShardState::Ready => {}
            _ => {
                (link.is_up, link.reconnect) = (false, true);
                link.probe.next_ms = now_ms + GREETING_MS;
                let shard = ShardId(at as u16);
                return self.disconnected(now_ms, shard);
            }
        }
        link.probe.next_ms = now_ms + self.config.probe_interval_ms;
        let timeout_ms = self.config.probe_timeout_ms;
        if link.probe.since_ms.is_some_and(|since_ms| now_ms >= since_ms + timeout_ms) {
            self.stats.silences += 1;
            link.enter(now_ms, ShardState::Silent);
            (link.is_up, link.reconnect) = (false, true);
            link.probe.next_ms = now_ms + GREETING_MS;
            return self.disconnected(now_ms, ShardId(at as u16));
        }
        link.probe.wanted = true;
    }

    /// Records that a connection accepts no requests.
    fn disconnected(&mut self, now_ms: u64, shard: ShardId) {
        for partition in &mut self.partitions {
            if partition.link == Some(shard) {
                partition.state = PartitionState::Down;
            }
        }
        self.topology_closed(now_ms, shard);
    }

    /// Returns the engine's counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns the state of each connection.
    pub fn shards(&self) -> impl Iterator<Item = ShardStatus> + '_ {
        self.links.iter().enumerate().filter(|(_, link)| !link.closed).map(|(at, link)| {
            let shard = ShardId(at as u16);
            let of_link = || self.partitions.iter().filter(|place| place.link == Some(shard));
            ShardStatus {
                shard,
                server: link.server.clone(),
                state: link.state.clone(),
                since_ms: link.since_ms,
                detail: link.detail.clone(),
                version: link.version.clone(),
                eviction: link.eviction.clone(),
                refusing: link.refusing,
                replica: link.following.reason,
                partitions: of_link().count() as u16,
                partitions_ready: of_link()
                    .filter(|place| place.state == PartitionState::Ready)
                    .count() as u16,
                slots_moving: of_link().filter(|place| place.moving.is_some()).count() as u16,
                channels_put_off: of_link()
                    .filter_map(|place| place.moving.as_ref())
                    .map(|moving| moving.channels() as u32)
                    .sum(),
            }
        })
    }

    /// Returns whether all channels can be published and subscribed to.
    pub fn is_ready(&self) -> bool {
        self.partitions.iter().all(|partition| partition.state == PartitionState::Ready)
    }

    fn random(&mut self) -> u64 {
        dunlin_wire::random::next(&mut self.random)
    }

    /// Creates an epoch that no stream has: 48 random bits.
    fn fresh_epoch(&mut self) -> Epoch {
        Epoch::from_u64((self.random() >> 16).max(1))
    }

    fn hold(&mut self, pending: Pending) -> u64 {
        match self.free.pop() {
            Some(at) => {
                self.pending[at as usize] = Some(pending);
                u64::from(at)
            }
            None => {
                self.pending.push(Some(pending));
                self.pending.len() as u64 - 1
            }
        }
    }

    fn release(&mut self, token: u64) -> Option<Pending> {
        let pending = self.pending.get_mut(usize::try_from(token).ok()?)?.take()?;
        self.free.push(token as u32);
        Some(pending)
    }

    /// Sends everything that is due. Call it at the end of each turn in which any other method was called.
    pub fn flush(&mut self, now_ms: u64, links: &mut impl Links) {
        self.flush_links(links);
        self.flush_topics(links);
        self.flush_topology(now_ms, links);
        self.flush_replicas(now_ms, links);
        for partition in std::mem::take(&mut self.dirty) {
            self.partitions[partition].dirty = false;
            self.flush_partition(now_ms, partition, links);
        }
        self.flush_waits(links);
        self.flush_probes(now_ms, links);
    }
}
