//! The layout of Centrifugo 6, so that its nodes and Dunlin's share channels while a fleet moves.
//!
//! | name | what it is |
//! |---|---|
//! | `PREFIX.client.CHANNEL` | channel of publish/subscribe |
//! | `PREFIX.stream.CHANNEL` | stream of publications: the id's first part is the offset, field `d` the message |
//! | `PREFIX.stream.meta.CHANNEL` | hash: `e` epoch, `s` top offset, `v` and `ve` version and epoch of the version published last |
//! | `PREFIX.result.CHANNEL.KEY` | hash: `e` and `s`, the position of the publication with an idempotency key |
//! | `PREFIX.dunlin.removed` | channel in which nodes of Dunlin are notified of removed histories |
//! | `PREFIX.dunlin.probe.ID` | channel of one connection's messages to itself |
//!
//! In a cluster, `{N}.` follows the kind, where N is the number of the channel's partition: the layout of sharded
//! publish/subscribe (`sharded_pub_sub_partitions` of Centrifugo). Channels are distributed over servers and partitions by
//! Centrifugo's function, which is also Dunlin's.
//!
//! Joins (`__j__`) and leaves (`__l__`) are sent through the channel, too. Nodes of Dunlin skip those of each other: the
//! cluster notifies them.
//!
//! Each publication is a separate message, so those that wait together are one script call and several messages. The layout has
//! no generations: lost data are noticed by a node that has seen more of a stream than the server has; it begins another epoch.

use std::sync::Arc;

use dunlin_hub::engine::EngineEvent;

use super::RedisEngine;
use super::centrifugo_message::{self as message, DELTA, Message, encoded};
use super::encode::Arguments;
use super::history::HistoryRead;
use super::operation::{Batch, Operation};

impl RedisEngine {
    /// Handles a message of a subscribed channel. `is_synced`: its position was received since the connection was opened.
    pub(super) fn handle_centrifugo(
        &mut self,
        now_ms: u64,
        channel: Arc<str>,
        is_synced: bool,
        payload: &[u8],
    ) {
        match message::parse(payload) {
            Ok(Message::Publication(at, publication, except)) => {
                if at.offset > 0 {
                    // The position that is being read covers messages before it.
                    if !is_synced {
                        return;
                    }
                    let partition = self.keys.partition(&channel);
                    self.learn(now_ms, partition, &channel, at, None);
                }
                let (epoch, publication) = (at.epoch, (*publication).into());
                let event = EngineEvent::Publication { channel, epoch, publication, except };
                self.events.push_back(event);
            }
            Ok(Message::Member(info, joined)) => {
                let info = Arc::new(*info);
                self.events.push_back(EngineEvent::Announced { channel, info, joined });
            }
            Ok(Message::Other) => {}
            Err(_) => self.stats.unreadable += 1,
        }
    }

    /// Encodes an operation.
    pub(super) fn encode_centrifugo(
        &mut self,
        partition: usize,
        operation: &mut Operation,
    ) -> Arguments {
        match operation {
            Operation::Publish(batch) if batch.retention.keeps() => {
                self.publish_command(partition, batch)
            }
            Operation::Publish(batch) => self.announce_command(partition, batch),
            Operation::Open(openings) => {
                let mut arguments = Arguments::script(&self.scripts.open.sha, openings.len());
                for opening in openings.iter() {
                    arguments.add(&self.keys.state(partition, &opening.channel));
                }
                arguments.text(format_args!("{}", self.fresh_epoch()));
                for opening in openings.iter() {
                    let subscription =
                        self.partitions[partition].subscriptions.get(&opening.channel);
                    arguments.number(subscription.map_or(0, |of| of.retention.meta_ttl_ms));
                    match opening.seen {
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
            Operation::History(read) => {
                let HistoryRead { channel, retention, .. } = &**read;
                let candidate = self.fresh_epoch();
                let mut arguments = Arguments::script(&self.scripts.history.sha, 2);
                arguments.add(&self.keys.stream(partition, channel));
                arguments.add(&self.keys.state(partition, channel));
                arguments.text(format_args!("{candidate}")).number(retention.meta_ttl_ms);
                arguments.page(read);
                arguments
            }
            Operation::Announce { channel, message } => {
                let mut arguments = Arguments::default();
                arguments.add(self.publish_name()).add(&self.keys.list(partition, channel));
                arguments.add(message);
                arguments
            }
            Operation::Remove { channel, .. } => {
                let mut arguments = Arguments::script(&self.scripts.remove.sha, 1);
                arguments.add(&self.keys.stream(partition, channel));
                arguments.add(&self.keys.removals().unwrap_or_default());
                arguments.add(channel.as_bytes());
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

    fn publish_command(&mut self, partition: usize, batch: &mut Batch) -> Arguments {
        batch.epoch = self.fresh_epoch();
        let script = match batch.check {
            None => &self.scripts.publish,
            Some(_) => &self.scripts.publish_checked,
        };
        let key = batch.check.as_ref().and_then(|check| check.key.as_ref());
        let mut arguments = Arguments::script(&script.sha, 2 + usize::from(key.is_some()));
        arguments.add(&self.keys.stream(partition, &batch.channel));
        arguments.add(&self.keys.state(partition, &batch.channel));
        if let Some((key, _)) = key {
            arguments.add(&self.keys.idempotency(partition, &batch.channel, key));
        }
        let retention = batch.retention;
        arguments.text(format_args!("{}", batch.epoch)).number(u64::from(retention.size));
        arguments.number(retention.ttl_ms).number(retention.meta_ttl_ms);
        arguments.number(key.map_or(0, |(_, ttl_ms)| u64::from(*ttl_ms)));
        match &batch.check {
            Some(check) => arguments.number(check.version).add(check.version_epoch.as_bytes()),
            None => arguments.number(0).add(b""),
        };
        arguments.add(&self.keys.list(partition, &batch.channel));
        for (delta, message) in encoded(&batch.encoded) {
            arguments.add(if delta { b"1" } else { b"0" }).add(message);
        }
        arguments
    }

    fn publish_name(&self) -> &'static [u8] {
        if self.keys.is_sharded() { b"SPUBLISH" } else { b"PUBLISH" }
    }

    /// Encodes publications of a channel without history.
    fn announce_command(&self, partition: usize, batch: &Batch) -> Arguments {
        let channel = self.keys.list(partition, &batch.channel);
        let key = batch.check.as_ref().and_then(|check| check.key.as_ref());
        let of_one = |(delta, message): (bool, &[u8])| {
            let mut message = message.to_vec();
            message.extend_from_slice(if delta { DELTA } else { b"" });
            message
        };
        let mut messages = encoded(&batch.encoded).map(of_one);
        if batch.tokens.len() == 1 && key.is_none() {
            let mut arguments = Arguments::default();
            arguments.add(self.publish_name()).add(&channel);
            arguments.add(&messages.next().unwrap_or_default());
            return arguments;
        }
        let count = usize::from(key.is_some());
        let mut arguments = Arguments::script(&self.scripts.announce.sha, count);
        if let Some((key, _)) = key {
            arguments.add(&self.keys.idempotency(partition, &batch.channel, key));
        }
        arguments.number(key.map_or(0, |(_, ttl_ms)| u64::from(*ttl_ms))).add(&channel);
        for message in messages {
            arguments.add(&message);
        }
        arguments
    }
}
