//! A journal of pushes about to be sent. It is written before they are sent, so that after a kill the next run knows
//! which of them may have arrived without a line in the results.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A journal longer than this is rewritten with the pushes in progress only.
const BYTES_MAX: usize = 1 << 20;

/// The fingerprint of a push, and the length of the results file when it was sent: its result line, if there is one, is
/// after that position.
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
    /// Opens or creates the journal of a results file. Returns the pushes that an earlier run has begun.
    pub(super) fn open(results: &Path) -> io::Result<(Journal, HashMap<u128, u64>)> {
        let mut path = results.to_owned().into_os_string();
        path.push(".journal");
        let path = PathBuf::from(path);
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let text = fs::read_to_string(&path)?;
        // A truncated last entry belongs to a push that was not sent.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
        let entry = |line: &str| {
            let (fingerprint, length) = line.split_once(' ')?;
            Some((u128::from_str_radix(fingerprint, 16).ok()?, length.parse().ok()?))
        };
        let begun = text[..whole].lines().filter_map(entry).collect();
        Ok((Journal { path, file, bytes: whole, text: String::new() }, begun))
    }

    /// Records a push that is about to be sent; it may be sent once [`write`](Journal::write) has returned.
    pub(super) fn note(&mut self, (fingerprint, length): StartedLine) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{fingerprint:032x} {length}");
    }

    /// Writes the entries to the file, where they survive this process.
    pub(super) fn write(&mut self) -> io::Result<()> {
        self.bytes += self.text.len();
        let written = self.file.write_all(self.text.as_bytes());
        self.text.clear();
        written
    }

    pub(super) fn is_long(&self) -> bool {
        self.bytes > BYTES_MAX
    }

    /// Rewrites the journal with these entries only. The results file must already contain all other outcomes.
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

    /// Removes the journal once all pushes have ended and the results are complete.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_file(self.path)
    }
}
