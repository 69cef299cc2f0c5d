//! Members in Redis: a hash for each channel, and a set of the channels of each process.
//!
//! Each write names its connection, and is refused unless the process's lease was last written over it ([`super::lease`]). A
//! dead process has no such connection, so nothing is written after its sweep.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, LazyLock};

use dunlin_engine::redis::centrifugo_client;

use super::RedisStore;
use super::link::{Commands, RedisLink, RedisReply, Script};
use super::reads::{CURSOR_0, ELEMENTS_A_STEP, page};
use crate::members::{Gathered, MembersByChannel, TrackedChange, all_gone};
use crate::node_message::{MemberChange, StoredMember, unix_ms};
use crate::store::StoreError;

/// Channels that one pipeline of commands reads.
const CHANNELS_A_STEP: usize = 128;
/// Pending announcements that one command reads.
const REMOVED_A_STEP: usize = 1_024;
/// Changes that one script makes. Redis serves no other client while a script runs.
const CHANGES_A_STEP: usize = 128;

/// KEYS: links, channels of the process, then for each change the members of its channel. ARGV: uid, link, then for each change
/// the session, its entry (empty: it left), and the channel if it is the process's first member there or the last to leave.
const WRITE: &str = r"
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return redis.error_reply('FENCED members are written by another connection')
end
local changed = {}
for at = 3, #KEYS do
  local client, entry, channel = ARGV[at * 3 - 6], ARGV[at * 3 - 5], ARGV[at * 3 - 4]
  if entry == '' then
    changed[at - 2] = redis.call('HDEL', KEYS[at], client)
    if channel ~= '' then redis.call('SREM', KEYS[2], channel) end
  else
    if channel ~= '' then redis.call('SADD', KEYS[2], channel) end
    changed[at - 2] = redis.call('HSET', KEYS[at], client, entry)
  end
end
return changed
";

/// KEYS: the members of a channel. ARGV: cursor, count, the text by which entries of the process are recognized. Returns the
/// next cursor and only the entries of the process, because the channel may have many others.
const OWN: &str = r"
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local own = {}
for at = 1, #page[2], 2 do
  if string.find(page[2][at + 1], ARGV[3], 1, true) then
    table.insert(own, page[2][at])
    table.insert(own, page[2][at + 1])
  end
end
return {page[1], own}
";

/// KEYS: links, list of announcements, then for each removal the members of its channel. ARGV: uid, then for each removal the
/// session and the announcement. A member is removed and its announcement stored atomically.
const SWEEP: &str = r"
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
for at = 3, #KEYS do
  if redis.call('HDEL', KEYS[at], ARGV[at * 2 - 4]) == 1 then
    redis.call('RPUSH', KEYS[2], ARGV[at * 2 - 3])
  end
end
return 1
";

/// KEYS: links, channels of the process, uids, list of announcements, the claim, its user counts. ARGV: uid. Removes a dead
/// process after its leaves were announced, unless it is alive again.
const FORGET: &str = r"
redis.call('DEL', KEYS[4], KEYS[5])
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
redis.call('DEL', KEYS[2], KEYS[6])
return redis.call('SREM', KEYS[3], ARGV[1])
";

static WRITE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(WRITE));
static SWEEP_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SWEEP));

/// Loads the script for writes. Writes refer to it by its hash, so that each is one command and their order is kept.
pub(super) async fn load_script(link: &RedisLink) -> Result<(), StoreError> {
    link.call(&[&[b"SCRIPT", b"LOAD", WRITE.as_bytes()]]).await.map(drop)
}

impl RedisStore {
    fn members_key(&self, channel: &str) -> Vec<u8> {
        format!("{}:members:{channel}", self.prefix).into_bytes()
    }

    fn channels_key(&self, uid: &str) -> Vec<u8> {
        format!("{}:channels:{uid}", self.prefix).into_bytes()
    }

    /// The hash of processes, each with the connection that may write its members.
    pub(super) fn links_key(&self) -> String {
        self.key("links")
    }

    fn claim_key(&self, dead: &str) -> String {
        format!("{}:sweep:{dead}", self.prefix)
    }

    fn removed_key(&self, dead: &str) -> String {
        format!("{}:removed:{dead}", self.prefix)
    }
}

pub(super) fn write(
    store: &RedisStore,
    changes: &[TrackedChange],
) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send + use<> {
    let written = store.link.begin(commands(store, changes));
    let link = Arc::clone(&store.link);
    async move {
        match written.await {
            Ok(replies) => {
                let replies = replies.iter().flat_map(RedisReply::list);
                Ok(replies.map(|reply| reply.integer() == Some(1)).collect())
            }
            // The script cache was flushed.
            Err(error @ StoreError::Passed(_)) => {
                load_script(&link).await?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the commands that write changes of this process's members. Each reply is a list.
fn commands(store: &RedisStore, changes: &[TrackedChange]) -> Commands {
    let (links, index) = (store.links_key(), store.channels_key(&store.uid));
    let link = store.link.number.to_string();
    let mut commands = Commands::default();
    for step in changes.chunks(CHANGES_A_STEP) {
        let count = (step.len() + 2).to_string();
        let keys: Vec<_> = step.iter().map(|(of, _)| store.members_key(&of.channel)).collect();
        let changes = step.iter().map(|(change, at_edge)| {
            let entry = if change.joined { serde_json::to_vec(&change.member) } else { Ok(vec![]) };
            let edge = if *at_edge { change.channel.as_bytes() } else { b"" };
            (change.client.to_string(), entry.unwrap_or_default(), edge)
        });
        let changes: Vec<_> = changes.collect();
        let mut line: Vec<&[u8]> = vec![b"EVALSHA", WRITE_SCRIPT.sha1(), count.as_bytes()];
        line.extend([links.as_bytes(), &index]);
        line.extend(keys.iter().map(Vec::as_slice));
        line.extend([store.uid.as_bytes(), link.as_bytes()]);
        for (client, entry, edge) in &changes {
            line.extend([client.as_bytes(), entry, edge]);
        }
        commands.push(&line);
    }
    commands
}

/// Reads the members of a process.
pub(super) async fn of_process(
    store: &RedisStore,
    uid: &str,
) -> Result<MembersByChannel, StoreError> {
    let mut due: VecDeque<(Arc<str>, Box<[u8]>)> = VecDeque::new();
    let take = |channel: &[RedisReply]| {
        due.extend(channel[0].text().map(|channel| (channel.into(), CURSOR_0.into())));
        true
    };
    store.reads.scan("SSCAN", &store.channels_key(uid), take).await?;
    let is_own = format!("\"node\":{}", serde_json::Value::from(uid));
    let mut listed = MembersByChannel::new();
    while !due.is_empty() {
        let step: Vec<_> = due.drain(..due.len().min(CHANNELS_A_STEP)).collect();
        let mut commands = Commands::default();
        for (channel, cursor) in &step {
            let key = store.members_key(channel);
            let count = ELEMENTS_A_STEP;
            commands.push(&[b"EVAL", OWN.as_bytes(), b"1", &key, cursor, count, is_own.as_bytes()]);
        }
        for ((channel, _), reply) in step.into_iter().zip(store.reads.send(commands).await?) {
            let (next, own) = page(Some(&reply))?;
            let of_it = entries(own).filter(|(_, member)| *member.node == *uid);
            listed.extend(of_it.map(|(client, member)| ((Arc::clone(&channel), client), member)));
            if next != CURSOR_0 {
                due.push_back((channel, next.into()));
            }
        }
    }
    Ok(listed)
}

/// Reads the members of a channel until `gathered` wants no more.
pub(super) async fn of_channel(
    store: &RedisStore,
    channel: &str,
    mut gathered: Gathered,
) -> Result<Gathered, StoreError> {
    let take = |entry: &[RedisReply]| {
        entries(entry).for_each(|(client, member)| gathered.add(client, &member));
        gathered.wants_more()
    };
    store.reads.scan("HSCAN", &store.members_key(channel), take).await?;
    if let Some(prefix) = store.foreign_presence.as_ref().filter(|_| gathered.wants_more()) {
        let key = |kind: &str| format!("{prefix}.presence.{kind}.{channel}").into_bytes();
        let now_s = (unix_ms() / 1000).to_string();
        let mut commands = Commands::default();
        // The expired entries. Entries without an expiry time are removed by Redis.
        commands.push(&[b"ZRANGEBYSCORE", &key("expire"), b"0", now_s.as_bytes()]);
        let over = store.reads.send(commands).await?;
        let over =
            over.first().map_or(&[][..], RedisReply::list).iter().filter_map(RedisReply::bytes);
        let over: HashSet<&[u8]> = over.collect();
        let take = |entry: &[RedisReply]| {
            if let [client, info] = entry
                && client.bytes().is_some_and(|client| !over.contains(client))
            {
                info.bytes()
                    .and_then(centrifugo_client)
                    .into_iter()
                    .for_each(|of| gathered.take(of));
            }
            gathered.wants_more()
        };
        store.reads.scan("HSCAN", &key("data"), take).await?;
    }
    check_link(store).await?;
    Ok(gathered)
}

/// Checks that Redis has not lost its data before or during a read: it still knows this connection.
///
/// The connection for reads reopens by itself. It may reach a server that has lost everything before the end of this connection
/// is noticed.
async fn check_link(store: &RedisStore) -> Result<(), StoreError> {
    let links = store.links_key();
    let replies = store.link.call(&[&[b"HGET", links.as_bytes(), store.uid.as_bytes()]]).await?;
    let number = replies.first().and_then(RedisReply::text);
    match number == Some(&*store.link.number.to_string()) {
        true => Ok(()),
        false => Err(StoreError::Passed("Redis has lost what this node had written".into())),
    }
}

pub(super) async fn sweep(
    store: &RedisStore,
    dead: &str,
    claim_ms: u64,
) -> Result<Option<Vec<MemberChange>>, StoreError> {
    let link = &store.link;
    let (claim, claim_ms) = (store.claim_key(dead), claim_ms.to_string());
    let set: [&[u8]; 6] =
        [b"SET", claim.as_bytes(), store.uid.as_bytes(), b"NX", b"PX", claim_ms.as_bytes()];
    let replies = link.call(&[&set]).await?;
    if replies.first() == Some(&RedisReply::Null) {
        return Ok(None);
    }
    // From now on Redis refuses writes of the dead process.
    let (links, removed) = (store.links_key(), store.removed_key(dead));
    link.call(&[&[b"HDEL", links.as_bytes(), dead.as_bytes()]]).await?;
    let left = all_gone(of_process(store, dead).await?);
    for step in left.chunks(CHANGES_A_STEP) {
        let mut keys = vec![links.clone().into_bytes(), removed.clone().into_bytes()];
        let mut arguments = vec![dead.as_bytes().to_vec()];
        for (change, _) in step {
            keys.push(store.members_key(&change.channel));
            arguments.push(change.client.to_string().into_bytes());
            arguments.push(serde_json::to_vec(change).unwrap_or_default());
        }
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        // 0: the process is alive again. Its next lease write reports that it was revived, and it reconciles.
        if link.script(&SWEEP_SCRIPT, &keys, &arguments).await? != RedisReply::Integer(1) {
            break;
        }
    }
    let (mut gone, mut from) = (Vec::new(), 0);
    loop {
        let (first, last) = (from.to_string(), (from + REMOVED_A_STEP - 1).to_string());
        let mut commands = Commands::default();
        commands.push(&[b"LRANGE", removed.as_bytes(), first.as_bytes(), last.as_bytes()]);
        let replies = store.reads.send(commands).await?;
        let step = replies.first().map_or(&[][..], RedisReply::list);
        let changes = step.iter().filter_map(RedisReply::bytes);
        gone.extend(changes.filter_map(|change| serde_json::from_slice(change).ok()));
        if step.len() < REMOVED_A_STEP {
            return Ok(Some(gone));
        }
        from += REMOVED_A_STEP;
    }
}

pub(super) fn forget(
    store: &RedisStore,
    dead: &str,
) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
    let mut commands = Commands::default();
    commands.push(&[
        b"EVAL",
        FORGET.as_bytes(),
        b"6",
        store.links_key().as_bytes(),
        &store.channels_key(dead),
        store.key("uids").as_bytes(),
        store.removed_key(dead).as_bytes(),
        store.claim_key(dead).as_bytes(),
        store.users_key(dead).as_bytes(),
        dead.as_bytes(),
    ]);
    let forgotten = store.link.begin(commands);
    async move { forgotten.await.map(drop) }
}

/// Parses the entries of a hash of members; malformed ones are skipped.
fn entries(hash: &[RedisReply]) -> impl Iterator<Item = (u64, StoredMember)> {
    hash.chunks(2).filter_map(|entry| {
        let [client, member] = entry else { return None };
        let member = serde_json::from_slice(member.bytes()?).ok()?;
        Some((client.text()?.parse().ok()?, member))
    })
}
