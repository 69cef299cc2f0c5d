//! The operations that a log, and the store of settings, need of a disk. The interface is small, so that tests can simulate a disk that is
//! full, loses power or tears writes.

use std::io;
use std::sync::Arc;

/// A directory used by one writer alone.
pub trait Disk: Send + Sync {
    /// Lists the names of the files.
    ///
    /// # Errors
    /// The error of the disk, as for all methods here.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Reads a whole file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Creates an empty file, replacing any file of this name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file for writing and reading.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file atomically, replacing any file of the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns once the names in the directory survive a loss of power.
    fn sync(&self) -> io::Result<()>;
}

/// A file that one thread writes and any thread may sync or read.
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The error of the disk, as for all methods here. Any part of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads up to `bytes.len()` bytes at `offset`, fewer only at the end of the file. Returns their number.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;

    /// Extends the file to at least `bytes`, so that writes within that range need no more space.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Truncates the file to `bytes`.
    fn truncate(&self, bytes: u64) -> io::Result<()>;

    /// Returns once the written bytes survive a loss of power.
    fn sync(&self) -> io::Result<()>;
}
