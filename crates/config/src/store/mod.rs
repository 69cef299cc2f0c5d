//! The revisions there are, in memory and in a log on disk.
//!
//! One thread owns a [`Store`]. A change goes through these steps, and the server stands between them:
//!
//! 1. [`Snapshot::prepare`] on the head, or on what was prepared before it and is not yet there;
//! 2. [`Store::append`]: the change is in the log. Whoever reads the log now forgets it again;
//! 3. every worker runs [`PreparedChange::snapshot`]; then [`Store::confirm`]: it is the head, and outlasts the
//!    end of the process. Or one refuses: [`Store::roll_back`], and the settings before it are the next
//!    revision;
//! 4. [`SyncHandle::sync`], on any thread, where the caller wants it to outlast a loss of power too.
//!
//! On disk there are pairs: a snapshot, and the log of what came after it. A log that has grown is
//! followed by a new pair ([`Store::poll_compaction`]), and an old pair goes once its revisions are no
//! longer kept. [`Store::open`] reads the newest that is valid, and says what was not.

mod compaction;
mod directory;
mod disk;
mod history;
mod log;
mod record;
mod recovery;
mod snapshot_file;
mod sync;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::edit::Part;
use crate::{ChangedKey, Config, ConfigErrors, PreparedChange, Snapshot};
use history::History;
use log::LogFile;
use record::Started;

pub use compaction::{Compacted, Compaction};
pub use directory::Directory;
pub use disk::{Disk, DiskFile};
pub use recovery::{Recovery, RecoverySource, RecoveryWarning};
pub use sync::SyncHandle;

/// What the settings begin with when there is nothing on disk yet: a file, or the development mode.
#[derive(Clone, Debug)]
pub struct InitialConfig {
    /// The settings, or why the file cannot be used; what is on the disk is used then.
    pub config: Result<Config, ConfigErrors>,
    /// What to call it: the file's name.
    pub name: String,
}

/// Who made a change, when, and from where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Who, as the caller says.
    pub who: Arc<str>,
    /// Which admin token the caller showed: the name of its setting, or `admin-token` for that of the state directory. Empty:
    /// none, as through the socket.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub token: Arc<str>,
    /// The caller's address.
    pub from: Arc<str>,
    /// Why, as the caller says.
    pub comment: Arc<str>,
    /// Milliseconds since 1970.
    pub at_unix_ms: u64,
    /// How far the node has followed the changes of its cluster with this revision.
    #[serde(default, skip_serializing_if = "ClusterPosition::is_start")]
    pub cluster: ClusterPosition,
}

/// How far a node has followed the changes for all nodes of its cluster. It stands in every revision, so that it
/// is kept, and rolled back, with the settings themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterPosition {
    /// The log of changes, by a random number; 0: none was met.
    pub log: u64,
    /// The newest of its changes that the settings have, or that changes nothing here.
    pub revision: u64,
    /// A change that this node was the first to run, by its random id, while its number is not known; 0: none.
    pub tried: u64,
}

impl ClusterPosition {
    fn is_start(&self) -> bool {
        *self == ClusterPosition::default()
    }
}

/// In which way a revision came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RevisionKind {
    /// The server began with it.
    Start,
    /// A change.
    Change,
    /// The file had been edited when the server started.
    File,
    /// A worker refused the change before; the settings are those before it.
    RolledBack,
}

/// A revision that all workers ran.
#[derive(Clone, Debug)]
pub struct Revision {
    /// The settings.
    pub snapshot: Arc<Snapshot>,
    /// The revision before it; numbers in between were refused.
    pub previous: u64,
    /// Who made it.
    pub origin: Origin,
    /// In which way.
    pub kind: RevisionKind,
    /// What is different from the one before, secrets as they are.
    pub changes: Arc<[ChangedKey]>,
}

/// The revisions there are. See the module for the order of calls.
pub struct Store {
    history: History,
    /// Appended and not yet confirmed.
    pending: VecDeque<Arc<Revision>>,
    log: Option<LogFile>,
    /// What the settings were begun with.
    start: Started,
}

/// Why a change is not in the log. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The disk refused.
    #[error(
        "the change cannot be written to the log: {0}; make room in the state directory, nothing has changed"
    )]
    Io(#[source] io::Error),
    /// The change was prepared on a snapshot that is not the newest one.
    #[error("the newest revision is {newest}; prepare the change on that")]
    Stale {
        /// The newest revision.
        newest: u64,
    },
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The settings to begin with are not valid, and there are no others.
    #[error("{0}")]
    Invalid(ConfigErrors),
    /// The directory cannot be read or written.
    #[error("the state directory cannot be used: {0}; give one that is writable with --state")]
    Io(#[source] io::Error),
}

impl Store {
    /// Opens what is on the disk, or begins with `start`. Without a disk all is kept in memory.
    ///
    /// With settings on the disk, `start` is compared with what they were begun with: what has been
    /// edited in the file since is done to them as a revision of its own, the rest of the file is
    /// history.
    ///
    /// # Errors
    /// [`OpenError`]. Damaged files are no error: the [`Recovery`] reports them.
    pub fn open(
        disk: Option<Box<dyn Disk>>,
        start: InitialConfig,
        now_unix_ms: u64,
    ) -> Result<(Store, Recovery), OpenError> {
        match disk {
            Some(disk) => recovery::open(disk.into(), start, now_unix_ms),
            None => {
                let store = Store::begin(start, now_unix_ms)?;
                let recovery = Recovery::of(&store, RecoverySource::File, Vec::new());
                Ok((store, recovery))
            }
        }
    }

    /// The first revision, in memory.
    fn begin(start: InitialConfig, now_unix_ms: u64) -> Result<Store, OpenError> {
        let config = start.config.map_err(OpenError::Invalid)?;
        let begun = Started { name: start.name.clone(), config: config.sparse() };
        let snapshot = Snapshot::new(1, config).map_err(OpenError::Invalid)?;
        let origin = Origin {
            who: "start".into(),
            from: start.name.as_str().into(),
            at_unix_ms: now_unix_ms,
            ..Origin::default()
        };
        let first = Revision {
            snapshot: Arc::new(snapshot),
            previous: 0,
            origin,
            kind: RevisionKind::Start,
            changes: Arc::default(),
        };
        let history = History::new(Arc::new(first));
        Ok(Store { history, pending: VecDeque::new(), log: None, start: begun })
    }

    /// The newest revision that all workers run.
    pub fn head(&self) -> &Arc<Snapshot> {
        &self.history.head().snapshot
    }

    /// How far the head has followed the changes of the node's cluster.
    pub fn cluster_position(&self) -> ClusterPosition {
        self.history.head().origin.cluster
    }

    /// Writes changes to the log, all of them or none. They count once they are confirmed.
    ///
    /// The first must have been prepared on what is newest here, each other one on the one before it.
    ///
    /// # Errors
    /// Why they are not in the log; everything is as before.
    pub fn append(&mut self, changes: &[(PreparedChange, Origin)]) -> Result<(), AppendError> {
        let mut newest = self.newest();
        let before = self.pending.len();
        for (prepared, origin) in changes {
            if prepared.base().revision != newest.revision {
                self.pending.truncate(before);
                return Err(AppendError::Stale { newest: newest.revision });
            }
            newest = Arc::clone(prepared.snapshot());
            self.pending.push_back(Arc::new(Revision {
                snapshot: Arc::clone(&newest),
                previous: prepared.base().revision,
                origin: origin.clone(),
                kind: RevisionKind::Change,
                changes: Arc::clone(prepared.shared_changes()),
            }));
        }
        if let Some(log) = &mut self.log {
            log.heal(self.history.head(), &self.start)
                .and_then(|()| log.append(self.pending.range(before..)))
                .map_err(|error| {
                    self.pending.truncate(before);
                    AppendError::Io(error)
                })?;
        }
        Ok(())
    }

    /// The newest snapshot, confirmed or not.
    fn newest(&self) -> Arc<Snapshot> {
        let revision = self.pending.back().unwrap_or(self.history.head());
        Arc::clone(&revision.snapshot)
    }

    /// All workers run what was appended: it is the head, and the end of this process does not undo it.
    ///
    /// Room for the mark in the log was reserved when the changes were appended. If the disk
    /// refuses it even so, [`Store::failure`] says why, and the next change writes a new log.
    pub fn confirm(&mut self) -> Arc<Snapshot> {
        if let (Some(log), Some(last)) = (&mut self.log, self.pending.back()) {
            log.confirm(last.snapshot.revision);
        }
        for revision in self.pending.drain(..) {
            self.history.push(revision);
        }
        Arc::clone(self.head())
    }

    /// A worker refuses what was appended: the settings before it return under the next number, and
    /// are to be published. `reason` stands in the history.
    pub fn roll_back(&mut self, reason: &str, now_unix_ms: u64) -> Arc<Snapshot> {
        let head = self.history.head();
        let number = self.newest().revision + 1;
        let returned = Revision {
            snapshot: Arc::new(head.snapshot.renumbered(number)),
            previous: head.snapshot.revision,
            origin: Origin {
                who: "dunlin".into(),
                comment: shortened(reason).into(),
                at_unix_ms: now_unix_ms,
                cluster: head.origin.cluster,
                ..Origin::default()
            },
            kind: RevisionKind::RolledBack,
            changes: Arc::default(),
        };
        self.pending.clear();
        if let Some(log) = &mut self.log {
            log.roll_back(&returned);
        }
        self.history.push(Arc::new(returned));
        Arc::clone(self.head())
    }

    /// What is wrong with the log, when something is: what was confirmed since is in memory only, until
    /// a change finds the disk well again.
    pub fn failure(&self) -> Option<&str> {
        self.log.as_ref()?.failure()
    }

    /// For the thread that waits for the disk; `None` without one.
    pub fn sync_handle(&self) -> Option<SyncHandle> {
        self.log.as_ref().map(LogFile::sync_handle)
    }

    /// A new pair of snapshot and log, when the log has grown large enough to be worth it. To be asked
    /// after [`Store::confirm`]; the work is done by [`Compaction::run`], on any thread.
    pub fn poll_compaction(&mut self) -> Option<Compaction> {
        if !self.pending.is_empty() {
            return None;
        }
        let kept = self.history.config().revisions_max;
        self.log.as_mut()?.poll_compaction(self.history.head(), &self.start, kept)
    }

    /// Takes in how a [`Compaction`] ended.
    pub fn handle_compacted(&mut self, compacted: Compacted) {
        if let Some(log) = &mut self.log {
            log.handle_compacted(compacted);
        }
    }

    /// The revisions kept, oldest first.
    pub fn revisions(&self) -> impl DoubleEndedIterator<Item = &Arc<Revision>> {
        self.history.iter()
    }

    /// A kept revision.
    pub fn revision(&self, number: u64) -> Option<&Arc<Revision>> {
        self.history.get(number)
    }

    /// The oldest revision kept.
    pub fn oldest(&self) -> u64 {
        self.history.oldest()
    }

    /// Every revision after `number`; `None` when not all of them are kept, or there is no such number
    /// yet.
    pub fn since(&self, number: u64) -> Option<impl Iterator<Item = &Arc<Revision>>> {
        self.history.since(number)
    }
}

/// What of a reason is kept; room for it in the log is reserved.
fn shortened(reason: &str) -> &str {
    let mut end = reason.len().min(1_000);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("head", &self.head().revision)
            .field("oldest", &self.oldest())
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}
