//! Presence over all nodes.
//!
//! A join writes an entry and a leave removes it; nothing is written in between. An entry is valid while the lease of its node
//! is. The response to a write says whether it changed the store, so each join and leave is announced exactly once, either by the
//! node itself or by the node that sweeps a dead one.
//!
//! The store may execute a write long after its connection was given up, because bytes can wait in a network or a proxy.
//! Therefore a store accepts writes of a process only from its newest connection, and none after the process was swept.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use dunlin_api::server_api::{ApiError, ApiErrorCode};
use dunlin_hub::{ClientInfo, MemberEvent, PresenceStats, SessionId};

use super::node_message::{MemberChange, StoredMember};

/// Members as they are stored, by channel and session.
pub(super) type MembersByChannel = BTreeMap<(Arc<str>, u64), StoredMember>;

/// Bytes that an entry takes in a response in addition to its strings.
const ENTRY_BYTES: usize = 128;

/// A change, and whether it is the first join or the last leave of the channel in this process.
pub(super) type TrackedChange = (MemberChange, bool);

/// The change for a member event of a worker of the process `uid`.
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

/// A leave for each of these members.
pub(super) fn all_gone(listed: MembersByChannel) -> Vec<TrackedChange> {
    let gone = |((channel, client), member)| {
        (MemberChange { channel, client, joined: false, member }, false)
    };
    listed.into_iter().map(gone).collect()
}

/// A reconciliation of this node's members with those that the store has for it.
#[derive(Default)]
pub(super) struct Reconciliation {
    /// Stored members that no worker has listed so far.
    pub(super) stale: MembersByChannel,
    /// Workers that have not listed their members yet.
    pub(super) waiting: HashSet<usize>,
}

impl Reconciliation {
    /// Takes the members that a worker has. Returns the stale ones, to be removed, once all workers have listed theirs.
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

/// The members of a channel, up to the requested bounds.
#[derive(Default)]
pub(super) struct Gathered {
    /// Processes that are alive; only their members count.
    living: HashSet<Arc<str>>,
    /// The largest size of the list that a request accepts; `None`: no list is requested.
    bytes_max: Option<usize>,
    /// The total number is requested.
    is_counted: bool,
    /// The process whose members some requests leave out.
    own: Option<Arc<str>>,
    /// The members, and whether each is of that process.
    list: Vec<(Arc<ClientInfo>, bool)>,
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

    /// Names the process whose members [`Gathered::others`] leaves out.
    pub(super) fn apart_from(self, uid: &Arc<str>) -> Gathered {
        Gathered { own: Some(Arc::clone(uid)), ..self }
    }

    /// Adds a stored member.
    pub(super) fn add(&mut self, client: u64, member: &StoredMember) {
        if member.presence
            && self.living.contains(&member.node)
            && let Some(id) = SessionId::from_u64(client)
        {
            let is_own = self.own.as_ref() == Some(&member.node);
            self.insert(member.info(id), is_own);
        }
    }

    /// Adds a client of another server.
    pub(super) fn take(&mut self, info: ClientInfo) {
        self.insert(info, false);
    }

    fn insert(&mut self, info: ClientInfo, is_own: bool) {
        self.clients += 1;
        if self.is_counted && !self.users.contains(info.user.as_str()) {
            self.users.insert(info.user.as_str().into());
        }
        let json = |json: &Option<Box<[u8]>>| json.as_ref().map_or(0, |json| json.len());
        self.bytes += ENTRY_BYTES + info.user.len() + json(&info.conn_info) + json(&info.chan_info);
        if self.is_listed() {
            self.list.push((Arc::new(info), is_own));
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

    /// The list for a request that accepts at most `bytes_max`.
    ///
    /// # Errors
    /// When the list is larger.
    pub(super) fn list(&self, bytes_max: usize) -> Result<Vec<Arc<ClientInfo>>, ApiError> {
        match self.is_listed() && self.bytes <= bytes_max {
            true => Ok(self.list.iter().map(|(info, _)| Arc::clone(info)).collect()),
            false => Err(ApiErrorCode::LimitExceeded.into()),
        }
    }

    /// The list without the members of one process; `None` if that of all is larger than `bytes_max`.
    pub(super) fn others(&self, bytes_max: usize) -> Option<Vec<Arc<ClientInfo>>> {
        let others = || self.list.iter().filter(|(_, is_own)| !is_own);
        (self.is_listed() && self.bytes <= bytes_max)
            .then(|| others().map(|(info, _)| Arc::clone(info)).collect())
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
    fn members_are_gathered_only_as_far_as_requests_want() {
        let info = |client: u64, user: &str| ClientInfo {
            user_is_number: false,
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

        let mut others = Gathered::new(living(), Some(two), false).apart_from(&"a".into());
        others.add(1, &member("a", 1, "ann"));
        others.add(4, &member("b", 4, "bob"));
        let listed = others.others(two).unwrap();
        assert_eq!((listed.len(), &*listed[0].user), (1, "bob"));
        assert_eq!(others.others(two - 1), None);

        let mut list = Gathered::new(living(), Some(two - 1), false);
        list.add(1, &member("a", 1, "ann"));
        assert!(list.wants_more());
        list.add(4, &member("b", 4, "ann"));
        assert!(!list.wants_more(), "it is too large for whoever asked");
    }
}
