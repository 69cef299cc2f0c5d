//! Calls that are kept in Redis for nodes which are away.

use super::RedisStore;
use super::link::{Commands, RedisReply};
use crate::cluster::store::{KeptCalls, StoreError};

/// KEYS: links, calls. ARGV: uid, connection, field, call. What a connection that was given up has sent may be carried out after a
/// later call of the same field, which it must not undo.
const KEEP: &str = r"
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return redis.error_reply('FENCED calls are kept by another connection')
end
return redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
";

const HASH: &str = "revocations";

pub(super) fn keep(
    store: &RedisStore,
    field: &str,
    call: &[u8],
) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
    let mut commands = Commands::default();
    commands.push(&[
        b"EVAL",
        KEEP.as_bytes(),
        b"2",
        store.links_key().as_bytes(),
        store.key(HASH).as_bytes(),
        store.uid.as_bytes(),
        store.link.number.to_string().as_bytes(),
        field.as_bytes(),
        call,
    ]);
    let kept = store.link.begin(commands);
    async move { kept.await.map(drop) }
}

pub(super) fn read(
    store: &RedisStore,
) -> impl Future<Output = Result<KeptCalls, StoreError>> + Send + use<> {
    let mut commands = Commands::default();
    commands.push(&[b"HGETALL", store.key(HASH).as_bytes()]);
    let read = store.link.begin(commands);
    async move {
        let replies = read.await?;
        let entries = replies.first().map_or(&[][..], RedisReply::list).chunks(2);
        let entry = |entry: &[RedisReply]| {
            let [field, call] = entry else { return None };
            Some((field.text()?.into(), call.bytes()?.to_vec()))
        };
        Ok(entries.filter_map(entry).collect())
    }
}

pub(super) fn remove(
    store: &RedisStore,
    fields: &[Box<str>],
) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
    let mut commands = Commands::default();
    for field in fields {
        commands.push(&[b"HDEL", store.key(HASH).as_bytes(), field.as_bytes()]);
    }
    let removed = store.link.begin(commands);
    async move { removed.await.map(drop) }
}
