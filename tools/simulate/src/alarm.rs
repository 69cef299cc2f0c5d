//! A timer with the kernel's resolution.
//!
//! Tokio's timer rounds up to milliseconds, so that each direction of a path would take one or two more than
//! configured: a round trip of 50 ms would become 52 or 53.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A connection's timer. It opens a descriptor at its first wait.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    timer: Option<Timer>,
    /// No descriptor was available: the runtime's timer is used.
    coarse: bool,
}

#[derive(Debug)]
struct Timer {
    fd: AsyncFd<OwnedFd>,
    /// The time it is set to; `None` once it has expired.
    due: Option<Instant>,
}

impl Alarm {
    /// Waits until `due`, or forever. Cancel-safe.
    pub(crate) async fn wait(&mut self, due: Option<Instant>) {
        let Some(due) = due else { return pending().await };
        if self.timer.is_none() && !self.coarse {
            self.timer = Timer::new().ok();
            self.coarse = self.timer.is_none();
        }
        if let Some(timer) = &mut self.timer
            && timer.wait(due).await.is_ok()
        {
            return;
        }
        tokio::time::sleep_until(due.into()).await;
    }
}

impl Timer {
    fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[allow(
            deprecated,
            reason = "an OwnedFd is what it says; the newer call asks for `unsafe`"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Timer { fd, due: None })
    }

    async fn wait(&mut self, due: Instant) -> io::Result<()> {
        if self.due != Some(due) {
            // A zero value would disarm the timer.
            let wait = due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
            let value = Itimerspec {
                it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
                it_value: Timespec {
                    tv_sec: wait.as_secs() as _,
                    tv_nsec: wait.subsec_nanos().into(),
                },
            };
            rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &value)?;
            self.due = Some(due);
        }
        loop {
            let mut ready = self.fd.readable().await?;
            let mut count = [0; 8];
            // Setting the timer again clears an expiration that was not read.
            let rung = ready.try_io(|fd| rustix::io::read(fd, &mut count).map_err(Into::into));
            if let Ok(rung) = rung {
                self.due = None;
                return rung.map(drop);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_rings_when_it_is_due_and_not_before_and_can_be_set_anew() {
        let mut alarm = Alarm::default();
        let begin = Instant::now();
        for wait_ms in [3, 1, 0] {
            let due = begin + Duration::from_millis(wait_ms);
            alarm.wait(Some(due)).await;
            assert!(Instant::now() >= due);
        }
        assert!(!alarm.coarse);
        // Cancelled in favour of an earlier due time.
        let soon = Instant::now() + Duration::from_millis(2);
        tokio::select! {
            biased;
            () = alarm.wait(Some(begin + Duration::from_secs(3_600))) => panic!("too early"),
            () = tokio::task::yield_now() => {}
        }
        alarm.wait(Some(soon)).await;
        assert!(Instant::now() >= soon);
    }
}
