use std::collections::VecDeque;
use std::time::Duration;

use crate::code::Code;
use crate::error::{Fault, FaultKind};
use crate::hook::{Decision, Field, Hook};
use crate::limits::Limits;
use crate::machine::{LogLine, Machine};

/// So many faults within [`FAULTS_WITHIN_MS`] end a machine.
const FAULTS_MAX: usize = 5;
const FAULTS_WITHIN_MS: u64 = 60_000;
/// The first wait before a program starts anew; each further one is twice as long.
const REST_MS: u64 = 1_000;
const REST_MS_MAX: u64 = 60_000;
/// After this time without a fault the waits begin anew.
const FORGIVEN_AFTER_MS: u64 = 600_000;

/// A program on one thread: its machine, which is started anew if it fails too often.
///
/// `now_ms` of every call is the same monotonic clock; `unix_ms` is what the program sees.
pub struct Instance {
    code: Code,
    limits: Limits,
    /// `None` while it rests.
    machine: Option<Box<dyn Machine>>,
    /// When the last faults were.
    faults: VecDeque<u64>,
    rests_until_ms: u64,
    /// The wait that the next rest has.
    rest_ms: u64,
    restarts: u64,
    last_event_time: Duration,
}

impl Instance {
    /// Creates an instance. The machine starts with the first event.
    pub fn new(code: Code, limits: Limits) -> Instance {
        Instance {
            code,
            limits,
            machine: None,
            faults: VecDeque::new(),
            rests_until_ms: 0,
            rest_ms: REST_MS,
            restarts: 0,
            last_event_time: Duration::ZERO,
        }
    }

    /// Returns the code that it runs.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Returns how often its machine was ended by faults.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Returns how long the last event took.
    pub fn last_event_time(&self) -> Duration {
        self.last_event_time
    }

    /// Returns the bytes of its machine.
    pub fn memory_bytes(&self) -> usize {
        self.machine.as_ref().map_or(0, |machine| machine.memory_bytes())
    }

    /// Takes the lines that the program has logged.
    pub fn take_log(&mut self) -> Vec<LogLine> {
        self.machine.as_mut().map(|machine| machine.take_log()).unwrap_or_default()
    }

    /// Frees memory, if there is much to free. Called between events.
    pub fn collect(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.collect();
        }
    }

    /// Asks the program.
    ///
    /// # Errors
    /// It has not decided.
    pub fn ask(
        &mut self,
        hook: Hook,
        event: &[(&'static str, Field<'_>)],
        (now_ms, unix_ms): (u64, u64),
    ) -> Result<Decision, Fault> {
        self.last_event_time = Duration::ZERO;
        let machine = self.machine(now_ms)?;
        let decided = machine.ask(hook, event, unix_ms);
        let took = machine.last_event_time();
        self.last_event_time = took;
        if decided.is_err() {
            self.count_fault(now_ms);
        }
        decided
    }

    /// Returns the machine, started if the program does not rest.
    fn machine(&mut self, now_ms: u64) -> Result<&mut Box<dyn Machine>, Fault> {
        if self.machine.is_none() {
            if now_ms < self.rests_until_ms {
                return Err(Fault {
                    program: self.code.name().to_string(),
                    kind: FaultKind::Resting,
                    line: None,
                    message: format!(
                        "it has failed {FAULTS_MAX} times within a minute and starts anew in {} ms; the log has the causes",
                        self.rests_until_ms - now_ms
                    ),
                });
            }
            match self.code.start(self.limits) {
                Ok(machine) => self.machine = Some(machine),
                Err(error) => {
                    self.rest(now_ms);
                    return Err(Fault {
                        program: error.program,
                        kind: FaultKind::Error,
                        line: error.line,
                        message: error.message,
                    });
                }
            }
        }
        let resting = || Fault {
            program: self.code.name().to_string(),
            kind: FaultKind::Resting,
            line: None,
            message: "it is not running".into(),
        };
        self.machine.as_mut().ok_or_else(resting)
    }

    fn count_fault(&mut self, now_ms: u64) {
        if self.faults.back().is_some_and(|last| now_ms - last.min(&now_ms) > FORGIVEN_AFTER_MS) {
            self.rest_ms = REST_MS;
        }
        self.faults.push_back(now_ms);
        if self.faults.len() > FAULTS_MAX {
            self.faults.pop_front();
        }
        let first = self.faults.front().copied().unwrap_or_default();
        if self.faults.len() == FAULTS_MAX && now_ms - first.min(now_ms) <= FAULTS_WITHIN_MS {
            self.rest(now_ms);
        }
    }

    /// Ends the machine until a time.
    fn rest(&mut self, now_ms: u64) {
        self.machine = None;
        self.restarts += 1;
        // Faults after the rest count anew; the last is kept, so that its time is known.
        self.faults.clear();
        self.faults.push_back(now_ms);
        self.rests_until_ms = now_ms + self.rest_ms;
        self.rest_ms = (self.rest_ms * 2).min(REST_MS_MAX);
    }
}
