//! The current log: one write per commit, into space reserved before.

use std::io;
use std::sync::Arc;

use dunlin_log::{Disk, DiskFile};

use super::compaction::{Compacted, Compaction, LOG_BYTES_MIN};
use super::record::{self, CONFIRM_BYTES, HEAD_BYTES, Started};
use super::snapshot_file::{self, Contents};
use super::sync::SyncHandle;
use super::{Revision, RevisionKind};

/// Space is reserved in multiples of this.
const RESERVE_BYTES: u64 = 1 << 20;
/// Space reserved after every change for its confirmation or its rollback.
const ENDING_BYTES: u64 = 8 << 10;
/// A buffer larger than this is freed after use.
const BUFFER_BYTES_KEPT: usize = 1 << 20;

pub(super) struct LogFile {
    disk: Arc<dyn Disk>,
    /// `None` until the disk accepts one.
    file: Option<Arc<dyn DiskFile>>,
    /// The offset of the next record; only zeros follow.
    end: u64,
    /// The length of the file.
    reserved: u64,
    buffer: Vec<u8>,
    sync: SyncHandle,
    failure: Option<String>,
    /// The revisions at which the pairs on disk begin, oldest first.
    pairs: Vec<u64>,
    /// The length of the log from which on it is compacted into a new pair.
    compact_at: u64,
    compacting: bool,
}

impl LogFile {
    /// Begins a new pair at a revision. If the disk refuses it, the log is in failure and can heal later.
    pub(super) fn create(
        disk: Arc<dyn Disk>,
        head: &Revision,
        start: &Started,
        pairs: Vec<u64>,
    ) -> LogFile {
        let mut log = LogFile::new(disk, None, 0, head.snapshot.revision, pairs);
        if let Err(error) = log.begin_pair(head, start) {
            log.fail(&error);
        }
        log
    }

    /// Continues a log whose valid end is known.
    pub(super) fn reopen(
        disk: Arc<dyn Disk>,
        base: u64,
        end: u64,
        confirmed: u64,
        pairs: Vec<u64>,
    ) -> io::Result<LogFile> {
        let file = disk.open(&snapshot_file::log_name(base))?;
        // Also removes the records of an unconfirmed change.
        file.truncate(end)?;
        Ok(LogFile::new(disk, Some(file), end, confirmed, pairs))
    }

    fn new(
        disk: Arc<dyn Disk>,
        file: Option<Arc<dyn DiskFile>>,
        end: u64,
        confirmed: u64,
        pairs: Vec<u64>,
    ) -> LogFile {
        let files = file.iter().cloned().collect();
        LogFile {
            sync: SyncHandle::new(Arc::clone(&disk), files, confirmed),
            disk,
            file,
            end,
            reserved: end,
            buffer: Vec::new(),
            failure: None,
            pairs,
            compact_at: LOG_BYTES_MIN,
            compacting: false,
        }
    }

    fn begin_pair(&mut self, head: &Revision, start: &Started) -> io::Result<()> {
        let revision = head.snapshot.revision;
        let bytes = Contents::of(head, start).to_bytes();
        snapshot_file::write(&*self.disk, &snapshot_file::name(revision), &bytes)?;
        let file = self.create_log(revision)?;
        file.sync()?;
        self.disk.sync()?;
        self.sync.begin_anew(file, revision);
        self.sync.set_confirmed(revision);
        self.compact_at = LOG_BYTES_MIN.max(2 * bytes.len() as u64);
        self.failure = None;
        Ok(())
    }

    /// Creates the log of a pair and makes it the current one.
    fn create_log(&mut self, revision: u64) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.create(&snapshot_file::log_name(revision))?;
        file.reserve(ENDING_BYTES)?;
        file.write_at(0, &record::head(revision))?;
        self.file = Some(Arc::clone(&file));
        self.end = HEAD_BYTES as u64;
        self.reserved = ENDING_BYTES;
        self.pairs.retain(|pair| *pair != revision);
        self.pairs.push(revision);
        Ok(file)
    }

    pub(super) fn sync_handle(&self) -> SyncHandle {
        self.sync.clone()
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn fail(&mut self, error: &io::Error) {
        self.failure = Some(error.to_string());
        self.sync.fail(error);
    }

    /// Repairs a failed log by a new pair, whose snapshot has all settings: what the disk has of the old log is
    /// unknown.
    pub(super) fn heal(&mut self, head: &Revision, start: &Started) -> io::Result<()> {
        if self.failure.is_none() && !self.sync.has_failed() {
            return Ok(());
        }
        let begun = self.begin_pair(head, start);
        if let Err(error) = &begun {
            self.fail(error);
        }
        begun
    }

    /// Writes unconfirmed changes; all of them or none.
    pub(super) fn append<'r>(
        &mut self,
        revisions: impl Iterator<Item = &'r Arc<Revision>>,
    ) -> io::Result<()> {
        self.buffer.clear();
        for revision in revisions {
            let Revision { snapshot, origin, kind, changes, .. } = &**revision;
            let number = snapshot.revision;
            record::write_change(&mut self.buffer, self.end, number, *kind, origin, changes);
        }
        self.write()
    }

    pub(super) fn confirm(&mut self, revision: u64) {
        self.buffer.clear();
        record::write_confirm(&mut self.buffer, self.end, revision);
        debug_assert_eq!(self.buffer.len(), CONFIRM_BYTES);
        match self.write() {
            Ok(()) => self.sync.set_confirmed(revision),
            Err(error) => self.fail(&error),
        }
    }

    pub(super) fn roll_back(&mut self, returned: &Revision) {
        self.buffer.clear();
        let number = returned.snapshot.revision;
        debug_assert_eq!(returned.kind, RevisionKind::RolledBack);
        record::write_change(
            &mut self.buffer,
            self.end,
            number,
            returned.kind,
            &returned.origin,
            &returned.changes,
        );
        match self.write() {
            Ok(()) => self.sync.set_confirmed(number),
            Err(error) => self.fail(&error),
        }
    }

    /// Writes the file that the settings are begun with from now on.
    pub(super) fn start(&mut self, start: &Started) -> io::Result<()> {
        self.buffer.clear();
        record::write_start(&mut self.buffer, self.end, start);
        self.write()
    }

    /// Writes the buffer at the end, in one write.
    fn write(&mut self) -> io::Result<()> {
        let Some(file) = self.file.clone() else {
            return Err(io::Error::other("there is no log"));
        };
        let length = self.buffer.len() as u64;
        // A confirmation uses the space that its change reserved.
        let ending = if record::is_ending(&self.buffer) { 0 } else { ENDING_BYTES };
        let needed = self.end + length + ending;
        if needed > self.reserved {
            self.reserve(&*file, needed)?;
        }
        let written = file.write_at(self.end, &self.buffer);
        if self.buffer.capacity() > BUFFER_BYTES_KEPT {
            self.buffer = Vec::new();
        }
        match written {
            Ok(()) => {
                self.end += length;
                Ok(())
            }
            Err(error) => {
                // Removes what was written of it; if that fails, this log is not written again.
                match file.truncate(self.end) {
                    Ok(()) => self.reserved = self.end,
                    Err(_) => self.fail(&error),
                }
                Err(error)
            }
        }
    }

    fn reserve(&mut self, file: &dyn DiskFile, needed: u64) -> io::Result<()> {
        let ample = needed.next_multiple_of(RESERVE_BYTES);
        let (reserved, tried) = match file.reserve(ample) {
            Ok(()) => (ample, Ok(())),
            // A nearly full disk may have space for this record alone.
            Err(_) => (needed, file.reserve(needed)),
        };
        if tried.is_ok() {
            self.reserved = reserved;
        }
        tried
    }

    pub(super) fn poll_compaction(
        &mut self,
        head: &Arc<Revision>,
        start: &Started,
        revisions_kept: u32,
    ) -> Option<Compaction> {
        let revision = head.snapshot.revision;
        let due = self.end >= self.compact_at && !self.compacting && self.failure.is_none();
        if !due || self.pairs.last() == Some(&revision) {
            return None;
        }
        match self.create_log(revision) {
            Ok(file) => self.sync.follow(file),
            Err(_) => {
                // The old log continues; the disk may have space later.
                self.compact_at = self.end + LOG_BYTES_MIN;
                let _ = self.disk.remove(&snapshot_file::log_name(revision));
                return None;
            }
        }
        self.compacting = true;
        let disk = Arc::clone(&self.disk);
        let pairs = &self.pairs;
        Some(Compaction::new(disk, Arc::clone(head), start.clone(), pairs, revisions_kept))
    }

    pub(super) fn handle_compacted(&mut self, compacted: Compacted) {
        self.compacting = false;
        let Compacted { outcome, removed } = compacted;
        match outcome {
            Ok(bytes) => {
                self.pairs.retain(|pair| !removed.contains(pair));
                self.compact_at = LOG_BYTES_MIN.max(2 * bytes);
            }
            Err(_) => self.compact_at = self.end + LOG_BYTES_MIN,
        }
    }
}
