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
const SLOT_MS: u64 = 4;
/// A worker that has not polled for this long, in a long turn or because it died, loses its slot.
const SLOT_TIMEOUT_MS: u64 = 200;
/// A waiting worker polls again after this time, unless it is woken earlier.
pub(crate) const ASK_AGAIN_MS: u64 = 20;

/// The slots of broadcasting workers, one per core, and the queue of those that wait.
#[derive(Debug)]
pub(crate) struct FanoutScheduler {
    /// 0: there is a core for every worker, and no worker waits.
    slots: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    holders: Vec<FanoutSlot>,
    waiting: VecDeque<usize>,
}

#[derive(Debug)]
struct FanoutSlot {
    worker: usize,
    since_ms: u64,
    seen_ms: u64,
}

/// The result of a request for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotDecision {
    /// The worker may broadcast in this turn of its loop.
    pub(crate) granted: bool,
    /// This worker holds a slot from now on, and must be woken.
    pub(crate) wake: Option<usize>,
}

impl FanoutScheduler {
    /// Creates as many slots as cores, if there are more workers.
    pub(crate) fn new(workers: usize, cores: usize) -> Self {
        let slots = if workers > cores { cores.max(1) } else { 0 };
        Self { slots, queue: Mutex::default() }
    }

    /// Whether workers have to wait for each other.
    pub(crate) fn is_limited(&self) -> bool {
        self.slots > 0
    }

    /// Asks for a slot, keeps it, passes it on, or gives it up: once a turn of the loop for whoever `wants` to
    /// broadcast, and once more when it does not any longer.
    pub(crate) fn poll(&self, worker: usize, wants: bool, now_ms: u64) -> SlotDecision {
        if !self.is_limited() {
            return SlotDecision { granted: wants, wake: None };
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.poll(self.slots, worker, wants, now_ms)
    }
}

impl Queue {
    fn poll(&mut self, slots: usize, worker: usize, wants: bool, now_ms: u64) -> SlotDecision {
        let holder = self.holders.iter().position(|slot| slot.worker == worker);
        if let Some(at) = holder {
            let slot = &mut self.holders[at];
            slot.seen_ms = now_ms;
            let has_had_its_time = now_ms.saturating_sub(slot.since_ms) >= SLOT_MS;
            if wants && (!has_had_its_time || self.waiting.is_empty()) {
                return SlotDecision { granted: true, wake: None };
            }
            self.holders.swap_remove(at);
            if wants {
                self.waiting.push_back(worker);
            }
        } else if !wants {
            self.waiting.retain(|&waiting| waiting != worker);
        } else if !self.waiting.contains(&worker) {
            self.waiting.push_back(worker);
        }
        self.holders.retain(|slot| now_ms.saturating_sub(slot.seen_ms) < SLOT_TIMEOUT_MS);
        let next = if self.holders.len() < slots { self.waiting.pop_front() } else { None };
        if let Some(next) = next {
            self.holders.push(FanoutSlot { worker: next, since_ms: now_ms, seen_ms: now_ms });
        }
        SlotDecision { granted: next == Some(worker), wake: next.filter(|&next| next != worker) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANTED: SlotDecision = SlotDecision { granted: true, wake: None };
    const WAIT: SlotDecision = SlotDecision { granted: false, wake: None };

    fn passes_to(worker: usize) -> SlotDecision {
        SlotDecision { granted: false, wake: Some(worker) }
    }

    #[test]
    fn a_core_for_each_worker_and_nobody_waits() {
        let scheduler = FanoutScheduler::new(2, 2);
        assert!(!scheduler.is_limited());
        assert_eq!(scheduler.poll(0, true, 0), GRANTED);
        assert_eq!(scheduler.poll(1, true, 0), GRANTED);
    }

    #[test]
    fn one_core_is_passed_round_in_the_order_of_asking() {
        let scheduler = FanoutScheduler::new(3, 1);
        assert_eq!(scheduler.poll(2, true, 0), GRANTED);
        assert_eq!(scheduler.poll(0, true, 0), WAIT);
        assert_eq!(scheduler.poll(1, true, 1), WAIT);
        assert_eq!(scheduler.poll(2, true, SLOT_MS - 1), GRANTED);
        assert_eq!(scheduler.poll(2, true, SLOT_MS), passes_to(0));
        assert_eq!(scheduler.poll(0, true, SLOT_MS), GRANTED);
        assert_eq!(scheduler.poll(2, true, SLOT_MS), WAIT);
        assert_eq!(scheduler.poll(0, true, 2 * SLOT_MS), passes_to(1));
        assert_eq!(scheduler.poll(1, true, 3 * SLOT_MS), passes_to(2));
    }

    #[test]
    fn finished_worker_passes_its_slot_and_a_single_one_keeps_it() {
        let scheduler = FanoutScheduler::new(3, 1);
        assert_eq!(scheduler.poll(0, true, 0), GRANTED);
        assert_eq!(scheduler.poll(0, true, 100 * SLOT_MS), GRANTED, "nobody waits");
        assert_eq!(scheduler.poll(1, true, 100 * SLOT_MS), WAIT);
        assert_eq!(scheduler.poll(0, false, 100 * SLOT_MS), passes_to(1));
        assert_eq!(scheduler.poll(0, false, 100 * SLOT_MS), WAIT);
        assert_eq!(scheduler.poll(1, false, 100 * SLOT_MS), WAIT);
        assert_eq!(scheduler.poll(2, true, 100 * SLOT_MS), GRANTED);
    }

    #[test]
    fn worker_that_waits_no_longer_gets_no_slot() {
        let scheduler = FanoutScheduler::new(3, 1);
        assert_eq!(scheduler.poll(0, true, 0), GRANTED);
        assert_eq!(scheduler.poll(1, true, 0), WAIT);
        assert_eq!(scheduler.poll(2, true, 0), WAIT);
        assert_eq!(scheduler.poll(1, false, 0), WAIT);
        assert_eq!(scheduler.poll(0, true, SLOT_MS), passes_to(2));
    }

    #[test]
    fn the_slot_of_a_worker_that_is_gone_is_taken_over() {
        let scheduler = FanoutScheduler::new(3, 1);
        assert_eq!(scheduler.poll(0, true, 0), GRANTED);
        assert_eq!(scheduler.poll(1, true, 0), WAIT);
        assert_eq!(scheduler.poll(1, true, SLOT_TIMEOUT_MS - 1), WAIT);
        assert_eq!(scheduler.poll(1, true, SLOT_TIMEOUT_MS), GRANTED);
        assert_eq!(scheduler.poll(0, true, SLOT_TIMEOUT_MS), WAIT, "it is back");
    }
}
