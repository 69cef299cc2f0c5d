//! Checks that every message was delivered once and in order.

use std::collections::{BTreeSet, HashMap};

use super::scan::Publication;

/// Missing sequences that are remembered per client, to distinguish late messages from repeated ones. Further ones
/// count as lost, even if they arrive later.
const MISSING_PER_CLIENT_MAX: usize = 10_000;

/// What one client expects next; plain data in the client's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) sequence: u32,
    /// Low half of the last offset seen; `NO_OFFSET` before the first.
    pub(crate) offset: u32,
}

pub(crate) const NO_OFFSET: u32 = 0;

impl Expected {
    pub(crate) const FIRST: Self = Self { sequence: 1, offset: NO_OFFSET };
}

/// Order violations of all clients of a thread. If all are zero, every message arrived once and in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Faults {
    /// Messages that a client never received although it received later ones.
    pub(crate) lost: u64,
    /// Messages that a client received more than once.
    pub(crate) duplicated: u64,
    /// Messages that a client received after later ones.
    pub(crate) reordered: u64,
    /// How often the server's own offset did not increase by one.
    pub(crate) offset_jumps: u64,
}

impl Faults {
    pub(crate) fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.offset_jumps += other.offset_jumps;
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Checks the order of what a thread's clients receive.
#[derive(Debug, Default)]
pub(crate) struct OrderChecker {
    pub(crate) faults: Faults,
    missing: HashMap<u32, BTreeSet<u32>>,
}

impl OrderChecker {
    /// Accepts a run of publications whose sequences and offsets increase by one, if it begins with the expected one.
    /// Otherwise returns false, and the publications must be checked one by one.
    pub(crate) fn take_run(
        &mut self,
        expected: &mut Expected,
        first: Publication,
        last: Publication,
    ) -> bool {
        let offset_fits = first.offset == 0
            || expected.offset == NO_OFFSET
            || first.offset as u32 == expected.offset.wrapping_add(1);
        if first.sequence != expected.sequence || !offset_fits {
            return false;
        }
        *expected =
            Expected { sequence: last.sequence.wrapping_add(1), offset: last.offset as u32 };
        true
    }

    pub(crate) fn take(&mut self, client: u32, expected: &mut Expected, publication: Publication) {
        if publication.offset != 0 {
            let offset = publication.offset as u32;
            if expected.offset != NO_OFFSET && offset != expected.offset.wrapping_add(1) {
                self.faults.offset_jumps += 1;
            }
            expected.offset = offset;
        }
        let sequence = publication.sequence;
        // Probes and messages of other publishers have no number.
        if sequence == 0 {
            return;
        }
        if sequence >= expected.sequence {
            let skipped = sequence - expected.sequence;
            if skipped > 0 {
                self.faults.lost += u64::from(skipped);
                let missing = self.missing.entry(client).or_default();
                let room = MISSING_PER_CLIENT_MAX.saturating_sub(missing.len());
                missing.extend((expected.sequence..sequence).take(room));
            }
            expected.sequence = sequence.wrapping_add(1);
        } else if self.missing.get_mut(&client).is_some_and(|missing| missing.remove(&sequence)) {
            self.faults.lost -= 1;
            self.faults.reordered += 1;
        } else {
            self.faults.duplicated += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn receive(sequences: &[u32]) -> (Faults, Expected) {
        let mut ledger = OrderChecker::default();
        let mut expected = Expected::FIRST;
        for &sequence in sequences {
            ledger.take(0, &mut expected, Publication { sequence, offset: 0 });
        }
        (ledger.faults, expected)
    }

    #[test]
    fn each_fault_has_its_name() {
        assert!(receive(&[1, 2, 3]).0.is_none());
        assert_eq!(receive(&[1, 4]).0, Faults { lost: 2, ..Faults::default() });
        assert_eq!(receive(&[1, 1, 2]).0, Faults { duplicated: 1, ..Faults::default() });
        assert_eq!(receive(&[2, 1, 3]).0, Faults { reordered: 1, ..Faults::default() });
        assert_eq!(
            receive(&[2, 1, 1]).0,
            Faults { reordered: 1, duplicated: 1, ..Faults::default() }
        );
    }

    #[test]
    fn an_offset_that_jumps_is_seen_although_the_sequence_fits() {
        let mut ledger = OrderChecker::default();
        let mut expected = Expected::FIRST;
        for (sequence, offset) in [(1, 10), (2, 11), (3, 13)] {
            ledger.take(0, &mut expected, Publication { sequence, offset });
        }
        assert_eq!(ledger.faults, Faults { offset_jumps: 1, ..Faults::default() });
    }

    proptest! {
        /// Every permutation loses and duplicates nothing; of a subset, exactly the rest is lost.
        #[test]
        fn losses_are_exact(order in Just((1u32..40).collect::<Vec<_>>()).prop_shuffle(), keep in prop::collection::vec(any::<bool>(), 39)) {
            let (faults, _) = receive(&order);
            prop_assert_eq!((faults.lost, faults.duplicated), (0, 0));

            let kept: Vec<u32> = order.iter().copied().filter(|&sequence| keep[sequence as usize - 1]).collect();
            let (faults, expected) = receive(&kept);
            prop_assert_eq!(faults.lost + kept.len() as u64, u64::from(expected.sequence - 1));
            prop_assert_eq!(faults.duplicated, 0);
        }
    }
}
