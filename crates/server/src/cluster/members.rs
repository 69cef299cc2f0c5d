//! Presence over all nodes, in Redis.
//!
//! A session that joins writes its entry, one that leaves removes it, and nothing is written in between: an entry counts
//! while its node's lease does. What Redis answers to a write says whether it has changed anything, so that each coming
//! and going is announced to other nodes once, whoever writes it: the node itself, or the one that sweeps after it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use dunlin_hub::{ClientInfo, MemberEvent, SessionId};

use super::link::{Commands, Link, LinkError, Reply};
use super::message::{Member, MemberChange};
use crate::api::{ApiError, ApiErrorCode};

/// Members as they stand in Redis, by channel and session.
pub(super) type Listed = BTreeMap<(Arc<str>, u64), Member>;

/// Channels that are looked at together.
const CHANNELS_A_STEP: usize = 128;
/// What an entry takes in an answer beside its texts.
const ENTRY_BYTES: usize = 128;

/// Where a cluster's members are in Redis.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) prefix: Arc<str>,
    /// This node's.
    pub(super) uid: Arc<str>,
}

impl Place {
    fn members(&self, channel: &str) -> Vec<u8> {
        format!("{}:members:{channel}", self.prefix).into_bytes()
    }

    fn channels(&self, uid: &str) -> Vec<u8> {
        format!("{}:channels:{uid}", self.prefix).into_bytes()
    }

    /// Writes what has changed on this node. The future gives what is to be announced to others.
    pub(super) fn write(
        &self,
        link: &Link,
        changes: Vec<MemberChange>,
        edges: &HashSet<Arc<str>>,
    ) -> impl Future<Output = Result<Vec<MemberChange>, LinkError>> + Send + use<> {
        let mut commands = Commands::default();
        let index = self.channels(&self.uid);
        for change in &changes {
            let (key, client) = (self.members(&change.channel), change.client.to_string());
            if change.joined {
                let entry = serde_json::to_vec(&change.member).unwrap_or_default();
                commands.push(&[b"HSET", &key, client.as_bytes(), &entry]);
            } else {
                commands.push(&[b"HDEL", &key, client.as_bytes()]);
            }
        }
        // The last change of a channel says whether this node has members of it.
        let mut has: BTreeMap<&Arc<str>, bool> = BTreeMap::new();
        for change in changes.iter().filter(|change| edges.contains(&change.channel)) {
            has.insert(&change.channel, change.joined);
        }
        for (channel, has) in has {
            let command: &[u8] = if has { b"SADD" } else { b"SREM" };
            commands.push(&[command, &index, channel.as_bytes()]);
        }
        let written = link.begin(commands);
        async move {
            let replies = written.await?;
            let has_changed = |reply: &Reply| reply.integer() == Some(1);
            Ok(changes
                .into_iter()
                .zip(&replies)
                .filter(|(change, reply)| change.member.join_leave && has_changed(reply))
                .map(|(change, _)| change)
                .collect())
        }
    }

    /// The members of a process, as Redis has them.
    pub(super) async fn of_process(&self, link: &Link, uid: &str) -> Result<Listed, LinkError> {
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
        link: &Link,
        channel: &str,
        living: HashSet<Arc<str>>,
    ) -> impl Future<Output = Result<Vec<ClientInfo>, LinkError>> + Send + use<> {
        let mut commands = Commands::default();
        commands.push(&[b"HGETALL", &self.members(channel)]);
        let read = link.begin(commands);
        async move {
            let replies = read.await?;
            let present = replies.iter().flat_map(entries).filter_map(|(client, member)| {
                let counts = member.presence && living.contains(&member.node);
                counts.then(|| SessionId::from_u64(client).map(|id| member.info(id))).flatten()
            });
            Ok(present.collect())
        }
    }

    /// Removes what a dead process has left, if no other node does. Gives the members that were there.
    pub(super) async fn sweep(
        &self,
        link: &Link,
        dead: &str,
        claim_ms: u64,
    ) -> Result<Vec<MemberChange>, LinkError> {
        let (claim, claim_ms) = (format!("{}:sweep:{dead}", self.prefix), claim_ms.to_string());
        let set: [&[u8]; 6] =
            [b"SET", claim.as_bytes(), self.uid.as_bytes(), b"NX", b"PX", claim_ms.as_bytes()];
        let replies = link.call(&[&set]).await?;
        if replies.first() == Some(&Reply::Null) {
            return Ok(Vec::new());
        }
        let listed = self.of_process(link, dead).await?;
        let mut gone = Vec::new();
        let all: Vec<_> = listed.into_iter().collect();
        for step in all.chunks(CHANNELS_A_STEP) {
            let mut commands = Commands::default();
            for ((channel, client), _) in step {
                let client = client.to_string();
                commands.push(&[b"HDEL", &self.members(channel), client.as_bytes()]);
            }
            let replies = link.send(commands).await?;
            for (((channel, client), member), reply) in step.iter().zip(&replies) {
                if reply.integer() == Some(1) {
                    let (channel, member) = (Arc::clone(channel), member.clone());
                    gone.push(MemberChange { channel, client: *client, joined: false, member });
                }
            }
        }
        let uids = format!("{}:uids", self.prefix);
        link.call(&[
            &[b"DEL", &self.channels(dead)],
            &[b"SREM", uids.as_bytes(), dead.as_bytes()],
            &[b"DEL", claim.as_bytes()],
        ])
        .await?;
        Ok(gone)
    }

    /// A change that a worker has reported.
    pub(super) fn change(&self, event: &MemberEvent) -> MemberChange {
        MemberChange {
            channel: Arc::clone(&event.channel),
            client: event.info.client.to_u64(),
            joined: event.joined,
            member: Member::new(&self.uid, &event.info, event.presence, event.join_leave),
        }
    }
}

/// The entries of a hash of members. What is none is somebody else's.
fn entries(reply: &Reply) -> impl Iterator<Item = (u64, Member)> {
    reply.list().chunks(2).filter_map(|entry| {
        let [client, member] = entry else { return None };
        let member = serde_json::from_slice(member.bytes()?).ok()?;
        Some((client.text()?.parse().ok()?, member))
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
        listed: &[MemberChange],
    ) -> Option<Vec<MemberChange>> {
        for change in listed {
            self.stale.remove(&(Arc::clone(&change.channel), change.client));
        }
        if !self.waiting.remove(&worker) || !self.waiting.is_empty() {
            return None;
        }
        let stale = std::mem::take(&mut self.stale).into_iter();
        let leave =
            |((channel, client), member)| MemberChange { channel, client, joined: false, member };
        Some(stale.map(leave).collect())
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
