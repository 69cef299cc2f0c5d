//! The timers of the admin thread's loop.

/// What a timer is for; the loop carries its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Timer {
    /// The clock, watches, what is looked at again.
    Second,
    /// A commit, or the trial of one, has waited for workers long enough.
    Commit,
    /// A dry run has waited for workers long enough.
    DryRun,
    /// The webhooks thread is woken once more.
    Webhooks,
}

impl Timer {
    pub(super) fn from_u64(number: u64) -> Option<Timer> {
        const ALL: [Timer; 4] = [Timer::Second, Timer::Commit, Timer::DryRun, Timer::Webhooks];
        ALL.into_iter().find(|timer| *timer as u64 == number)
    }
}
