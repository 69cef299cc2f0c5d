//! Leases in Redis.
//!
//! One hash has all nodes by number; one script writes a node's entry and reads the others. Only the clock of Redis decides which
//! leases have expired. A write also records the connection that writes the node's members from now on ([`super::members`]). A
//! late write of an earlier connection has no effect.

use std::sync::{Arc, LazyLock};

use super::link::{RedisReply, Script};
use super::{RedisStore, refused};
use crate::lease::{Facts, Lease, LeaseReply, LeaseWrite, Node};
use crate::log_position::LogPosition;
use crate::store::{Destination, StoreError};

/// KEYS: nodes, uids, links, settings. ARGV: uid, number, milliseconds, facts, whether to take over a number whose lease has
/// ended, channel of this node's own pub/sub probe, the probe, number of the connection.
const WRITE: &str = r#"
local link = redis.call('HGET', KEYS[3], ARGV[1])
if link and tonumber(link) > tonumber(ARGV[8]) then return {'late', {}, {}, {'0', '0'}} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local entries = redis.call('HGETALL', KEYS[1])
local living, own, holder = {}, nil, nil
local reply = {}
for at = 1, #entries, 2 do
  local uid, ends, facts = string.match(entries[at + 1], '^(%S+) (%d+) (.*)$')
  if uid then
    ends = tonumber(ends)
    local held = tonumber(string.match(facts, '"lease_ms":(%d+)') or '0')
    if held > 0 and ends > now + held then
      -- The clock was set back: no lease holds for longer than its node asked for.
      ends = now + held
      redis.call('HSET', KEYS[1], entries[at], string.format('%s %.0f %s', uid, ends, facts))
    end
    if entries[at] == ARGV[2] then
      if uid == ARGV[1] then own = ends else holder = ends end
    elseif uid == ARGV[1] then
      redis.call('HSET', KEYS[1], entries[at], string.format('- %.0f %s', now - 1, facts))
      ends = nil
    elseif ends < now - 86400000 then
      redis.call('HDEL', KEYS[1], entries[at])
      ends = nil
    end
    if ends and not (uid == ARGV[1]) then
      if ends >= now then living[uid] = true end
      table.insert(reply, {entries[at], uid, ends - now, facts})
    end
  end
end
local written = 'renewed'
if holder and (holder >= now or ARGV[5] == '0') then
  written = 'taken'
else
  if not own then written = 'created' elseif own < now or not link then written = 'revived' end
  redis.call('HSET', KEYS[1], ARGV[2], string.format('%s %.0f %s', ARGV[1], now + ARGV[3], ARGV[4]))
  redis.call('SADD', KEYS[2], ARGV[1])
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[8])
  living[ARGV[1]] = true
end
local dead = {}
for _, uid in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  if not living[uid] and uid ~= ARGV[1] then table.insert(dead, uid) end
end
redis.call('PUBLISH', ARGV[6], ARGV[7])
local log = redis.call('HMGET', KEYS[4], 'id', 'revision')
return {written, reply, dead, {log[1] or '0', log[2] or '0'}}
"#;

/// KEYS: nodes. ARGV: uid, number. The expired entry stays, so that its number is not assigned for a day; other nodes sweep the
/// node's records.
const LEAVE: &str = r#"
local time = redis.call('TIME')
local entry = redis.call('HGET', KEYS[1], ARGV[2])
if entry then
  local uid, facts = string.match(entry, '^(%S+) %d+ (.*)$')
  if uid == ARGV[1] then
    if not string.find(facts, '"left":true', 1, true) then facts = string.sub(facts, 1, -2) .. ',"left":true}' end
    redis.call('HSET', KEYS[1], ARGV[2], uid .. ' ' .. time[1] .. '000 ' .. facts)
  end
end
return 1
"#;

static WRITE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(WRITE));
static LEAVE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(LEAVE));

pub(super) async fn write(
    store: &RedisStore,
    lease: &Lease,
    facts: &Facts,
    probe: &[u8],
) -> Result<LeaseReply, StoreError> {
    let (number, lease_ms) = (lease.number.to_string(), lease.lease_ms.to_string());
    let text = serde_json::to_string(facts).unwrap_or_default();
    let link_number = store.link.number.to_string();
    let take_over: &[u8] = if lease.is_wanted { b"1" } else { b"0" };
    let arguments = [
        lease.uid.as_bytes(),
        number.as_bytes(),
        lease_ms.as_bytes(),
        text.as_bytes(),
        take_over,
        store.channel(&Destination::Node(Arc::clone(&lease.uid))).as_bytes(),
        probe,
        link_number.as_bytes(),
    ]
    .map(<[u8]>::to_vec);
    let arguments = arguments.each_ref().map(Vec::as_slice);
    let keys = ["nodes", "uids", "links", "settings"].map(|name| store.key(name));
    let keys = keys.each_ref().map(|key| key.as_bytes());
    let reply = store.link.script(&WRITE_SCRIPT, &keys, &arguments).await?;
    let malformed = || refused("ERR the lease holds something that another program wrote".into());
    let mut lease_reply = read(&reply).ok_or_else(malformed)?;
    if lease_reply.written != LeaseWrite::Taken {
        lease_reply.nodes.insert(lease.number, lease.node(facts.clone()));
    }
    Ok(lease_reply)
}

pub(super) async fn leave(store: &RedisStore, lease: &Lease) -> Result<(), StoreError> {
    let (keys, number) = (store.key("nodes"), lease.number.to_string());
    let arguments = [lease.uid.as_bytes(), number.as_bytes()];
    store.link.script(&LEAVE_SCRIPT, &[keys.as_bytes()], &arguments).await.map(drop)
}

fn read(reply: &RedisReply) -> Option<LeaseReply> {
    let [written, nodes, dead, log] = reply.list() else { return None };
    let written = match written.text()? {
        "renewed" => LeaseWrite::Renewed,
        "created" => LeaseWrite::Created,
        "revived" => LeaseWrite::Revived,
        "taken" => LeaseWrite::Taken,
        _ => return None,
    };
    let node = |reply: &RedisReply| {
        let [number, uid, left_ms, facts] = reply.list() else { return None };
        let number = number.text()?.parse().ok()?;
        let facts = serde_json::from_str(facts.text()?).ok()?;
        Some((number, Node { number, uid: uid.text()?.into(), left_ms: left_ms.integer()?, facts }))
    };
    Some(LeaseReply {
        written,
        // Other entries are ignored.
        nodes: nodes.list().iter().filter_map(node).collect(),
        dead: dead.list().iter().filter_map(RedisReply::text).map(Arc::from).collect(),
        log: position(log)?,
    })
}

/// Parses the position of a log.
fn position(reply: &RedisReply) -> Option<LogPosition> {
    let [id, revision] = reply.list() else { return None };
    Some(LogPosition { id: id.text()?.parse().ok()?, revision: revision.text()?.parse().ok()? })
}
