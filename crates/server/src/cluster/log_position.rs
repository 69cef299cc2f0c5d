//! Where the log of changes for all nodes is.

/// What the log keeps. A node that was away for more of them has missed some, and says so.
pub(super) const CHANGES_MAX: u64 = 1_000;
pub(super) const BYTES_MAX: usize = 8 << 20;

/// A log, and its newest change. Zeros: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) id: u64,
    pub(super) revision: u64,
}
