//! Waiting for the disk, on another thread than the one that writes.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Disk, DiskFile};

/// Makes what was confirmed outlast a loss of power. Any thread may hold one; many changes share one
/// wait.
#[derive(Clone)]
pub struct SyncHandle {
    disk: Arc<dyn Disk>,
    state: Arc<Mutex<State>>,
}

struct State {
    /// The log, and those before it that nobody has waited for yet.
    files: Vec<Arc<dyn DiskFile>>,
    /// Whether names in the directory changed since it was synced.
    names: bool,
    confirmed: u64,
    durable: u64,
    /// Why nothing is durable: a disk that failed once may have thrown away what it had.
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

    /// Waits for the disk; gives the newest revision that is safe on it now.
    ///
    /// # Errors
    /// What the disk says. It is asked again only after a new log was begun, by the next change: a
    /// second wait that succeeds would not mean that the first one's data is there.
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
        // Logs that were left behind meanwhile are complete; this one continues.
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

    /// The newest revision that is safe on the disk.
    pub fn durable(&self) -> u64 {
        self.state().durable
    }

    pub(super) fn set_confirmed(&self, revision: u64) {
        self.state().confirmed = revision;
    }

    /// The log continues in another file.
    pub(super) fn follow(&self, file: Arc<dyn DiskFile>) {
        let mut state = self.state();
        state.files.push(file);
        state.names = true;
    }

    /// A log begun anew, with all that is confirmed in it or in the snapshot before it.
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
