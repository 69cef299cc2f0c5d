//! Which pushes are about to leave: written before they do, so that a run after one that was killed knows which of them may
//! have arrived without a line in the results.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A journal that has grown so long is written anew with what is under way.
const BYTES_MAX: usize = 1 << 20;

/// A push by its fingerprint, and how long the results were when it left: a line of its own behind that place is its end.
pub(super) type StartedLine = (u128, u64);

/// The file, open for more entries.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    bytes: usize,
    text: String,
}

impl Journal {
    /// Opens the journal beside a file of results, made if it is not there, and gives what a run before has begun.
    pub(super) fn open(results: &Path) -> io::Result<(Journal, HashMap<u128, u64>)> {
        let mut path = results.to_owned().into_os_string();
        path.push(".journal");
        let path = PathBuf::from(path);
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let text = fs::read_to_string(&path)?;
        // A last entry that was cut is of a push that had not left.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
        let entry = |line: &str| {
            let (fingerprint, length) = line.split_once(' ')?;
            Some((u128::from_str_radix(fingerprint, 16).ok()?, length.parse().ok()?))
        };
        let begun = text[..whole].lines().filter_map(entry).collect();
        Ok((Journal { path, file, bytes: whole, text: String::new() }, begun))
    }

    /// Notes a push that is about to leave; it may once [`write`](Journal::write) has returned.
    pub(super) fn note(&mut self, (fingerprint, length): StartedLine) {
        // A String takes all that is written to it.
        let _ = writeln!(self.text, "{fingerprint:032x} {length}");
    }

    /// Hands what was noted to the system, where it outlives this process.
    pub(super) fn write(&mut self) -> io::Result<()> {
        self.bytes += self.text.len();
        let written = self.file.write_all(self.text.as_bytes());
        self.text.clear();
        written
    }

    pub(super) fn is_long(&self) -> bool {
        self.bytes > BYTES_MAX
    }

    /// Leaves nothing in it but these, once the results have the ends of all others.
    pub(super) fn rewrite(&mut self, open: impl Iterator<Item = StartedLine>) -> io::Result<()> {
        open.for_each(|begun| self.note(begun));
        let beside = self.path.with_extension("journal.new");
        fs::write(&beside, &self.text)?;
        fs::rename(&beside, &self.path)?;
        self.file = OpenOptions::new().append(true).open(&self.path)?;
        self.bytes = self.text.len();
        self.text.clear();
        Ok(())
    }

    /// Everything has ended, and the results say how.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_file(self.path)
    }
}
