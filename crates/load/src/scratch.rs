//! A directory for what a run needs on disk.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Context, Error};

/// A directory of this process, removed at the end.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Below the system's directory for temporary files.
    pub fn temporary(name: &str) -> Result<Self, Error> {
        Self::below(&std::env::temp_dir(), name)
    }

    /// Where its disk is part of what is measured.
    pub fn below(parent: &Path, name: &str) -> Result<Self, Error> {
        let path = parent.join(format!("dunlin-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).context(format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into it.
    pub fn file(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        fs::write(&path, text).context(format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What remains lies in a directory that the user has named, or that the system empties.
        let _ = fs::remove_dir_all(&self.path);
    }
}
