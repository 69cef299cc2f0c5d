//! The newest shared changes of settings that this process has read or made, sealed as in the log.
//!
//! A server that loses its data loses the log, too. A node that was disconnected then would never receive what it missed, although
//! others run it. Those write the changes again that the log lacks.

use std::collections::VecDeque;

use super::log_position::{BYTES_MAX, CHANGES_MAX, LogPosition};
use super::store::LogPart;

/// Consecutive changes of one log, bounded as the log itself is.
#[derive(Debug, Default)]
pub(super) struct RecentChanges {
    /// The newest change; zeros without one.
    newest: LogPosition,
    changes: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl RecentChanges {
    pub(super) fn add(&mut self, at: LogPosition, sealed: &[u8]) {
        let follows = self.newest.id == at.id && self.newest.revision + 1 == at.revision;
        if self.newest.id == at.id && at.revision <= self.newest.revision {
            return;
        }
        if !follows {
            *self = RecentChanges::default();
        }
        self.newest = at;
        self.bytes += sealed.len();
        self.changes.push_back(sealed.to_vec());
        while self.changes.len() as u64 > CHANGES_MAX || self.bytes > BYTES_MAX {
            let Some(gone) = self.changes.pop_front() else { return };
            self.bytes -= gone.len();
        }
    }

    /// The number before the oldest change.
    fn since(&self) -> u64 {
        self.newest.revision - self.changes.len() as u64
    }

    /// The changes for a log at this position if it lacks some of them: it does not exist, or it is an older state of the same log.
    pub(super) fn lacking(&self, log: LogPosition) -> Option<LogPart> {
        if self.changes.is_empty() {
            return None;
        }
        let is_older = log.id == self.newest.id
            && (self.since()..self.newest.revision).contains(&log.revision);
        if log.id != 0 && !is_older {
            return None;
        }
        let numbers = self.since() + 1..;
        let changes = numbers.zip(self.changes.iter().cloned()).collect();
        Some(LogPart { log: self.newest, since: self.since(), changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(id: u64, revision: u64) -> LogPosition {
        LogPosition { id, revision }
    }

    #[test]
    fn a_log_that_was_lost_or_is_older_lacks_changes_and_another_or_a_newer_one_does_not() {
        let mut recent = RecentChanges::default();
        assert_eq!(recent.lacking(LogPosition::default()), None);
        recent.add(at(7, 3), b"a");
        recent.add(at(7, 4), b"b");
        recent.add(at(7, 4), b"again");
        let part = LogPart {
            log: at(7, 4),
            since: 2,
            changes: vec![(3, b"a".to_vec()), (4, b"b".to_vec())],
        };
        for lacking in [LogPosition::default(), at(7, 2), at(7, 3)] {
            assert_eq!(recent.lacking(lacking).as_ref(), Some(&part), "{lacking:?}");
        }
        for whole in [at(7, 4), at(7, 5), at(7, 1), at(8, 3)] {
            assert_eq!(recent.lacking(whole), None, "{whole:?}");
        }
        recent.add(at(7, 6), b"c");
        assert_eq!(recent.lacking(at(7, 4)), None, "change 5 is not known");
        assert!(recent.lacking(at(7, 5)).is_some());
        recent.add(at(8, 1), b"d");
        assert_eq!(recent.lacking(at(7, 5)), None);
    }

    #[test]
    fn they_are_bounded_in_number_and_bytes() {
        let mut recent = RecentChanges::default();
        for revision in 1..=CHANGES_MAX + 5 {
            recent.add(at(7, revision), b"a");
        }
        assert_eq!((recent.changes.len() as u64, recent.since()), (CHANGES_MAX, 5));
        recent.add(at(7, CHANGES_MAX + 6), &vec![0; BYTES_MAX]);
        assert_eq!((recent.changes.len(), recent.bytes), (1, BYTES_MAX));
    }
}
