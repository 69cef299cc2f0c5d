//! Leases: who is a member of the cluster, and under which number.
//!
//! A node renews its lease three times within its duration; the same operation reads the leases of the others. No node's clock
//! decides which leases have expired. A lease belongs to one run of a process, identified by its uid: a process that returns
//! after its lease has expired detects that, and so do two processes that want the same number. A number whose lease has expired
//! is reserved for a day, so that an old session id cannot refer to a session on another node.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::log_position::LogPosition;

/// The version of [`Facts`]. A reader accepts the versions that it knows and ignores unknown members.
const FACTS_VERSION: u8 = 1;

/// How long calls that change something name a node whose lease has expired and that has not left.
const CUT_OFF_NAMED_MS: i64 = 300_000;

/// What a node publishes with each renewal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) v: u8,
    pub(crate) name: Arc<str>,
    pub(crate) version: Arc<str>,
    pub(crate) client_addr: Arc<str>,
    pub(crate) admin_addr: Arc<str>,
    pub(crate) started_unix_s: u64,
    /// The revision of its settings.
    pub(crate) revision: u64,
    pub(crate) sessions: u64,
    /// The round trip of its last renewal, in microseconds.
    pub(crate) lag_us: u64,
    /// Some bits of a hash of the token keys, which are the same on all nodes of a cluster.
    pub(crate) tokens: u32,
    /// The log of shared settings that it follows, and the newest change of it that it runs.
    #[serde(default)]
    pub(crate) settings_log: u64,
    #[serde(default)]
    pub(crate) settings_revision: u64,
    /// Some bits derived from `cluster.secret`, which seals shared changes of settings; 0: there is no secret, or the node's
    /// version does not publish them.
    #[serde(default)]
    pub(crate) secret: u32,
    /// The duration of its lease. It reveals a lease that was prolonged because the clock was set back.
    #[serde(default)]
    pub(crate) lease_ms: u64,
    /// It has left the cluster and serves no clients.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) left: bool,
    /// The store may lack members of it: they are being compared and written.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) members_pending: bool,
    /// It reports occupancy of channels to their owners, and is one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) shares_occupancy: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl Facts {
    pub(super) const VERSION: u8 = FACTS_VERSION;

    /// Facts of a node of which only the name matters.
    #[cfg(test)]
    pub(super) fn named(name: &str) -> Facts {
        Facts {
            v: Facts::VERSION,
            name: name.into(),
            version: "1".into(),
            client_addr: "10.0.0.7:8000".into(),
            admin_addr: "127.0.0.1:8001".into(),
            started_unix_s: 0,
            revision: 0,
            sessions: 0,
            lag_us: 0,
            tokens: 0,
            settings_log: 0,
            settings_revision: 0,
            secret: 0,
            lease_ms: 9_000,
            left: false,
            members_pending: false,
            shares_occupancy: false,
        }
    }
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) number: u16,
    /// Identifies the run of its process.
    pub(crate) uid: Arc<str>,
    /// Milliseconds until its lease expires; negative: since it has expired.
    pub(crate) left_ms: i64,
    pub(crate) facts: Facts,
}

impl Node {
    pub(crate) fn is_alive(&self) -> bool {
        self.left_ms >= 0
    }

    /// Whether a later process serves or has served under its name: one that is alive, or that was started later and has left.
    pub(super) fn is_succeeded<'a>(&self, mut nodes: impl Iterator<Item = &'a Node>) -> bool {
        nodes.any(|of| {
            let is_later = of.facts.started_unix_s >= self.facts.started_unix_s;
            let is_later = of.is_alive() || of.facts.left && is_later;
            is_later && (of.uid == self.uid || of.facts.name == self.facts.name)
        })
    }

    /// Whether its lease has expired recently and it has not left: a partitioned node may still serve its clients.
    pub(super) fn may_be_cut_off(&self) -> bool {
        (-CUT_OFF_NAMED_MS..0).contains(&self.left_ms) && !self.facts.left && *self.uid != *"-"
    }
}

/// The outcome of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseWrite {
    /// The lease existed and had not expired.
    Renewed,
    /// There was no lease of this node.
    Created,
    /// The lease had expired, or is being swept: other nodes have taken this one for dead.
    Revived,
    /// Another node has the number.
    Taken,
}

/// The response to a renewal.
#[derive(Debug)]
pub(super) struct LeaseReply {
    pub(super) written: LeaseWrite,
    /// All nodes with a lease, by number, including this one.
    pub(super) nodes: BTreeMap<u16, Node>,
    /// Processes that are not alive and have left records behind.
    pub(super) dead: Vec<Arc<str>>,
    /// The position of the log of shared settings.
    pub(super) log: LogPosition,
}

/// The lease of this node.
#[derive(Clone)]
pub(super) struct Lease {
    pub(super) uid: Arc<str>,
    pub(super) number: u16,
    /// The duration of the lease, in milliseconds.
    pub(super) lease_ms: u64,
    /// `server.node` requests this number: it may be taken from a former holder whose lease has expired.
    pub(super) is_wanted: bool,
}

impl Lease {
    /// This node after a renewal.
    pub(super) fn node(&self, facts: Facts) -> Node {
        let (number, uid) = (self.number, Arc::clone(&self.uid));
        Node { number, uid, left_ms: self.lease_ms as i64, facts }
    }
}

/// A random node number from 1 to 4,095.
pub(crate) fn random_number() -> u16 {
    // Without randomness the first renewal finds out whether the number is taken.
    (random_seed() % 4_095 + 1) as u16
}

pub(super) fn random_seed() -> u64 {
    let mut bytes = [0; 8];
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}
