//! A position in the log of shared changes.

/// The most changes that the log keeps. A node that was disconnected for more of them has missed some and reports that.
pub(super) const CHANGES_MAX: u64 = 1_000;
pub(super) const BYTES_MAX: usize = 8 << 20;

/// The identifier of a log, and its newest change. Both are 0 without a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) id: u64,
    pub(super) revision: u64,
}
