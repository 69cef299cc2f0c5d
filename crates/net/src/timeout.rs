//! Time-outs of everything in this crate.

use std::num::NonZeroU64;

/// A time-out in milliseconds; `None`: there is none. `NonZeroU64::new` makes one of a setting whose 0 says the same.
pub type TimeoutMs = Option<NonZeroU64>;
