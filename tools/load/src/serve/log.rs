//! The access log: a line for each request with an id, to compare with a client's ledger.
//!
//! `SERVED ID OUTCOME`, where SERVED numbers the server's answers and comes back to the client as `X-Served`. The
//! outcome is `answered`, or `lost` when the server processed the request and reset the connection instead.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crate::{Context, Error};

/// Lines of one thread, written to a file that all threads share.
#[derive(Debug)]
pub(super) struct Log {
    file: Arc<File>,
    lines: Vec<u8>,
}

impl Log {
    pub(super) fn open(path: &Path) -> Result<Arc<File>, Error> {
        let file = File::options().create(true).append(true).open(path);
        file.map(Arc::new).context(format!("cannot write {}", path.display()))
    }

    pub(super) fn new(file: Arc<File>) -> Self {
        Self { file, lines: Vec::new() }
    }

    pub(super) fn note(&mut self, served: u64, id: &str, answered: bool) {
        let outcome = if answered { "answered" } else { "lost" };
        // Writing to a Vec cannot fail.
        let _ = writeln!(self.lines, "{served} {id} {outcome}");
    }

    /// Writes the lines of a turn before its answers are sent: a client never holds an answer that the log lacks.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if !self.lines.is_empty() {
            // One write of whole lines to a file in append mode, so that lines of threads do not interleave.
            (&*self.file).write_all(&self.lines).context("cannot write the access log")?;
            self.lines.clear();
        }
        Ok(())
    }
}
