//! Messages between nodes: JSON with a version.
//!
//! A message goes to all nodes or to one, and is not stored. If it is lost, the caller gets no response from that node; the
//! result of a call therefore names the nodes that did not respond.

use std::borrow::Cow;
use std::sync::Arc;

use dunlin_api::server_api::AboutUser;
use dunlin_hub::{ClientInfo, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::occupancy::OccupancyMessage;

/// The version of all messages. A node answers a call of another version with an error and ignores its other messages.
pub(super) const VERSION: u8 = 1;

/// A message. Its kind follows from the member that is present.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct NodeMessage<'a> {
    pub(super) v: u8,
    /// The sender's uid.
    #[serde(borrow)]
    pub(super) from: Cow<'a, str>,
    /// The id of a call; its response repeats it.
    #[serde(default)]
    pub(super) id: u64,
    /// A method of the server API to be executed with `request` and answered.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) call: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<&'a RawValue>,
    /// The user to whose sessions the call is limited.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) about: Option<AboutUser<'a>>,
    /// The response to a call, as in the server API.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) response: Option<&'a RawValue>,
    /// Joins and leaves of channels whose subscribers are notified of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) members: Vec<MemberChange>,
    /// The store has all members of the sender.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) members_stored: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) occupancy: Option<OccupancyMessage>,
    /// Tokens that let nobody in for so many milliseconds: their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) bars: Vec<(u64, u64)>,
    /// The sender's usage of shared budgets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) budgets: Option<BudgetsUsed>,
}

/// A node's usage of budgets since its last announcement.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BudgetsUsed {
    /// Identifies the key with which names are hashed.
    pub(super) check: u64,
    /// Hashes of names, and nanoseconds used.
    pub(super) used: Vec<(u64, u64)>,
}

impl<'a> NodeMessage<'a> {
    pub(super) fn from(uid: &'a str) -> NodeMessage<'a> {
        NodeMessage { v: VERSION, from: uid.into(), ..NodeMessage::default() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// A join or leave of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MemberChange {
    pub(super) channel: Arc<str>,
    pub(super) client: u64,
    pub(super) joined: bool,
    pub(super) member: StoredMember,
}

/// The stored form of a channel's member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredMember {
    pub(super) v: u8,
    /// The uid of the node with the session; the entry is valid while that node's lease is.
    pub(super) node: Arc<str>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub(super) user: Box<str>,
    /// See [`ClientInfo::user_is_number`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) user_is_number: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) conn_info: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chan_info: Option<Box<RawValue>>,
    /// The member is in the presence list.
    pub(super) presence: bool,
    /// Joins and leaves of the member are announced to subscribers.
    pub(super) join_leave: bool,
}

impl StoredMember {
    /// Creates a member that is not listed and not announced.
    pub(super) fn new(node: &Arc<str>, info: &ClientInfo) -> StoredMember {
        // Only valid JSON can be embedded.
        let raw = |json: &Option<Box<[u8]>>| {
            json.as_deref().and_then(|json| serde_json::from_slice::<Box<RawValue>>(json).ok())
        };
        StoredMember {
            v: VERSION,
            node: Arc::clone(node),
            user: info.user.as_str().into(),
            user_is_number: info.user_is_number,
            conn_info: raw(&info.conn_info),
            chan_info: raw(&info.chan_info),
            presence: false,
            join_leave: false,
        }
    }

    /// The member as clients see it.
    pub(super) fn info(&self, client: SessionId) -> ClientInfo {
        let bytes =
            |raw: &Option<Box<RawValue>>| raw.as_ref().map(|raw| raw.get().as_bytes().into());
        ClientInfo {
            user_is_number: self.user_is_number,
            foreign_client: None,
            client,
            user: (*self.user).into(),
            conn_info: bytes(&self.conn_info),
            chan_info: bytes(&self.chan_info),
        }
    }
}

/// Unix time in milliseconds, for stored records.
pub(super) fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
