use std::fmt;

/// Why a program cannot be loaded. Names the program and, where there is one, the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramError {
    /// The name of the program.
    pub program: String,
    /// The line of its source, from 1 on.
    pub line: Option<u32>,
    /// What is wrong there.
    pub message: String,
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        place(f, &self.program, self.line)?;
        f.write_str(&self.message)
    }
}

impl std::error::Error for ProgramError {}

/// Why a program has not handled an event. Names the program and, where there is one, the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The name of the program.
    pub program: String,
    /// The kind of fault.
    pub kind: FaultKind,
    /// The line of its source, from 1 on.
    pub line: Option<u32>,
    /// What happened there.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        place(f, &self.program, self.line)?;
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

fn place(f: &mut fmt::Formatter<'_>, program: &str, line: Option<u32>) -> fmt::Result {
    write!(f, "program {program:?}")?;
    if let Some(line) = line {
        write!(f, ", line {line}")?;
    }
    f.write_str(": ")
}

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It raised an error.
    Error,
    /// It ran longer than [`Limits::event_time_max`](crate::Limits::event_time_max).
    Time,
    /// It needed more than [`Limits::memory_bytes_max`](crate::Limits::memory_bytes_max).
    Memory,
    /// It returned what is no decision, or more than [`Limits::output_bytes_max`](crate::Limits::output_bytes_max).
    Output,
    /// It is not running: it has failed too often, and starts anew later.
    Resting,
}
