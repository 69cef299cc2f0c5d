//! The log of changes of all nodes' settings in Redis: a hash of changes by number, with the number of the newest (`revision`),
//! the number up to which changes were dropped (`since`) and a random id of the log. The claim is a key that expires.

use std::sync::LazyLock;

use super::lease::position;
use super::link::{RedisReply, Script};
use super::{RedisStore, refused};
use crate::cluster::log_position::{BYTES_MAX, CHANGES_MAX, LogPosition};
use crate::cluster::store::{Destination, LogClaim, LogEntry, LogPart, StoreError};

/// KEYS: log, claim. ARGV: uid, duration of the claim in milliseconds, id of the log and newest change that the node has read.
const CLAIM: &str = r"
local log = redis.call('HMGET', KEYS[1], 'id', 'revision')
local revision = log[2] or '0'
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return {'under_way', log[1] or '0', revision} end
if log[1] and (log[1] ~= ARGV[3] or revision ~= ARGV[4]) then return {'behind', log[1], revision} end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {'claimed', log[1] or '0', revision}
";

/// KEYS: claim. ARGV: uid.
const RELEASE: &str = r"
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
";

/// KEYS: log, claim. ARGV: uid, id of the log, number, change, the most changes and bytes to keep, channel, message. If the log
/// has another id or does not end at the previous number, it has lost changes and is begun anew.
const APPEND: &str = r"
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
local number = tonumber(ARGV[3])
local log = redis.call('HMGET', KEYS[1], 'id', 'revision', 'since', 'bytes')
local since, bytes = tonumber(log[3] or 0), tonumber(log[4] or 0)
if log[1] ~= ARGV[2] or tonumber(log[2] or 0) + 1 ~= number then
  redis.call('DEL', KEYS[1])
  since, bytes = number - 1, 0
end
bytes = bytes + #ARGV[4]
while since < number - 1 and (number - since > tonumber(ARGV[5]) or bytes > tonumber(ARGV[6])) do
  since = since + 1
  local gone = redis.call('HGET', KEYS[1], since)
  if gone then bytes = bytes - #gone end
  redis.call('HDEL', KEYS[1], since)
end
redis.call('HSET', KEYS[1], 'id', ARGV[2], 'revision', number, 'since', since, 'bytes', bytes, number, ARGV[4])
redis.call('DEL', KEYS[2])
redis.call('PUBLISH', ARGV[7], ARGV[8])
return 1
";

/// KEYS: log. ARGV: id of the log, the number before the first change, and each change after its number. Adds the changes after
/// the newest of the same log, or begins a log that does not exist.
const EXTEND: &str = r"
local log = redis.call('HMGET', KEYS[1], 'id', 'revision', 'bytes')
local newest, bytes = tonumber(ARGV[2]), 0
if log[1] then
  if log[1] ~= ARGV[1] or tonumber(log[2]) < newest then return 0 end
  newest, bytes = tonumber(log[2]), tonumber(log[3] or 0)
else
  redis.call('HSET', KEYS[1], 'id', ARGV[1], 'since', ARGV[2])
end
local added = 0
for at = 3, #ARGV, 2 do
  local number = tonumber(ARGV[at])
  if number == newest + 1 then
    redis.call('HSET', KEYS[1], number, ARGV[at + 1])
    newest, bytes, added = number, bytes + #ARGV[at + 1], 1
  end
end
redis.call('HSET', KEYS[1], 'revision', newest, 'bytes', bytes)
return added
";

/// KEYS: log. ARGV: id of the log and newest change in it that the node knows.
const READ: &str = r"
local log = redis.call('HMGET', KEYS[1], 'id', 'revision', 'since')
if not log[1] then return {'0', '0', '0', {}} end
local after = tonumber(log[3])
if log[1] == ARGV[1] and tonumber(ARGV[2]) > after then after = tonumber(ARGV[2]) end
local changes = {}
for number = after + 1, tonumber(log[2]) do
  local change = redis.call('HGET', KEYS[1], number)
  if change then table.insert(changes, {number, change}) end
end
return {log[1], log[2], log[3], changes}
";

static CLAIM_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(CLAIM));
static RELEASE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(RELEASE));
static APPEND_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(APPEND));
static EXTEND_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(EXTEND));
static READ_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(READ));

const LOG: &str = "settings";
const CLAIM_KEY: &str = "settings:claim";

pub(super) async fn claim(
    store: &RedisStore,
    hold_ms: u64,
    read: LogPosition,
) -> Result<LogClaim, StoreError> {
    let arguments = [
        store.uid.to_string(),
        hold_ms.to_string(),
        read.id.to_string(),
        read.revision.to_string(),
    ];
    let arguments = arguments.each_ref().map(|argument| argument.as_bytes());
    let reply = run(store, &CLAIM_SCRIPT, &[LOG, CLAIM_KEY], &arguments).await?;
    let claim = match reply.list() {
        [decision, id, revision] => {
            let log = position(&RedisReply::List(vec![id.clone(), revision.clone()]));
            match (decision.text(), log.unwrap_or_default()) {
                (Some("claimed"), log) => Some(LogClaim::Claimed(log)),
                (Some("under_way"), log) => Some(LogClaim::UnderWay(log)),
                (Some("behind"), log) => Some(LogClaim::Behind(log)),
                _ => None,
            }
        }
        _ => None,
    };
    claim.ok_or_else(|| refused("ERR what Redis answers is another program's".into()))
}

pub(super) async fn release(store: &RedisStore) -> Result<(), StoreError> {
    run(store, &RELEASE_SCRIPT, &[CLAIM_KEY], &[store.uid.as_bytes()]).await.map(drop)
}

pub(super) async fn append(store: &RedisStore, entry: &LogEntry) -> Result<bool, StoreError> {
    let LogEntry { at, sealed, message } = entry;
    let (id, revision) = (at.id.to_string(), at.revision.to_string());
    let (changes_max, bytes_max) = (CHANGES_MAX.to_string(), BYTES_MAX.to_string());
    let to_all = store.channel(&Destination::All);
    let arguments = [
        store.uid.as_bytes(),
        id.as_bytes(),
        revision.as_bytes(),
        sealed,
        changes_max.as_bytes(),
        bytes_max.as_bytes(),
        to_all.as_bytes(),
        message,
    ];
    let reply = run(store, &APPEND_SCRIPT, &[LOG, CLAIM_KEY], &arguments).await?;
    Ok(reply.integer() == Some(1))
}

pub(super) async fn extend(store: &RedisStore, part: &LogPart) -> Result<bool, StoreError> {
    let (id, since) = (part.log.id.to_string(), part.since.to_string());
    let numbers: Vec<String> = part.changes.iter().map(|(number, _)| number.to_string()).collect();
    let mut arguments = vec![id.as_bytes(), since.as_bytes()];
    for (number, (_, sealed)) in numbers.iter().zip(&part.changes) {
        arguments.extend([number.as_bytes(), sealed]);
    }
    let reply = run(store, &EXTEND_SCRIPT, &[LOG], &arguments).await?;
    Ok(reply.integer() == Some(1))
}

pub(super) async fn read(store: &RedisStore, known: LogPosition) -> Result<LogPart, StoreError> {
    let (id, revision) = (known.id.to_string(), known.revision.to_string());
    let arguments = [id.as_bytes(), revision.as_bytes()];
    let reply = run(store, &READ_SCRIPT, &[LOG], &arguments).await?;
    let ([_, _, since, changes], Some(log)) = (reply.list(), position(&reply)) else {
        return Ok(LogPart::default());
    };
    let since = since.text().and_then(|since| since.parse().ok()).unwrap_or(0);
    let change = |change: &RedisReply| {
        let [number, sealed] = change.list() else { return None };
        Some((u64::try_from(number.integer()?).ok()?, sealed.bytes()?.to_vec()))
    };
    Ok(LogPart { log, since, changes: changes.list().iter().filter_map(change).collect() })
}

async fn run(
    store: &RedisStore,
    script: &Script,
    keys: &[&str],
    arguments: &[&[u8]],
) -> Result<RedisReply, StoreError> {
    let keys: Vec<String> = keys.iter().map(|name| store.key(name)).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    store.link.script(script, &keys, arguments).await
}
