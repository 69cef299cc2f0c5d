//! Rate limit of log lines that a peer can cause: one per second of each kind.

/// Passes one line per second and counts those it suppresses.
#[derive(Debug, Default)]
pub(crate) struct LogGate {
    next_ms: u64,
    kept_back: u64,
}

impl LogGate {
    const PAUSE_MS: u64 = 1000;

    /// Returns `Some` if the line may be logged, with the number of lines suppressed before it.
    pub(crate) fn pass(&mut self, now_ms: u64) -> Option<u64> {
        if now_ms < self.next_ms {
            self.kept_back += 1;
            return None;
        }
        self.next_ms = now_ms + Self::PAUSE_MS;
        Some(std::mem::take(&mut self.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_a_second_and_a_count() {
        let mut gate = LogGate::default();
        let passed: Vec<_> = (0..2500).map(|at_ms| gate.pass(at_ms)).collect();
        let lines: Vec<_> = passed.into_iter().flatten().collect();
        assert_eq!(lines, [0, 999, 999]);
    }
}
