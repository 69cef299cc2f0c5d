//! When what the allocator has free goes back to the system.

/// So many more free bytes than the last trim has left are worth another one.
const STEP_BYTES: usize = 4 << 20;

/// What the last trim has left. It stays counted as free, though its whole pages are the system's again.
#[derive(Debug, Default)]
pub(super) struct HeapTrim {
    left_bytes: usize,
}

impl HeapTrim {
    /// Whether so many free bytes are worth a trim.
    pub(super) fn is_due(&mut self, free_bytes: usize) -> bool {
        // What is in use again has pages again.
        self.left_bytes = self.left_bytes.min(free_bytes);
        free_bytes >= self.left_bytes + STEP_BYTES
    }

    /// A trim has left so many free.
    pub(super) fn handle_trimmed(&mut self, free_bytes: usize) {
        self.left_bytes = free_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn what_was_given_back_is_not_given_back_again() {
        let mut trim = HeapTrim::default();
        assert!(!trim.is_due(3 * MIB));
        assert!(trim.is_due(100 * MIB));
        trim.handle_trimmed(90 * MIB);
        assert!(!trim.is_due(91 * MIB));
        assert!(trim.is_due(94 * MIB));
        trim.handle_trimmed(94 * MIB);
        assert!(!trim.is_due(20 * MIB), "in use again");
        assert!(trim.is_due(24 * MIB), "and free again");
    }
}
