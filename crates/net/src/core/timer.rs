//! Timers without a connection.

use std::fmt;

use super::context::{Context, TimerId};
use super::wheel::{TimerLink, TimerLinks, Wheel};

/// What a timer does when it fires.
pub(crate) enum Action<D> {
    /// Calls `on_timer` with this data.
    Notify(u64),
    /// Calls this closure; `None` during the call.
    Call(Option<TimerFn<D>>),
    /// Continues a dial.
    Dial(u32),
}

pub(crate) type TimerFn<D> = Box<dyn FnMut(&mut Context<D>) + Send>;

impl<D> fmt::Debug for Action<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Notify(data) => write!(f, "Notify({data})"),
            Action::Call(_) => f.write_str("Call"),
            Action::Dial(place) => write!(f, "Dial({place})"),
        }
    }
}

/// Timers of one loop, in a separate wheel with ticks of one millisecond.
#[derive(Debug)]
pub(crate) struct Timers<D> {
    wheel: Wheel,
    slots: Slots<D>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slots<D>(Vec<Timer<D>>);

#[derive(Debug)]
struct Timer<D> {
    link: TimerLink,
    action: Action<D>,
    /// 0: fires once.
    period_ms: u64,
    generation: u32,
    armed: bool,
}

impl<D> TimerLinks for Slots<D> {
    fn link(&self, index: u32) -> &TimerLink {
        &self.0[index as usize].link
    }

    fn link_mut(&mut self, index: u32) -> &mut TimerLink {
        &mut self.0[index as usize].link
    }
}

impl<D> Timers<D> {
    pub(crate) fn new() -> Timers<D> {
        Timers { wheel: Wheel::new(), slots: Slots(Vec::new()), free: Vec::new() }
    }

    pub(crate) fn arm(&mut self, at_ms: u64, period_ms: Option<u64>, action: Action<D>) -> TimerId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.0.push(Timer {
                link: TimerLink::default(),
                action: Action::Notify(0),
                period_ms: 0,
                generation: 0,
                armed: false,
            });
            (self.slots.0.len() - 1) as u32
        });
        let timer = &mut self.slots.0[index as usize];
        (timer.action, timer.period_ms, timer.armed) = (action, period_ms.unwrap_or(0), true);
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

    /// Returns the next due timer: its id and its action. A periodic one is already rearmed, for
    /// its first time in the future; its closure is returned by [`Timers::put_back`].
    pub(crate) fn pop(&mut self, now_ms: u64) -> Option<(TimerId, Action<D>)> {
        let index = self.wheel.pop(&mut self.slots, now_ms)?;
        let timer = &mut self.slots.0[index as usize];
        let id = TimerId { index, generation: timer.generation };
        let action = match &mut timer.action {
            Action::Notify(data) => Action::Notify(*data),
            Action::Call(call) => Action::Call(call.take()),
            Action::Dial(place) => Action::Dial(*place),
        };
        match timer.period_ms {
            0 => self.release(index),
            // The wheel is at the time at which this timer was due.
            period_ms => {
                let due = self.wheel.elapsed();
                let missed = now_ms.saturating_sub(due) / period_ms;
                self.wheel.schedule(&mut self.slots, index, due + (missed + 1) * period_ms);
            }
        }
        Some((id, action))
    }

    /// Returns a closure after its call. It is kept if its timer still exists.
    pub(crate) fn put_back(&mut self, id: TimerId, call: TimerFn<D>) {
        if let Some(timer) = self.slots.0.get_mut(id.index as usize)
            && timer.armed
            && timer.generation == id.generation
        {
            timer.action = Action::Call(Some(call));
        }
    }

    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.wheel.next_tick()
    }

    fn release(&mut self, index: u32) {
        let timer = &mut self.slots.0[index as usize];
        timer.armed = false;
        timer.action = Action::Notify(0);
        timer.generation = timer.generation.wrapping_add(1);
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(timers: &mut Timers<()>, now_ms: u64) -> Vec<u64> {
        let data = |action| match action {
            Action::Notify(data) => data,
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| timers.pop(now_ms).map(|(_, action)| data(action))).collect()
    }

    #[test]
    fn a_timer_fires_once_and_its_id_is_stale_after() {
        let mut timers = Timers::new();
        let timer = timers.arm(5, None, Action::Notify(42));
        assert_eq!(due(&mut timers, 4), []);
        assert_eq!(due(&mut timers, 5), [42]);
        assert!(!timers.disarm(timer), "over");

        let second = timers.arm(9, None, Action::Notify(43));
        assert!(!timers.disarm(timer), "the place is used again, the id is not");
        assert!(timers.disarm(second));
        assert_eq!(due(&mut timers, 100), []);
    }

    #[test]
    fn a_periodic_timer_keeps_its_beat_and_skips_what_it_missed() {
        let mut timers = Timers::new();
        let timer = timers.arm(10, Some(10), Action::Notify(1));
        assert_eq!(due(&mut timers, 10), [1]);
        assert_eq!(due(&mut timers, 21), [1], "a late turn does not shift the beat");
        assert_eq!(timers.next_ms(), Some(30));
        assert_eq!(due(&mut timers, 75), [1], "four beats were missed, one is made up for");
        assert_eq!(due(&mut timers, 80), [1]);
        assert!(timers.disarm(timer));
        assert_eq!(timers.next_ms(), None);
    }
}
