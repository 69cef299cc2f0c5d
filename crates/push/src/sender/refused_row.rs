//! Refusals of a connection in a row: a peer that refuses every stream is left.

use std::time::Duration;

use tokio::time::Instant;

/// A connection is left after so many refusals in a row, over at least this time: another may lead to a better server.
const REFUSED_ROW_MAX: u32 = 4;
const REFUSED_ROW_FOR: Duration = Duration::from_secs(1);

/// The streams that the peer has refused since it last answered one.
#[derive(Debug, Default)]
pub(super) struct RefusedRow {
    count: u32,
    since: Option<Instant>,
}

impl RefusedRow {
    /// Counts a refusal. Returns whether there have been so many, for so long, that another connection may be better.
    pub(super) fn add(&mut self, now: Instant) -> bool {
        self.count += 1;
        let since = *self.since.get_or_insert(now);
        self.count >= REFUSED_ROW_MAX && now >= since + REFUSED_ROW_FOR
    }
}
