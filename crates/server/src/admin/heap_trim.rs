//! Decides when the allocator's free memory is returned to the system.

/// Growth of free bytes since the last trim that is worth another one.
const STEP_BYTES: usize = 4 << 20;

/// The free bytes after the last trim. The allocator counts them as free although their whole pages were returned.
#[derive(Debug, Default)]
pub(super) struct HeapTrim {
    left_bytes: usize,
}

impl HeapTrim {
    /// Whether `free_bytes` are worth a trim.
    pub(super) fn is_due(&mut self, free_bytes: usize) -> bool {
        // Memory that is in use again has its pages back.
        self.left_bytes = self.left_bytes.min(free_bytes);
        free_bytes >= self.left_bytes + STEP_BYTES
    }

    /// Handles that a trim left `free_bytes`.
    pub(super) fn handle_trimmed(&mut self, free_bytes: usize) {
        self.left_bytes = free_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn trimmed_heap_is_not_trimmed_again() {
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
