//! The timers of the admin thread's loop.

/// The purpose of a timer. The loop carries its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Timer {
    /// Periodic work, once a second.
    Second,
    /// The commit in flight has waited for workers long enough.
    Commit,
    /// A dry run has waited for workers long enough.
    DryRun,
    /// The webhooks thread is woken once more.
    Webhooks,
    /// Readers of traces get what has happened.
    Trace,
}

impl Timer {
    pub(super) fn from_u64(number: u64) -> Option<Timer> {
        const ALL: [Timer; 5] =
            [Timer::Second, Timer::Commit, Timer::DryRun, Timer::Webhooks, Timer::Trace];
        ALL.into_iter().find(|timer| *timer as u64 == number)
    }
}
