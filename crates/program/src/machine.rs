use std::time::Duration;

use crate::error::Fault;
use crate::hook::{Decision, Field, Hook};
use crate::protocol::{Answer, ConnEvent, ConnKey, Effects, Progress};

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

    /// Whether the program speaks a protocol: it has a function for frames.
    fn speaks(&self) -> bool;

    /// Whether connections of an earlier program may be given to this one.
    fn upgrades(&self) -> bool;

    /// Passes an event of a connection. A connection begins with [`ConnEvent::Open`], and has one event at a time: the next is passed
    /// when this one is [done](Progress::Done), also by answers.
    ///
    /// # Errors
    /// As [`Machine::ask`]. The connection is to end, and to be [forgotten](Machine::forget).
    fn handle_event(
        &mut self,
        conn: ConnKey,
        event: ConnEvent<'_>,
        now_ms: u64,
    ) -> Result<Progress, Fault>;

    /// Passes the answer to a call for which the connection's event [waits](Progress::Waits).
    ///
    /// # Errors
    /// As [`Machine::handle_event`].
    fn handle_answer(
        &mut self,
        conn: ConnKey,
        answer: Answer<'_>,
        now_ms: u64,
    ) -> Result<Progress, Fault>;

    /// Takes what the last event or answer has brought about. After a fault it counts for nothing.
    fn take_effects(&mut self) -> Effects;

    /// Forgets a connection, and its event if one waits.
    fn forget(&mut self, conn: ConnKey);

    /// Returns the state of a connection, as JSON.
    ///
    /// # Errors
    /// It is no plain data, or there is too much.
    fn export(&self, conn: ConnKey) -> Result<Vec<u8>, Fault>;

    /// Takes over a connection whose state another machine has [exported](Machine::export). The program's `upgrade` returns its state
    /// here. `fields` are those of [`ConnEvent::Open`], which does not follow.
    ///
    /// # Errors
    /// As [`Machine::handle_event`].
    fn import(
        &mut self,
        conn: ConnKey,
        fields: &[(&'static str, Field<'_>)],
        state: &[u8],
        now_ms: u64,
    ) -> Result<(), Fault>;

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
