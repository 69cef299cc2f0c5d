//! Presence over all nodes.
//!
//! A session that joins writes its entry, one that leaves removes it, and nothing is written in between: an entry counts
//! while its node's lease does. What is answered to a write says whether it has changed anything, so that each coming
//! and going is announced to other nodes once, whoever writes it: the node itself, or the one that sweeps after it.
//!
//! What a connection has sent may be carried out long after it was given up: bytes wait in a network or a proxy. So each
//! store takes what a process writes from its newest connection alone, and nothing that comes after the sweep counts.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use dunlin_hub::{ClientInfo, MemberEvent, PresenceStats, SessionId};

use super::message::{MemberChange, StoredMember};
use crate::api::{ApiError, ApiErrorCode};

/// Members as they are stored, by channel and session.
pub(super) type MembersByChannel = BTreeMap<(Arc<str>, u64), StoredMember>;

/// What an entry takes in an answer beside its texts.
const ENTRY_BYTES: usize = 128;

/// A change, and whether it is the first that came, or the last that went, of the channel's members in this process.
pub(super) type TrackedChange = (MemberChange, bool);

/// A change of the process `uid` that a worker has reported.
pub(super) fn change(uid: &Arc<str>, event: &MemberEvent) -> TrackedChange {
    let change = MemberChange {
        channel: Arc::clone(&event.channel),
        client: event.info.client.to_u64(),
        joined: event.joined,
        member: StoredMember {
            presence: event.presence,
            join_leave: event.join_leave,
            ..StoredMember::new(uid, &event.info)
        },
    };
    (change, event.at_edge)
}

/// All of these have gone.
pub(super) fn all_gone(listed: MembersByChannel) -> Vec<TrackedChange> {
    let gone = |((channel, client), member)| {
        (MemberChange { channel, client, joined: false, member }, false)
    };
    listed.into_iter().map(gone).collect()
}

/// The reconciliation of the members that this node has with those that the store has of it.
#[derive(Default)]
pub(super) struct Reconciliation {
    /// Stored, and not listed by any worker so far.
    pub(super) stale: MembersByChannel,
    /// Workers that have not listed their members.
    pub(super) waiting: HashSet<usize>,
}

impl Reconciliation {
    /// A worker has listed its members. Gives what is to be removed, once all have.
    pub(super) fn handle_list(
        &mut self,
        worker: usize,
        listed: &[TrackedChange],
    ) -> Option<Vec<TrackedChange>> {
        for (change, _) in listed {
            self.stale.remove(&(Arc::clone(&change.channel), change.client));
        }
        if !self.waiting.remove(&worker) || !self.waiting.is_empty() {
            return None;
        }
        Some(all_gone(std::mem::take(&mut self.stale)))
    }
}

/// The members of a channel, as far as requested.
#[derive(Default)]
pub(super) struct Gathered {
    /// Processes whose members count.
    living: HashSet<Arc<str>>,
    /// The list is wanted while it has no more bytes.
    bytes_max: Option<usize>,
    /// How many there are is wanted, however many.
    is_counted: bool,
    list: Vec<Arc<ClientInfo>>,
    bytes: usize,
    clients: u64,
    users: HashSet<Box<str>>,
}

impl Gathered {
    pub(super) fn new(
        living: HashSet<Arc<str>>,
        bytes_max: Option<usize>,
        is_counted: bool,
    ) -> Gathered {
        Gathered { living, bytes_max, is_counted, ..Gathered::default() }
    }

    /// A member is stored.
    pub(super) fn add(&mut self, client: u64, member: &StoredMember) {
        if member.presence
            && self.living.contains(&member.node)
            && let Some(id) = SessionId::from_u64(client)
        {
            self.take(member.info(id));
        }
    }

    /// A client is there.
    pub(super) fn take(&mut self, info: ClientInfo) {
        self.clients += 1;
        if self.is_counted && !self.users.contains(info.user.as_str()) {
            self.users.insert(info.user.as_str().into());
        }
        let json = |json: &Option<Box<[u8]>>| json.as_ref().map_or(0, |json| json.len());
        self.bytes += ENTRY_BYTES + info.user.len() + json(&info.conn_info) + json(&info.chan_info);
        if self.is_listed() {
            self.list.push(Arc::new(info));
        } else {
            self.list = Vec::new();
        }
    }

    fn is_listed(&self) -> bool {
        self.bytes_max.is_some_and(|max| self.bytes <= max)
    }

    pub(super) fn wants_more(&self) -> bool {
        self.is_counted || self.is_listed()
    }

    /// The list for one who wanted it with at most so many bytes.
    ///
    /// # Errors
    /// It has more.
    pub(super) fn list(&self, bytes_max: usize) -> Result<Vec<Arc<ClientInfo>>, ApiError> {
        match self.is_listed() && self.bytes <= bytes_max {
            true => Ok(self.list.clone()),
            false => Err(ApiErrorCode::LimitExceeded.into()),
        }
    }

    /// How many sessions and users are present.
    pub(super) fn stats(&self) -> PresenceStats {
        PresenceStats { clients: self.clients, users: self.users.len() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gathered_is_what_somebody_wants_to_know() {
        let info = |client: u64, user: &str| ClientInfo {
            foreign_client: None,
            client: SessionId::from_u64(client).expect("an id"),
            user: user.into(),
            conn_info: None,
            chan_info: None,
        };
        let member = |node: &str, client: u64, user: &str| {
            let node = node.into();
            StoredMember { presence: true, ..StoredMember::new(&node, &info(client, user)) }
        };
        let living = || HashSet::from([Arc::from("a"), Arc::from("b")]);
        let two = 2 * (ENTRY_BYTES + 3);
        let mut both = Gathered::new(living(), Some(two), true);
        both.add(1, &member("a", 1, "ann"));
        both.add(2, &member("dead", 2, "dan"));
        both.add(3, &StoredMember { presence: false, ..member("a", 3, "eve") });
        both.add(4, &member("b", 4, "ann"));
        assert_eq!(both.list(two).map(|list| list.len()), Ok(2));
        assert_eq!(both.list(two - 1), Err(ApiErrorCode::LimitExceeded.into()));
        both.add(5, &member("b", 5, "bob"));
        assert_eq!(both.list(two), Err(ApiErrorCode::LimitExceeded.into()));
        let PresenceStats { clients, users } = both.stats();
        assert!((clients, users) == (3, 2) && both.wants_more());

        let mut list = Gathered::new(living(), Some(two - 1), false);
        list.add(1, &member("a", 1, "ann"));
        assert!(list.wants_more());
        list.add(4, &member("b", 4, "ann"));
        assert!(!list.wants_more(), "it is too large for whoever asked");
    }
}
