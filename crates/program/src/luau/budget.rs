use std::cell::Cell;
use std::time::{Duration, Instant};

use mlua::{Lua, VmState};
use rustix::time::{ClockId, clock_gettime};

/// Ticks between two looks at the clock: it costs more than most ticks.
const STRIDE: u32 = 128;
/// A tick may take as long as the memory that it walks: the more a machine has, the more often the clock is read.
const MEMORY_STEP: usize = 64 << 10;
/// What a machine has before its program does anything.
const MEMORY_BASE: usize = 320 << 10;

/// The time of the current event, judged at the machine's interrupts.
///
/// Luau interrupts at each call, each turn of a loop, and each step of a pattern. An interrupt of the collector is not passed on by
/// `mlua`: nothing is raised there.
///
/// The time is that of the processor: a thread that waits for one is not at fault. Its clock takes a system call, so the event's first
/// half is judged by the time of day, and only what goes on after it is measured.
#[derive(Default)]
pub(crate) struct Budget {
    begun: Cell<Option<Instant>>,
    time: Cell<Duration>,
    /// Ticks until the clock is read.
    left: Cell<u32>,
    /// Memory at which the clock is read in any case.
    memory_mark: Cell<usize>,
    /// The thread's time when the first half was over.
    measured_from: Cell<Option<Duration>>,
    over: Cell<bool>,
}

impl Budget {
    /// An event begins.
    pub(crate) fn begin(&self, time: Duration) {
        self.begun.set(Some(Instant::now()));
        self.time.set(time);
        self.left.set(STRIDE);
        self.memory_mark.set(0);
        self.measured_from.set(None);
        self.over.set(false);
    }

    /// The event ends. Returns how long it took.
    pub(crate) fn end(&self) -> Duration {
        self.begun.take().map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    /// Whether the last event has run longer than it may.
    pub(crate) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Ends the event with an error if its time is over. A program that catches the error gets the next one at its next tick.
    pub(crate) fn tick(&self, lua: &Lua) -> mlua::Result<VmState> {
        if self.over.get() {
            return Err(over());
        }
        let left = self.left.get() - 1;
        let memory = lua.used_memory();
        if left > 0 && memory <= self.memory_mark.get() {
            self.left.set(left);
            return Ok(VmState::Continue);
        }
        if self.has_ended() {
            self.over.set(true);
            return Err(over());
        }
        let steps = (memory.saturating_sub(MEMORY_BASE) / MEMORY_STEP).clamp(1, STRIDE as usize);
        self.left.set(STRIDE / steps as u32);
        self.memory_mark.set(memory + MEMORY_STEP);
        Ok(VmState::Continue)
    }

    fn has_ended(&self) -> bool {
        let half = self.time.get() / 2;
        match (self.begun.get(), self.measured_from.get()) {
            (None, _) => false,
            (Some(begun), None) => {
                if begun.elapsed() >= half {
                    self.measured_from.set(Some(processor_time()));
                }
                false
            }
            (Some(_), Some(from)) => processor_time().saturating_sub(from) >= half,
        }
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn over() -> mlua::Error {
    mlua::Error::runtime("the time of this event is over")
}
