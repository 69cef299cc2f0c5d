//! Calls that are kept in Redis for disconnected nodes.

use super::RedisStore;
use super::link::{Commands, RedisReply};
use crate::cluster::store::{KeptCalls, StoreError};

/// KEYS: links, calls. ARGV: uid, connection, `HSET` or `HSETNX`, field, call. A write of a connection that was given up may
/// arrive after a later call of the same field, which it must not overwrite.
const KEEP: &str = r"
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return redis.error_reply('FENCED calls are kept by another connection')
end
return redis.call(ARGV[3], KEYS[2], ARGV[4], ARGV[5])
";

const HASH: &str = "revocations";
/// The most calls in one step.
const CALLS_A_STEP: usize = 256;

pub(super) fn keep(
    store: &RedisStore,
    field: &str,
    call: &[u8],
) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
    let mut commands = Commands::default();
    push(&mut commands, store, b"HSET", (field, call));
    let kept = store.link.begin(commands);
    async move { kept.await.map(drop) }
}

/// Keeps the calls whose fields are not kept yet.
pub(super) async fn keep_absent(store: &RedisStore, calls: &KeptCalls) -> Result<(), StoreError> {
    for step in calls.chunks(CALLS_A_STEP) {
        let mut commands = Commands::default();
        for (field, call) in step {
            push(&mut commands, store, b"HSETNX", (field, call));
        }
        store.link.send(commands).await?;
    }
    Ok(())
}

fn push(commands: &mut Commands, store: &RedisStore, set: &[u8], (field, call): (&str, &[u8])) {
    commands.push(&[
        b"EVAL",
        KEEP.as_bytes(),
        b"2",
        store.links_key().as_bytes(),
        store.key(HASH).as_bytes(),
        store.uid.as_bytes(),
        store.link.number.to_string().as_bytes(),
        set,
        field.as_bytes(),
        call,
    ]);
}

pub(super) async fn read(store: &RedisStore) -> Result<KeptCalls, StoreError> {
    let mut calls = KeptCalls::new();
    let take = |entry: &[RedisReply]| {
        if let [field, call] = entry
            && let (Some(field), Some(call)) = (field.text(), call.bytes())
        {
            calls.push((field.into(), call.to_vec()));
        }
        true
    };
    store.reads.scan("HSCAN", store.key(HASH).as_bytes(), take).await?;
    Ok(calls)
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
