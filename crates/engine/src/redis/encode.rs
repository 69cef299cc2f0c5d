//! Encodes the commands of operations.

use std::fmt::Write as _;

use dunlin_hub::engine::Retention;

use super::RedisEngine;
use super::config::Layout;
use super::history::HistoryRead;
use super::known::KnownStream;
use super::operation::{Batch, Opening, Operation};
use crate::links::{LinkFull, Links, ShardId};

/// The arguments of one command.
#[derive(Default)]
pub(super) struct Arguments {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Arguments {
    /// Appends the part of a history to read.
    pub(super) fn page(&mut self, read: &HistoryRead) {
        let filter = read.rest();
        match filter.since {
            // Lua counts exactly up to 2^53.
            Some(since) => self.number(since.offset.min(1 << 52)),
            None => self.add(b"-1"),
        };
        match filter.limit {
            Some(limit) => self.number(u64::from(limit)),
            None => self.add(b"-1"),
        };
        self.add(if filter.reverse { b"1" } else { b"0" });
        self.number(u64::from(read.retention.size)).number(read.page_bytes as u64);
    }

    fn ping() -> Arguments {
        let mut arguments = Arguments::default();
        arguments.add(b"PING");
        arguments
    }

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

    pub(super) fn slices(&self) -> Vec<&[u8]> {
        let mut from = 0;
        let ends = self.ends.iter();
        ends.map(|&end| &self.bytes[std::mem::replace(&mut from, end)..end]).collect()
    }

    pub(super) fn send(
        &self,
        links: &mut impl Links,
        shard: ShardId,
        token: u64,
    ) -> Result<(), LinkFull> {
        links.command(shard, token, &self.slices())
    }
}

impl RedisEngine {
    /// Encodes an operation. `asked`: for the node that imports the slot, of whose data nothing is known.
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
                self.encode_unkept(partition, batch)
            }
            Operation::Publish(batch) => self.encode_publish(now_ms, partition, batch, asked),
            Operation::Open(openings) => self.encode_open(now_ms, partition, openings, asked),
            Operation::Confirm(_) => Arguments::ping(),
            Operation::History(read) => self.encode_history(partition, read),
            Operation::Announce { .. } => {
                debug_assert!(false, "this layout has no joins and leaves");
                Arguments::ping()
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
                for channel in &positions.channels {
                    match self.known_now(partition, channel) {
                        Some(known) => arguments.text(format_args!("{}", known.epoch)),
                        None => arguments.add(b""),
                    };
                }
                arguments
            }
        }
    }

    /// Encodes an unstored publication.
    fn encode_unkept(&self, partition: usize, batch: &Batch) -> Arguments {
        let list = self.keys.list(partition, &batch.channel);
        let message = [b"1p:0:", &batch.encoded[..]].concat();
        let Some((key, ttl_ms)) = batch.check.as_ref().and_then(|check| check.key.as_ref()) else {
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

    /// Encodes a stored publication.
    fn encode_publish(
        &mut self,
        now_ms: u64,
        partition: usize,
        batch: &mut Batch,
        asked: bool,
    ) -> Arguments {
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
            // The batches that follow before this one is answered need not renew the times again.
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

    /// Encodes a read of the positions of newly subscribed streams.
    fn encode_open(
        &mut self,
        now_ms: u64,
        partition: usize,
        openings: &[Opening],
        asked: bool,
    ) -> Arguments {
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
                Some(seen) => arguments.text(format_args!("{}:{}", seen.epoch, seen.offset)),
                None => arguments.add(b""),
            };
        }
        arguments
    }

    /// Encodes a read of a history.
    fn encode_history(&mut self, partition: usize, read: &HistoryRead) -> Arguments {
        let HistoryRead { channel, retention, .. } = read;
        let candidate = self.fresh_epoch();
        let mut arguments = Arguments::script(&self.scripts.history.sha, 2);
        arguments.add(&self.keys.list(partition, channel));
        arguments.add(&self.keys.state(partition, channel));
        arguments.add(self.partitions[partition].generation.as_bytes());
        arguments.text(format_args!("{candidate}"));
        arguments.number(with_renewal(retention.meta_ttl_ms, *retention));
        arguments.page(read);
        arguments
    }

    /// Encodes a read of a history at a replica.
    pub(super) fn encode_replica_history(&self, partition: usize, read: &HistoryRead) -> Arguments {
        let mut arguments = Arguments::script(&self.scripts.replica_history.sha, 3);
        arguments.add(&self.keys.list(partition, &read.channel));
        arguments.add(&self.keys.state(partition, &read.channel));
        arguments.add(&self.keys.generation(partition));
        arguments.add(self.partitions[partition].generation.as_bytes()).add(b"").add(b"");
        arguments.page(read);
        arguments
    }

    /// Encodes an operation of one channel for the node that imports its slot.
    pub(super) fn encode_asked(
        &mut self,
        now_ms: u64,
        partition: usize,
        operation: &mut Operation,
    ) -> Arguments {
        let plain = self.encode(now_ms, partition, operation, true);
        let generation = &self.partitions[partition].generation;
        // The index of the script's argument that ends with the generation of the source.
        let at = match operation {
            _ if self.config.layout == Layout::Centrifugo => 0,
            Operation::Publish(batch) if batch.retention.keeps() => 6,
            Operation::Open(_) | Operation::History(_) => 1,
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
}

/// Returns whether the times to live of a stream's keys are due for renewal.
fn is_due(known: KnownStream, now_ms: u64, retention: Retention) -> bool {
    known.renewed_ms == 0 || now_ms >= known.renewed_ms + renewal_ms(retention)
}

/// Returns the milliseconds between two renewals of a stream's times to live by one engine.
fn renewal_ms(retention: Retention) -> u64 {
    match retention.meta_ttl_ms {
        0 => retention.ttl_ms / 8,
        meta_ttl_ms => retention.ttl_ms.min(meta_ttl_ms) / 8,
    }
}

/// Returns a time to live that also covers the time until the next renewal; 0 means no expiry.
pub(super) fn with_renewal(ttl_ms: u64, retention: Retention) -> u64 {
    match ttl_ms {
        0 => 0,
        ttl_ms => ttl_ms + renewal_ms(retention).max(1),
    }
}
