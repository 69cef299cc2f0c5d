//! A drain: connections are asked to leave a slice at a time, in random order.

use dunlin_net::ConnId;

use super::Jitter;

/// How often the next slice is asked.
pub(crate) const STEP_MS: u64 = 20;

/// The connections that have not been asked to leave yet; new ones do not come.
#[derive(Debug)]
pub(crate) struct Drain {
    remaining: Vec<ConnId>,
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
        Drain { remaining, slice }
    }

    /// Whom to ask next.
    pub(crate) fn next_slice(&mut self) -> Vec<ConnId> {
        self.remaining.split_off(self.remaining.len().saturating_sub(self.slice))
    }

    /// These have a request under way, and are asked again.
    pub(crate) fn put_back(&mut self, busy: Vec<ConnId>) {
        self.remaining.extend(busy);
    }

    /// Everybody has been asked.
    pub(crate) fn is_empty(&self) -> bool {
        self.remaining.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_asked_once_spread_over_the_time() {
        let all: Vec<ConnId> = (0..95).map(ConnId::from_u64).collect();
        let mut drain = Drain::new(all.clone(), 10 * STEP_MS, &mut Jitter::new(3));
        let mut asked = Vec::new();
        for step in 1..=10 {
            assert!(!drain.is_empty());
            asked.extend(drain.next_slice());
            assert!(asked.len() <= 10 * step);
        }
        assert!(drain.is_empty());
        assert_ne!(asked, all, "in another order than they came");
        asked.sort_unstable();
        assert_eq!(asked, all);
    }

    #[test]
    fn who_has_a_request_under_way_is_asked_again() {
        let mut drain = Drain::new(vec![ConnId::from_u64(1)], 0, &mut Jitter::new(3));
        let busy = drain.next_slice();
        drain.put_back(busy.clone());
        assert!(!drain.is_empty());
        assert_eq!(drain.next_slice(), busy);
        assert!(drain.is_empty());
        assert_eq!(drain.next_slice(), [], "nobody is left");
    }
}
