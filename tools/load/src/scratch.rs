//! A directory for the files of a run.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Context, Error};

/// A directory of this process, removed on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates it in the system's directory for temporary files.
    pub fn temporary(name: &str) -> Result<Self, Error> {
        Self::below(&std::env::temp_dir(), name)
    }

    /// Creates it in `parent`, for measurements that depend on the disk.
    pub fn below(parent: &Path, name: &str) -> Result<Self, Error> {
        let path = parent.join(format!("dunlin-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).context(format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into it, and returns the file's path.
    pub fn file(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        fs::write(&path, text).context(format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, files remain in a directory that the user has named or that the system cleans up.
        let _ = fs::remove_dir_all(&self.path);
    }
}
