//! A new pair of snapshot and log in the place of a long log.

use std::io;
use std::sync::Arc;

use super::Revision;
use super::disk::Disk;
use super::record::Started;
use super::snapshot_file::{self, Contents};

/// A log shorter than this is read in a blink.
pub(super) const LOG_BYTES_MIN: u64 = 8 << 20;
/// The most pairs kept, so that a disk holds a bounded multiple of the configuration.
const PAIRS_MAX: usize = 4;

/// The log continues in a new file already; the snapshot it begins with is still to be written.
pub struct Compaction {
    disk: Arc<dyn Disk>,
    head: Arc<Revision>,
    start: Started,
    /// The pairs whose revisions are no longer needed.
    obsolete: Vec<u64>,
}

/// How a [`Compaction`] ended.
#[derive(Debug)]
pub struct Compacted {
    /// The snapshot's size.
    pub(super) outcome: io::Result<u64>,
    pub(super) removed: Vec<u64>,
}

impl Compaction {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        head: Arc<Revision>,
        start: Started,
        pairs: &[u64],
        revisions_kept: u32,
    ) -> Compaction {
        let newest = head.snapshot.revision;
        let kept = u64::from(revisions_kept);
        let last = pairs.len().saturating_sub(1);
        // The pair before the newest stays whatever happens: should the snapshot prove bad, its log
        // leads there.
        let obsolete = (0..last.saturating_sub(1))
            .filter(|index| newest - pairs[index + 1] >= kept || last - index >= PAIRS_MAX)
            .map(|index| pairs[index])
            .collect();
        Compaction { disk, head, start, obsolete }
    }

    /// Writes the snapshot, then removes what it makes obsolete. Takes as long as the disk takes.
    pub fn run(self) -> Compacted {
        let bytes = Contents::of(&self.head, &self.start).to_bytes();
        let name = snapshot_file::name(self.head.snapshot.revision);
        if let Err(error) = snapshot_file::write(&*self.disk, &name, &bytes) {
            return Compacted { outcome: Err(error), removed: Vec::new() };
        }
        for revision in &self.obsolete {
            // The snapshot first: without it the log before would lead into one that is gone.
            for name in [snapshot_file::name(*revision), snapshot_file::log_name(*revision)] {
                // What cannot be removed takes room and does no harm.
                let _ = self.disk.remove(&name);
            }
        }
        Compacted { outcome: Ok(bytes.len() as u64), removed: self.obsolete }
    }
}

impl Compacted {
    /// Why the snapshot was not written; the log is complete without it.
    pub fn error(&self) -> Option<&io::Error> {
        self.outcome.as_ref().err()
    }
}
