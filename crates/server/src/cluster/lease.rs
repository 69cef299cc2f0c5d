//! Leases: who is a member of the cluster, and under which number.
//!
//! All nodes stand in one hash of Redis, by number. A node writes its entry three times in the time it holds, and the same
//! step reads those of the others. Redis's clock alone decides which have ended, so that no node's clock matters. An entry
//! belongs to one start of a process, by its uid: who comes back after its lease has ended finds out, and so do two that
//! want one number. A number whose lease has ended stays its former holder's for a day, so that an old session id does not
//! come to mean another node's session.
//!
//! A write also says by which connection the node's members are written from now on ([`super::members`]). One of an earlier
//! connection that is carried out late changes nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::link::{LinkError, RedisLink, Reply, Script};
use super::log_position::{self, LogPosition};
use super::members::links_key;

/// The version of [`Facts`]; a reader takes those it knows, and ignores members that are new to it.
const FACTS_VERSION: u8 = 1;

/// What a node says of itself with each write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) v: u8,
    pub(crate) name: Arc<str>,
    pub(crate) version: Arc<str>,
    pub(crate) client_addr: Arc<str>,
    pub(crate) admin_addr: Arc<str>,
    pub(crate) started_unix_s: u64,
    /// Of its settings.
    pub(crate) revision: u64,
    pub(crate) sessions: u64,
    /// How long its last write took, there and back.
    pub(crate) lag_us: u64,
    /// Two nodes of one cluster verify the same tokens: some bits of a hash of what they verify them with.
    pub(crate) tokens: u32,
    /// The log of changes of all nodes' settings that it follows, and the newest of them that it runs.
    #[serde(default)]
    pub(crate) settings_log: u64,
    #[serde(default)]
    pub(crate) settings_revision: u64,
    /// How long its writes hold, by which a lease is known that a clock which was set back has prolonged.
    #[serde(default)]
    pub(crate) lease_ms: u64,
}

impl Facts {
    pub(super) const VERSION: u8 = FACTS_VERSION;
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) number: u16,
    /// This start of its process.
    pub(crate) uid: Arc<str>,
    /// Milliseconds until its lease ends; below zero: it has ended so long ago.
    pub(crate) left_ms: i64,
    pub(crate) facts: Facts,
}

impl Node {
    pub(crate) fn is_alive(&self) -> bool {
        self.left_ms >= 0
    }
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseWrite {
    /// The entry was there and had not ended.
    Renewed,
    /// There was no entry of this node.
    Created,
    /// There was one that had ended, or that is being swept: other nodes have taken this one for dead.
    Revived,
    /// Another node has the number.
    Taken,
}

/// The answer to a write.
#[derive(Debug)]
pub(super) struct Beat {
    pub(super) written: LeaseWrite,
    /// All nodes whose entries are there, by number; this one too.
    pub(super) nodes: BTreeMap<u16, Node>,
    /// Processes that have left something behind, and are no living nodes.
    pub(super) dead: Vec<Arc<str>>,
    /// Where the log of changes of all nodes' settings is.
    pub(super) log: LogPosition,
}

/// KEYS: nodes, uids, links, settings. ARGV: uid, number, milliseconds, facts, whether to take over a number whose lease has ended, channel
/// of this node's own pub/sub probe, the probe, number of the connection.
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

/// KEYS: nodes. ARGV: uid, number. The entry stays, ended, so that its number is given to nobody for a day; what the node has
/// left behind the others sweep.
const LEAVE: &str = r"
local time = redis.call('TIME')
local entry = redis.call('HGET', KEYS[1], ARGV[2])
if entry then
  local uid, facts = string.match(entry, '^(%S+) %d+ (.*)$')
  if uid == ARGV[1] then redis.call('HSET', KEYS[1], ARGV[2], uid .. ' ' .. time[1] .. '000 ' .. facts) end
end
return 1
";

static WRITE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(WRITE));
static LEAVE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(LEAVE));

/// The lease of this node.
pub(super) struct Lease {
    pub(super) uid: Arc<str>,
    pub(super) number: u16,
    /// How long a write holds.
    pub(super) lease_ms: u64,
    /// `server.node` names the number: a former holder whose lease has ended gives way.
    pub(super) is_wanted: bool,
    nodes_key: String,
    uids_key: String,
    links_key: String,
    settings_key: String,
}

impl Lease {
    pub(super) fn new(prefix: &str, uid: Arc<str>, number: u16, lease_ms: u64) -> Lease {
        let (nodes_key, uids_key) = (format!("{prefix}:nodes"), format!("{prefix}:uids"));
        let (links_key, settings_key) = (links_key(prefix), log_position::log_key(prefix));
        Lease {
            uid,
            number,
            lease_ms,
            is_wanted: false,
            nodes_key,
            uids_key,
            links_key,
            settings_key,
        }
    }

    /// Takes the number or prolongs the lease on it, and reads who else is there. A message goes through `probe` once.
    pub(super) async fn write(
        &self,
        link: &RedisLink,
        facts: &Facts,
        (channel, probe): (&str, &[u8]),
    ) -> Result<Beat, LinkError> {
        let (number, lease_ms) = (self.number.to_string(), self.lease_ms.to_string());
        let text = serde_json::to_string(facts).unwrap_or_default();
        let link_number = link.number.to_string();
        let take_over: &[u8] = if self.is_wanted { b"1" } else { b"0" };
        let arguments = [
            self.uid.as_bytes(),
            number.as_bytes(),
            lease_ms.as_bytes(),
            text.as_bytes(),
            take_over,
            channel.as_bytes(),
            probe,
            link_number.as_bytes(),
        ];
        let keys = [&self.nodes_key, &self.uids_key, &self.links_key, &self.settings_key]
            .map(|key| key.as_bytes());
        let reply = link.script(&WRITE_SCRIPT, &keys, &arguments).await?;
        let malformed =
            || LinkError::Redis("ERR the lease holds something that another program wrote".into());
        let mut beat = read(&reply).ok_or_else(malformed)?;
        if beat.written != LeaseWrite::Taken {
            let own = Node {
                number: self.number,
                uid: Arc::clone(&self.uid),
                left_ms: self.lease_ms as i64,
                facts: facts.clone(),
            };
            beat.nodes.insert(self.number, own);
        }
        Ok(beat)
    }

    /// Ends the lease: the node has left.
    pub(super) async fn leave(&self, link: &RedisLink) -> Result<(), LinkError> {
        let number = self.number.to_string();
        let keys = [self.nodes_key.as_bytes()];
        link.script(&LEAVE_SCRIPT, &keys, &[self.uid.as_bytes(), number.as_bytes()]).await?;
        Ok(())
    }
}

fn read(reply: &Reply) -> Option<Beat> {
    let [written, nodes, dead, log] = reply.list() else { return None };
    let written = match written.text()? {
        "renewed" => LeaseWrite::Renewed,
        "created" => LeaseWrite::Created,
        "revived" => LeaseWrite::Revived,
        "taken" => LeaseWrite::Taken,
        _ => return None,
    };
    let node = |reply: &Reply| {
        let [number, uid, left_ms, facts] = reply.list() else { return None };
        let number = number.text()?.parse().ok()?;
        let facts = serde_json::from_str(facts.text()?).ok()?;
        Some((number, Node { number, uid: uid.text()?.into(), left_ms: left_ms.integer()?, facts }))
    };
    Some(Beat {
        written,
        // What is no entry of ours is nobody's.
        nodes: nodes.list().iter().filter_map(node).collect(),
        dead: dead.list().iter().filter_map(Reply::text).map(Arc::from).collect(),
        log: LogPosition::read(log)?,
    })
}
