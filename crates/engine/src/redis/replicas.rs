//! Publications that count once replicas have them (`WAIT`).
//!
//! The command stands behind the publications of a turn of the loop, one for each connection: it says how many replicas have what this
//! connection wrote before. Replies come in order, so what is answered before it is covered by it. While one is out no other is sent:
//! what is published meanwhile is covered by the next, and a replica that stands still holds a connection up for one
//! [`wait_timeout_ms`](super::RedisConfig) at a time.

use std::num::NonZeroU8;

use dunlin_hub::{Error, Published};
use dunlin_wire::resp::{ServerError, Value};

use super::{Pending, RedisEngine};
use crate::links::{Links, ShardId};
use crate::status::RefusalReason;

/// Fewer replicas than wanted have what was published.
const REPLICAS_BEHIND: RefusalReason = RefusalReason {
    name: "replicas_behind",
    fix: "are the replicas connected (INFO replication) and quick enough? start them, or lower `wait_replicas` or raise `wait_timeout_ms`",
};

/// What replicas may not have of what one connection wrote.
#[derive(Debug, Default)]
pub(super) struct Unreplicated {
    /// Something was published for which no `WAIT` has left.
    wanted: bool,
    /// How many replicas the `WAIT` that is out asks for.
    out: Option<NonZeroU8>,
    /// Publications that the server has answered, by their tokens.
    answered: Vec<(Vec<u64>, Published)>,
}

impl RedisEngine {
    /// From now on a publication with history counts once so many replicas have it, and is uncertain if they do not within this time;
    /// `None`: once the server has it.
    pub fn set_wait(&mut self, replicas: Option<NonZeroU8>, timeout_ms: u64) {
        (self.config.wait_replicas, self.config.wait_timeout_ms) = (replicas, timeout_ms);
    }

    /// A publication with history has left.
    pub(super) fn publication_left(&mut self, shard: ShardId) {
        if self.config.wait_replicas.is_some() {
            self.links[usize::from(shard.0)].unreplicated.wanted = true;
        }
    }

    /// Sends what asks for the replicas of each connection.
    pub(super) fn flush_waits(&mut self, links: &mut impl Links) {
        let replicas = self.config.wait_replicas;
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            if !link.unreplicated.wanted || link.unreplicated.out.is_some() || !link.is_up {
                continue;
            }
            let shard = ShardId(at as u16);
            let Some(replicas) = replicas else {
                link.unreplicated.wanted = false;
                for (tokens, published) in std::mem::take(&mut link.unreplicated.answered) {
                    self.finish_publish(&tokens, Ok(published));
                }
                continue;
            };
            let (count, timeout) = (replicas.to_string(), self.config.wait_timeout_ms.to_string());
            let token = self.hold(Pending::Wait(shard));
            let arguments: [&[u8]; 3] = [b"WAIT", count.as_bytes(), timeout.as_bytes()];
            match links.command(shard, token, &arguments) {
                Ok(()) => {
                    let unreplicated = &mut self.links[at].unreplicated;
                    (unreplicated.wanted, unreplicated.out) = (false, Some(replicas));
                }
                // There is room once something was answered, and then there is a flush.
                Err(_) => _ = self.release(token),
            }
        }
    }

    /// The server has a publication. It counts now, or with the answer of the replicas.
    pub(super) fn replicate(
        &mut self,
        shard: ShardId,
        keeps: bool,
        tokens: &[u64],
        published: Published,
    ) {
        let link = &mut self.links[usize::from(shard.0)];
        let unreplicated = &mut link.unreplicated;
        if keeps && (unreplicated.wanted || unreplicated.out.is_some()) {
            return unreplicated.answered.push((tokens.to_vec(), published));
        }
        link.refusing = None;
        self.finish_publish(tokens, Ok(published));
    }

    pub(super) fn wait_reply(&mut self, shard: ShardId, reply: &Value<'_>) {
        let link = &mut self.links[usize::from(shard.0)];
        let wanted = link.unreplicated.out.take().map_or(0, NonZeroU8::get);
        let is_enough = matches!(reply, Value::Integer(replicas) if *replicas >= i64::from(wanted));
        link.refusing = match reply {
            _ if is_enough => None,
            Value::Error(text) => {
                (*text).clone_into(&mut link.detail);
                Some(ServerError::parse(text).into())
            }
            _ => Some(REPLICAS_BEHIND),
        };
        for (tokens, published) in std::mem::take(&mut link.unreplicated.answered) {
            let result = if is_enough { Ok(published) } else { Err(Error::EngineUncertain) };
            self.finish_publish(&tokens, result);
        }
    }

    /// The connection broke: of what the server has answered nobody knows whether replicas have it.
    pub(super) fn waits_lost(&mut self, shard: ShardId) {
        let Some(link) = self.links.get_mut(usize::from(shard.0)) else { return };
        for (tokens, _) in std::mem::take(&mut link.unreplicated).answered {
            self.finish_publish(&tokens, Err(Error::EngineUncertain));
        }
    }
}
