//! The timeout type of this crate.

use std::num::NonZeroU64;

/// A timeout in milliseconds; `None` disables it. `NonZeroU64::new` converts settings in which 0 means no timeout.
pub type TimeoutMs = Option<NonZeroU64>;
