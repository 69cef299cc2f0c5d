use std::time::Duration;

/// The bounds of one program on one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The memory of its machine, garbage included.
    pub memory_bytes_max: usize,
    /// The time of one event.
    pub event_time_max: Duration,
    /// The time in which a program starts: what stands outside its functions.
    pub start_time_max: Duration,
    /// What one event may return, as JSON.
    pub output_bytes_max: usize,
    /// The lines that one event may log, and their bytes, are bounded by this.
    pub log_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            memory_bytes_max: 16 << 20,
            event_time_max: Duration::from_millis(2),
            start_time_max: Duration::from_millis(20),
            output_bytes_max: 256 << 10,
            log_bytes_max: 4 << 10,
        }
    }
}
