//! Syncing the disk on another thread than the one that writes.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunlin_log::{Disk, DiskFile};

/// Makes confirmed revisions survive a loss of power. Any thread may hold a handle; one sync covers all changes written
/// before it.
#[derive(Clone)]
pub struct SyncHandle {
    disk: Arc<dyn Disk>,
    state: Arc<Mutex<State>>,
}

struct State {
    /// The current log, and earlier ones that are not synced yet.
    files: Vec<Arc<dyn DiskFile>>,
    /// Whether the directory's names changed since its last sync.
    names: bool,
    confirmed: u64,
    durable: u64,
    /// The first error. A disk that failed once may have dropped unsynced data, so no later sync of it counts.
    failure: Option<String>,
}

impl SyncHandle {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        files: Vec<Arc<dyn DiskFile>>,
        confirmed: u64,
    ) -> SyncHandle {
        let state = State { files, names: true, confirmed, durable: 0, failure: None };
        SyncHandle { disk, state: Arc::new(Mutex::new(state)) }
    }

    /// Syncs the log and returns the newest durable revision.
    ///
    /// # Errors
    /// The error of the disk. It is repeated until the next change begins a new log: a second sync that succeeds would
    /// not prove that the data of the first one is on the disk.
    pub fn sync(&self) -> io::Result<u64> {
        let (files, names, confirmed) = {
            let state = self.state();
            if let Some(failure) = &state.failure {
                return Err(io::Error::other(failure.clone()));
            }
            if state.durable >= state.confirmed {
                return Ok(state.durable);
            }
            (state.files.clone(), state.names, state.confirmed)
        };
        let synced = files
            .iter()
            .try_for_each(|file| file.sync())
            .and_then(|()| if names { self.disk.sync() } else { Ok(()) });
        let mut state = self.state();
        if let Err(error) = synced {
            state.failure = Some(error.to_string());
            return Err(error);
        }
        // Earlier logs are complete and synced now; the last one may have grown meanwhile and stays.
        let is_synced = |file: &Arc<dyn DiskFile>| files.iter().any(|other| same(file, other));
        let last = state.files.len().saturating_sub(1);
        let mut index = 0;
        state.files.retain(|file| {
            index += 1;
            index > last || !is_synced(file)
        });
        if state.files.len() == 1 && files.last().is_some_and(|file| same(file, &state.files[0])) {
            state.names = false;
        }
        state.durable = state.durable.max(confirmed);
        Ok(confirmed)
    }

    /// Returns the newest durable revision.
    pub fn durable(&self) -> u64 {
        self.state().durable
    }

    pub(super) fn set_confirmed(&self, revision: u64) {
        self.state().confirmed = revision;
    }

    /// Adds the file in which the log continues.
    pub(super) fn follow(&self, file: Arc<dyn DiskFile>) {
        let mut state = self.state();
        state.files.push(file);
        state.names = true;
    }

    /// Starts over with a new log. All confirmed revisions are in it or in the snapshot before it.
    pub(super) fn begin_anew(&self, file: Arc<dyn DiskFile>, durable: u64) {
        let mut state = self.state();
        state.files = vec![file];
        state.failure = None;
        state.durable = durable;
    }

    pub(super) fn fail(&self, error: &io::Error) {
        self.state().failure = Some(error.to_string());
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state().failure.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn same(one: &Arc<dyn DiskFile>, other: &Arc<dyn DiskFile>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}
