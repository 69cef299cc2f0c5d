//! Presence over all nodes.
//!
//! A session that joins writes its entry, one that leaves removes it, and nothing is written in between: an entry counts
//! while its node's lease does. What is answered to a write says whether it has changed anything, so that each coming
//! and going is announced to other nodes once, whoever writes it: the node itself, or the one that sweeps after it.
//!
//! What a connection has sent may be carried out long after it was given up: bytes wait in a network or a proxy. So each
//! store takes what a process writes from its newest connection alone, and nothing that comes after the sweep counts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use dunlin_hub::{ClientInfo, MemberEvent};

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
