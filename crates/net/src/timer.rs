//! Timers that belong to no connection.

use crate::context::TimerId;
use crate::wheel::{Link, Links, Wheel};

/// Timers of one loop, in a wheel of their own with ticks of one millisecond.
#[derive(Debug)]
pub(crate) struct Timers {
    wheel: Wheel,
    slots: Slots,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slots(Vec<Timer>);

#[derive(Debug, Default)]
struct Timer {
    link: Link,
    data: u64,
    /// 0: fires once.
    period_ms: u64,
    generation: u32,
    armed: bool,
}

impl Links for Slots {
    fn link(&self, index: u32) -> &Link {
        &self.0[index as usize].link
    }

    fn link_mut(&mut self, index: u32) -> &mut Link {
        &mut self.0[index as usize].link
    }
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers { wheel: Wheel::new(), slots: Slots::default(), free: Vec::new() }
    }

    pub(crate) fn arm(&mut self, at_ms: u64, period_ms: Option<u64>, data: u64) -> TimerId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.0.push(Timer::default());
            (self.slots.0.len() - 1) as u32
        });
        let timer = &mut self.slots.0[index as usize];
        (timer.data, timer.period_ms, timer.armed) = (data, period_ms.unwrap_or(0), true);
        let id = TimerId { index, generation: timer.generation };
        self.wheel.schedule(&mut self.slots, index, at_ms);
        id
    }

    pub(crate) fn disarm(&mut self, id: TimerId) -> bool {
        let live = self
            .slots
            .0
            .get(id.index as usize)
            .is_some_and(|timer| timer.armed && timer.generation == id.generation);
        if live {
            self.wheel.cancel(&mut self.slots, id.index);
            self.release(id.index);
        }
        live
    }

    /// The next timer that is due: its id and its data. A periodic one is armed again already, for the
    /// first of its times that lies ahead.
    pub(crate) fn pop(&mut self, now_ms: u64) -> Option<(TimerId, u64)> {
        let index = self.wheel.pop(&mut self.slots, now_ms)?;
        let timer = &self.slots.0[index as usize];
        let id = TimerId { index, generation: timer.generation };
        let (data, period_ms) = (timer.data, timer.period_ms);
        match period_ms {
            0 => self.release(index),
            // The wheel has just been at the time this one was due.
            period_ms => {
                let due = self.wheel.elapsed();
                let missed = now_ms.saturating_sub(due) / period_ms;
                self.wheel.schedule(&mut self.slots, index, due + (missed + 1) * period_ms);
            }
        }
        Some((id, data))
    }

    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.wheel.next_tick()
    }

    fn release(&mut self, index: u32) {
        let timer = &mut self.slots.0[index as usize];
        timer.armed = false;
        timer.generation = timer.generation.wrapping_add(1);
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(timers: &mut Timers, now_ms: u64) -> Vec<u64> {
        std::iter::from_fn(|| timers.pop(now_ms).map(|(_, data)| data)).collect()
    }

    #[test]
    fn a_timer_fires_once_and_its_id_is_stale_after() {
        let mut timers = Timers::new();
        let timer = timers.arm(5, None, 42);
        assert_eq!(due(&mut timers, 4), []);
        assert_eq!(due(&mut timers, 5), [42]);
        assert!(!timers.disarm(timer), "over");

        let second = timers.arm(9, None, 43);
        assert!(!timers.disarm(timer), "the place is used again, the id is not");
        assert!(timers.disarm(second));
        assert_eq!(due(&mut timers, 100), []);
    }

    #[test]
    fn a_periodic_timer_keeps_its_beat_and_skips_what_it_missed() {
        let mut timers = Timers::new();
        let timer = timers.arm(10, Some(10), 1);
        assert_eq!(due(&mut timers, 10), [1]);
        assert_eq!(due(&mut timers, 21), [1], "a late turn does not shift the beat");
        assert_eq!(timers.next_ms(), Some(30));
        assert_eq!(due(&mut timers, 75), [1], "four beats were missed, one is made up for");
        assert_eq!(due(&mut timers, 80), [1]);
        assert!(timers.disarm(timer));
        assert_eq!(timers.next_ms(), None);
    }
}
