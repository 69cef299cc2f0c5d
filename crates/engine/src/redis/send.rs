//! Sends operations on the connections.

use super::encode::Arguments;
use super::operation::{OPENED_MAX, Operation, Queued};
use super::partition::{Doubt, PartitionState};
use super::{Pending, RedisEngine};
use crate::links::{LinkFull, Links, ServerRole, ShardId};

/// Maximum number of unanswered commands of a partition.
const IN_FLIGHT_MAX: usize = 16_384;

/// Maximum number of unanswered commands that read positions after a reconnect, so that publications can be sent between them.
const OPENS_IN_FLIGHT_MAX: usize = 32;

impl RedisEngine {
    pub(super) fn flush_links(&mut self, links: &mut impl Links) {
        for at in 0..self.links.len() {
            let shard = ShardId(at as u16);
            let link = &mut self.links[at];
            if link.closed && std::mem::take(&mut link.open) {
                links.close(shard);
                continue;
            }
            if std::mem::take(&mut link.open) {
                links.open(shard, &link.server);
                link.reconnect = false;
            }
            if std::mem::take(&mut link.reconnect) {
                links.reconnect(shard);
            }
            if link.is_up && link.server.role == ServerRole::Data && std::mem::take(&mut link.load)
            {
                for script in self.scripts.clone().all() {
                    let mut arguments = Arguments::default();
                    arguments.add(b"SCRIPT").add(b"LOAD").add(script.text.as_bytes());
                    self.command(links, shard, Pending::Ignored, &arguments).ok();
                }
            }
        }
    }

    /// Sends the subscriptions that began and ended.
    pub(super) fn flush_topics(&mut self, links: &mut impl Links) {
        for (shard, channel) in std::mem::take(&mut self.moved_topics) {
            let list = self.keys.list(self.keys.partition(&channel), &channel);
            if !self.links[usize::from(shard.0)].closed {
                links.unsubscribe(shard, &list, self.keys.is_sharded());
            }
        }
        for (channel, begins) in std::mem::take(&mut self.topics) {
            let partition = self.keys.partition(&channel);
            let Some(shard) = self.partitions[partition].link else { continue };
            // A later change overrides this one.
            if begins != self.partitions[partition].subscriptions.contains_key(&channel) {
                continue;
            }
            let (list, sharded) = (self.keys.list(partition, &channel), self.keys.is_sharded());
            match begins {
                true => links.subscribe(shard, &list, sharded),
                false => links.unsubscribe(shard, &list, sharded),
            }
        }
    }

    /// Sends due probes to the connections themselves, through the channel of a partition that accepts requests.
    pub(super) fn flush_probes(&mut self, now_ms: u64, links: &mut impl Links) {
        for at in 0..self.links.len() {
            if !std::mem::take(&mut self.links[at].probe.wanted) {
                continue;
            }
            let shard = ShardId(at as u16);
            let ready = self.partitions.iter().position(|place| {
                place.link == Some(shard) && place.state == PartitionState::Ready
            });
            if let Some(partition) = ready
                && self.ask_life(partition, shard, links)
            {
                self.links[at].probe.since_ms.get_or_insert(now_ms);
            }
        }
    }

    /// Requests the generation of a partition, and sends the connection's probe. Returns false if the connection is full.
    fn ask_life(&mut self, partition: usize, shard: ShardId, links: &mut impl Links) -> bool {
        let (sharded, probe) = (self.keys.is_sharded(), self.keys.probe(partition, self.id));
        let link = &mut self.links[usize::from(shard.0)];
        if link.probe.partition != Some(partition) {
            if let Some(before) = link.probe.partition.replace(partition) {
                links.unsubscribe(shard, &self.keys.probe(before, self.id), sharded);
            }
            links.subscribe(shard, &probe, sharded);
            if let Some(removals) = self.keys.removals() {
                links.subscribe(shard, &removals, false);
            }
        }
        self.ask_generation(partition, shard, links)
    }

    /// Requests the generation of a partition; its message is the connection's probe, if this partition carries it. Returns false
    /// if the connection is full.
    fn ask_generation(&mut self, partition: usize, shard: ShardId, links: &mut impl Links) -> bool {
        let probe = self.keys.probe(partition, self.id);
        let candidate = self.random();
        let place = &self.partitions[partition];
        let is_away = place.moving.as_ref().is_some_and(|moving| moving.generation_is_away);
        let mut arguments = Arguments::script(&self.scripts.generation.sha, usize::from(!is_away));
        if !is_away {
            arguments.add(&self.keys.generation(partition));
        }
        arguments.text(format_args!("{candidate:x}")).add(b"1").add(&probe);
        let sent = self.command(links, shard, Pending::Generation(partition), &arguments).is_ok();
        if !sent {
            let place = &mut self.partitions[partition];
            if place.state == PartitionState::Greeting {
                place.state = PartitionState::Draining;
            }
            self.touch(partition);
        }
        sent
    }

    /// Records that a command was sent.
    fn has_left(&mut self, shard: ShardId, token: u64) {
        match self.pending[token as usize].as_ref().and_then(Pending::operation) {
            Some(Operation::Publish(batch)) if batch.retention.keeps() => {
                self.publication_left(shard);
            }
            Some(Operation::History(read)) => {
                self.links[usize::from(shard.0)].pages_bytes += read.page_bytes;
            }
            _ => {}
        }
    }

    pub(super) fn command(
        &mut self,
        links: &mut impl Links,
        shard: ShardId,
        pending: Pending,
        arguments: &Arguments,
    ) -> Result<(), Pending> {
        let token = self.hold(pending);
        match arguments.send(links, shard, token) {
            Ok(()) => {
                self.has_left(shard, token);
                Ok(())
            }
            Err(LinkFull) => Err(self.release(token).unwrap_or(Pending::Ignored)),
        }
    }

    /// Sends the operations that wait for a partition, if it is up.
    pub(super) fn flush_partition(
        &mut self,
        now_ms: u64,
        partition: usize,
        links: &mut impl Links,
    ) {
        let place = &mut self.partitions[partition];
        let Some(shard) = place.link.filter(|shard| self.links[usize::from(shard.0)].is_up) else {
            return;
        };
        if place.state == PartitionState::Draining && place.in_flight == 0 {
            place.state = PartitionState::Greeting;
            self.ask_life(partition, shard, links);
            return;
        }
        if place.state != PartitionState::Ready {
            return;
        }
        if place.doubt == Doubt::Raised {
            place.doubt = Doubt::Asked;
            if !self.ask_generation(partition, shard, links) {
                self.partitions[partition].doubt = Doubt::Raised;
                return self.touch(partition);
            }
        }
        while self.partitions[partition].opens_in_flight < OPENS_IN_FLIGHT_MAX
            && let Some(queued) = self.next_open(now_ms, partition)
        {
            self.partitions[partition].opens_in_flight += 1;
            if !self.send(now_ms, partition, shard, queued, links) {
                return;
            }
        }
        self.flush_replica_reads(now_ms, partition, shard, links);
        while let Some(queued) = self.next(partition, shard) {
            if let Some(queued) = self.hold_back(now_ms, partition, queued)
                && !self.send(now_ms, partition, shard, queued, links)
            {
                return;
            }
        }
        self.flush_moving(now_ms, partition, shard, links);
    }

    /// Returns the next waiting operation. Histories may have to wait for each other, and delay no other operation.
    fn next(&mut self, partition: usize, shard: ShardId) -> Option<Queued> {
        let place = &mut self.partitions[partition];
        let queued = if place.in_flight < IN_FLIGHT_MAX { place.pop() } else { None };
        queued.or_else(|| self.next_history(partition, shard))
    }

    /// Returns the next streams whose positions are to be read.
    fn next_open(&mut self, now_ms: u64, partition: usize) -> Option<Queued> {
        let (mut kept, mut others) = (Vec::new(), Vec::new());
        while kept.len() < OPENED_MAX
            && others.len() < OPENED_MAX
            && let Some(opening) = self.partitions[partition].opening.pop()
        {
            match self.partitions[partition].subscriptions.get(&opening.channel) {
                Some(subscription) if !subscription.retention.keeps() => others.push(opening),
                None if opening.seen.is_none() => {}
                _ => kept.extend(self.hold_back_opening(partition, opening)),
            }
        }
        let operation = match (kept.is_empty(), others.is_empty()) {
            (true, true) => return None,
            (true, false) => Operation::Confirm(others),
            (false, _) => {
                self.partitions[partition].opening.extend(others);
                Operation::Open(kept)
            }
        };
        Some(Queued::new(operation, now_ms, &self.queue_bytes))
    }

    /// Sends an operation. Returns false if the connection is full.
    fn send(
        &mut self,
        now_ms: u64,
        partition: usize,
        shard: ShardId,
        mut queued: Queued,
        links: &mut impl Links,
    ) -> bool {
        let arguments = self.encode(now_ms, partition, &mut queued.operation, false);
        let opens = matches!(queued.operation, Operation::Open(_) | Operation::Confirm(_));
        match self.command(links, shard, Pending::Operation(partition, queued), &arguments) {
            Ok(()) => {
                self.partitions[partition].in_flight += 1;
                true
            }
            Err(Pending::Operation(_, queued)) => {
                let place = &mut self.partitions[partition];
                match queued.operation {
                    Operation::Open(openings) | Operation::Confirm(openings) => {
                        place.opening.extend(openings);
                    }
                    _ => place.unpop(queued),
                }
                place.opens_in_flight -= usize::from(opens);
                // An answer makes room and is followed by a flush.
                self.touch(partition);
                false
            }
            Err(_) => false,
        }
    }

    /// Sends a command that does not concern channels.
    pub(super) fn plain_command(
        &mut self,
        links: &mut impl Links,
        shard: ShardId,
        pending: Pending,
        arguments: &[&[u8]],
    ) {
        let token = self.hold(pending);
        if links.command(shard, token, arguments).is_err() {
            self.release(token);
        }
    }
}
