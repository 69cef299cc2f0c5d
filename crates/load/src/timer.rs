//! A timer as fine as the kernel's, to be waited for with sockets.
//!
//! `epoll_wait` counts in milliseconds, and its finer successor is not there on every kernel Dunlin runs on: a
//! schedule would leave half a millisecond late, and a delay be that much longer.

use std::os::fd::OwnedFd;

use rustix::event::{Timespec, epoll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::{Context, Error};

#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    armed_ns: u64,
}

impl Timer {
    /// A timer that wakes `epoll` with `token`, once each time it is set.
    pub(crate) fn new(epoll: &OwnedFd, token: u64) -> Result<Self, Error> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .context("cannot open a timer")?;
        // Edge-triggered: it is never read.
        let interest = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(epoll, &fd, epoll::EventData::new_u64(token), interest)
            .context("cannot watch a timer")?;
        Ok(Self { fd, armed_ns: 0 })
    }

    /// Wakes at `due_ns` of a clock that says `now_ns`, which must be earlier.
    pub(crate) fn set(&mut self, due_ns: u64, now_ns: u64) -> Result<(), Error> {
        if self.armed_ns == due_ns {
            return Ok(());
        }
        self.armed_ns = due_ns;
        let wait_ns = due_ns.saturating_sub(now_ns).max(1);
        let value = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: (wait_ns / 1_000_000_000) as _,
                tv_nsec: (wait_ns % 1_000_000_000) as _,
            },
        };
        rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &value)
            .context("cannot set a timer")?;
        Ok(())
    }
}
