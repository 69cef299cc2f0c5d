//! Presence over all nodes, in Redis.
//!
//! A session that joins writes its entry, one that leaves removes it, and nothing is written in between: an entry counts
//! while its node's lease does. What Redis answers to a write says whether it has changed anything, so that each coming
//! and going is announced to other nodes once, whoever writes it: the node itself, or the one that sweeps after it.
//!
//! What a connection has sent may be carried out long after it was given up: bytes wait in a network or a proxy. So each
//! write names its connection, and is refused unless that is the one which the process's lease was written on last
//! ([`super::lease`]); of a dead process none is, so nothing comes after the sweep.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use dunlin_engine::redis::centrifugo_client;
use dunlin_hub::{ClientInfo, MemberEvent, SessionId};

use super::link::{Commands, LinkError, RedisLink, Reply, Script};
use super::message::{MemberChange, StoredMember, unix_ms};
use crate::api::{ApiError, ApiErrorCode};

/// Members as they stand in Redis, by channel and session.
pub(super) type Listed = BTreeMap<(Arc<str>, u64), StoredMember>;

/// Channels that are looked at together.
const CHANNELS_A_STEP: usize = 128;
/// Changes that one script makes: others wait for so long.
const CHANGES_A_STEP: usize = 128;
/// What an entry takes in an answer beside its texts.
const ENTRY_BYTES: usize = 128;

/// KEYS: links, channels of the process, then the members of a channel for each change. ARGV: uid, link, then for each change the session, its entry (empty: it has gone), and the channel if it is the first that came or the
/// last that went.
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

/// KEYS: links, what was removed, then the members of a channel for each that is to be removed. ARGV: uid, then for each the session
/// and what is to be announced of it. Nothing is removed without its announcement being kept.
const SWEEP: &str = r"
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
for at = 3, #KEYS do
  if redis.call('HDEL', KEYS[at], ARGV[at * 2 - 4]) == 1 then
    redis.call('RPUSH', KEYS[2], ARGV[at * 2 - 3])
  end
end
return 1
";

/// KEYS: links, channels of the process, uids, what was removed, the claim. ARGV: uid. Forgets a dead process whose members were
/// announced, unless it lives again.
const FORGET: &str = r"
redis.call('DEL', KEYS[4], KEYS[5])
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
redis.call('DEL', KEYS[2])
return redis.call('SREM', KEYS[3], ARGV[1])
";

static WRITE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(WRITE));
static SWEEP_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SWEEP));

/// Has Redis keep the script of writes, which keep their order by naming it alone.
pub(super) async fn load_script(link: &RedisLink) -> Result<(), LinkError> {
    link.call(&[&[b"SCRIPT", b"LOAD", WRITE.as_bytes()]]).await.map(drop)
}

/// A change, and whether it is the first that came, or the last that went, of the channel's members in this process.
pub(super) type EdgedChange = (MemberChange, bool);

/// Where a cluster's members are in Redis.
#[derive(Clone)]
pub(super) struct NodeKeys {
    pub(super) prefix: Arc<str>,
    /// This node's.
    pub(super) uid: Arc<str>,
}

impl NodeKeys {
    fn members(&self, channel: &str) -> Vec<u8> {
        format!("{}:members:{channel}", self.prefix).into_bytes()
    }

    fn channels(&self, uid: &str) -> Vec<u8> {
        format!("{}:channels:{uid}", self.prefix).into_bytes()
    }

    /// Writes what has changed on this node. The future gives what is to be announced to others.
    pub(super) fn write(
        &self,
        link: &RedisLink,
        changes: Vec<EdgedChange>,
    ) -> impl Future<Output = Result<Vec<MemberChange>, LinkError>> + Send + use<> {
        let number = link.number.to_string();
        let written = link.begin(self.commands(&self.uid, &number, &changes));
        async move {
            let replies = written.await?;
            let has_changed = |reply: &Reply| reply.integer() == Some(1);
            Ok(changes
                .into_iter()
                .zip(replies.iter().flat_map(Reply::list))
                .filter(|((change, _), reply)| change.member.join_leave && has_changed(reply))
                .map(|((change, _), _)| change)
                .collect())
        }
    }

    /// What writes changes of a process's members, each reply a list.
    fn commands(&self, uid: &str, link: &str, changes: &[EdgedChange]) -> Commands {
        let (links, index) = (links_key(&self.prefix), self.channels(uid));
        let mut commands = Commands::default();
        for step in changes.chunks(CHANGES_A_STEP) {
            let count = (step.len() + 2).to_string();
            let keys: Vec<_> = step.iter().map(|(of, _)| self.members(&of.channel)).collect();
            let changes = step.iter().map(|(change, at_edge)| {
                let entry =
                    if change.joined { serde_json::to_vec(&change.member) } else { Ok(vec![]) };
                let edge = if *at_edge { change.channel.as_bytes() } else { b"" };
                (change.client.to_string(), entry.unwrap_or_default(), edge)
            });
            let changes: Vec<_> = changes.collect();
            let mut line: Vec<&[u8]> = vec![b"EVALSHA", WRITE_SCRIPT.sha1(), count.as_bytes()];
            line.extend([links.as_bytes(), &index]);
            line.extend(keys.iter().map(Vec::as_slice));
            line.extend([uid.as_bytes(), link.as_bytes()]);
            for (client, entry, edge) in &changes {
                line.extend([client.as_bytes(), entry, edge]);
            }
            commands.push(&line);
        }
        commands
    }

    /// The members of a process, as Redis has them.
    pub(super) async fn of_process(
        &self,
        link: &RedisLink,
        uid: &str,
    ) -> Result<Listed, LinkError> {
        let index = self.channels(uid);
        let replies = link.call(&[&[b"SMEMBERS", &index]]).await?;
        let channels: Vec<Arc<str>> =
            replies.iter().flat_map(Reply::list).filter_map(Reply::text).map(Arc::from).collect();
        let mut listed = Listed::new();
        for channels in channels.chunks(CHANNELS_A_STEP) {
            let mut commands = Commands::default();
            for channel in channels {
                commands.push(&[b"HGETALL", &self.members(channel)]);
            }
            for (channel, reply) in channels.iter().zip(link.send(commands).await?) {
                let of_it = entries(&reply).filter(|(_, member)| *member.node == *uid);
                listed
                    .extend(of_it.map(|(client, member)| ((Arc::clone(channel), client), member)));
            }
        }
        Ok(listed)
    }

    /// Who is in a channel, by what Redis has; `living` are the uids that count.
    pub(super) fn present(
        &self,
        link: &RedisLink,
        channel: &str,
        living: HashSet<Arc<str>>,
        foreign: Option<&str>,
    ) -> impl Future<Output = Result<Vec<ClientInfo>, LinkError>> + Send + use<> {
        let mut commands = Commands::default();
        commands.push(&[b"HGETALL", &self.members(channel)]);
        if let Some(prefix) = foreign {
            let key = |kind: &str| format!("{prefix}.presence.{kind}.{channel}").into_bytes();
            let now_s = (unix_ms() / 1000).to_string();
            commands.push(&[b"HGETALL", &key("data")]);
            // Of those that have a time, whose is over; without times Redis removes them itself.
            commands.push(&[b"ZRANGEBYSCORE", &key("expire"), b"0", now_s.as_bytes()]);
        }
        let read = link.begin(commands);
        async move {
            let replies = read.await?;
            let [members, others @ ..] = &replies[..] else { return Ok(Vec::new()) };
            let present = entries(members).filter_map(|(client, member)| {
                let counts = member.presence && living.contains(&member.node);
                counts.then(|| SessionId::from_u64(client).map(|id| member.info(id))).flatten()
            });
            Ok(present.chain(foreign_entries(others)).collect())
        }
    }

    fn claim(&self, dead: &str) -> String {
        format!("{}:sweep:{dead}", self.prefix)
    }

    fn removed(&self, dead: &str) -> String {
        format!("{}:removed:{dead}", self.prefix)
    }

    /// Removes what a dead process has left, if no other node does. Gives the members that were removed and are to be announced,
    /// those among them that an earlier sweep has not come to announce; then [`NodeKeys::forget`] ends the sweep.
    pub(super) async fn sweep(
        &self,
        link: &RedisLink,
        dead: &str,
        claim_ms: u64,
    ) -> Result<Option<Vec<MemberChange>>, LinkError> {
        let (claim, claim_ms) = (self.claim(dead), claim_ms.to_string());
        let set: [&[u8]; 6] =
            [b"SET", claim.as_bytes(), self.uid.as_bytes(), b"NX", b"PX", claim_ms.as_bytes()];
        let replies = link.call(&[&set]).await?;
        if replies.first() == Some(&Reply::Null) {
            return Ok(None);
        }
        // Nothing that it has sent is taken from now on.
        let (links, removed) = (links_key(&self.prefix), self.removed(dead));
        link.call(&[&[b"HDEL", links.as_bytes(), dead.as_bytes()]]).await?;
        let left = all_gone(self.of_process(link, dead).await?);
        for step in left.chunks(CHANGES_A_STEP) {
            let mut keys = vec![links.clone().into_bytes(), removed.clone().into_bytes()];
            let mut arguments = vec![dead.as_bytes().to_vec()];
            for (change, _) in step {
                keys.push(self.members(&change.channel));
                arguments.push(change.client.to_string().into_bytes());
                arguments.push(serde_json::to_vec(change).unwrap_or_default());
            }
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            // 0: it lives, and will find out what was taken from it.
            if link.script(&SWEEP_SCRIPT, &keys, &arguments).await? != Reply::Integer(1) {
                break;
            }
        }
        let replies = link.call(&[&[b"LRANGE", removed.as_bytes(), b"0", b"-1"]]).await?;
        let gone = replies.iter().flat_map(Reply::list).filter_map(Reply::bytes);
        Ok(Some(gone.filter_map(|change| serde_json::from_slice(change).ok()).collect()))
    }

    /// Appends what ends a sweep: what it has removed is announced by the commands before.
    pub(super) fn forget(&self, commands: &mut Commands, dead: &str) {
        let (links, uids) = (links_key(&self.prefix), format!("{}:uids", self.prefix));
        let (channels, removed, claim) =
            (self.channels(dead), self.removed(dead), self.claim(dead));
        commands.push(&[
            b"EVAL",
            FORGET.as_bytes(),
            b"5",
            links.as_bytes(),
            &channels,
            uids.as_bytes(),
            removed.as_bytes(),
            claim.as_bytes(),
            dead.as_bytes(),
        ]);
    }

    /// A change that a worker has reported.
    pub(super) fn change(&self, event: &MemberEvent) -> EdgedChange {
        let change = MemberChange {
            channel: Arc::clone(&event.channel),
            client: event.info.client.to_u64(),
            joined: event.joined,
            member: StoredMember::new(&self.uid, &event.info, event.presence, event.join_leave),
        };
        (change, event.at_edge)
    }
}

/// The hash of processes, each with the connection that may write its members.
pub(super) fn links_key(prefix: &str) -> String {
    format!("{prefix}:links")
}

/// All of these have gone.
fn all_gone(listed: Listed) -> Vec<EdgedChange> {
    let gone = |((channel, client), member)| {
        (MemberChange { channel, client, joined: false, member }, false)
    };
    listed.into_iter().map(gone).collect()
}

/// The entries of a hash of members. Malformed ones are skipped.
fn entries(reply: &Reply) -> impl Iterator<Item = (u64, StoredMember)> {
    reply.list().chunks(2).filter_map(|entry| {
        let [client, member] = entry else { return None };
        let member = serde_json::from_slice(member.bytes()?).ok()?;
        Some((client.text()?.parse().ok()?, member))
    })
}

/// Members at nodes of Centrifugo: those of its hash whose time is not over.
fn foreign_entries(replies: &[Reply]) -> impl Iterator<Item = ClientInfo> {
    let (data, over) = match replies {
        [data, over] => (data.list(), over.list()),
        _ => (&[][..], &[][..]),
    };
    let over: HashSet<&[u8]> = over.iter().filter_map(Reply::bytes).collect();
    data.chunks(2).filter_map(move |entry| {
        let [client, info] = entry else { return None };
        let is_there = !over.contains(client.bytes()?);
        is_there.then(|| centrifugo_client(info.bytes()?)).flatten()
    })
}

/// The comparison of this node's members with what Redis has of them.
#[derive(Default)]
pub(super) struct Comparison {
    /// In Redis, and not listed by any worker so far.
    pub(super) stale: Listed,
    /// Workers that have not listed their members.
    pub(super) waiting: HashSet<usize>,
}

impl Comparison {
    /// A worker has listed its members. Gives what is to be removed, once all have.
    pub(super) fn handle_list(
        &mut self,
        worker: usize,
        listed: &[EdgedChange],
    ) -> Option<Vec<EdgedChange>> {
        for (change, _) in listed {
            self.stale.remove(&(Arc::clone(&change.channel), change.client));
        }
        if !self.waiting.remove(&worker) || !self.waiting.is_empty() {
            return None;
        }
        Some(all_gone(std::mem::take(&mut self.stale)))
    }
}

/// An answer within bounds.
///
/// # Errors
/// It would have more bytes.
pub(super) fn bounded(
    present: Vec<ClientInfo>,
    bytes_max: usize,
) -> Result<Vec<Arc<ClientInfo>>, ApiError> {
    let json = |json: &Option<Box<[u8]>>| json.as_ref().map_or(0, |json| json.len());
    let bytes = |info: &ClientInfo| {
        ENTRY_BYTES + info.user.len() + json(&info.conn_info) + json(&info.chan_info)
    };
    if present.iter().map(bytes).sum::<usize>() > bytes_max {
        return Err(ApiErrorCode::LimitExceeded.into());
    }
    Ok(present.into_iter().map(Arc::new).collect())
}

/// How many sessions and users are present.
pub(super) fn counted(present: &[ClientInfo]) -> dunlin_hub::PresenceStats {
    let users: HashMap<&str, ()> = present.iter().map(|info| (&*info.user, ())).collect();
    dunlin_hub::PresenceStats { clients: present.len() as u64, users: users.len() as u64 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "what does not come about fails the test")]
mod tests {
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use tokio::net::UnixStream;
    use tokio::sync::mpsc;

    use super::super::kept;
    use super::super::lease::{Facts, Lease, LeaseWrite};
    use super::*;
    use crate::api::Method;

    /// A real Redis at a socket in a directory.
    struct Redis<'a>(Child, &'a Path);

    impl Drop for Redis<'_> {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    impl<'a> Redis<'a> {
        fn start(directory: &'a Path) -> Redis<'a> {
            let child = Command::new("redis-server")
                .args(["--port", "0", "--save", "", "--unixsocket"])
                .arg(directory.join("socket"))
                .stdout(Stdio::null())
                .spawn()
                .unwrap_or_else(|error| panic!("redis-server: {error}"));
            Redis(child, directory)
        }

        async fn link(&self) -> RedisLink {
            let at = self.1.join("socket");
            let stream = loop {
                match UnixStream::connect(&at).await {
                    Ok(stream) => break stream,
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
                }
            };
            let link = RedisLink::start(stream, mpsc::unbounded_channel().0);
            link.call(&[&[b"HELLO", b"3"]]).await.unwrap();
            load_script(&link).await.unwrap();
            link
        }
    }

    /// A node, as these tests need it.
    struct Node {
        place: NodeKeys,
        lease: Lease,
    }

    impl Node {
        fn new(uid: &str, number: u16) -> Node {
            let place = NodeKeys { prefix: "test".into(), uid: uid.into() };
            Node { lease: Lease::new("test", uid.into(), number, 60_000), place }
        }

        async fn beat(&self, link: &RedisLink) -> Result<LeaseWrite, LinkError> {
            let facts = Facts {
                v: Facts::VERSION,
                name: "".into(),
                version: "".into(),
                client_addr: "".into(),
                admin_addr: "".into(),
                started_unix_s: 0,
                revision: 0,
                sessions: 0,
                lag_us: 0,
                tokens: 0,
                settings_log: 0,
                settings_revision: 0,
                lease_ms: 9_000,
            };
            Ok(self.lease.write(link, &facts, ("calls", b"")).await?.written)
        }

        /// Writes `+1!`: session 1 has come, the first; `-1`: it has gone, and others have not.
        async fn write(&self, link: &RedisLink, changes: &[&str]) -> Result<usize, LinkError> {
            let changes = changes.iter().map(|change| {
                let info = ClientInfo {
                    foreign_client: None,
                    client: SessionId::from_u64(0).unwrap(),
                    user: "".into(),
                    conn_info: None,
                    chan_info: None,
                };
                let member = StoredMember::new(&self.place.uid, &info, true, true);
                let joined = change.starts_with('+');
                let client = change[1..].trim_end_matches('!').parse().unwrap();
                let change_of = MemberChange { channel: "room".into(), client, joined, member };
                (change_of, change.ends_with('!'))
            });
            self.place.write(link, changes.collect()).await.map(|announced| announced.len())
        }

        /// The sessions that a sweep of another node finds gone, if it makes one.
        async fn swept(&self, link: &RedisLink, dead: &str) -> Option<Vec<u64>> {
            let gone = self.place.sweep(link, dead, 60_000).await.unwrap()?;
            Some(gone.iter().map(|change| change.client).collect())
        }

        async fn forget(&self, link: &RedisLink, dead: &str) {
            let mut commands = Commands::default();
            self.place.forget(&mut commands, dead);
            link.send(commands).await.unwrap();
        }

        async fn listed(&self, link: &RedisLink) -> Vec<u64> {
            let listed = self.place.of_process(link, &self.place.uid).await.unwrap();
            listed.keys().map(|(_, client)| *client).collect()
        }
    }

    fn is_fenced(written: &Result<usize, LinkError>) -> bool {
        matches!(written, Err(LinkError::Redis(error)) if error.starts_with("FENCED "))
    }

    /// The last change of a channel decided whether the node had members of it: whoever came first was forgotten when the
    /// second had come and gone in one report, and was found neither by a sweep nor by a comparison.
    #[tokio::test]
    async fn a_channel_is_listed_while_anybody_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let redis = Redis::start(directory.path());
        let (node, link) = (Node::new("a", 1), redis.link().await);
        node.beat(&link).await.unwrap();
        assert_eq!(node.write(&link, &["+1!", "+2", "-2"]).await, Ok(3));
        assert_eq!(node.listed(&link).await, [1]);
        assert_eq!(node.write(&link, &["+1", "-1!", "+3!"]).await, Ok(2), "one was there");
        assert_eq!(node.listed(&link).await, [3]);
        node.write(&link, &["-3!"]).await.unwrap();
        let left = link.call(&[&[b"EXISTS", b"test:channels:a", b"test:members:room"]]).await;
        assert_eq!(left, Ok(vec![Reply::Integer(0)]));
    }

    #[tokio::test]
    async fn only_the_connection_that_the_lease_was_written_on_last_writes_members() {
        let directory = tempfile::tempdir().unwrap();
        let redis = Redis::start(directory.path());
        let (node, former, link) = (Node::new("a", 1), redis.link().await, redis.link().await);
        assert!(is_fenced(&node.write(&former, &["+1!"]).await), "there is no lease");
        assert_eq!(node.beat(&former).await, Ok(LeaseWrite::Created));
        assert_eq!(node.write(&former, &["+1!"]).await, Ok(1));
        assert_eq!(node.beat(&link).await, Ok(LeaseWrite::Renewed));
        assert!(is_fenced(&node.write(&former, &["+2"]).await));
        assert!(node.beat(&former).await.is_err(), "late, and it changes nothing");
        assert_eq!(node.write(&link, &["+3"]).await, Ok(1));
        assert_eq!(node.listed(&link).await, [1, 3]);
    }

    #[tokio::test]
    async fn nothing_comes_after_a_sweep_and_who_lives_finds_out() {
        let directory = tempfile::tempdir().unwrap();
        let redis = Redis::start(directory.path());
        let (node, link) = (Node::new("a", 1), redis.link().await);
        let (other, of_other) = (Node::new("b", 2), redis.link().await);
        node.beat(&link).await.unwrap();
        node.write(&link, &["+1!", "+2"]).await.unwrap();
        other.beat(&of_other).await.unwrap();
        let gone = other.swept(&of_other, "a").await.unwrap();
        assert_eq!(gone, [1, 2]);
        other.forget(&of_other, "a").await;
        assert!(is_fenced(&node.write(&link, &["+3!"]).await));
        let uids = of_other.call(&[&[b"SMEMBERS", b"test:uids"]]).await.unwrap();
        assert_eq!(uids, [Reply::List(vec![Reply::Bytes((*b"b").into())])]);

        assert_eq!(node.beat(&link).await, Ok(LeaseWrite::Revived));
        assert_eq!(node.write(&link, &["+3!"]).await, Ok(1));
        assert_eq!(node.listed(&link).await, [3]);
    }

    /// Who swept and lost its connection before it had announced the leaves took them with it: the entries were gone.
    #[tokio::test]
    async fn leaves_that_a_sweep_did_not_announce_are_announced_by_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let redis = Redis::start(directory.path());
        let (node, link) = (Node::new("a", 1), redis.link().await);
        let (other, third) = (Node::new("b", 2), Node::new("c", 3));
        node.beat(&link).await.unwrap();
        node.write(&link, &["+1!", "+2"]).await.unwrap();
        let of_other = redis.link().await;
        assert_eq!(other.swept(&of_other, "a").await.unwrap(), [1, 2]);
        drop(of_other);
        let of_third = redis.link().await;
        assert_eq!(third.swept(&of_third, "a").await, None, "the claim holds for a while");
        of_third.call(&[&[b"DEL", b"test:sweep:a"]]).await.unwrap();
        assert_eq!(third.swept(&of_third, "a").await.unwrap(), [1, 2]);
        third.forget(&of_third, "a").await;
        assert_eq!(third.swept(&of_third, "a").await.unwrap(), [0; 0]);
    }

    /// A user was blocked by a connection that was given up, and that came after he was let in again.
    #[tokio::test]
    async fn only_the_connection_that_the_lease_was_written_on_last_keeps_calls() {
        let directory = tempfile::tempdir().unwrap();
        let redis = Redis::start(directory.path());
        let (node, former, link) = (Node::new("a", 1), redis.link().await, redis.link().await);
        let keep = async |by: &RedisLink, method| {
            let mut commands = Commands::default();
            kept::keep(
                &mut commands,
                &node.place,
                by.number,
                "user u",
                (method, br#"{"user":"u"}"#),
            );
            by.send(commands).await
        };
        node.beat(&former).await.unwrap();
        assert!(keep(&former, Method::BlockUser).await.is_ok());
        node.beat(&link).await.unwrap();
        assert!(keep(&link, Method::UnblockUser).await.is_ok());
        let late = keep(&former, Method::BlockUser).await.map(|replies| replies.len());
        assert!(is_fenced(&late), "{late:?}");
        let calls = kept::read(&link, &kept::revocations_key("test")).await.unwrap();
        assert!(matches!(&calls[..], [(Method::UnblockUser, _)]));
    }
}
