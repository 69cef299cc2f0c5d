//! Converts replies to events.

use std::sync::Arc;

use dunlin_hub::engine::{EngineEvent, EnginePosition, Lineage};
use dunlin_hub::{Epoch, Error, History, HistoryFilter, Published, StreamPosition};
use dunlin_wire::resp::{ServerError, Value};

use super::centrifugo_message;
use super::config::Layout;
use super::known::KnownStream;
use super::operation::{Batch, Opening, Operation, Queued};
use super::partition::{Doubt, Partition, PartitionState};
use super::{EVIDENCE_MS, Pending, RETRY_MS, RedisEngine};
use crate::links::ShardId;
use crate::select::{StreamSlice, select, select_publications};
use crate::status::ShardState;

impl RedisEngine {
    /// Handles the reply to a command.
    pub fn handle_reply(&mut self, now_ms: u64, shard: ShardId, token: u64, reply: &Value<'_>) {
        let pending = self.release(token);
        self.page_ended(shard, pending.as_ref());
        match pending {
            None | Some(Pending::Ignored) => {
                if let Value::Error(text) = reply
                    && let Some(link) = self.links.get_mut(usize::from(shard.0))
                {
                    (*text).clone_into(&mut link.detail);
                }
            }
            Some(Pending::Generation(partition)) => {
                self.generation_reply(now_ms, shard, partition, reply);
            }
            Some(Pending::Operation(partition, queued)) => {
                self.answered(partition, &queued.operation, true);
                match reply {
                    Value::Error(text) => self.refused(now_ms, shard, partition, queued, text),
                    reply => self.operation_reply(now_ms, shard, partition, queued, reply),
                }
            }
            Some(Pending::Asked(attempt)) => self.asked_reply(now_ms, shard, attempt, reply),
            Some(Pending::TriedAgain(attempt)) => {
                self.tried_again_reply(now_ms, shard, attempt, reply);
            }
            Some(Pending::Replica(read)) => self.replica_reply(now_ms, shard, token, *read, reply),
            Some(Pending::ReplicaCheck) => self.replica_checked(now_ms, shard, reply),
            Some(Pending::Primary(partition)) => self.primary_reply(now_ms, partition, reply),
            Some(Pending::Slots) => self.slots_reply(now_ms, shard, reply),
            Some(Pending::Wait(shard)) => self.wait_reply(shard, reply),
        }
    }

    /// Handles a command whose connection broke. `sent`: it had been written, and its outcome is unknown.
    pub fn handle_lost(&mut self, now_ms: u64, shard: ShardId, token: u64, sent: bool) {
        let pending = self.release(token);
        self.page_ended(shard, pending.as_ref());
        let (partition, mut queued) = match pending {
            Some(Pending::Operation(partition, queued)) => (partition, queued),
            Some(Pending::Asked(attempt)) => {
                return self.attempt_lost(now_ms, attempt, sent);
            }
            Some(Pending::TriedAgain(attempt)) => {
                self.answered(attempt.partition, &attempt.queued.operation, false);
                return self.attempt_lost(now_ms, attempt, sent);
            }
            Some(Pending::Wait(shard)) => return self.waits_lost(shard),
            Some(Pending::Replica(read)) => return self.replica_lost(shard, token, *read),
            _ => return,
        };
        self.answered(partition, &queued.operation, true);
        match queued.operation {
            // The next connection reads all other positions anew.
            Operation::Open(openings) | Operation::Confirm(openings) => {
                let evident = openings.into_iter().filter(|opening| opening.seen.is_some());
                self.partitions[partition].opening.extend(evident);
            }
            ref mut operation => {
                if !operation.repeats(sent) {
                    return self.fail(queued.operation, Error::EngineUnavailable);
                }
                self.stats.retried += u64::from(sent);
                self.partitions[partition].again(queued);
            }
        }
    }

    /// Removes a command from the partition's commands in flight. `counted`: it was counted among those that read positions.
    pub(super) fn answered(&mut self, partition: usize, operation: &Operation, counted: bool) {
        let place = &mut self.partitions[partition];
        place.in_flight -= 1;
        place.answered += 1;
        if counted && matches!(operation, Operation::Open(_) | Operation::Confirm(_)) {
            place.opens_in_flight -= 1;
        }
        let waits = place.waits_since_ms().is_some() || !place.opening.is_empty();
        let waits = waits || place.moving.is_some();
        if waits || place.state == PartitionState::Draining {
            self.touch(partition);
        }
    }

    /// Handles an error reply to an operation.
    pub(super) fn refused(
        &mut self,
        now_ms: u64,
        shard: ShardId,
        partition: usize,
        queued: Queued,
        text: &str,
    ) {
        let error = ServerError::parse(text);
        if text.starts_with("STALE") {
            if let Operation::Publish(batch) = &queued.operation {
                // The stream is gone, or continues in another generation; the batches behind this one will find that, too.
                self.forget(&batch.channel);
            }
            self.stats.retried += 1;
            return self.put_off(partition, queued, PartitionState::Draining);
        }
        match error {
            ServerError::Ask { .. } | ServerError::TryAgain if self.keys.is_sharded() => {
                self.slot_moves(now_ms, shard, partition, queued, &error);
            }
            ServerError::NoScript => {
                self.stats.retried += 1;
                self.links[usize::from(shard.0)].load = true;
                self.put_off(partition, queued, PartitionState::Draining);
            }
            ServerError::Loading
            | ServerError::ReadOnly
            | ServerError::MasterDown
            | ServerError::Busy
            | ServerError::ClusterDown
            | ServerError::TryAgain
            | ServerError::Moved { .. }
            | ServerError::Ask { .. } => {
                self.stats.retried += 1;
                let retry_ms = now_ms + RETRY_MS;
                self.put_off(partition, queued, PartitionState::Refused { retry_ms });
                self.partition_refused(now_ms, shard, error, text);
            }
            _ => {
                if let Operation::Publish(batch) = &queued.operation {
                    self.forget(&batch.channel);
                }
                let link = &mut self.links[usize::from(shard.0)];
                text.clone_into(&mut link.detail);
                link.refusing = Some(error.into());
                self.fail(queued.operation, Error::EngineRefused);
            }
        }
    }

    /// Queues an operation before those that wait, to be sent when the partition accepts requests again.
    fn put_off(&mut self, partition: usize, queued: Queued, state: PartitionState) {
        let place = &mut self.partitions[partition];
        match queued.operation {
            Operation::Open(openings) | Operation::Confirm(openings) => {
                place.opening.extend(openings);
            }
            _ => place.again(queued),
        }
        if place.state == PartitionState::Ready {
            place.state = state;
        }
        self.touch(partition);
    }

    /// Asks for the generation of a partition before anything else is sent.
    fn drain(&mut self, partition: usize) {
        let place = &mut self.partitions[partition];
        if place.state == PartitionState::Ready {
            place.state = PartitionState::Draining;
        }
        self.touch(partition);
    }

    fn partition_refused(&mut self, now_ms: u64, shard: ShardId, error: ServerError, text: &str) {
        let link = &mut self.links[usize::from(shard.0)];
        let is_redirection = matches!(
            error,
            ServerError::Moved { .. } | ServerError::Ask { .. } | ServerError::TryAgain
        );
        if error == ServerError::ReadOnly {
            // The name may resolve to another server by now.
            (link.is_up, link.reconnect) = (false, true);
            for place in &mut self.partitions {
                if place.link == Some(shard) {
                    place.state = PartitionState::Down;
                }
            }
        }
        if !is_redirection || !self.keys.is_sharded() {
            link.refuse(now_ms, error, text);
        }
        self.refresh_topology(now_ms);
    }

    fn generation_reply(
        &mut self,
        now_ms: u64,
        shard: ShardId,
        partition: usize,
        reply: &Value<'_>,
    ) {
        let link = &mut self.links[usize::from(shard.0)];
        if self.partitions[partition].link != Some(shard) {
            return;
        }
        let Some([generation, version, eviction, evicted, replicas @ ..]) = reply.elements() else {
            return self.generation_refused(now_ms, shard, partition, reply);
        };
        let [generation, version, eviction, evicted] =
            [generation, version, eviction, evicted].map(|of| of.text().unwrap_or_default());
        link.enter(now_ms, ShardState::Ready);
        if link.refusing.is_none() {
            link.detail.clear();
        }
        version.clone_into(&mut link.version);
        link.eviction = match eviction {
            "" | "noeviction" => String::new(),
            policy => format!("{policy}, {evicted} keys so far"),
        };
        link.probe.next_ms = now_ms + self.config.probe_interval_ms;
        if let [replicas, ..] = replicas {
            self.replicas_said(shard, replicas.text().unwrap_or_default());
        }
        let is_new = self.partitions[partition].generation != generation;
        let good_ms = self.partitions[partition].good_ms;
        self.data_are_good(now_ms, shard, partition, is_new);
        let place = &mut self.partitions[partition];
        let vanished = std::mem::take(&mut place.vanished);
        let by_other = std::mem::take(&mut place.doubted_by_other);
        place.doubt = Doubt::None;
        if place.state == PartitionState::Ready && !is_new {
            if !vanished.is_empty() {
                let openings = vanished.into_iter().map(|channel| Opening { channel, seen: None });
                place.opening.extend(openings);
                self.touch(partition);
            }
            return;
        }
        place.state = PartitionState::Ready;
        let before = place.generations;
        if is_new {
            generation.clone_into(&mut place.generation);
            place.generations += 1;
            self.stats.generations += u64::from(before > 0);
        }
        self.reopen(partition, (is_new && before > 0).then_some((before, good_ms)));
        if is_new && before > 0 && !by_other {
            self.doubt_others(shard);
        }
    }

    /// One partition of a server is of another generation, and so may be its others: each is asked now, and not when it happens
    /// to be noticed, so that a client is unsubscribed of all its channels at once.
    fn doubt_others(&mut self, shard: ShardId) {
        for partition in 0..self.partitions.len() {
            let place = &mut self.partitions[partition];
            if place.link == Some(shard) && place.state == PartitionState::Ready {
                place.doubted_by_other = true;
                self.doubt(partition);
            }
        }
    }

    /// The server does not have the stream of a subscribed channel any more: it has expired, or the data are lost. Before it begins
    /// anew it is asked which, or it would begin anew again when that is noticed. Returns the position to give until then.
    fn vanished(&mut self, partition: usize, channel: &Arc<str>) -> Option<StreamPosition> {
        let known = self.known_now(partition, channel)?;
        let place = &mut self.partitions[partition];
        if place.state != PartitionState::Ready || !place.subscriptions.contains_key(channel) {
            return None;
        }
        if !place.vanished.contains(channel) {
            place.vanished.push(Arc::clone(channel));
        }
        self.doubt(partition);
        Some(StreamPosition { offset: 0, epoch: known.epoch })
    }

    /// Asks for the generation of a partition's data.
    fn doubt(&mut self, partition: usize) {
        let place = &mut self.partitions[partition];
        if place.state == PartitionState::Ready && place.doubt == Doubt::None {
            place.doubt = Doubt::Raised;
            self.touch(partition);
        }
    }

    fn generation_refused(
        &mut self,
        now_ms: u64,
        shard: ShardId,
        partition: usize,
        reply: &Value<'_>,
    ) {
        let (error, text) = match reply {
            Value::Error(text) => (ServerError::parse(text), *text),
            _ => (ServerError::Other, "a reply of another form than the script's"),
        };
        if self.keys.is_sharded() && matches!(error, ServerError::Ask { .. }) {
            return self.generation_moves(now_ms, shard, partition, &error);
        }
        self.partitions[partition].doubt = Doubt::None;
        self.partitions[partition].state = match error {
            ServerError::NoScript => {
                self.links[usize::from(shard.0)].load = true;
                PartitionState::Draining
            }
            _ => PartitionState::Refused { retry_ms: now_ms + RETRY_MS },
        };
        self.touch(partition);
        if error != ServerError::NoScript {
            self.partition_refused(now_ms, shard, error, text);
        }
    }

    /// Opens the channels of a partition again: any subscription may have missed messages, and recent publications may be lost.
    /// `lost`: the generation whose data were evidently lost, and when they were last known to be complete.
    fn reopen(&mut self, partition: usize, lost: Option<(u32, u64)>) {
        let place = &mut self.partitions[partition];
        place.syncs = place.syncs.wrapping_add(1);
        place.opening.retain(|opening| opening.seen.is_some());
        let seen = |known: &KnownStream| StreamPosition { offset: known.top, epoch: known.epoch };
        place.opening.extend(place.subscriptions.iter().map(|(channel, subscription)| {
            let seen = subscription.known.as_ref().filter(|_| lost.is_some()).map(seen);
            Opening { channel: channel.clone(), seen }
        }));
        if let Some((before, good_ms)) = lost {
            let keys = &self.keys;
            let evident = self.remembered.iter().filter(|(channel, known)| {
                known.generation == before
                    && known.seen_ms + EVIDENCE_MS > good_ms
                    && keys.partition(channel) == partition
            });
            place.opening.extend(evident.map(|(channel, known)| Opening {
                channel: channel.clone(),
                seen: Some(seen(known)),
            }));
        }
        self.touch(partition);
    }

    /// The data of a partition are of a generation, which is that of all partitions of the connection if it is not new.
    fn data_are_good(&mut self, now_ms: u64, shard: ShardId, partition: usize, is_new: bool) {
        self.partitions[partition].good_ms = now_ms;
        let known = |place: &&mut Partition| {
            place.link == Some(shard) && place.state == PartitionState::Ready && !is_new
        };
        self.partitions.iter_mut().filter(known).for_each(|place| place.good_ms = now_ms);
    }

    pub(super) fn operation_reply(
        &mut self,
        now_ms: u64,
        shard: ShardId,
        partition: usize,
        queued: Queued,
        reply: &Value<'_>,
    ) {
        match queued.operation {
            Operation::Publish(batch) => {
                self.publish_reply(now_ms, shard, partition, &batch, reply);
            }
            Operation::Confirm(openings) => {
                for opening in openings {
                    self.subscribed(&opening.channel, Ok(EnginePosition::default()));
                }
            }
            Operation::Open(openings) => {
                let Some(elements) = reply.elements() else { return };
                for (opening, position) in openings.iter().zip(elements.chunks_exact(3)) {
                    self.opened(now_ms, shard, partition, opening, position);
                }
            }
            Operation::History(read) => self.history_reply(now_ms, partition, read, reply),
            Operation::Announce { .. } => {}
            Operation::Remove { token, .. } => {
                self.events.push_back(EngineEvent::HistoryRemoved { token, result: Ok(()) });
            }
            Operation::Positions(positions) => {
                if let Some(gathering) = self.gatherings.get_mut(&positions.gathering)
                    && let Some(elements) = reply.elements()
                {
                    for (&index, pair) in positions.indices.iter().zip(elements.chunks_exact(2)) {
                        gathering.positions[index as usize] = position(&pair[0], &pair[1]);
                    }
                    for (at, pair) in elements.chunks_exact(2).enumerate() {
                        let Some(channel) = positions.channels.get(at) else { break };
                        let position = position(&pair[0], &pair[1]);
                        // The next read has to reach these positions.
                        self.reaches(now_ms, partition, channel, position);
                        if position.epoch.is_none()
                            && let Some(known) = self.vanished(partition, channel)
                            && let Some(gathering) = self.gatherings.get_mut(&positions.gathering)
                        {
                            gathering.positions[positions.indices[at] as usize] = known;
                        }
                    }
                }
                self.gathered(positions.gathering, None);
            }
        }
    }

    /// Selects the requested part of a stream, in either layout.
    pub(super) fn select_part(
        &self,
        part: &StreamSlice<'_>,
        entries: &[Value<'_>],
        filter: &HistoryFilter,
    ) -> Result<History, Error> {
        match self.config.layout {
            Layout::Dunlin => {
                let messages = entries.iter().map(|entry| entry.bytes().unwrap_or_default());
                let (position, inherits) = (part.position, part.inherits);
                match filter.reverse {
                    false => select(position, inherits, messages, filter, part.size),
                    true => select(position, inherits, messages.rev(), filter, part.size),
                }
            }
            Layout::Centrifugo => {
                let (oldest_first, newest_first);
                let publications: &mut dyn Iterator<Item = _> = match filter.reverse {
                    false => {
                        oldest_first = centrifugo_message::entries(entries);
                        &mut { oldest_first }
                    }
                    true => {
                        newest_first = centrifugo_message::entries(entries).rev();
                        &mut { newest_first }
                    }
                };
                select_publications(part, publications, filter)
            }
        }
    }

    fn publish_reply(
        &mut self,
        now_ms: u64,
        shard: ShardId,
        partition: usize,
        batch: &Batch,
        reply: &Value<'_>,
    ) {
        self.stats.publish_commands += 1;
        let (position, suppressed) = match (reply, reply.elements()) {
            // The number of receivers.
            (Value::Integer(_), _) if !batch.retention.keeps() => {
                (StreamPosition::default(), false)
            }
            (Value::Integer(offset), _) => {
                let offset = u64::try_from(*offset).unwrap_or_default();
                (StreamPosition { offset, epoch: batch.epoch }, false)
            }
            (_, Some([epoch, offset])) => (position(epoch, offset), false),
            (_, Some([_, epoch, offset])) => (position(epoch, offset), true),
            _ => return self.finish_publish(&batch.tokens, Err(Error::EngineUncertain)),
        };
        if position.offset > 0 && !suppressed {
            // With an epoch that was not known the times were renewed.
            let renewed = (position.epoch != batch.epoch
                || self.known(&batch.channel).is_none_or(|known| known.epoch != position.epoch))
            .then_some(batch.retention);
            self.learn(now_ms, partition, &batch.channel, position, renewed);
        }
        let published = Published { position, suppressed, durability: None };
        self.replicate(shard, batch.retention.keeps(), &batch.tokens, published);
    }

    fn opened(
        &mut self,
        now_ms: u64,
        shard: ShardId,
        partition: usize,
        opening: &Opening,
        reply: &[Value<'_>],
    ) {
        let channel = &opening.channel;
        let [epoch, top, before] = reply else { return };
        if epoch.text() == Some("!") {
            let text = top.text().unwrap_or_default();
            text.clone_into(&mut self.links[usize::from(shard.0)].detail);
            return self.subscribed(channel, Err(Error::EngineRefused));
        }
        if epoch.text() == Some("~") {
            // The data are of another generation, which is to be known first.
            let (channel, seen) = (Arc::clone(channel), opening.seen);
            self.partitions[partition].opening.push(Opening { channel, seen });
            return self.drain(partition);
        }
        let position = position(epoch, top);
        let inherits = inherited(before);
        if let Some(seen) = opening.seen
            && seen.epoch != position.epoch
            && seen.offset > 0
            && !inherits.contains(seen)
        {
            self.stats.streams_cut += 1;
        }
        self.learn(now_ms, partition, channel, position, None);
        self.subscribed(channel, Ok(EnginePosition { position, inherits }));
    }

    pub(super) fn subscribed(&mut self, channel: &str, result: Result<EnginePosition, Error>) {
        let place = &mut self.partitions[self.keys.partition(channel)];
        if let Some(subscription) = place.subscriptions.get_mut(channel) {
            if result.is_ok() {
                subscription.synced = place.syncs;
            }
            let token = subscription.token;
            self.events.push_back(EngineEvent::Subscribed { token, result });
        }
    }

    /// Handles a removal of a channel's publications in a layout that announces it separately. All connections receive it; one
    /// passes it on.
    fn handle_removal(&mut self, shard: ShardId, channel: &[u8]) {
        let Ok(channel) = str::from_utf8(channel) else { return };
        let place = &self.partitions[self.keys.partition(channel)];
        if place.link == Some(shard)
            && let Some((channel, _)) = place.subscriptions.get_key_value(channel)
        {
            self.events.push_back(EngineEvent::Cleared { channel: channel.clone() });
        }
    }

    /// Handles messages of other channels: probes of connections, and messages of Sentinels.
    pub(super) fn handle_other_message(
        &mut self,
        now_ms: u64,
        shard: ShardId,
        channel: &[u8],
        payload: &[u8],
    ) {
        let Some(link) = self.links.get_mut(usize::from(shard.0)) else { return };
        if let Some(partition) = link.probe.partition
            && self.keys.probe(partition, self.id) == channel
        {
            link.probe.since_ms = None;
        } else if self.keys.removals().is_some_and(|removals| removals == channel) {
            self.handle_removal(shard, payload);
        } else if channel == b"+switch-master" {
            self.primary_switched(now_ms, payload);
        }
    }
}

/// Parses an epoch and an offset as scripts return them.
pub(super) fn position(epoch: &Value<'_>, offset: &Value<'_>) -> StreamPosition {
    let offset = match offset {
        Value::Integer(offset) => u64::try_from(*offset).unwrap_or_default(),
        offset => offset.text().and_then(|text| text.parse().ok()).unwrap_or_default(),
    };
    StreamPosition { offset, epoch: Epoch::parse(epoch.text().unwrap_or_default()) }
}

/// Parses the equivalent positions of earlier epochs, separated by spaces.
pub(super) fn inherited(value: &Value<'_>) -> Lineage {
    let position = |text: &str| {
        let (epoch, offset) = text.split_once(':')?;
        Some(StreamPosition { offset: offset.parse().ok()?, epoch: Epoch::parse(epoch) })
    };
    value.text().unwrap_or_default().split(' ').filter_map(position).collect()
}

impl Partition {
    /// Moves the partition to another connection, or to none.
    pub(super) fn relink(&mut self, link: Option<ShardId>, is_up: bool) {
        self.link = link;
        self.doubt = Doubt::None;
        self.state = if is_up { PartitionState::Draining } else { PartitionState::Down };
    }
}
