use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::code::{Code, KV_BYTES_MAX};
use crate::error::{Fault, FaultKind};
use crate::hook::{Decision, Field, Hook};
use crate::limits::Limits;
use crate::machine::{LogLine, Machine};
use crate::protocol::{Answer, ConnEvent, ConnKey, Effects, Progress};
use crate::store::Store;

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
    kv: Rc<RefCell<Store>>,
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
            kv: Rc::new(RefCell::new(Store::new(KV_BYTES_MAX))),
            machine: None,
            faults: VecDeque::new(),
            rests_until_ms: 0,
            rest_ms: REST_MS,
            restarts: 0,
            last_event_time: Duration::ZERO,
        }
    }

    /// Creates an instance of other code that keeps what this one has in its store.
    pub fn succeeded_by(&self, code: Code) -> Instance {
        Instance { kv: Rc::clone(&self.kv), ..Instance::new(code, self.limits) }
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
        self.with((now_ms, unix_ms), |machine| machine.ask(hook, event, unix_ms))
    }

    /// Passes an event of a connection, as [`Machine::handle_event`] does.
    ///
    /// # Errors
    /// As [`Machine::handle_event`]. If [`Instance::restarts`] has grown, all connections are gone.
    pub fn handle_event(
        &mut self,
        conn: ConnKey,
        event: ConnEvent<'_>,
        now: (u64, u64),
    ) -> Result<Progress, Fault> {
        self.with(now, |machine| machine.handle_event(conn, event, now.1))
    }

    /// Passes an answer, as [`Machine::handle_answer`] does.
    ///
    /// # Errors
    /// As [`Instance::handle_event`].
    pub fn handle_answer(
        &mut self,
        conn: ConnKey,
        answer: Answer<'_>,
        now: (u64, u64),
    ) -> Result<Progress, Fault> {
        self.with(now, |machine| machine.handle_answer(conn, answer, now.1))
    }

    /// Takes a connection over, as [`Machine::import`] does.
    ///
    /// # Errors
    /// As [`Instance::handle_event`].
    pub fn import(
        &mut self,
        conn: ConnKey,
        fields: &[(&'static str, Field<'_>)],
        state: &[u8],
        now: (u64, u64),
    ) -> Result<(), Fault> {
        self.with(now, |machine| machine.import(conn, fields, state, now.1))
    }

    /// Returns the state of a connection; `None`: it has none that another machine could take.
    pub fn export(&self, conn: ConnKey) -> Option<Vec<u8>> {
        self.machine.as_ref().and_then(|machine| machine.export(conn).ok())
    }

    /// Takes what the last event or answer has brought about.
    pub fn take_effects(&mut self) -> Effects {
        self.machine.as_mut().map(|machine| machine.take_effects()).unwrap_or_default()
    }

    /// Forgets a connection.
    pub fn forget(&mut self, conn: ConnKey) {
        if let Some(machine) = &mut self.machine {
            machine.forget(conn);
        }
    }

    fn with<T>(
        &mut self,
        (now_ms, _): (u64, u64),
        run: impl FnOnce(&mut dyn Machine) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.last_event_time = Duration::ZERO;
        let machine = self.machine(now_ms)?;
        let outcome = run(&mut **machine);
        let took = machine.last_event_time();
        self.last_event_time = took;
        if outcome.is_err() {
            self.count_fault(now_ms);
        }
        outcome
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
            match self.code.start(self.limits, &self.kv) {
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
