//! Which workers broadcast when there are more of them than cores.
//!
//! A worker in the midst of a broadcast does not sleep. Were there several to a core, each would wait for the time
//! slices of all others, and so would every message that crosses workers. So no more of them broadcast at a time
//! than there are cores, each for a few milliseconds; the others sleep, and what comes for them meanwhile wakes
//! them as ever.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// How long a worker broadcasts while others wait for it. Long enough for its data to be worth fetching into the
/// core's cache.
const SHARE_MS: u64 = 4;
/// A worker silent for so long, in a turn that does not end or in none any more, has left its seat.
const STALE_MS: u64 = 200;
/// A worker that waits asks again after so long, should nobody have called it.
pub(crate) const ASK_AGAIN_MS: u64 = 20;

/// The seats of those who broadcast, one a core, and the queue before them.
#[derive(Debug)]
pub(crate) struct FanoutScheduler {
    /// 0: a core for every worker, and nobody waits.
    seats: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    seated: Vec<FanoutSlot>,
    waiting: VecDeque<usize>,
}

#[derive(Debug)]
struct FanoutSlot {
    worker: usize,
    since_ms: u64,
    seen_ms: u64,
}

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The worker may broadcast in this turn of its loop.
    pub(crate) may: bool,
    /// This one may from now on, and has to be told.
    pub(crate) wake: Option<usize>,
}

impl FanoutScheduler {
    /// As many seats as cores, if there are more workers.
    pub(crate) fn new(workers: usize, cores: usize) -> Self {
        let seats = if workers > cores { cores.max(1) } else { 0 };
        Self { seats, queue: Mutex::default() }
    }

    /// True when workers have to wait for each other.
    pub(crate) fn are_limited(&self) -> bool {
        self.seats > 0
    }

    /// Asks for a seat, keeps it, passes it on, or gives it up: once a turn of the loop for whoever `wants` to
    /// broadcast, and once more when it does not any longer.
    pub(crate) fn poll(&self, worker: usize, wants: bool, now_ms: u64) -> Verdict {
        if !self.are_limited() {
            return Verdict { may: wants, wake: None };
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.poll(self.seats, worker, wants, now_ms)
    }
}

impl Queue {
    fn poll(&mut self, seats: usize, worker: usize, wants: bool, now_ms: u64) -> Verdict {
        let seated = self.seated.iter().position(|seat| seat.worker == worker);
        if let Some(at) = seated {
            let seat = &mut self.seated[at];
            seat.seen_ms = now_ms;
            let has_had_its_share = now_ms.saturating_sub(seat.since_ms) >= SHARE_MS;
            if wants && (!has_had_its_share || self.waiting.is_empty()) {
                return Verdict { may: true, wake: None };
            }
            self.seated.swap_remove(at);
            if wants {
                self.waiting.push_back(worker);
            }
        } else if !wants {
            self.waiting.retain(|&waiting| waiting != worker);
        } else if !self.waiting.contains(&worker) {
            self.waiting.push_back(worker);
        }
        self.seated.retain(|seat| now_ms.saturating_sub(seat.seen_ms) < STALE_MS);
        let next = if self.seated.len() < seats { self.waiting.pop_front() } else { None };
        if let Some(next) = next {
            self.seated.push(FanoutSlot { worker: next, since_ms: now_ms, seen_ms: now_ms });
        }
        Verdict { may: next == Some(worker), wake: next.filter(|&next| next != worker) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAY: Verdict = Verdict { may: true, wake: None };
    const WAIT: Verdict = Verdict { may: false, wake: None };

    fn passes_to(worker: usize) -> Verdict {
        Verdict { may: false, wake: Some(worker) }
    }

    #[test]
    fn a_core_for_each_worker_and_nobody_waits() {
        let turns = FanoutScheduler::new(2, 2);
        assert!(!turns.are_limited());
        assert_eq!(turns.poll(0, true, 0), MAY);
        assert_eq!(turns.poll(1, true, 0), MAY);
    }

    #[test]
    fn one_core_is_passed_round_in_the_order_of_asking() {
        let turns = FanoutScheduler::new(3, 1);
        assert_eq!(turns.poll(2, true, 0), MAY);
        assert_eq!(turns.poll(0, true, 0), WAIT);
        assert_eq!(turns.poll(1, true, 1), WAIT);
        assert_eq!(turns.poll(2, true, SHARE_MS - 1), MAY);
        assert_eq!(turns.poll(2, true, SHARE_MS), passes_to(0));
        assert_eq!(turns.poll(0, true, SHARE_MS), MAY);
        assert_eq!(turns.poll(2, true, SHARE_MS), WAIT);
        assert_eq!(turns.poll(0, true, 2 * SHARE_MS), passes_to(1));
        assert_eq!(turns.poll(1, true, 3 * SHARE_MS), passes_to(2));
    }

    #[test]
    fn who_is_done_makes_room_and_who_is_alone_goes_on() {
        let turns = FanoutScheduler::new(3, 1);
        assert_eq!(turns.poll(0, true, 0), MAY);
        assert_eq!(turns.poll(0, true, 100 * SHARE_MS), MAY, "nobody waits");
        assert_eq!(turns.poll(1, true, 100 * SHARE_MS), WAIT);
        assert_eq!(turns.poll(0, false, 100 * SHARE_MS), passes_to(1));
        assert_eq!(turns.poll(0, false, 100 * SHARE_MS), WAIT);
        assert_eq!(turns.poll(1, false, 100 * SHARE_MS), WAIT);
        assert_eq!(turns.poll(2, true, 100 * SHARE_MS), MAY);
    }

    #[test]
    fn who_waits_no_longer_is_not_called() {
        let turns = FanoutScheduler::new(3, 1);
        assert_eq!(turns.poll(0, true, 0), MAY);
        assert_eq!(turns.poll(1, true, 0), WAIT);
        assert_eq!(turns.poll(2, true, 0), WAIT);
        assert_eq!(turns.poll(1, false, 0), WAIT);
        assert_eq!(turns.poll(0, true, SHARE_MS), passes_to(2));
    }

    #[test]
    fn the_seat_of_a_worker_that_is_gone_is_taken_over() {
        let turns = FanoutScheduler::new(3, 1);
        assert_eq!(turns.poll(0, true, 0), MAY);
        assert_eq!(turns.poll(1, true, 0), WAIT);
        assert_eq!(turns.poll(1, true, STALE_MS - 1), WAIT);
        assert_eq!(turns.poll(1, true, STALE_MS), MAY);
        assert_eq!(turns.poll(0, true, STALE_MS), WAIT, "it lives after all");
    }
}
