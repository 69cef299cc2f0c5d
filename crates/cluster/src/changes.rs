//! Changes of settings that all nodes apply: their log, the claim to append to it, and reading it.
//!
//! The log has each change under its number, sealed ([`Seal`]), the number of the newest change, the number up to which changes
//! are no longer kept, and a random number that identifies the log. A node that makes a change holds the claim from before it
//! applies the change itself until the change is in the log. Of two concurrent changes one is therefore refused before it has
//! changed anything. Every lease renewal reads the position of the log, so a node that was disconnected or missed the message
//! reads the new changes.
//!
//! A log that was lost continues under its number from the newest change that any node knows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dunlin_config::Secret;
use dunlin_config::store::ClusterPosition;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::agent::{Agent, TaskResult};
use super::lease::Node;
use super::log_position::LogPosition;
use super::node_message::{NodeMessage, VERSION};
use super::store::{LogClaim, LogEntry, LogPart, StoreError};
use crate::message::{
    ClaimError, ClusterOutput, ClusterToAdmin, OutOfSync, SharedChange, SharedChangeBatch,
    SharedChangeEvent, SharedChangeRequest,
};

/// The name of the message between nodes that announces a new change in the log.
pub(super) const CALL: &str = "settings";

/// A change in the log, before it is sealed.
#[derive(Serialize, Deserialize)]
struct Entry {
    v: u8,
    #[serde(flatten)]
    change: SharedChange,
}

/// What this node knows of the log on the current connection.
#[derive(Default)]
pub(super) struct Changes {
    /// The position that was read last.
    read: Option<LogPosition>,
    /// The change that this node has claimed.
    claimed: Option<LogPosition>,
    /// The duration of the claim.
    hold: Duration,
    /// Since when another node runs changes that this node lacks and the log has lost.
    lost_since: Option<Instant>,
    /// The newest change that another node waits for; the admin thread answers its request.
    pub(super) offered: Option<u64>,
}

/// The result of an operation that ran as a separate task.
pub(super) enum ChangesDone {
    Claimed(Result<LogClaim, StoreError>),
    /// The call id, its sealed change, and whether that was appended.
    Appended(u64, (LogPosition, Vec<u8>), Result<bool, StoreError>),
    /// Changes that the log lacked were written again.
    Extended(Result<bool, StoreError>),
    /// The part that was read, the node to report to, and whether it is the first read on this connection.
    Read(Option<(Arc<str>, u64)>, bool, Result<LogPart, StoreError>),
}

impl Agent {
    /// Handles a request of the admin thread for a shared change.
    pub(super) fn handle_change_request(&mut self, request: SharedChangeRequest) {
        match request {
            SharedChangeRequest::Claim { hold_ms } => self.claim(hold_ms),
            SharedChangeRequest::Release => {
                self.changes.claimed = None;
                self.node.cluster().release_agent();
                if let Some(store) = &self.store {
                    let released = store.release_log();
                    self.spawn(released);
                }
            }
            SharedChangeRequest::Append(change) => {
                if let Err(why) = self.append(&change) {
                    self.node.cluster().release_agent();
                    self.tell_admin(SharedChangeEvent::Unkept(why.to_owned()));
                }
            }
        }
    }

    fn tell_admin(&self, event: SharedChangeEvent) {
        let event = ClusterToAdmin::SharedChangeEvent(Box::new(event));
        let _ = self.outbox.send(ClusterOutput::Admin(event));
    }

    fn claim(&mut self, hold_ms: u64) {
        let (Some(store), true) = (&self.store, self.has_joined) else {
            let server = self.address.server();
            let why = format!("{server} does not answer, or this node has not joined yet");
            return self.tell_admin(SharedChangeEvent::Refused(ClaimError::Unreachable(why)));
        };
        let own = self.secret_check();
        let other = self.nodes.values().find(|node| {
            node.is_alive() && node.facts.secret != 0 && own != 0 && node.facts.secret != own
        });
        if let Some(Node { facts, .. }) = other {
            let why = format!(
                "{} at {} has another `cluster.secret`: it could not read the change; give all nodes the same secret",
                facts.name, facts.client_addr
            );
            return self.tell_admin(SharedChangeEvent::Refused(ClaimError::OtherSecret(why)));
        }
        self.changes.hold = Duration::from_millis(hold_ms);
        let claimed = store.claim_log(hold_ms, self.changes.read.unwrap_or_default());
        self.jobs.spawn(async move { TaskResult::Changes(ChangesDone::Claimed(claimed.await)) });
    }

    /// The position of the next change: from the log or, if the log was lost, from what the nodes know.
    fn next_position(&self, log: LogPosition) -> LogPosition {
        let (own, _) = self.node.cluster().settings();
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
        // The identifier is never 0. Without randomness two clusters may choose the same one.
        let _ = getrandom::fill(&mut bytes);
        LogPosition { id: if id == 0 { u64::from_ne_bytes(bytes) | 1 } else { id }, revision }
    }

    fn append(&mut self, change: &SharedChange) -> Result<(), &'static str> {
        let claimed = self.changes.claimed.take();
        let (Some(store), Some(at)) = (self.store.clone(), claimed) else {
            return Err("the connection was lost before the change was kept");
        };
        let seal = self.seal().ok_or("`cluster.secret` was taken away meanwhile")?;
        let sealed = seal.close(at, change).ok_or("the change cannot be sealed")?;
        let commit_ms = self.node.snapshot().config.config.commit_timeout_ms;
        let id = self.await_change(self.call_timeout + Duration::from_millis(commit_ms));
        let message =
            NodeMessage { id, call: Some(CALL.into()), ..NodeMessage::from(&self.lease.uid) }
                .encode();
        let kept = sealed.clone();
        let appended = store.append_log(LogEntry { at, sealed, message });
        self.jobs.spawn(async move {
            TaskResult::Changes(ChangesDone::Appended(id, (at, kept), appended.await))
        });
        Ok(())
    }

    /// Called with each lease renewal: the position of the log.
    pub(super) fn follow_changes(&mut self, log: LogPosition) {
        self.node.cluster().set_log_revision(log.revision);
        if log.id != 0 && self.changes.read != Some(log) {
            self.read_changes(None);
        }
        if let (Some(store), Some(part)) = (&self.store, self.recent_changes.lacking(log)) {
            let extended = store.extend_log(part);
            self.jobs.spawn(async { TaskResult::Changes(ChangesDone::Extended(extended.await)) });
        }
    }

    /// Why this node does not run all shared changes, if so: it has refused or missed some, or the log has lost some that another
    /// node runs, and nobody writes them again.
    pub(super) fn unrun_changes(&mut self, log: LogPosition) -> Option<OutOfSync> {
        let (own, fault) = self.node.cluster().settings();
        let newer = self.nodes.values().filter(|Node { facts, .. }| {
            let is_newer = facts.settings_log == own.log && facts.settings_revision > own.revision;
            let is_in_log = log.id == facts.settings_log && log.revision >= facts.settings_revision;
            facts.settings_log != 0 && (is_newer || own.log == 0) && !is_in_log
        });
        let newest = newer
            .filter(|node| node.is_alive() && [0, node.facts.settings_log].contains(&log.id))
            .max_by_key(|node| node.facts.settings_revision);
        let is_unread = log.id != 0 && self.changes.read != Some(log);
        let is_own_lost = own.tried != 0 && !is_unread && !self.node.cluster().keeps_agent();
        let server = self.address.server();
        let why = match newest {
            Some(Node { facts, .. }) => format!(
                "{server} has lost changes of all nodes' settings up to number {}: {} runs them, this node does not",
                facts.settings_revision, facts.name
            ),
            None if is_own_lost => format!(
                "{server} does not have the last change of all nodes' settings that was made on this node: others may not run it"
            ),
            None => {
                self.changes.lost_since = None;
                return fault;
            }
        };
        let since = *self.changes.lost_since.get_or_insert_with(Instant::now);
        // A node that still has them writes them again with its next renewal.
        let is_final = since.elapsed() > Duration::from_millis(self.lease.lease_ms);
        fault.or_else(|| is_final.then_some(OutOfSync::Missed(why)))
    }

    /// Reads the new changes of the log and has the admin thread apply them. Reports the result of the newest to `for_whom`.
    pub(super) fn read_changes(&mut self, for_whom: Option<(Arc<str>, u64)>) {
        let Some(store) = &self.store else { return };
        let (ClusterPosition { log, revision, .. }, _) = self.node.cluster().settings();
        let again = self.changes.read.is_none();
        let known = self.changes.read.unwrap_or(LogPosition { id: log, revision });
        let read = store.read_log(known);
        self.jobs.spawn(async move {
            TaskResult::Changes(ChangesDone::Read(for_whom, again, read.await))
        });
    }

    pub(super) fn handle_changes_done(&mut self, done: ChangesDone) {
        match done {
            ChangesDone::Claimed(Ok(claim)) => self.handle_claimed(&claim),
            ChangesDone::Claimed(Err(error)) => {
                let why = format!("{}: {error}", self.address.server());
                self.tell_admin(SharedChangeEvent::Refused(ClaimError::Unreachable(why)));
                self.handle_failure(&error);
            }
            ChangesDone::Appended(id, (at, sealed), Ok(true)) => {
                self.recent_changes.add(at, &sealed);
                self.changes.read = Some(at);
                self.node.cluster().set_log_revision(at.revision);
                self.tell_admin(SharedChangeEvent::Kept { log: at.id, revision: at.revision });
                self.handle_announced(id, true);
            }
            ChangesDone::Appended(id, _, appended) => {
                self.handle_announced(id, false);
                let why = match &appended {
                    Err(error) => {
                        let server = self.address.server();
                        format!("{server} did not confirm that it keeps the change: {error}")
                    }
                    Ok(_) => "it took so long that another node may have made one".to_owned(),
                };
                self.node.cluster().release_agent();
                self.tell_admin(SharedChangeEvent::Unkept(why));
                if let Err(error) = appended {
                    self.handle_failure(&error);
                }
            }
            ChangesDone::Extended(Ok(is_extended)) => {
                if is_extended {
                    let server = self.address.server();
                    tracing::warn!(
                        "{server} had lost changes of all nodes' settings; this node has written them again"
                    );
                }
            }
            ChangesDone::Extended(Err(error)) => self.handle_failure(&error),
            ChangesDone::Read(for_whom, again, Ok(part)) => {
                self.offer_changes(for_whom, again, part);
            }
            // The requester reports this node as one that has not responded.
            ChangesDone::Read(_, _, Err(error)) => self.handle_failure(&error),
        }
    }

    fn handle_claimed(&mut self, claim: &LogClaim) {
        let event = match *claim {
            LogClaim::Claimed(log) => {
                self.changes.claimed = Some(self.next_position(log));
                self.node.cluster().keep_agent(self.changes.hold);
                SharedChangeEvent::Claimed
            }
            LogClaim::UnderWay(log) => {
                SharedChangeEvent::Refused(ClaimError::UnderWay(log.revision))
            }
            LogClaim::Behind(log) => {
                self.read_changes(None);
                SharedChangeEvent::Refused(ClaimError::Behind(log.revision))
            }
        };
        self.tell_admin(event);
    }

    fn offer_changes(&mut self, for_whom: Option<(Arc<str>, u64)>, again: bool, part: LogPart) {
        let LogPart { log, since, changes } = part;
        if log.id == 0 {
            return;
        }
        let seal = self.seal();
        let open = |(number, sealed): (u64, Vec<u8>)| {
            let at = LogPosition { revision: number, ..log };
            (number, seal.as_ref().and_then(|seal| seal.open(at, &sealed)))
        };
        for (revision, sealed) in &changes {
            self.recent_changes.add(LogPosition { revision: *revision, ..log }, sealed);
        }
        let changes: VecDeque<_> = changes.into_iter().map(open).collect();
        self.changes.read = Some(log);
        self.node.cluster().set_log_revision(log.revision);
        self.served += 1;
        let request_id = self.served;
        if let Some((uid, id)) = for_whom {
            self.serving.insert(request_id, (uid, id, Instant::now()));
            self.changes.offered = Some(request_id);
            self.node.cluster().keep_agent(self.call_timeout);
        }
        let offer = SharedChangeBatch { request_id, log: log.id, changes, since, again };
        self.tell_admin(SharedChangeEvent::Offer(offer));
    }

    /// Some bits derived from the secret, for [`Facts`](super::lease::Facts); 0 without a secret.
    pub(super) fn secret_check(&self) -> u32 {
        self.seal().and_then(|seal| seal.check()).unwrap_or(0)
    }

    fn seal(&self) -> Option<Seal> {
        self.node.snapshot().config.cluster.secret.as_ref().and_then(Seal::new)
    }
}

/// Seals and opens changes with `cluster.secret` (AES-256-GCM, RFC 5116): a party that can read or write the log learns no secret
/// of the settings and cannot make a change.
struct Seal {
    key: LessSafeKey,
    secret: Prk,
}

impl Seal {
    fn new(secret: &Secret) -> Option<Seal> {
        let secret = Salt::new(HKDF_SHA256, b"dunlin cluster").extract(secret.reveal().as_bytes());
        let key = secret.expand(&[b"settings"], &AES_256_GCM).ok()?;
        let key = LessSafeKey::new(UnboundKey::from(key));
        Some(Seal { key, secret })
    }

    /// Enough bits to distinguish two secrets, too few to recover one; never 0.
    fn check(&self) -> Option<u32> {
        let mut bytes = [0; 32];
        self.secret.expand(&[b"check"], HKDF_SHA256).ok()?.fill(&mut bytes).ok()?;
        bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes) | 1)
    }

    /// The number of the change is authenticated, so a change cannot take the place of another.
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
        self.key.seal_in_place_append_tag(sealing, Self::aad(at), &mut text).ok()?;
        text.splice(..0, nonce);
        Some(text)
    }

    fn open(&self, at: LogPosition, sealed: &[u8]) -> Option<SharedChange> {
        let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut text = text.to_vec();
        let opened =
            self.key.open_in_place(Nonce::assume_unique_for_key(*nonce), Self::aad(at), &mut text);
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
        assert_eq!(seal("a secret").check(), seal("a secret").check());
        assert_ne!(seal("a secret").check(), seal("another").check());
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
