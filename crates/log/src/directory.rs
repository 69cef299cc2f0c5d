//! The [`Disk`] of production: a directory of the file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;

use crate::disk::{Disk, DiskFile};

/// The lock file; the process that holds its lock is the only writer.
const LOCK: &str = "lock";
/// The files contain secrets: only their owner may access them.
const MODE: u32 = 0o600;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A directory that only one process at a time may write to.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Locked while open; the kernel releases the lock when the process ends, even after a crash.
    _lock: File,
}

impl Directory {
    /// Opens and locks a directory, creating it if necessary.
    ///
    /// # Errors
    /// The error of the file system; [`ErrorKind::WouldBlock`] if another process holds the lock.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Directory> {
        let path = path.into();
        // A new directory is private to this user, like its files. An existing one keeps its mode.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        let lock = options().create(true).truncate(false).open(path.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => io::Error::new(
                ErrorKind::WouldBlock,
                format!("{} is in use by another process", path.display()),
            ),
            error => error.into(),
        })?;
        Ok(Directory { path, _lock: lock })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(MODE);
    options
}

impl Disk for Directory {
    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().into_string()));
        let names: io::Result<Vec<_>> = names.collect();
        // A name that is not UTF-8 is not one of ours.
        Ok(names?.into_iter().filter_map(Result::ok).filter(|name| name != LOCK).collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path.join(name))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(options().create(true).truncate(true).open(self.path.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(options().open(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl DiskFile for File {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            match FileExt::read_at(self, &mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let length = self.metadata()?.len();
        if length >= bytes {
            return Ok(());
        }
        match fallocate(self, FallocateFlags::empty(), length, bytes - length) {
            Ok(()) => return Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        // The file system cannot reserve space: write zeros instead.
        let mut at = length;
        while at < bytes {
            let zeros = ZEROS.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
            self.write_all_at(&ZEROS[..zeros], at)?;
            at += zeros as u64;
        }
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
