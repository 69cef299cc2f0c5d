//! What nodes say to each other: JSON, versioned.
//!
//! A message is for all nodes or for one. None is kept: one that is missed costs the
//! caller its answer, so a call ends with the names of those that did not answer, never in silence.

use std::borrow::Cow;
use std::sync::Arc;

use dunlin_hub::{ClientInfo, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::message::cluster::AboutUser;

/// The version of all messages. A node answers a call of another version with an error, and ignores all else of it.
pub(super) const VERSION: u8 = 1;

/// A message. What it is follows from the member that it has.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct NodeMessage<'a> {
    pub(super) v: u8,
    /// The sender's uid.
    #[serde(borrow)]
    pub(super) from: Cow<'a, str>,
    /// Of a call; its answer repeats it.
    #[serde(default)]
    pub(super) id: u64,
    /// A method of the server API that is to be carried out on `request`, and answered.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) call: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<&'a RawValue>,
    /// The user whose sessions alone the call is about.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) about: Option<AboutUser<'a>>,
    /// The answer to a call, as a caller of the server API would get it.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) response: Option<&'a RawValue>,
    /// Sessions that have joined or left channels whose subscribers are notified of that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) members: Vec<MemberChange>,
    /// What the sender has used of the budgets that all nodes share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) budgets: Option<BudgetsUsed>,
}

/// What a node has used of budgets since it said so last.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BudgetsUsed {
    /// By which key it hashes names.
    pub(super) check: u64,
    /// Hashes and nanoseconds.
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

/// A session has joined a channel, or left it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MemberChange {
    pub(super) channel: Arc<str>,
    pub(super) client: u64,
    pub(super) joined: bool,
    pub(super) member: StoredMember,
}

/// A member of a channel, as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredMember {
    pub(super) v: u8,
    /// The uid of the node that has the session: the entry counts while that node's lease does.
    pub(super) node: Arc<str>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub(super) user: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) conn_info: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chan_info: Option<Box<RawValue>>,
    /// It is in the presence list.
    pub(super) presence: bool,
    /// Subscribers are notified of its coming and going.
    pub(super) join_leave: bool,
}

impl StoredMember {
    /// A member that is not listed, and whose joins and leaves are not announced.
    pub(super) fn new(node: &Arc<str>, info: &ClientInfo) -> StoredMember {
        // What is no JSON cannot be passed on as such.
        let raw = |json: &Option<Box<[u8]>>| {
            json.as_deref().and_then(|json| serde_json::from_slice::<Box<RawValue>>(json).ok())
        };
        StoredMember {
            v: VERSION,
            node: Arc::clone(node),
            user: info.user.as_str().into(),
            conn_info: raw(&info.conn_info),
            chan_info: raw(&info.chan_info),
            presence: false,
            join_leave: false,
        }
    }

    /// As clients see it.
    pub(super) fn info(&self, client: SessionId) -> ClientInfo {
        let bytes =
            |raw: &Option<Box<RawValue>>| raw.as_ref().map(|raw| raw.get().as_bytes().into());
        ClientInfo {
            foreign_client: None,
            client,
            user: (*self.user).into(),
            conn_info: bytes(&self.conn_info),
            chan_info: bytes(&self.chan_info),
        }
    }
}

/// Unix time in milliseconds, for what is kept.
pub(super) fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
