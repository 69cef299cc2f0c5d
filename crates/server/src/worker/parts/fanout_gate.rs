//! When this worker may fan out: its slot among the workers that share its cores, and the timer for broadcasts that
//! are held back.

use crate::state::fanout_scheduler::{ASK_AGAIN_MS, FanoutScheduler, SlotDecision};
use crate::state::pressure::Pressure;

/// What the hub wants sooner than this does not wait for the second's turn.
const RETRY_MS: u64 = 5;

/// Where one worker stands with the [`FanoutScheduler`].
#[derive(Debug, Default)]
pub(crate) struct FanoutGate {
    slot: SlotState,
    /// When the loop is woken for broadcasts that are held back.
    timer_ms: Option<u64>,
    /// Channels of this worker that are behind, as all workers see them.
    behind: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    /// There is nothing to broadcast.
    #[default]
    Idle,
    /// The worker may broadcast.
    Granted,
    /// Others broadcast; until the slot is granted, what is due does not keep the worker awake.
    Waiting,
}

impl FanoutGate {
    /// Asks for a slot, keeps it or gives it up; `due`: there is something to broadcast now. `None`: nothing was to be
    /// asked. Otherwise broadcasts are held back unless granted, and the worker in `wake` is notified.
    pub(crate) fn poll(
        &mut self,
        scheduler: &FanoutScheduler,
        worker: usize,
        due: bool,
        now_ms: impl FnOnce() -> u64,
    ) -> Option<SlotDecision> {
        if !due && self.slot == SlotState::Idle || !scheduler.is_limited() {
            return None;
        }
        let decision = scheduler.poll(worker, due, now_ms());
        self.slot = match decision.granted {
            true => SlotState::Granted,
            false if due => SlotState::Waiting,
            false => SlotState::Idle,
        };
        Some(decision)
    }

    /// The worker has a slot, which it gives up once nothing is due.
    pub(crate) fn is_granted(&self) -> bool {
        self.slot == SlotState::Granted
    }

    /// The worker may sleep although something is due.
    pub(crate) fn is_waiting(&self) -> bool {
        self.slot == SlotState::Waiting
    }

    /// How long until the next turn has to come: for a broadcast held back by its rate until `flush_ms`, or for a full
    /// ring that the hub tries again at `retry_ms`. `None`: soon enough anyway. What only waits for its next quantum
    /// keeps the loop from sleeping.
    pub(crate) fn arm_timer(
        &mut self,
        now_ms: u64,
        flush_ms: Option<u64>,
        retry_ms: Option<u64>,
    ) -> Option<u64> {
        let ask_again_ms = if self.is_waiting() { now_ms + ASK_AGAIN_MS } else { 0 };
        let flush_ms = flush_ms.map(|due_ms| due_ms.max(ask_again_ms));
        let retry_ms = retry_ms.filter(|&due_ms| due_ms <= now_ms + RETRY_MS);
        let due_ms = flush_ms.into_iter().chain(retry_ms).min()?;
        let is_armed = self.timer_ms.is_some_and(|armed_ms| armed_ms <= due_ms);
        if due_ms <= now_ms || is_armed {
            return None;
        }
        self.timer_ms = Some(due_ms);
        Some(due_ms - now_ms)
    }

    /// Says which channels of this worker are behind, if there are any or were.
    pub(crate) fn report_behind<'c>(
        &mut self,
        pressure: &Pressure,
        worker: usize,
        channels: impl Iterator<Item = &'c str>,
    ) {
        let mut channels = channels.peekable();
        if self.behind > 0 || channels.peek().is_some() {
            self.behind = pressure.set(worker, self.behind, channels);
        }
    }

    /// The timer has fired. The turn that this belongs to flushes.
    pub(crate) fn handle_timer(&mut self) {
        self.timer_ms = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two workers on one core.
    struct Pair {
        scheduler: FanoutScheduler,
        gates: [FanoutGate; 2],
    }

    impl Pair {
        fn new() -> Pair {
            let gates = [FanoutGate::default(), FanoutGate::default()];
            Pair { scheduler: FanoutScheduler::new(2, 1), gates }
        }

        fn poll(&mut self, worker: usize, due: bool, now_ms: u64) -> Option<SlotDecision> {
            self.gates[worker].poll(&self.scheduler, worker, due, || now_ms)
        }
    }

    #[test]
    fn with_a_core_for_each_worker_nobody_asks() {
        let scheduler = FanoutScheduler::new(2, 2);
        let mut gate = FanoutGate::default();
        let decision = gate.poll(&scheduler, 0, true, || unreachable!("the clock is not read"));
        assert_eq!(decision, None);
        assert!(!gate.is_granted() && !gate.is_waiting());
    }

    #[test]
    fn a_worker_gives_its_slot_up_when_nothing_is_due_and_the_next_is_woken() {
        let mut pair = Pair::new();
        assert_eq!(pair.poll(0, false, 0), None, "nothing to ask for");
        assert!(pair.poll(0, true, 0).unwrap().granted);
        assert!(!pair.poll(1, true, 0).unwrap().granted);
        assert!(pair.gates[0].is_granted() && pair.gates[1].is_waiting());
        let decision = pair.poll(0, false, 1).unwrap();
        assert_eq!((decision.granted, decision.wake), (false, Some(1)));
        assert!(!pair.gates[0].is_granted() && !pair.gates[0].is_waiting());
        assert!(pair.poll(1, true, 1).unwrap().granted);
    }

    #[test]
    fn the_slot_of_a_worker_in_an_endless_turn_expires() {
        let mut pair = Pair::new();
        assert!(pair.poll(0, true, 0).unwrap().granted);
        let mut now_ms = 0;
        while !pair.poll(1, true, now_ms).unwrap().granted {
            // It sleeps until the gate's timer has it ask again.
            let delay_ms = pair.gates[1].arm_timer(now_ms, Some(now_ms), None).unwrap();
            assert_eq!(delay_ms, ASK_AGAIN_MS);
            now_ms += delay_ms;
            pair.gates[1].handle_timer();
        }
        assert!((100..1000).contains(&now_ms), "granted after {now_ms} ms");
        assert!(!pair.poll(0, true, now_ms).unwrap().granted, "the slot is another's now");
    }

    #[test]
    fn channels_are_behind_until_the_worker_has_none() {
        let (pressure, mut gate) = (Pressure::new(1), FanoutGate::default());
        gate.report_behind(&pressure, 0, ["a", "b"].into_iter());
        assert!(pressure.of("a").is_some() && pressure.of("b").is_some());
        gate.report_behind(&pressure, 0, ["b"].into_iter());
        assert!(pressure.of("a").is_none() && pressure.of("b").is_some());
        gate.report_behind(&pressure, 0, [].into_iter());
        assert_eq!(pressure.of("b"), None);
    }

    #[test]
    fn the_timer_is_armed_for_what_comes_first_and_once() {
        let mut gate = FanoutGate::default();
        assert_eq!(gate.arm_timer(100, None, None), None);
        assert_eq!(gate.arm_timer(100, Some(100), None), None, "due now: the loop does not sleep");
        assert_eq!(gate.arm_timer(100, Some(150), None), Some(50));
        assert_eq!(gate.arm_timer(100, Some(160), None), None, "it is armed for less");
        assert_eq!(gate.arm_timer(100, None, Some(103)), Some(3));
        assert_eq!(gate.arm_timer(100, None, Some(900)), None, "the second's turn is soon enough");
        gate.handle_timer();
        assert_eq!(gate.arm_timer(103, Some(150), None), Some(47));
    }
}
