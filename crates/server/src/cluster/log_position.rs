//! Where the log of changes for all nodes is.

use super::link::Reply;

pub(super) fn log_key(prefix: &str) -> String {
    format!("{prefix}:settings")
}

/// A log, and its newest change. Zeros: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) id: u64,
    pub(super) revision: u64,
}

impl LogPosition {
    /// From a reply that begins with both.
    pub(super) fn read(reply: &Reply) -> Option<LogPosition> {
        let [id, revision, ..] = reply.list() else { return None };
        Some(LogPosition { id: id.text()?.parse().ok()?, revision: revision.text()?.parse().ok()? })
    }
}
