//! The time that commands take.

#[cfg(not(test))]
use std::time::Instant;

use crate::state::ServerState;

/// Measures commands that are executed one after the other. One reading of the clock for each: some 25 ns.
pub(super) struct CommandTimer {
    #[cfg(not(test))]
    began: Instant,
    /// No test depends on how busy its machine is.
    #[cfg(test)]
    command_ns: u64,
}

impl CommandTimer {
    /// Starts with the first command.
    #[cfg(not(test))]
    pub(super) fn start(_: &ServerState) -> CommandTimer {
        CommandTimer { began: Instant::now() }
    }

    #[cfg(test)]
    pub(super) fn start(state: &ServerState) -> CommandTimer {
        CommandTimer {
            command_ns: state.test_command_ns.load(std::sync::atomic::Ordering::Relaxed),
        }
    }

    /// Returns the time since the previous command has ended, in nanoseconds.
    #[cfg(not(test))]
    pub(super) fn lap(&mut self) -> u64 {
        let now = Instant::now();
        let spent = now.duration_since(std::mem::replace(&mut self.began, now));
        u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX)
    }

    #[cfg(test)]
    pub(super) fn lap(&mut self) -> u64 {
        self.command_ns
    }
}
