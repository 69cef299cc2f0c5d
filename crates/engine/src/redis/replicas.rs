//! Publications that are acknowledged once replicas have them (`WAIT`).
//!
//! One `WAIT` per connection follows the publications of a loop turn; it returns how many replicas have what this connection
//! wrote before it. Replies arrive in order, so it covers every publication answered before it. At most one is in flight per
//! connection: the next one covers what is published meanwhile, and a stalled replica delays a connection for one
//! [`wait_timeout_ms`](super::RedisConfig) at a time.

use std::num::NonZeroU8;

use dunlin_hub::{Error, Published};
use dunlin_wire::resp::{ServerError, Value};

use super::{Pending, RedisEngine};
use crate::links::{Links, ShardId};
use crate::status::RefusalReason;

/// Fewer replicas than required have the publications.
const REPLICAS_BEHIND: RefusalReason = RefusalReason {
    name: "replicas_behind",
    fix: "are the replicas connected (INFO replication) and quick enough? start them, or lower `wait_replicas` or raise `wait_timeout_ms`",
};

/// The publications of one connection that replicas may not have.
#[derive(Debug, Default)]
pub(super) struct Unreplicated {
    /// A publication has been sent without a `WAIT` after it.
    wanted: bool,
    /// The number of replicas that the `WAIT` in flight asks for.
    out: Option<NonZeroU8>,
    /// Publications that the server has acknowledged, by their tokens.
    answered: Vec<(Vec<u64>, Published)>,
}

impl RedisEngine {
    /// Acknowledges publications with history once this number of replicas has them; they are uncertain if the replicas do not
    /// within the timeout. `None`: acknowledges them once the server has them.
    pub fn set_wait(&mut self, replicas: Option<NonZeroU8>, timeout_ms: u64) {
        (self.config.wait_replicas, self.config.wait_timeout_ms) = (replicas, timeout_ms);
    }

    /// Records that a publication with history was sent.
    pub(super) fn publication_left(&mut self, shard: ShardId) {
        if self.config.wait_replicas.is_some() {
            self.links[usize::from(shard.0)].unreplicated.wanted = true;
        }
    }

    /// Sends the pending `WAIT` of each connection.
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
                // An answer makes room and is followed by a flush.
                Err(_) => _ = self.release(token),
            }
        }
    }

    /// Handles a publication that the server has stored: acknowledges it now, or with the answer of the replicas.
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

    /// Handles a broken connection: whether replicas have the acknowledged publications is unknown.
    pub(super) fn waits_lost(&mut self, shard: ShardId) {
        let Some(link) = self.links.get_mut(usize::from(shard.0)) else { return };
        for (tokens, _) in std::mem::take(&mut link.unreplicated).answered {
            self.finish_publish(&tokens, Err(Error::EngineUncertain));
        }
    }
}
