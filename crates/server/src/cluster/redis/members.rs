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
use crate::cluster::members::{Gathered, MembersByChannel, TrackedChange, all_gone};
use crate::cluster::message::{MemberChange, StoredMember, unix_ms};
use crate::cluster::store::StoreError;

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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "what does not come about fails the test")]
mod tests {
    use dunlin_hub::ClientInfo;
    use tokio::net::UnixStream;

    use super::super::address::RedisAddress;
    use super::super::reads::ReadLink;
    use super::*;
    use crate::cluster::inbox::Inbox;
    use crate::cluster::lease::{Facts, Lease, LeaseWrite};
    use crate::cluster::store::Store;

    /// A Redis server, on a Unix socket in its directory.
    struct Redis(dunlin_testkit::Redis);

    impl Redis {
        fn start() -> Redis {
            Redis(dunlin_testkit::Redis::start(&["--unixsocket", "socket"]))
        }

        /// Opens a connection of the process `uid`.
        async fn store(&self, uid: &str) -> RedisStore {
            let link = self.link().await;
            load_script(&link).await.unwrap();
            let (link, prefix) = (Arc::new(link), "test".into());
            let nowhere = RedisAddress::new(&Arc::default());
            let reads = Arc::new(ReadLink::new(&nowhere, Some(self.link().await)));
            RedisStore { link, reads, prefix, uid: uid.into(), foreign_presence: None }
        }

        async fn link(&self) -> RedisLink {
            let stream = UnixStream::connect(self.0.directory().join("socket")).await.unwrap();
            let link = RedisLink::start(stream, Inbox::of_nobody());
            link.call(&[&[b"HELLO", b"3"]]).await.unwrap();
            link
        }
    }

    async fn renew(store: &RedisStore) -> Result<LeaseWrite, StoreError> {
        let facts = Facts::named("");
        let number = store.uid.bytes().map(u16::from).sum();
        let uid = Arc::clone(&store.uid);
        let lease = Lease { uid, number, lease_ms: 60_000, is_wanted: false };
        Ok(store.write_lease(lease, facts, Vec::new()).await?.written)
    }

    /// Writes changes: `+1`: session 1 joins, `-1`: it leaves; `!`: it is the first to join or the last to leave. Returns how
    /// many changed the store.
    async fn write(store: &RedisStore, changes: &[&str]) -> Result<usize, StoreError> {
        let changes = changes.iter().map(|change| {
            let info = ClientInfo {
                user_is_number: false,
                foreign_client: None,
                client: dunlin_hub::SessionId::from_u64(0).unwrap(),
                user: "".into(),
                conn_info: None,
                chan_info: None,
            };
            let member = StoredMember {
                presence: true,
                join_leave: true,
                ..StoredMember::new(&store.uid, &info)
            };
            let joined = change.starts_with('+');
            let client = change[1..].trim_end_matches('!').parse().unwrap();
            let change_of = MemberChange { channel: "room".into(), client, joined, member };
            (change_of, change.ends_with('!'))
        });
        let changes: Vec<_> = changes.collect();
        let written = store.write_members(&changes).await?;
        Ok(written.into_iter().filter(|has_changed| *has_changed).count())
    }

    /// Sweeps a process. Returns the sessions to announce as left; `None` if another node has the claim.
    async fn swept(store: &RedisStore, dead: &str) -> Option<Vec<u64>> {
        let gone = store.sweep(dead.into(), 60_000).await.unwrap()?;
        Some(gone.iter().map(|change| change.client).collect())
    }

    async fn listed(store: &RedisStore) -> Vec<u64> {
        store.own_members().await.unwrap().keys().map(|(_, client)| *client).collect()
    }

    fn is_fenced<T>(written: &Result<T, StoreError>) -> bool {
        matches!(written, Err(StoreError::Refused(_, error)) if error.starts_with("FENCED "))
    }

    /// Regression test: only the last change of a channel in a report decided whether the process had members there. If a
    /// second member joined and left in one report, the channel was dropped from the index, and neither sweep nor
    /// reconciliation found the first.
    #[tokio::test]
    async fn a_channel_is_listed_while_anybody_is_there() {
        let redis = Redis::start();
        let node = redis.store("a").await;
        renew(&node).await.unwrap();
        assert_eq!(write(&node, &["+1!", "+2", "-2"]).await, Ok(3));
        assert_eq!(listed(&node).await, [1]);
        assert_eq!(write(&node, &["+1", "-1!", "+3!"]).await, Ok(2), "one was there");
        assert_eq!(listed(&node).await, [3]);
        write(&node, &["-3!"]).await.unwrap();
        let left = node.link.call(&[&[b"EXISTS", b"test:channels:a", b"test:members:room"]]).await;
        assert_eq!(left, Ok(vec![RedisReply::Integer(0)]));
    }

    #[tokio::test]
    async fn only_the_connection_that_the_lease_was_written_on_last_writes_members() {
        let redis = Redis::start();
        let (former, node) = (redis.store("a").await, redis.store("a").await);
        assert!(is_fenced(&write(&former, &["+1!"]).await), "there is no lease");
        assert_eq!(renew(&former).await, Ok(LeaseWrite::Created));
        assert_eq!(write(&former, &["+1!"]).await, Ok(1));
        assert_eq!(renew(&node).await, Ok(LeaseWrite::Renewed));
        assert!(is_fenced(&write(&former, &["+2"]).await));
        assert!(renew(&former).await.is_err(), "late, and it changes nothing");
        assert_eq!(write(&node, &["+3"]).await, Ok(1));
        assert_eq!(listed(&node).await, [1, 3]);
    }

    #[tokio::test]
    async fn nothing_comes_after_a_sweep_and_who_lives_finds_out() {
        let redis = Redis::start();
        let (node, other) = (redis.store("a").await, redis.store("b").await);
        renew(&node).await.unwrap();
        write(&node, &["+1!", "+2"]).await.unwrap();
        renew(&other).await.unwrap();
        let gone = swept(&other, "a").await.unwrap();
        assert_eq!(gone, [1, 2]);
        other.forget("a".into()).await.unwrap();
        assert!(is_fenced(&write(&node, &["+3!"]).await));
        let uids = other.link.call(&[&[b"SMEMBERS", b"test:uids"]]).await.unwrap();
        assert_eq!(uids, [RedisReply::List(vec![RedisReply::Bytes((*b"b").into())])]);

        assert_eq!(renew(&node).await, Ok(LeaseWrite::Revived));
        assert_eq!(write(&node, &["+3!"]).await, Ok(1));
        assert_eq!(listed(&node).await, [3]);
    }

    /// Regression test: if a node lost its connection between a sweep and the announcements, the leaves were never announced.
    #[tokio::test]
    async fn leaves_that_a_sweep_did_not_announce_are_announced_by_the_next() {
        let redis = Redis::start();
        let (node, other) = (redis.store("a").await, redis.store("b").await);
        renew(&node).await.unwrap();
        write(&node, &["+1!", "+2"]).await.unwrap();
        assert_eq!(swept(&other, "a").await.unwrap(), [1, 2]);
        drop(other);
        let third = redis.store("c").await;
        assert_eq!(swept(&third, "a").await, None, "the claim holds for a while");
        third.link.call(&[&[b"DEL", b"test:sweep:a"]]).await.unwrap();
        assert_eq!(swept(&third, "a").await.unwrap(), [1, 2]);
        third.forget("a".into()).await.unwrap();
        assert_eq!(swept(&third, "a").await.unwrap(), [0; 0]);
    }

    /// Regression test: the members of many channels, including those of other nodes, came in one reply. It exceeded the output
    /// buffer limit of a subscribed connection, which Redis closed repeatedly.
    #[tokio::test]
    async fn what_a_large_fleet_has_is_read_beside_the_connection_that_subscribes() {
        const CHANNELS: usize = 20;
        let redis = Redis::start();
        let (node, other) = (redis.store("a").await, redis.store("b").await);
        renew(&node).await.unwrap();
        renew(&other).await.unwrap();
        let limit = b"pubsub 256kb 256kb 1";
        node.link
            .call(&[&[b"CONFIG", b"SET", b"client-output-buffer-limit", limit]])
            .await
            .unwrap();
        for store in [&node, &other] {
            store.link.call(&[&[b"SUBSCRIBE", b"test:calls"]]).await.unwrap();
        }
        let changes = |store: &RedisStore, count: u64| {
            let info = ClientInfo {
                user_is_number: false,
                foreign_client: None,
                client: dunlin_hub::SessionId::from_u64(0).unwrap(),
                user: "ann".into(),
                conn_info: Some(format!("\"{}\"", "x".repeat(200)).into_bytes().into()),
                chan_info: None,
            };
            let member = StoredMember { presence: true, ..StoredMember::new(&store.uid, &info) };
            let base = store.uid.bytes().map(u64::from).sum::<u64>() * 10_000;
            let each = (0..CHANNELS).flat_map(|at| (1..=count).map(move |client| (at, client)));
            let change = |(at, client): (usize, u64)| {
                let channel: Arc<str> = format!("room{at}").into();
                let change = MemberChange {
                    channel,
                    client: base + client,
                    joined: true,
                    member: member.clone(),
                };
                (change, client == 1)
            };
            each.map(change).collect::<Vec<_>>()
        };
        for (store, count) in [(&node, 3), (&other, 300)] {
            for step in changes(store, count).chunks(4_096) {
                store.write_members(step).await.unwrap();
            }
        }
        assert_eq!(node.own_members().await.unwrap().len(), 3 * CHANNELS);
        let living = || ["a", "b"].map(Arc::from).into();
        let all = node.members_in("room7", Gathered::new(living(), Some(usize::MAX), true)).await;
        let all = all.unwrap();
        assert_eq!((all.list(usize::MAX).unwrap().len(), all.stats().clients), (303, 303));
        assert_eq!(all.stats().users, 1);
        let some = node.members_in("room7", Gathered::new(living(), Some(50_000), false)).await;
        assert!(some.unwrap().list(50_000).is_err(), "it is too large");
        assert_eq!(swept(&node, "b").await.unwrap().len(), 300 * CHANNELS);
        assert!(renew(&node).await.is_ok() && !other.link.has_ended(), "they were not cut");
    }

    /// Regression test: a revocation that was lost in a failover was never written again.
    #[tokio::test]
    async fn a_call_is_kept_again_unless_there_is_a_newer_one() {
        let redis = Redis::start();
        let node = redis.store("a").await;
        let calls =
            || vec![("user u".into(), b"old".to_vec()), ("user v".into(), b"lost".to_vec())];
        assert!(is_fenced(&node.keep_absent(calls()).await), "there is no lease");
        renew(&node).await.unwrap();
        node.keep("user u", b"newer".to_vec()).await.unwrap();
        node.keep_absent(calls()).await.unwrap();
        let mut kept = node.kept().await.unwrap();
        kept.sort();
        let newer = ("user u".into(), b"newer".to_vec());
        assert_eq!(kept, [newer, ("user v".into(), b"lost".to_vec())]);
    }

    /// Regression test: a late write of an abandoned connection blocked a user again after the user had been unblocked.
    #[tokio::test]
    async fn only_the_connection_that_the_lease_was_written_on_last_keeps_calls() {
        let redis = Redis::start();
        let (former, node) = (redis.store("a").await, redis.store("a").await);
        renew(&former).await.unwrap();
        assert!(former.keep("user u", b"blocked".to_vec()).await.is_ok());
        renew(&node).await.unwrap();
        assert!(node.keep("user u", b"unblocked".to_vec()).await.is_ok());
        assert!(is_fenced(&former.keep("user u", b"blocked".to_vec()).await));
        let kept = node.kept().await.unwrap();
        assert_eq!(kept, [("user u".into(), b"unblocked".to_vec())]);
    }
}
