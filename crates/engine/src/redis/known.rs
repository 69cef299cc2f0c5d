//! What an engine knows of a stream, so that the common publication asks nothing.

use dunlin_hub::Epoch;

/// What is known of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownStream {
    pub(crate) epoch: Epoch,
    /// The highest offset that was seen or acknowledged.
    pub(crate) top: u64,
    /// The partition's life in which it was learned: of an earlier one the epoch is not used any more.
    pub(crate) life: u32,
    /// When the times of its keys were renewed by us.
    pub(crate) renewed_ms: u64,
    /// When it was learned.
    pub(crate) seen_ms: u64,
    pub(crate) meta_ttl_ms: u64,
}
