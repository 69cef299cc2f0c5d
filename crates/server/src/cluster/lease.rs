//! Leases: who is a member of the cluster, and under which number.
//!
//! A node writes its lease three times in the time that it holds, and the same step reads those of the others. No node's clock
//! decides which have ended. A lease belongs to one start of a process, by its uid: who comes back after its lease has ended
//! finds out, and so do two that want one number. A number whose lease has ended stays its former holder's for a day, so that an
//! old session id does not come to mean another node's session.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::log_position::LogPosition;

/// The version of [`Facts`]; a reader takes those it knows, and ignores members that are new to it.
const FACTS_VERSION: u8 = 1;

/// How long a node whose lease has ended is named by calls that change something, unless it has left.
const CUT_OFF_NAMED_MS: i64 = 300_000;

/// What a node says of itself with each write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) v: u8,
    pub(crate) name: Arc<str>,
    pub(crate) version: Arc<str>,
    pub(crate) client_addr: Arc<str>,
    pub(crate) admin_addr: Arc<str>,
    pub(crate) started_unix_s: u64,
    /// Of its settings.
    pub(crate) revision: u64,
    pub(crate) sessions: u64,
    /// How long its last write took, there and back.
    pub(crate) lag_us: u64,
    /// Two nodes of one cluster verify the same tokens: some bits of a hash of what they verify them with.
    pub(crate) tokens: u32,
    /// The log of changes of all nodes' settings that it follows, and the newest of them that it runs.
    #[serde(default)]
    pub(crate) settings_log: u64,
    #[serde(default)]
    pub(crate) settings_revision: u64,
    /// Nodes of one cluster seal changes of all nodes' settings with the same secret: some bits that follow from it; 0: it has none, or its
    /// version does not say.
    #[serde(default)]
    pub(crate) secret: u32,
    /// How long its writes hold, by which a lease is known that a clock which was set back has prolonged.
    #[serde(default)]
    pub(crate) lease_ms: u64,
    /// It has left and serves no clients any more.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) left: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_false(left: &bool) -> bool {
    !left
}

impl Facts {
    pub(super) const VERSION: u8 = FACTS_VERSION;

    /// Of a node of which nothing but its name matters.
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
        }
    }
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) number: u16,
    /// This start of its process.
    pub(crate) uid: Arc<str>,
    /// Milliseconds until its lease ends; below zero: it has ended so long ago.
    pub(crate) left_ms: i64,
    pub(crate) facts: Facts,
}

impl Node {
    pub(crate) fn is_alive(&self) -> bool {
        self.left_ms >= 0
    }

    /// Its lease ended a while ago at most, and it has not left: cut off, it may serve its clients yet.
    pub(super) fn may_be_cut_off(&self) -> bool {
        (-CUT_OFF_NAMED_MS..0).contains(&self.left_ms) && !self.facts.left && *self.uid != *"-"
    }
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseWrite {
    /// The entry was there and had not ended.
    Renewed,
    /// There was no entry of this node.
    Created,
    /// There was one that had ended, or that is being swept: other nodes have taken this one for dead.
    Revived,
    /// Another node has the number.
    Taken,
}

/// The answer to a write.
#[derive(Debug)]
pub(super) struct LeaseReply {
    pub(super) written: LeaseWrite,
    /// All nodes whose entries are there, by number; this one too.
    pub(super) nodes: BTreeMap<u16, Node>,
    /// Processes that have left something behind, and are no living nodes.
    pub(super) dead: Vec<Arc<str>>,
    /// Where the log of changes of all nodes' settings is.
    pub(super) log: LogPosition,
}

/// The lease of this node.
#[derive(Clone)]
pub(super) struct Lease {
    pub(super) uid: Arc<str>,
    pub(super) number: u16,
    /// How long a write holds.
    pub(super) lease_ms: u64,
    /// `server.node` requests the number: it is taken from a former holder whose lease has expired.
    pub(super) is_wanted: bool,
}

impl Lease {
    /// This node as it stands after a write.
    pub(super) fn node(&self, facts: Facts) -> Node {
        let (number, uid) = (self.number, Arc::clone(&self.uid));
        Node { number, uid, left_ms: self.lease_ms as i64, facts }
    }
}

/// A number that no node has asked for by name: 1 to 4,095.
pub(crate) fn random_number() -> u16 {
    // Without randomness the first write finds out whether somebody has it.
    (random_seed() % 4_095 + 1) as u16
}

pub(super) fn random_seed() -> u64 {
    let mut bytes = [0; 8];
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}
