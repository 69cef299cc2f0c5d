//! A disk for tests: counts syncs, loses unsynced writes in a power cut, and can be full.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::{Database, Error, StorageBackend};

use super::Store;

/// Clones share the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    /// The synced content, which survives a power cut.
    synced: Vec<u8>,
    syncs: usize,
    full: bool,
}

impl Disk {
    /// Returns a store on this disk.
    pub(crate) fn open(&self, make: fn(&Database) -> Result<(), Error>) -> Result<Store, Error> {
        let disk = self.clone();
        Store::with(move || Ok(Database::builder().create_with_backend(disk.clone())?), make)
    }

    /// Returns a new disk with the content that survives a power cut.
    pub(crate) fn after_power_cut(&self) -> Disk {
        let synced = self.state().synced.clone();
        Disk(Arc::new(Mutex::new(State { bytes: synced.clone(), synced, ..State::default() })))
    }

    /// Returns the number of syncs.
    pub(crate) fn syncs(&self) -> usize {
        self.state().syncs
    }

    /// Sets whether the disk is full: writes and syncs fail then.
    pub(crate) fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn writable(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(state) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let from = offset as usize;
        let state = self.state();
        let bytes = state.bytes.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.writable()?.bytes.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.writable()?;
        state.syncs += 1;
        state.synced = state.bytes.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let from = offset as usize;
        let mut state = self.writable()?;
        let bytes = state.bytes.get_mut(from..from + data.len());
        bytes.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        Ok(())
    }
}
