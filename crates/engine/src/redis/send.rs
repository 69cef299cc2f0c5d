//! Operations become commands.

use std::fmt::Write as _;

use dunlin_hub::engine::Retention;

use super::config::Layout;
use super::known::KnownStream;
use super::operation::{OPENED_MAX, Opening, Operation, Queued};
use super::partition::PartitionState;
use super::{Pending, RedisEngine};
use crate::links::{LinkFull, Links, ServerRole, ShardId};

/// Commands out of a partition that are not answered.
const IN_FLIGHT_MAX: usize = 16_384;

/// Of them, those that read positions after a new connection: what is published meanwhile goes between them.
const OPENS_IN_FLIGHT_MAX: usize = 32;

/// Arguments of one command.
#[derive(Default)]
pub(super) struct Arguments {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Arguments {
    pub(super) fn script(sha: &str, keys: usize) -> Arguments {
        let mut arguments = Arguments::default();
        arguments.add(b"EVALSHA").add(sha.as_bytes()).number(keys as u64);
        arguments
    }

    pub(super) fn add(&mut self, argument: &[u8]) -> &mut Arguments {
        self.bytes.extend_from_slice(argument);
        self.ends.push(self.bytes.len());
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Arguments {
        self.text(format_args!("{number}"))
    }

    pub(super) fn text(&mut self, text: std::fmt::Arguments<'_>) -> &mut Arguments {
        struct Bytes<'a>(&'a mut Vec<u8>);
        impl std::fmt::Write for Bytes<'_> {
            fn write_str(&mut self, text: &str) -> std::fmt::Result {
                self.0.extend_from_slice(text.as_bytes());
                Ok(())
            }
        }
        let _ = Bytes(&mut self.bytes).write_fmt(text);
        self.ends.push(self.bytes.len());
        self
    }

    fn slices(&self) -> Vec<&[u8]> {
        let mut from = 0;
        let ends = self.ends.iter();
        ends.map(|&end| &self.bytes[std::mem::replace(&mut from, end)..end]).collect()
    }

    fn send(&self, links: &mut impl Links, shard: ShardId, token: u64) -> Result<(), LinkFull> {
        links.command(shard, token, &self.slices())
    }
}

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
            if link.is_up && std::mem::take(&mut link.load) && link.server.role == ServerRole::Data
            {
                for script in self.scripts.clone().all() {
                    let mut arguments = Arguments::default();
                    arguments.add(b"SCRIPT").add(b"LOAD").add(script.text.as_bytes());
                    self.command(links, shard, Pending::Ignored, &arguments).ok();
                }
            }
        }
    }

    /// Passes on which subscriptions began and ended.
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
            // What came after counts.
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

    /// A message through the connection to itself, with the channel of a partition that takes requests.
    pub(super) fn flush_probes(&mut self, links: &mut impl Links) {
        for at in 0..self.links.len() {
            if !std::mem::take(&mut self.links[at].probe.wanted) {
                continue;
            }
            let shard = ShardId(at as u16);
            let ready = self.partitions.iter().position(|place| {
                place.link == Some(shard) && place.state == PartitionState::Ready
            });
            if let Some(partition) = ready {
                self.ask_life(partition, shard, links);
            }
        }
    }

    /// Asks for the generation of a partition, and sends the connection its message.
    fn ask_life(&mut self, partition: usize, shard: ShardId, links: &mut impl Links) {
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
        let candidate = self.random();
        let place = &self.partitions[partition];
        let is_away = place.moving.as_ref().is_some_and(|moving| moving.generation_is_away);
        let mut arguments = Arguments::script(&self.scripts.life.sha, usize::from(!is_away));
        if !is_away {
            arguments.add(&self.keys.generation(partition));
        }
        arguments.text(format_args!("{candidate:x}")).add(b"1").add(&probe);
        if self.command(links, shard, Pending::Life(partition), &arguments).is_err() {
            let place = &mut self.partitions[partition];
            if place.state == PartitionState::Greeting {
                place.state = PartitionState::Draining;
            }
            self.touch(partition);
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

    /// As far as it is up, sends what waits for a partition.
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
            return self.ask_life(partition, shard, links);
        }
        if place.state != PartitionState::Ready {
            return;
        }
        while self.partitions[partition].opens_in_flight < OPENS_IN_FLIGHT_MAX
            && let Some(queued) = self.next_open(now_ms, partition)
        {
            self.partitions[partition].opens_in_flight += 1;
            if !self.send(now_ms, partition, shard, queued, links) {
                return;
            }
        }
        while self.partitions[partition].in_flight < IN_FLIGHT_MAX
            && let Some(queued) = self.partitions[partition].pop()
        {
            if let Some(queued) = self.hold_back(now_ms, partition, queued)
                && !self.send(now_ms, partition, shard, queued, links)
            {
                return;
            }
        }
        self.flush_moving(now_ms, partition, shard, links);
    }

    /// The next streams of which the position is to be read.
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
        Some(Queued { operation, since_ms: now_ms })
    }

    /// Sends an operation. False: the connection takes no more now.
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
                // There is room once something was answered, and then there is a flush.
                self.touch(partition);
                false
            }
            Err(_) => false,
        }
    }

    /// The command of an operation. `asked`: for the node that imports the slot, of whose data nothing is known.
    pub(super) fn encode(
        &mut self,
        now_ms: u64,
        partition: usize,
        operation: &mut Operation,
        asked: bool,
    ) -> Arguments {
        if self.config.layout == Layout::Centrifugo {
            return self.encode_centrifugo(partition, operation);
        }
        match operation {
            Operation::Publish(batch) if !batch.retention.keeps() => {
                let list = self.keys.list(partition, &batch.channel);
                let message = [b"1p:0:", &batch.encoded[..]].concat();
                let Some((key, ttl_ms)) = batch.check.as_ref().and_then(|check| check.key.as_ref())
                else {
                    let mut arguments = Arguments::default();
                    let command = if self.keys.is_sharded() { "SPUBLISH" } else { "PUBLISH" };
                    arguments.add(command.as_bytes()).add(&list).add(&message);
                    return arguments;
                };
                let mut arguments = Arguments::script(&self.scripts.announce.sha, 1);
                arguments.add(&self.keys.idempotency(partition, &batch.channel, key));
                arguments.add(&message).number(u64::from(*ttl_ms)).add(&list);
                arguments
            }
            Operation::Publish(batch) => {
                let known = self.known_now(partition, &batch.channel).filter(|_| !asked);
                let retention = batch.retention;
                let renew = known.is_none_or(|known| is_due(known, now_ms, retention));
                batch.epoch = match known {
                    Some(known) => known.epoch,
                    None => self.fresh_epoch(),
                };
                let script = match batch.check {
                    None => &self.scripts.publish,
                    Some(_) => &self.scripts.publish_checked,
                };
                let key = batch.check.as_ref().and_then(|check| check.key.as_ref());
                let mut arguments = Arguments::script(&script.sha, 2 + usize::from(key.is_some()));
                arguments.add(&self.keys.list(partition, &batch.channel));
                arguments.add(&self.keys.state(partition, &batch.channel));
                if let Some((key, _)) = key {
                    arguments.add(&self.keys.idempotency(partition, &batch.channel, key));
                }
                arguments
                    .text(format_args!("{}", batch.epoch))
                    .number(batch.tokens.len() as u64)
                    .number(u64::from(retention.size))
                    .number(u64::from(retention.size / 8).max(1))
                    .add(&batch.encoded)
                    .text(format_args!(
                        "{} {} {}",
                        with_renewal(retention.ttl_ms, retention),
                        with_renewal(retention.meta_ttl_ms, retention),
                        self.partitions[partition].generation,
                    ));
                let mode: &[u8] = match (known, renew) {
                    (None, _) => b"2",
                    (Some(_), true) => b"1",
                    (Some(_), false) => b"",
                };
                match &batch.check {
                    None if mode.is_empty() => {}
                    None => _ = arguments.add(mode),
                    Some(check) => {
                        arguments.add(mode);
                        arguments.number(key.map_or(0, |(_, ttl_ms)| u64::from(*ttl_ms)));
                        arguments.number(check.version).add(check.version_epoch.as_bytes());
                    }
                }
                if renew && let Some(known) = known {
                    // Those that follow before this one is answered need not do it, too.
                    self.learn(
                        now_ms,
                        partition,
                        &batch.channel,
                        dunlin_hub::StreamPosition { offset: known.top, epoch: known.epoch },
                        Some(retention),
                    );
                }
                arguments
            }
            Operation::Open(openings) => {
                let mut arguments = Arguments::script(&self.scripts.open.sha, openings.len());
                for Opening { channel, .. } in openings.iter() {
                    arguments.add(&self.keys.state(partition, channel));
                }
                arguments.add(self.partitions[partition].generation.as_bytes());
                arguments.text(format_args!("{}", self.fresh_epoch()));
                arguments.number(self.keys.kind_at(partition) as u64);
                for Opening { channel, seen } in openings.iter() {
                    let known = self.known_now(partition, channel).filter(|_| !asked);
                    match known {
                        Some(known) => arguments.text(format_args!("{}", known.epoch)),
                        None => arguments.add(b""),
                    };
                    let subscription = self.partitions[partition].subscriptions.get(channel);
                    arguments.number(match (subscription.map(|of| of.retention), known) {
                        (Some(retention), Some(known)) if !is_due(known, now_ms, retention) => 0,
                        (Some(retention), _) => with_renewal(retention.meta_ttl_ms, retention),
                        (None, _) => self.known(channel).map_or(0, |known| known.meta_ttl_ms),
                    });
                    match seen {
                        Some(seen) => {
                            arguments.text(format_args!("{}:{}", seen.epoch, seen.offset))
                        }
                        None => arguments.add(b""),
                    };
                }
                arguments
            }
            Operation::Confirm(_) => {
                let mut arguments = Arguments::default();
                arguments.add(b"PING");
                arguments
            }
            Operation::History { channel, retention, filter, .. } => {
                let candidate = self.fresh_epoch();
                let mut arguments = Arguments::script(&self.scripts.history.sha, 2);
                arguments.add(&self.keys.list(partition, channel));
                arguments.add(&self.keys.state(partition, channel));
                arguments.add(self.partitions[partition].generation.as_bytes());
                arguments.text(format_args!("{candidate}"));
                arguments.number(with_renewal(retention.meta_ttl_ms, *retention));
                match filter.since {
                    // Lua counts exactly up to 2^53.
                    Some(since) => arguments.number(since.offset.min(1 << 52)),
                    None => arguments.add(b"-1"),
                };
                match filter.limit {
                    Some(limit) => arguments.number(u64::from(limit)),
                    None => arguments.add(b"-1"),
                };
                arguments.add(if filter.reverse { b"1" } else { b"0" });
                arguments.number(u64::from(retention.size));
                arguments
            }
            Operation::Announce { .. } => {
                debug_assert!(false, "this layout has no joins and leaves");
                let mut arguments = Arguments::default();
                arguments.add(b"PING");
                arguments
            }
            Operation::Remove { channel, .. } => {
                let mut arguments = Arguments::script(&self.scripts.remove.sha, 2);
                arguments.add(&self.keys.list(partition, channel));
                arguments.add(&self.keys.state(partition, channel));
                arguments
            }
            Operation::Positions(positions) => {
                let count = positions.channels.len();
                let mut arguments = Arguments::script(&self.scripts.positions.sha, count);
                for channel in &positions.channels {
                    arguments.add(&self.keys.state(partition, channel));
                }
                arguments
            }
        }
    }

    /// The command of an operation of one channel, for the node that imports its slot.
    pub(super) fn encode_asked(
        &mut self,
        now_ms: u64,
        partition: usize,
        operation: &mut Operation,
    ) -> Arguments {
        let plain = self.encode(now_ms, partition, operation, true);
        let generation = &self.partitions[partition].generation;
        // Which argument of the script ends with the generation of the source.
        let at = match operation {
            _ if self.config.layout == Layout::Centrifugo => 0,
            Operation::Publish(batch) if batch.retention.keeps() => 6,
            Operation::Open(_) | Operation::History { .. } => 1,
            _ => 0,
        };
        let mut plain = plain.slices().into_iter().skip(1);
        let sha = plain.next().and_then(|sha| str::from_utf8(sha).ok()).unwrap_or_default();
        let keys = plain.next().and_then(|count| str::from_utf8(count).ok()?.parse().ok());
        let script = self.scripts.all().into_iter().find(|script| script.sha == sha);
        let keys: Vec<&[u8]> = plain.by_ref().take(keys.unwrap_or(0)).collect();
        let mut arguments = Arguments::default();
        let Some((script, (first, others))) = script.zip(keys.split_first()) else {
            debug_assert!(false, "an operation without keys does not move");
            return arguments;
        };
        let text = script.asked(self.keys.is_sharded());
        arguments.add(b"EVAL").add(text.as_bytes()).add(b"1").add(first);
        for (argument, number) in plain.zip(1..) {
            if number == at {
                let text = argument.strip_suffix(generation.as_bytes()).unwrap_or(argument);
                arguments.add(&[text, b"@"].concat());
            } else {
                arguments.add(argument);
            }
        }
        for other in others {
            arguments.add(other);
        }
        arguments.number(others.len() as u64).number(at);
        arguments
    }

    /// A command that is not about channels.
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

/// Whether the times of a stream's keys are to be renewed.
fn is_due(known: KnownStream, now_ms: u64, retention: Retention) -> bool {
    known.renewed_ms == 0 || now_ms >= known.renewed_ms + renewal_ms(retention)
}

/// Milliseconds between two renewals of the times of a stream's keys by one engine.
fn renewal_ms(retention: Retention) -> u64 {
    match retention.meta_ttl_ms {
        0 => retention.ttl_ms / 8,
        meta_ttl_ms => retention.ttl_ms.min(meta_ttl_ms) / 8,
    }
}

/// A time to live that holds until the next renewal, too; 0 stays without end.
fn with_renewal(ttl_ms: u64, retention: Retention) -> u64 {
    match ttl_ms {
        0 => 0,
        ttl_ms => ttl_ms + renewal_ms(retention).max(1),
    }
}
