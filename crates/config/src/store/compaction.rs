//! Compaction: a new pair of snapshot and log replaces a long log.

use std::io;
use std::sync::Arc;

use dunlin_log::Disk;

use super::Revision;
use super::record::Started;
use super::snapshot_file::{self, Contents};

/// The minimum size of a log for compaction; shorter ones are read quickly.
pub(super) const LOG_BYTES_MIN: u64 = 8 << 20;
/// Maximum number of pairs kept, so that the store needs a bounded multiple of the configuration's size.
const PAIRS_MAX: usize = 4;

/// A compaction whose log exists already and whose snapshot is still to be written.
pub struct Compaction {
    disk: Arc<dyn Disk>,
    head: Arc<Revision>,
    start: Started,
    /// First revisions of the pairs that are no longer needed.
    obsolete: Vec<u64>,
}

/// The result of a [`Compaction`].
#[derive(Debug)]
pub struct Compacted {
    /// The snapshot's size in bytes.
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
        // The pair before the newest is always kept: if the new snapshot is damaged, its log leads to the same
        // revision.
        let obsolete = (0..last.saturating_sub(1))
            .filter(|index| newest - pairs[index + 1] >= kept || last - index >= PAIRS_MAX)
            .map(|index| pairs[index])
            .collect();
        Compaction { disk, head, start, obsolete }
    }

    /// Writes the snapshot, then removes the obsolete pairs. Blocks on the disk.
    pub fn run(self) -> Compacted {
        let bytes = Contents::of(&self.head, &self.start).to_bytes();
        let name = snapshot_file::name(self.head.snapshot.revision);
        if let Err(error) = snapshot_file::write(&*self.disk, &name, &bytes) {
            return Compacted { outcome: Err(error), removed: Vec::new() };
        }
        for revision in &self.obsolete {
            // The snapshot goes first: recovery begins at the oldest snapshot, which needs its log.
            for name in [snapshot_file::name(*revision), snapshot_file::log_name(*revision)] {
                // A file that cannot be removed only takes space.
                let _ = self.disk.remove(&name);
            }
        }
        Compacted { outcome: Ok(bytes.len() as u64), removed: self.obsolete }
    }
}

impl Compacted {
    /// Returns why the snapshot was not written. The log is complete without it.
    pub fn error(&self) -> Option<&io::Error> {
        self.outcome.as_ref().err()
    }
}
