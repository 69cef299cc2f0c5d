//! Recovers the settings from disk, from the oldest pair of snapshot and log to the newest. Damaged files are reported and
//! renamed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use dunlin_log::Disk;

use super::history::History;
use super::log::LogFile;
use super::record::{self, ChangeRecord, HEAD_BYTES, Record, Started, Stop};
use super::snapshot_file::{self, Contents};
use super::{InitialConfig, OpenError, Origin, Revision, RevisionKind, Store};
use crate::edit::Part;
use crate::pointer::Pointer;
use crate::snapshot::{ChangeError, changes};
use crate::{Change, Config, ConfigErrors, Judge, Snapshot};

/// The suffix of a damaged file.
const DAMAGED: &str = ".damaged";
/// Most damaged files that are kept.
const DAMAGED_MAX: usize = 8;

/// The result of a recovery: the initial revision, its source, and the problems found.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// The revision that the store begins with.
    pub revision: u64,
    /// The source of that revision.
    pub from: RecoverySource,
    /// Problems that an operator should know.
    pub warnings: Vec<RecoveryWarning>,
}

/// The source of recovered settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoverySource {
    /// The log on the disk.
    Log,
    /// A snapshot on the disk, with no later record in a log.
    Snapshot,
    /// The file the server was started with, or the development mode.
    File,
}

/// A problem with a file on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryWarning {
    /// The file.
    pub file: String,
    /// The offset from which on the file is not used, if known.
    pub at: Option<u64>,
    /// What is wrong, and what was done.
    pub message: String,
}

impl fmt::Display for RecoveryWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(at) = self.at {
            write!(f, ", byte {at}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl Recovery {
    pub(super) fn of(
        store: &Store,
        from: RecoverySource,
        warnings: Vec<RecoveryWarning>,
    ) -> Recovery {
        Recovery { revision: store.head().revision, from, warnings }
    }
}

/// The settings recovered so far.
struct RecoveredLog {
    history: History,
    start: Started,
    /// Whether anything was read from a log.
    replayed: bool,
    warnings: Vec<RecoveryWarning>,
}

pub(super) fn open(
    disk: Arc<dyn Disk>,
    start: InitialConfig,
    now_unix_ms: u64,
) -> Result<(Store, Recovery), OpenError> {
    let mut warnings = Vec::new();
    let names = disk.list().map_err(OpenError::Io)?;
    let mut snapshots = BTreeMap::new();
    let mut logs = Vec::new();
    for name in &names {
        match snapshot_file::read_name(name) {
            Some((revision, true)) => match disk.read(name).map(|bytes| Contents::read(&bytes)) {
                Ok(Ok(contents)) => drop(snapshots.insert(revision, contents)),
                Ok(Err(why)) => {
                    warnings.push(set_aside(&*disk, name, None, &why));
                }
                Err(error) => {
                    warnings.push(warning(name, None, format!("it cannot be read: {error}")));
                }
            },
            Some((revision, false)) => logs.push(revision),
            // An incomplete snapshot: the process ended while it was written.
            None if name.ends_with(".new") => drop(disk.remove(name)),
            None => {}
        }
    }
    forget_damaged(&*disk, &names);
    logs.sort_unstable();

    let mut reading = None;
    while let Some((revision, contents)) = snapshots.pop_first() {
        match RecoveredLog::of(contents) {
            Ok(read) => {
                reading = Some(read);
                break;
            }
            Err(why) => {
                warnings.push(set_aside(&*disk, &snapshot_file::name(revision), None, &why));
            }
        }
    }
    let Some(mut reading) = reading else {
        return begin(disk, start, now_unix_ms, &logs, warnings);
    };
    reading.warnings = warnings;

    // The log to continue, and its end.
    let mut last = None;
    for base in logs.iter().copied() {
        reading.jump(&mut snapshots, base);
        let name = snapshot_file::log_name(base);
        let head = reading.head();
        if base < head && last.is_none() {
            // Older than the oldest snapshot, so its base is missing.
            let _ = disk.remove(&name);
            continue;
        }
        if base != head {
            let why = format!("it goes on from revision {base}, but the newest there is is {head}");
            reading.warnings.push(set_aside(&*disk, &name, None, &why));
            last = None;
            continue;
        }
        last = match disk.read(&name) {
            Ok(bytes) if record::is_begun_only(&bytes, base) => {
                // The process ended while the log was created; it is empty.
                let _ = disk.remove(&name);
                None
            }
            Ok(bytes) => match reading.replay(&name, base, &bytes) {
                Ok(end) => Some((base, end)),
                Err((at, why)) => {
                    reading.warnings.push(set_aside(&*disk, &name, Some(at), why));
                    None
                }
            },
            Err(error) => {
                reading.warnings.push(warning(&name, None, format!("it cannot be read: {error}")));
                None
            }
        };
    }
    reading.jump(&mut snapshots, u64::MAX);
    if last.is_some_and(|(base, _)| snapshots.keys().any(|newer| *newer > base)) {
        last = None;
    }
    finish(&disk, start, now_unix_ms, reading, last, &names)
}

/// Begins a new store: no snapshot on the disk can be used.
fn begin(
    disk: Arc<dyn Disk>,
    start: InitialConfig,
    now_unix_ms: u64,
    logs: &[u64],
    mut warnings: Vec<RecoveryWarning>,
) -> Result<(Store, Recovery), OpenError> {
    for log in logs {
        let why = "there is no snapshot that it goes on from";
        warnings.push(set_aside(&*disk, &snapshot_file::log_name(*log), None, why));
    }
    let mut store = Store::begin(start, now_unix_ms)?;
    let log = LogFile::create(disk, store.history.head(), &store.start, Vec::new());
    if let Some(failure) = log.failure() {
        return Err(OpenError::Io(std::io::Error::other(failure.to_owned())));
    }
    store.log = Some(log);
    let recovery = Recovery::of(&store, RecoverySource::File, warnings);
    Ok((store, recovery))
}

impl RecoveredLog {
    fn of(mut contents: Contents) -> Result<RecoveredLog, String> {
        let config = contents.config()?;
        let revision = Revision {
            snapshot: Arc::new(Snapshot::from_replay(contents.revision, config)),
            previous: contents.previous,
            origin: contents.origin,
            kind: contents.kind,
            changes: Arc::default(),
        };
        Ok(RecoveredLog {
            history: History::new(Arc::new(revision)),
            start: contents.start,
            replayed: false,
            warnings: Vec::new(),
        })
    }

    fn head(&self) -> u64 {
        self.history.head().snapshot.revision
    }

    /// Continues from the newest snapshot up to `bound` that is newer than everything read so far.
    fn jump(&mut self, snapshots: &mut BTreeMap<u64, Contents>, bound: u64) {
        let newer: Vec<u64> = snapshots.range(..=bound).map(|(revision, _)| *revision).collect();
        for revision in newer.into_iter().rev() {
            let Some(contents) = snapshots.remove(&revision) else { continue };
            if revision <= self.head() {
                continue;
            }
            match RecoveredLog::of(contents) {
                Ok(read) => {
                    self.history = read.history;
                    self.start = read.start;
                    self.replayed = false;
                }
                Err(why) => {
                    let file = snapshot_file::name(revision);
                    self.warnings.push(warning(&file, None, format!("{why}; it is not used")));
                }
            }
        }
    }

    /// Applies the records of a log. Returns the end of its valid part, or where and why it is damaged.
    fn replay(&mut self, name: &str, base: u64, bytes: &[u8]) -> Result<u64, (u64, &'static str)> {
        match record::read_head(bytes) {
            Ok(revision) if revision == base => {}
            Ok(_) => return Err((0, "it is another revision's log")),
            Err(why) => return Err((0, why)),
        }
        let mut pending: Vec<ChangeRecord> = Vec::new();
        let mut at = HEAD_BYTES;
        // The end of the last confirmed change; unconfirmed records after it are discarded.
        let mut sound = at;
        let stopped = loop {
            let (record, next) = match record::read(bytes, at) {
                Ok(read) => read,
                Err(stop) => break stop,
            };
            match record {
                Record::Change(changed) => {
                    // The process ended during an earlier attempt at this change; it was repeated.
                    pending.retain(|earlier| earlier.revision < changed.revision);
                    pending.push(changed);
                }
                Record::Confirm(revision) => {
                    for changed in pending.drain(..).filter(|c| c.revision <= revision) {
                        self.push(name, changed, RevisionKind::Change);
                    }
                    sound = next;
                }
                Record::RolledBack(changed) => {
                    pending.clear();
                    self.push(name, changed, RevisionKind::RolledBack);
                    sound = next;
                }
                Record::Start(start) => {
                    self.start = start;
                    sound = next;
                }
            }
            at = next;
        };
        if let Some(first) = pending.first() {
            let message = match pending.len() {
                1 => format!("revision {} was never confirmed", first.revision),
                more => format!(
                    "revision {} and {} more were never confirmed",
                    first.revision,
                    more - 1
                ),
            };
            let message = format!("{message}: the process ended within it; it is forgotten");
            self.warnings.push(warning(name, Some(sound as u64), message));
        }
        match stopped {
            Stop::End => Ok(sound as u64),
            Stop::Damaged(why) => Err((at as u64, why)),
        }
    }

    fn push(&mut self, name: &str, changed: ChangeRecord, kind: RevisionKind) {
        let head = self.history.head();
        let mut config = head.snapshot.config.clone();
        for (pointer, after) in changed.changes {
            let done = Pointer::parse(&pointer)
                .map_err(|error| error.to_string())
                .and_then(|at| Snapshot::replay(&mut config, &at, after.map(|after| after.is)));
            if let Err(why) = done {
                // The key belongs to another version of Dunlin.
                let message =
                    format!("revision {} sets {pointer}: {why}; it is left out", changed.revision);
                self.warnings.push(warning(name, None, message));
            }
        }
        let changes = changes(&head.snapshot.config, &config).into();
        let revision = Revision {
            snapshot: Arc::new(head.snapshot.next_replay(changed.revision, config)),
            previous: head.snapshot.revision,
            origin: changed.origin,
            kind: if kind == RevisionKind::Change { changed.kind } else { kind },
            changes,
        };
        self.history.push(Arc::new(revision));
        self.replayed = true;
    }
}

/// Validates the recovered settings, adds the changes of the file, and opens the log to continue.
fn finish(
    disk: &Arc<dyn Disk>,
    start: InitialConfig,
    now_unix_ms: u64,
    reading: RecoveredLog,
    last: Option<(u64, u64)>,
    names: &[String],
) -> Result<(Store, Recovery), OpenError> {
    let RecoveredLog { history, start: begun, replayed, mut warnings } = reading;
    let source = if replayed { RecoverySource::Log } else { RecoverySource::Snapshot };
    let judge = start.judge;
    let valid = |revision: &Arc<Revision>| {
        let snapshot = &revision.snapshot;
        let mut errors = ConfigErrors::default();
        judge(&Config::default(), &snapshot.config, &mut errors);
        let valid = errors.or(snapshot.config.clone())?;
        Snapshot::new(snapshot.revision, valid)
    };
    let judged = valid(history.head());
    let mut pairs: Vec<u64> = names
        .iter()
        .filter_map(|name| snapshot_file::read_name(name))
        .filter(|(_, is_snapshot)| !is_snapshot)
        .map(|(revision, _)| revision)
        .collect();
    pairs.sort_unstable();
    let head = Arc::clone(history.head());
    let mut store = Store { history, pending: Default::default(), log: None, start: begun };
    store.log = Some(match last {
        Some((base, end)) => {
            let log =
                LogFile::reopen(Arc::clone(disk), base, end, head.snapshot.revision, pairs.clone());
            match log {
                Ok(log) => log,
                Err(error) => {
                    let name = snapshot_file::log_name(base);
                    warnings.push(warning(
                        &name,
                        None,
                        format!("it cannot be gone on with: {error}"),
                    ));
                    LogFile::create(Arc::clone(disk), &head, &store.start, pairs)
                }
            }
        }
        None => LogFile::create(Arc::clone(disk), &head, &store.start, pairs),
    });
    if let Err(errors) = judged {
        // Another version of Dunlin accepted these settings; the newest valid revision is used.
        let older = store.history.iter().rev().find_map(|revision| valid(revision).ok());
        let (snapshot, instead) = match (older, &start.config) {
            (Some(older), _) => {
                let instead = format!("revision {}", older.revision);
                (older, instead)
            }
            (None, Ok(config)) => {
                let snapshot = Snapshot::new(head.snapshot.revision, config.clone());
                (snapshot.map_err(OpenError::Invalid)?, start.name.clone())
            }
            (None, Err(_)) => return Err(OpenError::Invalid(errors)),
        };
        let message = format!("revision {} is not valid here: {errors}", head.snapshot.revision);
        warnings.push(warning("settings", None, format!("{message}; {instead} is used")));
        let change = Change::Restore(Arc::new(snapshot));
        let comment = format!("revision {} is not valid", head.snapshot.revision);
        let origin = origin(&start.name, &comment, now_unix_ms);
        store.add(&change, origin, judge).map_err(OpenError::Invalid)?;
    }
    store.edited(start, now_unix_ms, &mut warnings);
    if let Some(failure) = store.failure() {
        let message =
            format!("{failure}; settings are served and cannot be changed until it is well");
        warnings.push(warning("state directory", None, message));
    }
    let recovery = Recovery::of(&store, source, warnings);
    Ok((store, recovery))
}

impl Store {
    /// Applies what has changed in the file since the settings were begun with it.
    fn edited(
        &mut self,
        start: InitialConfig,
        now_unix_ms: u64,
        warnings: &mut Vec<RecoveryWarning>,
    ) {
        let file = match start.config {
            Ok(config) => config,
            Err(errors) => {
                warnings.push(warning(&start.name, None, format!("{errors}; the log is used")));
                return;
            }
        };
        let sparse = file.sparse();
        if sparse == self.start.config {
            return;
        }
        let Some(change) = self.edits(&file) else {
            let message = "what it was is not known any more, so that nothing of it is taken over";
            warnings.push(warning(&start.name, None, message.to_owned()));
            self.begun_with(Started { name: start.name, config: sparse });
            return;
        };
        let comment = format!("{} was edited", start.name);
        let cluster = self.cluster_position();
        let origin = Origin { cluster, ..origin(&start.name, &comment, now_unix_ms) };
        match self.add(&change, origin, start.judge) {
            Ok(()) => self.begun_with(Started { name: start.name, config: sparse }),
            Err(errors) => {
                let message = format!(
                    "it was edited, and with what the log has it is not valid: {errors}; the log is used"
                );
                warnings.push(warning(&start.name, None, message));
            }
        }
    }

    /// Returns the change that takes over what differs in the file from when it was read last. What was changed
    /// otherwise stays. `None`: what the file was is not known any more.
    pub fn edits(&self, file: &Config) -> Option<Change> {
        let old = snapshot_file::config(self.start.config.clone()).ok()?;
        let mut config = self.head().config.clone();
        for change in changes(&old, file) {
            let pointer = Pointer::parse(&change.pointer).unwrap_or_default();
            // An entry removed from the file may have been removed already.
            let _ = Snapshot::replay(&mut config, &pointer, change.after);
        }
        // Not validated yet; `prepare` does that.
        Some(Change::Restore(Arc::new(Snapshot::from_replay(0, config))))
    }

    /// Returns the name of the file that the settings were begun with.
    pub fn file_name(&self) -> &str {
        &self.start.name
    }

    /// Notes that what the file has is in effect, so that [`edits`](Self::edits) begins there.
    pub fn file_taken_over(&mut self, file: &Config) {
        self.begun_with(Started { name: self.start.name.clone(), config: file.sparse() });
    }

    /// Adds a revision made by the start itself.
    fn add(&mut self, change: &Change, origin: Origin, judge: Judge) -> Result<(), ConfigErrors> {
        let prepared = match self.head().prepare_judged(change, None, judge) {
            Ok(prepared) => prepared,
            Err(ChangeError::Invalid(errors)) => return Err(errors),
            Err(ChangeError::Conflict(error) | ChangeError::NotFound(error)) => {
                return Err(error.into());
            }
            Err(ChangeError::Revision { .. }) => return Ok(()),
        };
        if prepared.is_unchanged() {
            return Ok(());
        }
        let revision = Revision {
            snapshot: Arc::clone(prepared.snapshot()),
            previous: prepared.base().revision,
            origin,
            kind: RevisionKind::File,
            changes: Arc::clone(prepared.shared_changes()),
        };
        let revision = Arc::new(revision);
        if let Some(log) = &mut self.log {
            // If the write fails, the next start finds the same difference again.
            if log.append(std::iter::once(&revision)).is_ok() {
                log.confirm(revision.snapshot.revision);
            }
        }
        self.history.push(revision);
        Ok(())
    }

    fn begun_with(&mut self, start: Started) {
        if let Some(log) = &mut self.log {
            let _ = log.start(&start);
        }
        self.start = start;
    }
}

fn origin(name: &str, comment: &str, now_unix_ms: u64) -> Origin {
    Origin {
        who: "start".into(),
        from: name.into(),
        comment: comment.into(),
        at_unix_ms: now_unix_ms,
        ..Origin::default()
    }
}

fn warning(file: &str, at: Option<u64>, message: String) -> RecoveryWarning {
    RecoveryWarning { file: file.to_owned(), at, message }
}

/// Renames a damaged file, to keep it for inspection; it is neither written nor read again.
fn set_aside(disk: &dyn Disk, name: &str, at: Option<u64>, why: &str) -> RecoveryWarning {
    let aside = format!("{name}{DAMAGED}");
    let message = match disk.rename(name, &aside) {
        Ok(()) => format!("{why}; it is set aside as {aside}"),
        Err(error) => format!("{why}; it cannot be set aside: {error}"),
    };
    warning(name, at, message)
}

/// Removes all but the last [`DAMAGED_MAX`] damaged files, by name.
fn forget_damaged(disk: &dyn Disk, names: &[String]) {
    let mut damaged: Vec<_> = names.iter().filter(|name| name.ends_with(DAMAGED)).collect();
    damaged.sort_unstable();
    for name in damaged.iter().rev().skip(DAMAGED_MAX) {
        let _ = disk.remove(name);
    }
}
