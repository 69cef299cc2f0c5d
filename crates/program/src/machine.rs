use std::time::Duration;

use crate::error::Fault;
use crate::hook::{Decision, Field, Hook};

/// A virtual machine with one program: what a language has to be able to do.
///
/// It bounds time, memory and output of each event by its [`Limits`](crate::Limits), and never panics on what a program does.
pub trait Machine {
    /// Whether the program has a function for this hook.
    fn defines(&self, hook: Hook) -> bool;

    /// Asks the program. `now_ms` is what it sees as the time: Unix milliseconds.
    ///
    /// # Errors
    /// It has raised an error, or has used more than it may. The machine can be used further.
    fn ask(
        &mut self,
        hook: Hook,
        event: &[(&'static str, Field<'_>)],
        now_ms: u64,
    ) -> Result<Decision, Fault>;

    /// Returns how long the last event took.
    fn last_event_time(&self) -> Duration;

    /// Frees what is no longer used, in a bounded step, if there is much. Called between events.
    fn collect(&mut self);

    /// Returns the bytes in use, garbage included.
    fn memory_bytes(&self) -> usize;

    /// Takes the lines that the program has logged.
    fn take_log(&mut self) -> Vec<LogLine>;
}

/// A line that a program has logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The line of its source.
    pub line: Option<u32>,
    /// The text.
    pub text: String,
}
