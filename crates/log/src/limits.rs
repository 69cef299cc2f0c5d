//! How large a log may become.

/// What happens when the log has reached its bound in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Appends are refused until a segment has expired.
    #[default]
    Refuse,
    /// The oldest segment goes, expired or not.
    DropOldest,
}

/// How large a log may become, and how often it is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a segment: what expires at once, and four times the largest record. 64 KiB to 1 GiB.
    pub segment_bytes: u32,
    /// Most bytes on the disk; two segments at least.
    pub bytes_max: u64,
    /// Most bytes that wait to be written.
    pub buffer_bytes_max: usize,
    /// Milliseconds until records are synced that nobody waits for.
    pub sync_interval_ms: u64,
    /// What happens at `bytes_max`.
    pub when_full: WhenFull,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            segment_bytes: 64 << 20,
            bytes_max: 10 << 30,
            buffer_bytes_max: 32 << 20,
            sync_interval_ms: 100,
            when_full: WhenFull::Refuse,
        }
    }
}
