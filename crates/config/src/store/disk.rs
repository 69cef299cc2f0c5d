//! What the store needs of a disk: small enough that a test can be one that fills up, loses power and
//! tears what was written.

use std::io;
use std::sync::Arc;

/// One directory that belongs to the store alone.
pub trait Disk: Send + Sync {
    /// The names of the files there.
    ///
    /// # Errors
    /// What the disk says; as of all methods here.
    fn list(&self) -> io::Result<Vec<String>>;

    /// All of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Makes an empty file, in the place of one of this name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file to be written on.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name, in the place of one of that name, at once.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Takes a file away.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns once the names in the directory outlast a loss of power.
    fn sync(&self) -> io::Result<()>;
}

/// A file that is written by one thread and synced by any.
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// What the disk says; any part may have been written then. As of all methods here.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes the file `bytes` long at least, so that writing within that needs no more room.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Cuts the file off behind `bytes`.
    fn truncate(&self, bytes: u64) -> io::Result<()>;

    /// Returns once what was written outlasts a loss of power.
    fn sync(&self) -> io::Result<()>;
}
