//! Counts of the outcomes of a credential's pushes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use dunlin_push::{Outcome, OutcomeKind};

/// Most pairs of kind and reason that are counted separately. Services choose their reasons freely, and each is a series.
const REASONS_MAX: usize = 64;

/// Counts by outcome kind and reason. Kept when the credential is rotated.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<BTreeMap<(OutcomeKind, String), u64>>);

impl Tally {
    pub(super) fn count(&self, outcome: &Outcome) {
        let (end, reason) = (outcome.kind(), outcome.reason());
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Most outcomes have a known reason; only a new one allocates a key.
        if let Some((_, count)) = ends.iter_mut().find(|((e, r), _)| *e == end && r == reason) {
            *count += 1;
            return;
        }
        let known = if ends.len() < REASONS_MAX { reason } else { "other" };
        *ends.entry((end, known.to_owned())).or_default() += 1;
    }

    /// Returns kind, reason and count of all outcomes.
    pub(super) fn ends(&self) -> Vec<(OutcomeKind, String, u64)> {
        let ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ends.iter().map(|((end, reason), count)| (*end, reason.clone(), *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use dunlin_push::{Accepted, Rejected};

    use super::*;

    #[test]
    fn words_of_a_service_make_so_many_series_and_no_more() {
        let tally = Tally::default();
        tally.count(&Outcome::Accepted(Accepted::default()));
        tally.count(&Outcome::Accepted(Accepted::default()));
        for n in 0..1_000 {
            let reason = format!("Reason{n}");
            tally.count(&Outcome::Rejected(Rejected { reason, ..Rejected::default() }));
        }
        let ends = tally.ends();
        assert!(ends.len() <= REASONS_MAX + 1, "{}", ends.len());
        assert_eq!(ends.iter().map(|(.., count)| count).sum::<u64>(), 1_002);
        assert_eq!(ends[0], (OutcomeKind::Accepted, String::new(), 2));
    }
}
