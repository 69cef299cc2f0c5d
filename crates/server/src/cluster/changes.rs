//! Changes of settings that all nodes run: their log in Redis, the right to append to it, and reading it.
//!
//! The log is a hash: a change by its number, sealed ([`Seal`]), beside the number of the newest, the number up to which
//! they are not kept any more, and a random number that names the log. A node that makes a change holds the claim from before
//! its own try until the change is in the log, so that of two that would change at once one is refused and has changed nothing.
//! Every write of a lease reads where the log is: a node that was away, or has missed the call, reads what is new.
//!
//! A log that Redis has lost goes on under its name from the newest number that any node knows.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dunlin_config::Secret;
use dunlin_config::store::ClusterPosition;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::agent::{Agent, TaskResult};
use super::link::{LinkError, RedisLink, Reply, Script};
use super::log_position::{LogPosition, log_key};
use super::message::{NodeMessage, VERSION};
use crate::bus_message::BusMessage;
use crate::cluster_message::{ChangeAsk, ChangeNews, ChangeOffer, ChangeRefusal, SharedChange};

/// The name of the call between nodes: there is a new change in the log.
pub(super) const CALL: &str = "settings";

/// What the log keeps. A node that was away for more of them has missed some, and says so.
const CHANGES_MAX: u64 = 1_000;
const BYTES_MAX: usize = 8 << 20;

/// KEYS: log, claim. ARGV: uid, milliseconds, id of the log and newest change in it that the node has read.
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

/// KEYS: log, claim. ARGV: uid, id of the log, number, change, changes and bytes that are kept, channel, message. Where the log does
/// not reach up to the number before, what is in it is no whole any more.
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

/// KEYS: log. ARGV: id of the log and newest change of it that are known.
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
static READ_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(READ));

fn claim_key(prefix: &str) -> String {
    format!("{prefix}:settings:claim")
}

/// A change in the log, before it is sealed.
#[derive(Serialize, Deserialize)]
struct Entry {
    v: u8,
    #[serde(flatten)]
    change: SharedChange,
}

/// What this node knows of the log, on this connection.
#[derive(Default)]
pub(super) struct Changes {
    /// What was read last.
    read: Option<LogPosition>,
    /// The change that this node may make.
    claimed: Option<LogPosition>,
}

/// How something ended that ran beside the agent.
pub(super) enum ChangesDone {
    Claimed(Result<Reply, LinkError>),
    /// For the call of this id: the change is appended, or is not.
    Appended(u64, LogPosition, Result<bool, LinkError>),
    /// For whom, and whether it is the first time on this connection.
    Read(Option<(Arc<str>, u64)>, bool, Result<Reply, LinkError>),
}

impl Agent {
    /// What the admin thread wants for a change of all nodes.
    pub(super) fn handle_change_ask(&mut self, ask: ChangeAsk) {
        match ask {
            ChangeAsk::Claim { hold_ms } => self.claim(hold_ms),
            ChangeAsk::Release => {
                self.changes.claimed = None;
                let Some(link) = self.link.clone() else { return };
                let (key, uid) = (claim_key(&self.prefix), Arc::clone(&self.lease.uid));
                self.jobs.spawn(async move {
                    let released =
                        link.script(&RELEASE_SCRIPT, &[key.as_bytes()], &[uid.as_bytes()]).await;
                    released.map_or_else(TaskResult::Failed, |_| TaskResult::Nothing)
                });
            }
            ChangeAsk::Append(change) => {
                if let Err(why) = self.append(&change) {
                    self.tell_admin(ChangeNews::Unkept(why.to_owned()));
                }
            }
        }
    }

    fn tell_admin(&self, news: ChangeNews) {
        let news = BusMessage::ChangeNews(Box::new(news));
        let _ = self.to_workers.send((self.state.admin_endpoint(), news));
    }

    fn claim(&mut self, hold_ms: u64) {
        let (Some(link), true) = (self.link.clone(), self.has_joined) else {
            let why = "Redis does not answer, or this node has not joined yet".to_owned();
            return self.tell_admin(ChangeNews::Refused(ChangeRefusal::Unreachable(why)));
        };
        let keys = [log_key(&self.prefix), claim_key(&self.prefix)];
        let read = self.changes.read.unwrap_or_default();
        let arguments = [
            self.lease.uid.to_string(),
            hold_ms.to_string(),
            read.id.to_string(),
            read.revision.to_string(),
        ];
        self.jobs.spawn(async move {
            let claimed = script(&link, &CLAIM_SCRIPT, &keys, &arguments).await;
            TaskResult::Changes(ChangesDone::Claimed(claimed))
        });
    }

    /// The log and number that the next change has: as the log says, or, where Redis has lost it, as the nodes know.
    fn next_position(&self, log: LogPosition) -> LogPosition {
        let (own, _) = self.state.cluster.settings();
        let known = self.nodes.values().filter(|node| node.is_alive());
        let known = known.map(|node| (node.facts.settings_log, node.facts.settings_revision));
        let known: Vec<(u64, u64)> = known.chain([(own.log, own.revision)]).collect();
        let id = match log.id {
            0 => known.iter().max_by_key(|(_, revision)| *revision).map_or(0, |(id, _)| *id),
            id => id,
        };
        let of_log = known.iter().filter(|(of, _)| *of == id).map(|(_, revision)| *revision);
        let revision = of_log.fold(log.revision, u64::max) + 1;
        let mut bytes = [0; 8];
        // A log is never 0. Without randomness two clusters may have one name for theirs.
        let _ = getrandom::fill(&mut bytes);
        LogPosition { id: if id == 0 { u64::from_ne_bytes(bytes) | 1 } else { id }, revision }
    }

    fn append(&mut self, change: &SharedChange) -> Result<(), &'static str> {
        let claimed = self.changes.claimed.take();
        let (Some(link), Some(at)) = (self.link.clone(), claimed) else {
            return Err("the connection to Redis was lost before the change was kept");
        };
        let seal = self.seal().ok_or("`cluster.secret` was taken away meanwhile")?;
        let sealed = seal.close(at, change).ok_or("the change cannot be sealed")?;
        let settings = self.state.settings.load();
        let commit_ms = settings.config.config.commit_timeout_ms;
        let id = self.await_change(self.call_timeout + Duration::from_millis(commit_ms));
        let message =
            NodeMessage { id, call: Some(CALL.into()), ..NodeMessage::from(&self.lease.uid) }
                .encode();
        let (uid, prefix) = (Arc::clone(&self.lease.uid), Arc::clone(&self.prefix));
        self.jobs.spawn(async move {
            let (log, claim) = (log_key(&prefix), claim_key(&prefix));
            let arguments = [
                uid.as_bytes(),
                at.id.to_string().as_bytes(),
                at.revision.to_string().as_bytes(),
                &sealed,
                CHANGES_MAX.to_string().as_bytes(),
                BYTES_MAX.to_string().as_bytes(),
                format!("{prefix}:calls").as_bytes(),
                &message,
            ]
            .map(<[u8]>::to_vec);
            let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            let keys = [log.as_bytes(), claim.as_bytes()];
            let appended = link.script(&APPEND_SCRIPT, &keys, &arguments).await;
            let appended = appended.map(|reply| reply.integer() == Some(1));
            TaskResult::Changes(ChangesDone::Appended(id, at, appended))
        });
        Ok(())
    }

    /// By a write of the lease: the log is there.
    pub(super) fn follow_changes(&mut self, log: LogPosition) {
        self.state.cluster.set_log_revision(log.revision);
        if log.id != 0 && self.changes.read != Some(log) {
            self.read_changes(None);
        }
    }

    /// Reads what is new in the log, and has the admin thread run it. `for_whom` gets what became of the newest.
    pub(super) fn read_changes(&mut self, for_whom: Option<(Arc<str>, u64)>) {
        let Some(link) = self.link.clone() else { return };
        let (ClusterPosition { log, revision, .. }, _) = self.state.cluster.settings();
        let again = self.changes.read.is_none();
        let known = self.changes.read.unwrap_or(LogPosition { id: log, revision });
        let keys = [log_key(&self.prefix)];
        let arguments = [known.id.to_string(), known.revision.to_string()];
        self.jobs.spawn(async move {
            let read = script(&link, &READ_SCRIPT, &keys, &arguments).await;
            TaskResult::Changes(ChangesDone::Read(for_whom, again, read))
        });
    }

    pub(super) fn handle_changes_done(&mut self, done: ChangesDone) {
        match done {
            ChangesDone::Claimed(Ok(reply)) => self.handle_claimed(&reply),
            ChangesDone::Claimed(Err(error)) => {
                let why = format!("Redis: {error}");
                self.tell_admin(ChangeNews::Refused(ChangeRefusal::Unreachable(why)));
                self.handle_failure(&error);
            }
            ChangesDone::Appended(id, at, Ok(true)) => {
                self.changes.read = Some(at);
                self.state.cluster.set_log_revision(at.revision);
                self.tell_admin(ChangeNews::Kept { log: at.id, revision: at.revision });
                self.handle_announced(id, true);
            }
            ChangesDone::Appended(id, _, appended) => {
                self.handle_announced(id, false);
                let why = match &appended {
                    Err(error) => {
                        format!("Redis did not confirm that it keeps the change: {error}")
                    }
                    Ok(_) => "it took so long that another node may have made one".to_owned(),
                };
                self.tell_admin(ChangeNews::Unkept(why));
                if let Err(error) = appended {
                    self.handle_failure(&error);
                }
            }
            ChangesDone::Read(for_whom, again, Ok(reply)) => {
                self.offer_changes(for_whom, again, &reply);
            }
            // Who asked names this node as one that has not answered.
            ChangesDone::Read(_, _, Err(error)) => self.handle_failure(&error),
        }
    }

    fn handle_claimed(&mut self, reply: &Reply) {
        let (decision, log) = match reply.list() {
            [decision, id, revision] => {
                let log = LogPosition::read(&Reply::List(vec![id.clone(), revision.clone()]));
                (decision.text().unwrap_or_default(), log.unwrap_or_default())
            }
            _ => ("", LogPosition::default()),
        };
        let news = match decision {
            "claimed" => {
                self.changes.claimed = Some(self.next_position(log));
                ChangeNews::Claimed
            }
            "under_way" => ChangeNews::Refused(ChangeRefusal::UnderWay(log.revision)),
            "behind" => {
                self.read_changes(None);
                ChangeNews::Refused(ChangeRefusal::Behind(log.revision))
            }
            _ => {
                let why = "what Redis answers is another program's".to_owned();
                ChangeNews::Refused(ChangeRefusal::Unreachable(why))
            }
        };
        self.tell_admin(news);
    }

    fn offer_changes(&mut self, for_whom: Option<(Arc<str>, u64)>, again: bool, reply: &Reply) {
        let Some(log) = LogPosition::read(reply).filter(|log| log.id != 0) else { return };
        let [_, _, since, changes] = reply.list() else { return };
        let seal = self.seal();
        let read = |change: &Reply| {
            let [number, sealed] = change.list() else { return None };
            let number = u64::try_from(number.integer()?).ok()?;
            let at = LogPosition { revision: number, ..log };
            Some((number, seal.as_ref().and_then(|seal| seal.open(at, sealed.bytes()?))))
        };
        let changes: VecDeque<_> = changes.list().iter().filter_map(read).collect();
        self.changes.read = Some(log);
        self.state.cluster.set_log_revision(log.revision);
        self.served += 1;
        let request_id = self.served;
        if let Some((uid, id)) = for_whom {
            self.serving.insert(request_id, (uid, id, Instant::now()));
        }
        let since = since.text().and_then(|since| since.parse().ok()).unwrap_or(0);
        let offer = ChangeOffer { request_id, log: log.id, changes, since, again };
        self.tell_admin(ChangeNews::Offer(offer));
    }

    fn seal(&self) -> Option<Seal> {
        self.state.settings.load().config.cluster.secret.as_ref().and_then(Seal::new)
    }
}

async fn script<const K: usize, const A: usize>(
    link: &RedisLink,
    script: &Script,
    keys: &[String; K],
    arguments: &[String; A],
) -> Result<Reply, LinkError> {
    let keys: [&[u8]; K] = keys.each_ref().map(|key| key.as_bytes());
    let arguments: [&[u8]; A] = arguments.each_ref().map(|argument| argument.as_bytes());
    link.script(script, &keys, &arguments).await
}

/// Closes and opens changes by `cluster.secret` (AES-256-GCM, RFC 5116): who may read or write Redis learns no secret of the
/// settings and makes no change.
struct Seal(LessSafeKey);

impl Seal {
    fn new(secret: &Secret) -> Option<Seal> {
        let key = Salt::new(HKDF_SHA256, b"dunlin cluster").extract(secret.reveal().as_bytes());
        let key = key.expand(&[b"settings"], &AES_256_GCM).ok()?;
        Some(Seal(LessSafeKey::new(UnboundKey::from(key))))
    }

    /// A change is closed for its number: it cannot be put in the place of another.
    fn aad(at: LogPosition) -> Aad<[u8; 16]> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&at.id.to_be_bytes());
        bytes[8..].copy_from_slice(&at.revision.to_be_bytes());
        Aad::from(bytes)
    }

    fn close(&self, at: LogPosition, change: &SharedChange) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).ok()?;
        let entry = Entry { v: VERSION, change: change.clone() };
        let mut text = serde_json::to_vec(&entry).ok()?;
        let sealing = Nonce::assume_unique_for_key(nonce);
        self.0.seal_in_place_append_tag(sealing, Self::aad(at), &mut text).ok()?;
        text.splice(..0, nonce);
        Some(text)
    }

    fn open(&self, at: LogPosition, sealed: &[u8]) -> Option<SharedChange> {
        let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut text = text.to_vec();
        let opened =
            self.0.open_in_place(Nonce::assume_unique_for_key(*nonce), Self::aad(at), &mut text);
        let entry: Entry = serde_json::from_slice(opened.ok()?).ok()?;
        (entry.v == VERSION).then_some(entry.change)
    }
}

#[cfg(test)]
mod tests {
    use dunlin_config::store::Origin;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_opened_in_its_place_by_who_has_the_secret_and_by_nobody_else() {
        let seal = |secret: &str| Seal::new(&Secret::new(secret)).unwrap();
        let at = LogPosition { id: 7, revision: 3 };
        let change = SharedChange {
            id: 9,
            change: json!({ "merge": { "a": 1 } }),
            origin: Origin::default(),
        };
        let closed = seal("a secret").close(at, &change).unwrap();
        assert!(!closed.windows(5).any(|part| part == b"merge"));
        let opened = seal("a secret").open(at, &closed).unwrap();
        assert_eq!((opened.id, opened.change), (change.id, change.change));
        assert!(seal("another").open(at, &closed).is_none());
        assert!(seal("a secret").open(LogPosition { revision: 4, ..at }, &closed).is_none());
        let mut forged = closed;
        forged[20] ^= 1;
        assert!(seal("a secret").open(at, &forged).is_none());
        assert!(seal("a secret").open(at, b"short").is_none());
    }
}
