//! The layout of Centrifugo 6, so that its nodes and Dunlin's share channels while a fleet moves.
//!
//! | name | what it is |
//! |---|---|
//! | `PREFIX.client.CHANNEL` | channel of publish/subscribe |
//! | `PREFIX.stream.CHANNEL` | stream of publications: the id's first part is the offset, field `d` the message |
//! | `PREFIX.stream.meta.CHANNEL` | hash: `e` epoch, `s` top offset, `v` and `ve` version and epoch of the version published last |
//! | `PREFIX.result.CHANNEL.KEY` | hash: `e` and `s`, the position of the publication with an idempotency key |
//! | `PREFIX.dunlin.removed` | channel in which nodes of Dunlin are told of removed histories |
//! | `PREFIX.dunlin.probe.ID` | channel of one connection's messages to itself |
//!
//! In a cluster `{N}.` stands before what follows the kind, where N is the number of the channel's partition: the layout of
//! sharded publish/subscribe (`sharded_pub_sub_partitions` of Centrifugo). Channels are spread over servers and partitions as
//! Centrifugo does it, which is Dunlin's own way.
//!
//! What is published is one message each, so those that wait together are one call of a script and as many messages. Nothing
//! is kept of generations: a server that lost data is noticed by the node that has seen more of a stream than there is, which
//! begins another epoch.

mod command;
mod message;

use std::sync::Arc;

use dunlin_hub::engine::EngineEvent;

use self::message::Message;
use super::RedisEngine;

pub(super) use message::{encode, entries};

impl RedisEngine {
    /// A message of a channel that is heard. `is_synced`: the position has come since the connection was made.
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
                    // Before the position has come it is part of what that reaches.
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
            Ok(Message::Other) => {}
            Err(_) => self.stats.unreadable += 1,
        }
    }
}
