//! The revisions kept in memory, bounded in number and in bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::Changes;
use crate::store::Revision;

/// Approximate memory of a revision without its changes: its own path of the tree.
const REVISION_BYTES: usize = 6 << 10;

/// Never empty; the newest is the head.
pub(super) struct History {
    /// Revisions with their approximate size in bytes.
    kept: VecDeque<(Arc<Revision>, usize)>,
    bytes: usize,
}

impl History {
    pub(super) fn new(first: Arc<Revision>) -> History {
        let mut history = History { kept: VecDeque::new(), bytes: 0 };
        history.push(first);
        history
    }

    pub(super) fn head(&self) -> &Arc<Revision> {
        let (head, _) = self.kept.back().expect("a history is never empty");
        head
    }

    pub(super) fn config(&self) -> &Changes {
        &self.head().snapshot.config.config
    }

    /// Appends a revision as the head, and removes the oldest ones beyond the bounds that its settings specify.
    pub(super) fn push(&mut self, revision: Arc<Revision>) {
        let weight = revision.changes.iter().map(|change| change.weight()).sum::<usize>();
        let bytes = weight + REVISION_BYTES;
        self.bytes += bytes;
        self.kept.push_back((revision, bytes));
        let (number, bytes_max) = {
            let config = self.config();
            (config.revisions_max as usize, config.revisions_bytes_max)
        };
        while self.kept.len() > 1 && (self.kept.len() > number || self.bytes > bytes_max) {
            let gone = self.kept.pop_front();
            self.bytes -= gone.map_or(0, |(_, bytes)| bytes);
        }
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Revision>> {
        self.kept.iter().map(|(revision, _)| revision)
    }

    pub(super) fn oldest(&self) -> u64 {
        self.kept.front().map_or(0, |(revision, _)| revision.snapshot.revision)
    }

    /// Returns the index of the first revision newer than `number`.
    fn after(&self, number: u64) -> usize {
        self.kept.partition_point(|(revision, _)| revision.snapshot.revision <= number)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Arc<Revision>> {
        let (revision, _) = self.kept.get(self.after(number).checked_sub(1)?)?;
        (revision.snapshot.revision == number).then_some(revision)
    }

    pub(super) fn since(&self, number: u64) -> Option<impl Iterator<Item = &Arc<Revision>>> {
        let (oldest, _) = self.kept.front()?;
        // The changes of the oldest revision are kept, so its predecessor is a valid start as well.
        let known = oldest.previous.max(1)..=self.head().snapshot.revision;
        let from = self.after(number);
        known.contains(&number).then(|| self.kept.range(from..).map(|(revision, _)| revision))
    }
}
