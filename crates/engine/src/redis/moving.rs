//! Operations of channels whose slot is migrated, key by key, from one node of a cluster to another.
//!
//! A migration takes seconds, or never ends if it is abandoned half-way. The old node, the source, serves the keys that it
//! still has and redirects requests for the others. Only channels that it redirects are deferred; all others continue.
//!
//! | the source answers | a channel's keys are | what is done |
//! |---|---|---|
//! | `ASK` | no longer at the source | the operation is sent to the importing node, after `ASKING` (`lua/asking.lua`) |
//! | `TRYAGAIN` | partly at the source | it is retried, with back-off, until it has waited for [`hold_ms`](super::RedisConfig) |
//!
//! Subscriptions stay at the source until the slot belongs to the other node, so what is published at the importing node is
//! also published at the source. A node that receives neither finds the gap like any other.
//!
//! **Equal offsets of different nodes are never confused.** The importing node's data have a generation of their own, so a
//! stream continues there in a new epoch, which inherits what was moved. If that node fails over and loses some of it, the next
//! epoch inherits what is left. What is known of such a stream is evidence, and never the epoch of a publication at the source.
//!
//! Operations of a channel stay in order: those that were refused wait for those in flight, and those that were never sent wait
//! for both.

use std::sync::Arc;

use dunlin_hub::Error;
use dunlin_wire::resp::{ServerError, Value};

use super::operation::{Opening, Operation, Positions, Queued};
use super::partition::PartitionState;
use super::put_off::{
    DeferredAttempt, DeferredChannel, DeferredOperation, QUIET_MS, SlotMigration,
};
use super::{Pending, RedisEngine};
use crate::links::{Links, Server, ServerRole, ShardId};

/// The share of a partition's queue bytes that deferred operations may use.
const PUT_OFF_SHARE: usize = 4;

/// The next operation to send for a channel.
enum Next {
    Opening(Opening),
    Operation(DeferredOperation),
}

impl RedisEngine {
    /// Defers an operation of a channel that has deferred operations already. Returns it otherwise.
    pub(super) fn hold_back(
        &mut self,
        now_ms: u64,
        partition: usize,
        queued: Queued,
    ) -> Option<Queued> {
        let bytes_max = self.config.queue_bytes_max / PUT_OFF_SHARE;
        let Some(moving) = &mut self.partitions[partition].moving else { return Some(queued) };
        let entry = queued.operation.channel().and_then(|of| moving.channels.get_mut(of));
        let Some(entry) = entry else { return Some(queued) };
        let bytes = queued.operation.bytes();
        if moving.bytes + bytes > bytes_max {
            self.fail(queued.operation, Error::EngineUnavailable);
            return None;
        }
        self.stats.put_off += 1;
        moving.bytes += bytes;
        moving.due_ms = moving.due_ms.min(entry.next_ms.max(now_ms));
        entry.held.push_back(queued);
        None
    }

    /// Like [`RedisEngine::hold_back`], for a position that is to be read.
    pub(super) fn hold_back_opening(
        &mut self,
        partition: usize,
        opening: Opening,
    ) -> Option<Opening> {
        let Some(moving) = &mut self.partitions[partition].moving else { return Some(opening) };
        let Some(entry) = moving.channels.get_mut(&opening.channel) else { return Some(opening) };
        entry.open(opening);
        moving.due_ms = moving.due_ms.min(entry.next_ms);
        None
    }

    /// Handles a redirect of the source, which has none or only some of an operation's keys: defers each of its channels
    /// separately.
    pub(super) fn slot_moves(
        &mut self,
        now_ms: u64,
        shard: ShardId,
        partition: usize,
        queued: Queued,
        error: &ServerError,
    ) {
        self.meet_importer(now_ms, shard, partition, error);
        let is_away = matches!(error, ServerError::Ask { .. });
        let since_ms = queued.since_ms;
        let apart: Vec<Operation> = match queued.operation {
            Operation::Open(openings) | Operation::Confirm(openings) => {
                openings.into_iter().map(|opening| Operation::Open(vec![opening])).collect()
            }
            Operation::Positions(positions) if positions.channels.len() > 1 => {
                let Positions { gathering, indices, channels } = *positions;
                if let Some(query) = self.gatherings.get_mut(&gathering) {
                    query.left += channels.len() - 1;
                }
                let each = indices.into_iter().zip(channels).map(|(index, channel)| {
                    let (indices, channels) = (vec![index], vec![channel]);
                    Operation::Positions(Box::new(Positions { gathering, indices, channels }))
                });
                each.collect()
            }
            operation => vec![operation],
        };
        for operation in apart {
            let queued = Queued::new(operation, since_ms, &self.queue_bytes);
            self.refuse(now_ms, partition, None, queued, is_away);
        }
    }

    /// Records the node that imports a partition's slot.
    fn meet_importer(
        &mut self,
        now_ms: u64,
        source: ShardId,
        partition: usize,
        error: &ServerError,
    ) {
        let importer = match error {
            ServerError::Ask { address, .. } => {
                address.rsplit_once(':').and_then(|(host, port)| {
                    // An empty host means the host of the node that sent the redirect.
                    let host = match host {
                        "" => self.links[usize::from(source.0)].server.host.clone(),
                        host => host.trim_matches(['[', ']']).to_owned(),
                    };
                    Some(Server { host, port: port.parse().ok()?, role: ServerRole::Data })
                })
            }
            _ => None,
        };
        let importer = importer.map(|server| self.link_to(server, now_ms));
        let moving = self.partitions[partition]
            .moving
            .get_or_insert_with(|| Box::new(SlotMigration::new(now_ms)));
        moving.importer = importer.or(moving.importer);
        moving.last_ms = now_ms;
    }

    /// Handles the migration of the key with a partition's generation: the generation is named after the source from now on.
    pub(super) fn generation_moves(
        &mut self,
        now_ms: u64,
        shard: ShardId,
        partition: usize,
        error: &ServerError,
    ) {
        self.meet_importer(now_ms, shard, partition, error);
        if let Some(moving) = &mut self.partitions[partition].moving {
            moving.generation_is_away = true;
        }
        let place = &mut self.partitions[partition];
        match place.state {
            PartitionState::Ready => self.links[usize::from(shard.0)].probe.wanted = true,
            _ => place.state = PartitionState::Draining,
        }
        self.touch(partition);
    }

    /// Defers an operation of one channel, in its former place if it has a number.
    fn refuse(
        &mut self,
        now_ms: u64,
        partition: usize,
        number: Option<u64>,
        queued: Queued,
        is_away: bool,
    ) {
        let bytes_max = self.config.queue_bytes_max / PUT_OFF_SHARE;
        let place = &mut self.partitions[partition];
        let barrier = place.answered + place.in_flight as u64;
        let Some(moving) = &mut place.moving else { return self.requeue(partition, queued) };
        self.stats.put_off += 1;
        self.stats.retried += 1;
        let bytes = queued.operation.bytes();
        let operation = match queued.operation {
            Operation::Open(openings) => {
                for opening in openings {
                    let entry = moving.put_off(now_ms, barrier, &opening.channel, is_away);
                    entry.opening_is_away = is_away;
                    entry.open(opening);
                }
                return self.touch(partition);
            }
            operation => operation,
        };
        let Some(channel) = operation.channel().map(Arc::clone) else { return };
        if moving.bytes + bytes > bytes_max {
            return self.fail(operation, Error::EngineUnavailable);
        }
        let names_all = operation.names_all_keys();
        let entry = moving.put_off(now_ms, barrier, &channel, is_away);
        // One key may have moved before the other.
        entry.is_away = is_away && (entry.is_away || names_all);
        moving.sequence += u64::from(number.is_none());
        let number = number.unwrap_or(moving.sequence);
        let queued = Queued { operation, ..queued };
        if let Some(entry) = moving.channels.get_mut(&channel) {
            entry.refuse(DeferredOperation { number, is_away, queued });
        }
        moving.bytes += bytes;
        self.touch(partition);
    }

    /// Sends the due operations of deferred channels.
    pub(super) fn flush_moving(
        &mut self,
        now_ms: u64,
        partition: usize,
        source: ShardId,
        links: &mut impl Links,
    ) {
        let Some(moving) = &mut self.partitions[partition].moving else { return };
        for (shard, list, message) in std::mem::take(&mut moving.echoes) {
            // The slot may have moved to the other node by now; then the message was published there.
            if shard == source {
                let command: [&[u8]; 3] = [b"SPUBLISH", &list, &message];
                self.plain_command(links, source, Pending::Ignored, &command);
            }
        }
        let answered = self.partitions[partition].answered;
        let Some(moving) = &mut self.partitions[partition].moving else { return };
        moving.channels.retain(|_, entry| !entry.is_empty());
        let is_due = |entry: &DeferredChannel| entry.next_ms <= now_ms && answered >= entry.barrier;
        let due = moving.channels.iter().filter(|(_, entry)| is_due(entry));
        let due: Vec<Arc<str>> = due.map(|(channel, _)| Arc::clone(channel)).collect();
        for channel in due {
            while self.attempt(now_ms, partition, source, &channel, links) {}
        }
        self.reschedule(now_ms, partition);
    }

    fn reschedule(&mut self, now_ms: u64, partition: usize) {
        let hold_ms = self.config.hold_ms;
        let place = &mut self.partitions[partition];
        if let Some(moving) = &mut place.moving {
            moving.due_ms = moving.next_due_ms(now_ms, place.answered, hold_ms);
        }
    }

    /// Sends the next operation of a channel. Returns false if there is none, or if it has to wait.
    fn attempt(
        &mut self,
        now_ms: u64,
        partition: usize,
        source: ShardId,
        channel: &Arc<str>,
        links: &mut impl Links,
    ) -> bool {
        let place = &mut self.partitions[partition];
        let Some(moving) = &mut place.moving else { return false };
        let importer = moving.importer.filter(|at| self.links[usize::from(at.0)].is_up);
        let Some(entry) = moving.channels.get_mut(channel) else { return false };
        let can_go = |is_away: bool| match is_away {
            true => importer.is_some(),
            false => entry.out == 0,
        };
        let next = if entry.opening.is_some() && can_go(entry.opening_is_away) {
            entry.opening.take().map(|opening| (entry.opening_is_away, Next::Opening(opening)))
        } else {
            let is_away = |held: &DeferredOperation| {
                held.is_away || entry.is_away && !held.queued.operation.has_idempotency_key()
            };
            let from_held = entry.refused.is_empty();
            if from_held && let Some(queued) = entry.held.pop_front() {
                moving.sequence += 1;
                let number = moving.sequence;
                entry.refused.push_back(DeferredOperation { number, is_away: false, queued });
            }
            match entry.refused.front().map(is_away) {
                Some(is_away) if can_go(is_away) => {
                    let held = entry.refused.pop_front();
                    held.map(|held| (is_away, Next::Operation(held)))
                }
                _ => None,
            }
        };
        let Some((is_away, next)) = next else { return false };
        entry.out += 1;
        let (number, queued) = match next {
            Next::Opening(opening) => {
                let operation = Operation::Open(vec![opening]);
                (0, Queued::new(operation, now_ms, &self.queue_bytes))
            }
            Next::Operation(held) => {
                moving.bytes -= held.queued.operation.bytes();
                (held.number, held.queued)
            }
        };
        let attempt = DeferredAttempt { partition, number, queued };
        match importer.filter(|_| is_away) {
            Some(importer) => self.ask(now_ms, importer, attempt, links),
            None => self.try_again(now_ms, source, attempt, links),
        }
    }

    /// Sends an operation to the importing node. Returns false if the connection is full.
    fn ask(
        &mut self,
        now_ms: u64,
        importer: ShardId,
        mut attempt: DeferredAttempt,
        links: &mut impl Links,
    ) -> bool {
        let arguments = self.encode_asked(now_ms, attempt.partition, &mut attempt.queued.operation);
        self.plain_command(links, importer, Pending::Ignored, &[b"ASKING"]);
        match self.command(links, importer, Pending::Asked(attempt), &arguments) {
            Ok(()) => {
                self.stats.asked += 1;
                true
            }
            Err(Pending::Asked(attempt)) => self.not_sent(now_ms, attempt, true),
            Err(_) => false,
        }
    }

    /// Sends an operation to the source again. Returns false if the operations after it have to wait for its answer.
    fn try_again(
        &mut self,
        now_ms: u64,
        source: ShardId,
        mut attempt: DeferredAttempt,
        links: &mut impl Links,
    ) -> bool {
        let partition = attempt.partition;
        let arguments = self.encode(now_ms, partition, &mut attempt.queued.operation, false);
        match self.command(links, source, Pending::TriedAgain(attempt), &arguments) {
            Ok(()) => {
                self.partitions[partition].in_flight += 1;
                false
            }
            Err(Pending::TriedAgain(attempt)) => self.not_sent(now_ms, attempt, false),
            Err(_) => false,
        }
    }

    fn not_sent(&mut self, now_ms: u64, attempt: DeferredAttempt, is_away: bool) -> bool {
        self.attempt_ended(&attempt);
        self.refuse(now_ms, attempt.partition, Some(attempt.number), attempt.queued, is_away);
        false
    }

    fn attempt_ended(&mut self, attempt: &DeferredAttempt) {
        if let Some(moving) = &mut self.partitions[attempt.partition].moving
            && let Some(channel) = attempt.queued.operation.channel()
            && let Some(entry) = moving.channels.get_mut(channel)
        {
            entry.out = entry.out.saturating_sub(1);
        }
        self.touch(attempt.partition);
    }

    /// Handles the source's answer to an operation that it had refused before.
    pub(super) fn tried_again_reply(
        &mut self,
        now_ms: u64,
        shard: ShardId,
        attempt: DeferredAttempt,
        reply: &Value<'_>,
    ) {
        let partition = attempt.partition;
        self.answered(partition, &attempt.queued.operation, false);
        self.attempt_ended(&attempt);
        if let Value::Error(text) = reply {
            let error = ServerError::parse(text);
            if let ServerError::Ask { .. } | ServerError::TryAgain = error {
                self.meet_importer(now_ms, shard, partition, &error);
                let is_away = error != ServerError::TryAgain;
                let number = Some(attempt.number);
                return self.refuse(now_ms, partition, number, attempt.queued, is_away);
            }
            return self.refused(now_ms, shard, partition, attempt.queued, text);
        }
        let channel = attempt.queued.operation.channel().map(Arc::clone);
        self.operation_reply(now_ms, shard, partition, attempt.queued, reply);
        // The keys are at the source after all: the operations that wait continue.
        let moving = self.partitions[partition].moving.as_mut();
        let entry = moving.zip(channel).and_then(|(of, channel)| of.channels.remove(&channel));
        if let Some(entry) = entry {
            self.partitions[partition].opening.extend(entry.opening);
            let refused = entry.refused.into_iter().map(|held| held.queued);
            for queued in refused.chain(entry.held) {
                if let Some(moving) = &mut self.partitions[partition].moving {
                    moving.bytes -= queued.operation.bytes();
                }
                self.requeue(partition, queued);
            }
        }
    }

    /// Handles an answer of the importing node.
    pub(super) fn asked_reply(
        &mut self,
        now_ms: u64,
        shard: ShardId,
        attempt: DeferredAttempt,
        reply: &Value<'_>,
    ) {
        let partition = attempt.partition;
        self.attempt_ended(&attempt);
        let DeferredAttempt { number, queued, .. } = attempt;
        let (result, published) = match reply {
            Value::Error(text) => {
                let error = ServerError::parse(text);
                if !is_passing(&error) {
                    return self.refused(now_ms, shard, partition, queued, text);
                }
                // The node no longer imports the slot, or its role has changed: the source knows the new state.
                self.refuse(now_ms, partition, Some(number), queued, false);
                return self.refresh_topology(now_ms);
            }
            reply => match reply.elements() {
                Some([result, published]) => (result, published.elements().unwrap_or_default()),
                _ => (reply, &[][..]),
            },
        };
        let channel = queued.operation.channel().map(Arc::clone);
        let place = &mut self.partitions[partition];
        if let (Some(channel), Some(source), Some(moving)) =
            (&channel, place.link, &mut place.moving)
        {
            let list = self.keys.list(partition, channel);
            let messages = published.iter().filter_map(Value::bytes);
            moving.echoes.extend(messages.map(|bytes| (source, list.clone(), bytes.to_vec())));
            moving.last_ms = now_ms;
        }
        self.operation_reply(now_ms, shard, partition, queued, result);
        if let Some(channel) = channel {
            self.distrust(&channel);
        }
    }

    /// Handles an attempt whose connection broke. `sent`: the command had been written.
    pub(super) fn attempt_lost(&mut self, now_ms: u64, mut attempt: DeferredAttempt, sent: bool) {
        self.attempt_ended(&attempt);
        if !attempt.queued.operation.repeats(sent) {
            return self.fail(attempt.queued.operation, Error::EngineUnavailable);
        }
        let DeferredAttempt { partition, number, queued } = attempt;
        self.refuse(now_ms, partition, Some(number), queued, false);
    }

    /// Queues an operation before those that wait for the partition.
    fn requeue(&mut self, partition: usize, queued: Queued) {
        let place = &mut self.partitions[partition];
        match queued.operation {
            Operation::Open(openings) => place.opening.extend(openings),
            _ => place.again(queued),
        }
        self.touch(partition);
    }

    /// Fails operations that have waited too long, and ends a migration of which nothing was heard for some time.
    pub(super) fn moving_timeout(&mut self, now_ms: u64, partition: usize) {
        let hold_ms = self.config.hold_ms;
        let Some(moving) = &mut self.partitions[partition].moving else { return };
        if now_ms < moving.due_ms {
            return;
        }
        let is_over = |queued: &Queued| queued.since_ms + hold_ms <= now_ms;
        let mut expired = Vec::new();
        for entry in moving.channels.values_mut() {
            while let Some(held) = entry.refused.pop_front_if(|held| is_over(&held.queued)) {
                expired.push(held.queued.operation);
            }
            if entry.refused.is_empty() {
                while let Some(queued) = entry.held.pop_front_if(|queued| is_over(queued)) {
                    expired.push(queued.operation);
                }
            }
        }
        for operation in &expired {
            moving.bytes -= operation.bytes();
        }
        if moving.channels.is_empty() && moving.last_ms + QUIET_MS <= now_ms {
            if std::mem::take(&mut moving.generation_is_away) {
                // The next probe asks for it again.
                moving.last_ms = now_ms;
            } else {
                self.partitions[partition].moving = None;
            }
        }
        for operation in expired {
            self.fail(operation, Error::EngineUnavailable);
        }
        self.reschedule(now_ms, partition);
        self.touch(partition);
    }

    /// Handles the end of a migration: deferred operations go to the slot's new node.
    pub(super) fn slot_has_moved(&mut self, partition: usize) {
        let place = &mut self.partitions[partition];
        let Some(mut moving) = place.moving.take() else { return };
        let (openings, others) = moving.take();
        place.opening.extend(openings);
        for queued in others {
            place.again(queued);
        }
    }
}

/// Returns whether the operation will succeed at another node, or at the same one soon.
fn is_passing(error: &ServerError) -> bool {
    matches!(
        error,
        ServerError::Ask { .. }
            | ServerError::TryAgain
            | ServerError::Moved { .. }
            | ServerError::ClusterDown
            | ServerError::Loading
            | ServerError::ReadOnly
            | ServerError::MasterDown
            | ServerError::Busy
    )
}
