//! The revisions of the settings, in memory and in a log on disk.
//!
//! One thread owns a [`Store`]. The server takes a change through these steps:
//!
//! 1. [`Snapshot::prepare`] on the head, or on the change prepared before it that is not yet confirmed;
//! 2. [`Store::append`]: the change is in the log. A recovery at this point discards it;
//! 3. every worker runs [`PreparedChange::snapshot`]; then [`Store::confirm`]: it is the head, and
//!    survives the end of the process. If a worker refuses it, [`Store::roll_back`] makes the settings before it
//!    the next revision;
//! 4. [`SyncHandle::sync`], on any thread, if the change is also to survive a loss of power.
//!
//! The disk holds pairs of a snapshot and the log of the changes after it. When a log has grown, a new
//! pair follows ([`Store::poll_compaction`]); an old pair is removed once its revisions are no longer
//! kept. [`Store::open`] reads the newest valid state, and reports what was damaged.

mod compaction;
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
use crate::{ChangedKey, Config, ConfigErrors, Judge, PreparedChange, Snapshot};
use history::History;
use log::LogFile;
use record::Started;

pub use compaction::{Compacted, Compaction};
pub use dunlin_log::{Directory, Disk, DiskFile};
pub use recovery::{Recovery, RecoverySource, RecoveryWarning};
pub use sync::SyncHandle;

/// The initial settings for an empty disk: a file, or the development mode.
#[derive(Clone, Debug)]
pub struct InitialConfig {
    /// The settings, or why the file cannot be used; the settings on the disk are used then.
    pub config: Result<Config, ConfigErrors>,
    /// The name of the file, for messages.
    pub name: String,
    /// Checks the settings on the disk, beyond [`Config::validate`].
    pub judge: Judge,
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
    /// The node's position in the changes of its cluster after this revision.
    #[serde(default, skip_serializing_if = "ClusterPosition::is_start")]
    pub cluster: ClusterPosition,
}

/// A node's position in the changes for all nodes of its cluster. It is part of every revision, so that it is stored
/// and rolled back together with the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterPosition {
    /// The log of changes, identified by a random number; 0: none seen yet.
    pub log: u64,
    /// The newest change of that log that is applied, or has no effect here.
    pub revision: u64,
    /// The random id of a change that this node ran first and whose number is not known yet; 0: none.
    pub tried: u64,
}

impl ClusterPosition {
    fn is_start(&self) -> bool {
        *self == ClusterPosition::default()
    }
}

/// The cause of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RevisionKind {
    /// The server began with it.
    Start,
    /// A change.
    Change,
    /// The file had been edited when the server started.
    File,
    /// A worker refused the previous change; these are the settings before it.
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
    /// The cause.
    pub kind: RevisionKind,
    /// The differences from the revision before it, with secrets in plain text.
    pub changes: Arc<[ChangedKey]>,
}

/// All kept revisions. See the module for the order of calls.
pub struct Store {
    history: History,
    /// Appended and not yet confirmed.
    pending: VecDeque<Arc<Revision>>,
    log: Option<LogFile>,
    /// The file that the settings were begun with.
    start: Started,
}

/// Why a change could not be appended. The store is unchanged.
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
    /// Opens the store on the disk, or begins with `start`. Without a disk everything is in memory.
    ///
    /// If the disk has settings, `start` is compared with the file they were begun with. The differences
    /// are applied as a separate revision; the rest of the file is ignored.
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

    /// Creates a store in memory with its first revision.
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

    /// Returns the newest revision that all workers run.
    pub fn head(&self) -> &Arc<Snapshot> {
        &self.history.head().snapshot
    }

    /// Returns the head's position in the changes of the node's cluster.
    pub fn cluster_position(&self) -> ClusterPosition {
        self.history.head().origin.cluster
    }

    /// Writes changes to the log, all of them or none. They take effect once they are confirmed.
    ///
    /// The first must have been prepared on the newest snapshot, each other one on the one before it.
    ///
    /// # Errors
    /// Why the changes are not in the log; the store is unchanged.
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

    /// Returns the newest snapshot, confirmed or not.
    fn newest(&self) -> Arc<Snapshot> {
        let revision = self.pending.back().unwrap_or(self.history.head());
        Arc::clone(&revision.snapshot)
    }

    /// Confirms the appended changes, which all workers run: the last one is the head and survives the process.
    ///
    /// Space for the confirmation was reserved when the changes were appended. If the write fails
    /// nevertheless, [`Store::failure`] returns the error, and the next change writes a new log.
    pub fn confirm(&mut self) -> Arc<Snapshot> {
        if let (Some(log), Some(last)) = (&mut self.log, self.pending.back()) {
            log.confirm(last.snapshot.revision);
        }
        for revision in self.pending.drain(..) {
            self.history.push(revision);
        }
        Arc::clone(self.head())
    }

    /// Rolls back the appended changes, because a worker refused them: the settings before them get the
    /// next number and must be published. `reason` is recorded in the history.
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

    /// Returns the error of the log, if it has failed. Changes confirmed since are only in memory, until
    /// the disk accepts a later change.
    pub fn failure(&self) -> Option<&str> {
        self.log.as_ref()?.failure()
    }

    /// Returns the handle for the thread that waits for the disk; `None` without a disk.
    pub fn sync_handle(&self) -> Option<SyncHandle> {
        self.log.as_ref().map(LogFile::sync_handle)
    }

    /// Returns a compaction into a new pair of snapshot and log, if the log has grown large enough. Call it
    /// after [`Store::confirm`]; [`Compaction::run`] does the work, on any thread.
    pub fn poll_compaction(&mut self) -> Option<Compaction> {
        if !self.pending.is_empty() {
            return None;
        }
        let kept = self.history.config().revisions_max;
        self.log.as_mut()?.poll_compaction(self.history.head(), &self.start, kept)
    }

    /// Handles the result of a [`Compaction`].
    pub fn handle_compacted(&mut self, compacted: Compacted) {
        if let Some(log) = &mut self.log {
            log.handle_compacted(compacted);
        }
    }

    /// Returns the kept revisions, oldest first.
    pub fn revisions(&self) -> impl DoubleEndedIterator<Item = &Arc<Revision>> {
        self.history.iter()
    }

    /// Returns a kept revision.
    pub fn revision(&self, number: u64) -> Option<&Arc<Revision>> {
        self.history.get(number)
    }

    /// Returns the number of the oldest kept revision.
    pub fn oldest(&self) -> u64 {
        self.history.oldest()
    }

    /// Returns every revision after `number`; `None` if some of them are not kept any more, or the number
    /// is in the future.
    pub fn since(&self, number: u64) -> Option<impl Iterator<Item = &Arc<Revision>>> {
        self.history.since(number)
    }
}

/// Truncates a reason to the length for which the log has reserved space.
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
