//! A drain: connections are asked to leave a slice at a time, in random order.

use dunlin_net::ConnId;

use super::Jitter;

/// How often the next slice is asked.
pub(crate) const STEP_MS: u64 = 20;

/// The connections that have not been asked to leave yet; new ones do not come.
#[derive(Debug)]
pub(crate) struct Drain {
    remaining: Vec<ConnId>,
    /// Those that have been asked and may be there still.
    leaving: Vec<ConnId>,
    /// How many are asked in each step.
    slice: usize,
}

impl Drain {
    /// Spreads the goodbyes over `spread_ms`.
    pub(crate) fn new(mut remaining: Vec<ConnId>, spread_ms: u64, jitter: &mut Jitter) -> Drain {
        // Neighbours in the slab came together; mixed, no group of clients leaves as one.
        for at in (1..remaining.len()).rev() {
            remaining.swap(at, jitter.below(at as u64 + 1) as usize);
        }
        let steps = (spread_ms / STEP_MS).max(1) as usize;
        let slice = remaining.len().div_ceil(steps).max(1);
        Drain { leaving: Vec::with_capacity(remaining.len()), remaining, slice }
    }

    /// Whom to ask next.
    pub(crate) fn next_slice(&mut self) -> Vec<ConnId> {
        let slice = self.remaining.split_off(self.remaining.len().saturating_sub(self.slice));
        self.leaving.extend_from_slice(&slice);
        slice
    }

    /// Whether all have been asked and have left. Whoever has left is asked about once.
    pub(crate) fn have_all_left(&mut self, mut has_left: impl FnMut(ConnId) -> bool) -> bool {
        while self.leaving.pop_if(|&mut conn| has_left(conn)).is_some() {}
        self.remaining.is_empty() && self.leaving.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_asked_once_spread_over_the_time_and_then_leave() {
        let all: Vec<ConnId> = (0..95).map(ConnId::from_u64).collect();
        let mut drain = Drain::new(all.clone(), 10 * STEP_MS, &mut Jitter::new(3));
        let mut asked = Vec::new();
        for step in 1..=10 {
            assert!(!drain.have_all_left(|_| false));
            asked.extend(drain.next_slice());
            assert!(asked.len() <= 10 * step);
        }
        let last = ConnId::from_u64(7);
        assert!(!drain.have_all_left(|conn| conn != last), "one of them is still there");
        assert!(drain.have_all_left(|_| true));
        assert_ne!(asked, all, "in another order than they came");
        asked.sort_unstable();
        assert_eq!(asked, all);
    }
}
