//! The system's clock.

use std::time::UNIX_EPOCH;

/// Milliseconds since 1970; 0 where the clock is set to an earlier time.
pub(crate) fn unix_ms() -> u64 {
    UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64)
}
