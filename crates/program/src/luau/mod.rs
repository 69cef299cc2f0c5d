//! Luau: a machine of its own for each program and thread.

mod budget;
mod protocol;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use mlua::chunk::{ChunkMode, Compiler};
use mlua::{Function, Lua, LuaOptions, StdLib, Table, Value};

pub(crate) use self::budget::Budget;
use self::protocol::Protocol;
use crate::error::{Fault, FaultKind, ProgramError};
use crate::hook::{Decision, Field, Hook};
use crate::json;
use crate::limits::Limits;
use crate::machine::{LogLine, Machine};
use crate::protocol::{Answer, ConnEvent, ConnKey, Effects, Progress};
use crate::store::Store;

/// The chunk's name, by which its lines are found in messages.
pub(crate) const CHUNK: &str = "=program";
const PRELUDE: &str = include_str!("prelude.luau");
/// A machine with more than this frees memory between events.
const MEMORY_MARK: usize = 2 << 20;
/// Steps of the collector between two events.
const COLLECTOR_STEPS: usize = 8;
/// The longest reason for a client, in bytes.
const REASON_BYTES_MAX: usize = 1_024;

/// Compiles a source.
pub(crate) fn compile(name: &str, source: &str) -> Result<Vec<u8>, ProgramError> {
    let compiler = Compiler::new().set_optimization_level(1).set_debug_level(1);
    let compiled = catch_unwind(AssertUnwindSafe(|| compiler.compile(source)));
    let error = match compiled {
        Ok(Ok(bytecode)) => return Ok(bytecode),
        Ok(Err(mlua::Error::SyntaxError { message, .. })) => message,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the compiler has panicked".to_owned(),
    };
    // The compiler writes `12: what` without the chunk's name.
    let (line, message) = located(&format!("program:{}", error.trim_start_matches(':')));
    Err(ProgramError { program: name.to_owned(), line, message })
}

/// The machine.
pub(crate) struct Luau {
    name: Box<str>,
    lua: Lua,
    limits: Limits,
    hooks: [Option<Function>; Hook::ALL.len()],
    event: Table,
    marks: Marks,
    shared: Rc<Shared>,
    budget: Rc<Budget>,
    protocol: Protocol,
    last_event_time: Duration,
}

/// Metatables that distinguish kinds of values.
#[derive(Clone)]
pub(crate) struct Marks {
    pub(crate) array: Table,
    refusal: Table,
    disconnection: Table,
}

/// What functions of the host use.
#[derive(Default)]
pub(crate) struct Shared {
    unix_ms: Cell<u64>,
    log: RefCell<Vec<LogLine>>,
    log_bytes: Cell<usize>,
    effects: RefCell<Effects>,
}

/// A machine without a program.
pub(crate) struct Opened {
    pub(crate) lua: Lua,
    event: Table,
    marks: Marks,
    shared: Rc<Shared>,
    /// What the prelude has for protocols.
    of_protocol: (Function, Table, Table),
}

impl Luau {
    pub(crate) fn start(
        name: &str,
        bytecode: &[u8],
        limits: Limits,
        store: Rc<RefCell<Store>>,
    ) -> Result<Luau, ProgramError> {
        let started = catch_unwind(AssertUnwindSafe(|| Luau::new(name, bytecode, limits, store)));
        started.unwrap_or_else(|_| {
            let message = "the machine has panicked; please report this".to_owned();
            Err(ProgramError { program: name.to_owned(), line: None, message })
        })
    }

    fn new(
        name: &str,
        bytecode: &[u8],
        limits: Limits,
        store: Rc<RefCell<Store>>,
    ) -> Result<Luau, ProgramError> {
        let budget = Rc::new(Budget::default());
        let opened = Luau::open(limits, &budget, store, |_, _| Ok(()));
        let internal = |error: mlua::Error| ProgramError {
            program: name.to_owned(),
            line: None,
            message: error.to_string(),
        };
        let Opened { lua, event, marks, shared, of_protocol } = opened.map_err(internal)?;
        let protocol = Protocol::new(&lua, of_protocol).map_err(internal)?;
        budget.begin(limits.start_time_max);
        let chunk = lua.load(bytecode).set_name(CHUNK).set_mode(ChunkMode::Binary);
        let returned = chunk.eval::<Value>();
        budget.end();
        let mut machine = Luau {
            name: name.into(),
            lua,
            limits,
            hooks: Default::default(),
            event,
            marks,
            shared,
            budget,
            protocol,
            last_event_time: Duration::ZERO,
        };
        let error =
            |message: String| ProgramError { program: name.to_owned(), line: None, message };
        let too_slow = || error(format!("it does not start within {:?}", limits.start_time_max));
        let returned = match returned {
            Ok(returned) => returned,
            Err(_) if machine.budget.is_over() => return Err(too_slow()),
            Err(error) => {
                let Fault { program, line, message, .. } = machine.fault(&error);
                return Err(ProgramError { program, line, message });
            }
        };
        if machine.budget.is_over() {
            return Err(too_slow());
        }
        let Value::Table(table) = returned else {
            return Err(error(
                "it returns no table with hooks; end it with `return { publish = function(event) ... end }`".into(),
            ));
        };
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(internal)?;
            let key = match &key {
                Value::String(key) => key.to_string_lossy(),
                other => other.type_name().to_owned(),
            };
            let hook = Hook::of(&key);
            let event = ConnEvent::NAMES.iter().position(|of| *of == key);
            let place = match (hook, event) {
                (Some(hook), _) => &mut machine.hooks[hook as usize],
                (None, Some(event)) => &mut machine.protocol.handlers[event],
                (None, None) if key == "upgrade" => &mut machine.protocol.upgrade,
                (None, None) => {
                    let names: Vec<&str> = Hook::ALL.iter().map(|hook| hook.name()).collect();
                    return Err(error(format!(
                        "there is no hook {key:?}; the hooks are {}, and the events of a protocol {}",
                        names.join(", "),
                        ConnEvent::NAMES.join(", ")
                    )));
                }
            };
            let Value::Function(function) = value else {
                return Err(error(format!(
                    "the hook {key} is a {}; write a function",
                    type_of(&value)
                )));
            };
            *place = Some(function);
        }
        // What compiling and starting have left.
        machine.lua.gc_collect().map_err(internal)?;
        Ok(machine)
    }

    /// Creates a machine with the host's functions, closed against changes of them.
    /// `add` adds further ones before that.
    pub(crate) fn open(
        limits: Limits,
        budget: &Rc<Budget>,
        store: Rc<RefCell<Store>>,
        add: impl FnOnce(&Lua, &Marks) -> mlua::Result<()>,
    ) -> mlua::Result<Opened> {
        let libraries = StdLib::COROUTINE
            | StdLib::TABLE
            | StdLib::STRING
            | StdLib::UTF8
            | StdLib::BIT
            | StdLib::BUFFER
            | StdLib::MATH
            | StdLib::VECTOR;
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
        lua.set_memory_limit(limits.memory_bytes_max)?;
        let shared = Rc::new(Shared::default());
        let marks = Marks {
            array: lua.create_table()?,
            refusal: lua.create_table()?,
            disconnection: lua.create_table()?,
        };
        for mark in [&marks.array, &marks.refusal, &marks.disconnection] {
            mark.raw_set("__metatable", "locked")?;
        }
        let array = marks.array.clone();
        let decode = lua.create_function(move |lua, text: mlua::LuaString| {
            json::decode(lua, &array, &text.as_bytes())
        })?;
        let (array, bytes_max) = (marks.array.clone(), limits.output_bytes_max);
        let encode = lua.create_function(move |lua, value: Value| {
            let text = json::encode(&value, &array, bytes_max).map_err(mlua::Error::runtime)?;
            lua.create_string(text)
        })?;
        let of_log = Rc::clone(&shared);
        let log_bytes_max = limits.log_bytes_max;
        let log = lua.create_function(move |lua, text: mlua::LuaString| {
            of_log.log(lua, &text.to_string_lossy(), log_bytes_max);
            Ok(())
        })?;
        let clock = Rc::clone(&shared);
        let now = lua.create_function(move |_, ()| Ok(clock.unix_ms.get() as f64 / 1_000.0))?;
        let prelude = lua.load(PRELUDE).set_name("=prelude").into_function()?;
        let marked = (marks.array.clone(), marks.refusal.clone(), marks.disconnection.clone());
        let host = protocol::host_functions(&lua, limits, &shared, store)?;
        let (event, enter, connection, mark): (Table, Function, Table, Table) =
            prelude.call((decode, encode, log, now, marked.0, marked.1, marked.2, host))?;
        add(&lua, &marks)?;
        lua.sandbox(true)?;
        let ticks = Rc::clone(budget);
        lua.set_interrupt(move |lua| ticks.tick(lua));
        Ok(Opened { lua, event, marks, shared, of_protocol: (enter, connection, mark) })
    }

    fn event(&self, fields: &[(&'static str, Field<'_>)]) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(0, fields.len() + 2)?;
        self.add_fields(&table, fields)?;
        table.set_metatable(Some(self.event.clone()))?;
        Ok(table)
    }

    fn add_fields(&self, table: &Table, fields: &[(&'static str, Field<'_>)]) -> mlua::Result<()> {
        for (name, field) in fields {
            match *field {
                Field::Bytes(bytes) => table.raw_set(*name, self.lua.create_string(bytes)?)?,
                Field::Bool(value) => table.raw_set(*name, value)?,
                Field::Pairs(pairs) => {
                    let of = self.lua.create_table_with_capacity(0, pairs.len())?;
                    for (name, value) in pairs {
                        // Lines of one field are one list (RFC 9110 §5.3).
                        let name = name.to_ascii_lowercase();
                        let lines = match of.raw_get::<Option<String>>(name.as_str())? {
                            Some(before) => format!("{before}, {value}"),
                            None => value.clone(),
                        };
                        of.raw_set(name, lines)?;
                    }
                    table.raw_set(*name, of)?;
                }
            }
        }
        Ok(())
    }

    fn answer(&self, hook: Hook, fields: &[(&'static str, Field<'_>)]) -> mlua::Result<Value> {
        match &self.hooks[hook as usize] {
            Some(function) => function.call(self.event(fields)?),
            None => Ok(Value::Nil),
        }
    }

    fn decision(&self, answer: &Value) -> Result<Decision, String> {
        let table = match answer {
            Value::Nil => return Ok(Decision::Rules),
            Value::Boolean(true) => return Ok(Decision::Granted(b"{}".to_vec())),
            Value::Boolean(false) => return Ok(Decision::Denied),
            Value::Table(table) => table,
            other => {
                return Err(format!(
                    "it returned a {}; return nil, true, false, a table of results, dunlin.refuse() or dunlin.disconnect()",
                    type_of(other)
                ));
            }
        };
        match table.metatable() {
            Some(mark) if mark == self.marks.refusal => {
                let (code, reason) = code_and_reason(table)?;
                Ok(Decision::Refused(code.into(), reason))
            }
            Some(mark) if mark == self.marks.disconnection => {
                let (code, reason) = code_and_reason(table)?;
                Ok(Decision::Disconnected(code, reason))
            }
            _ => {
                let text = json::encode(answer, &self.marks.array, self.limits.output_bytes_max)?;
                match text.first() {
                    Some(b'{') => Ok(Decision::Granted(text)),
                    _ => Err("it returned a list; results are a table with names".into()),
                }
            }
        }
    }

    /// Returns the fault of an error that has ended an event.
    fn fault_of(&self, error: mlua::Error) -> Fault {
        let fault = self.fault(&error);
        drop(error);
        if fault.kind == FaultKind::Memory {
            // What the event has left is garbage now; a full collection cannot fail for want of memory.
            let _ = self.lua.gc_collect();
        }
        fault
    }

    /// Returns the fault of an error that was raised.
    fn fault(&self, error: &mlua::Error) -> Fault {
        let (line, mut message) = located(&error.to_string());
        let kind = match error {
            _ if self.budget.is_over() => FaultKind::Time,
            error if is_memory(error) => FaultKind::Memory,
            _ => FaultKind::Error,
        };
        match kind {
            FaultKind::Time => message = self.over_time(),
            FaultKind::Memory => {
                message =
                    format!("it needs more than {} bytes of memory", self.limits.memory_bytes_max);
            }
            _ => {}
        }
        Fault { program: self.name.to_string(), kind, line, message }
    }

    fn over_time(&self) -> String {
        format!("it runs longer than {:?}", self.limits.event_time_max)
    }

    fn bare_fault(&self, kind: FaultKind, message: String) -> Fault {
        Fault { program: self.name.to_string(), kind, line: None, message }
    }
}

impl Machine for Luau {
    fn defines(&self, hook: Hook) -> bool {
        self.hooks[hook as usize].is_some()
    }

    fn ask(
        &mut self,
        hook: Hook,
        event: &[(&'static str, Field<'_>)],
        now_ms: u64,
    ) -> Result<Decision, Fault> {
        self.shared.begin(now_ms);
        self.budget.begin(self.limits.event_time_max);
        let answer = catch_unwind(AssertUnwindSafe(|| self.answer(hook, event)));
        self.last_event_time = self.budget.end();
        match answer {
            // A program may catch the error that ends its time.
            Ok(Ok(_)) if self.budget.is_over() => {
                Err(self.bare_fault(FaultKind::Time, self.over_time()))
            }
            Ok(Ok(answer)) => self.decision(&answer).map_err(|message| {
                self.bare_fault(FaultKind::Output, format!("{}: {message}", hook.name()))
            }),
            Ok(Err(error)) => Err(self.fault_of(error)),
            Err(_) => {
                let message = "the host has panicked; please report this".to_owned();
                Err(self.bare_fault(FaultKind::Error, message))
            }
        }
    }

    fn last_event_time(&self) -> Duration {
        self.last_event_time
    }

    fn collect(&mut self) {
        if self.lua.used_memory() < MEMORY_MARK {
            return;
        }
        for _ in 0..COLLECTOR_STEPS {
            // Raises nothing: programs have no finalizers. A cycle that has ended is enough.
            if self.lua.gc_step().unwrap_or(true) {
                break;
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        self.lua.used_memory()
    }

    fn take_log(&mut self) -> Vec<LogLine> {
        self.shared.log.take()
    }

    fn speaks(&self) -> bool {
        self.protocol.handlers[1].is_some()
    }

    fn upgrades(&self) -> bool {
        self.protocol.upgrade.is_some()
    }

    fn handle_event(
        &mut self,
        conn: ConnKey,
        event: ConnEvent<'_>,
        now_ms: u64,
    ) -> Result<Progress, Fault> {
        self.begin_event(conn, event, now_ms)
    }

    fn handle_answer(
        &mut self,
        conn: ConnKey,
        answer: Answer<'_>,
        now_ms: u64,
    ) -> Result<Progress, Fault> {
        self.pass_answer(conn, answer, now_ms)
    }

    fn take_effects(&mut self) -> Effects {
        self.effects()
    }

    fn forget(&mut self, conn: ConnKey) {
        self.forget_conn(conn);
    }

    fn export(&self, conn: ConnKey) -> Result<Vec<u8>, Fault> {
        self.export_conn(conn)
    }

    fn import(
        &mut self,
        conn: ConnKey,
        fields: &[(&'static str, Field<'_>)],
        state: &[u8],
        now_ms: u64,
    ) -> Result<(), Fault> {
        self.import_conn(conn, fields, state, now_ms)
    }
}

impl Shared {
    fn begin(&self, unix_ms: u64) {
        self.unix_ms.set(unix_ms);
        self.log_bytes.set(0);
        self.effects.take();
    }

    fn log(&self, lua: &Lua, text: &str, bytes_max: usize) {
        let room = bytes_max.saturating_sub(self.log_bytes.get());
        if room == 0 {
            return;
        }
        let kept = &text[..text.floor_char_boundary(room)];
        self.log_bytes.set(self.log_bytes.get() + kept.len() + 32);
        let line = lua.inspect_stack(1, |debug| debug.current_line()).flatten();
        let line = line.and_then(|line| u32::try_from(line).ok());
        self.log.borrow_mut().push(LogLine { line, text: kept.to_owned() });
    }
}

/// The prelude has checked both; a program may have changed them since.
fn code_and_reason(table: &Table) -> Result<(u16, String), String> {
    let code: u16 = table.raw_get("code").map_err(|_| "the code is no number".to_owned())?;
    let reason: mlua::LuaString =
        table.raw_get("reason").map_err(|_| "the reason is no text".to_owned())?;
    let mut reason = reason.to_string_lossy();
    reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
    Ok((code, reason))
}

/// Returns the type as a program calls it.
fn type_of(value: &Value) -> &'static str {
    match value.type_name() {
        "integer" => "number",
        name => name,
    }
}

fn is_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. } => is_memory(cause),
        other => other.to_string().contains("not enough memory"),
    }
}

/// Splits a message into the line of the program that it names and the rest, without the traceback.
pub(crate) fn located(text: &str) -> (Option<u32>, String) {
    let text = text.trim();
    let first = text.lines().next().unwrap_or_default();
    let first = ["runtime error: ", "syntax error: "]
        .into_iter()
        .find_map(|prefix| first.strip_prefix(prefix))
        .unwrap_or(first);
    // `program:12: message`, and `:12: message` of the compiler.
    let of_chunk = |line: &str| -> Option<(u32, String)> {
        let rest = line.strip_prefix("program").unwrap_or(line).strip_prefix(':')?;
        let (number, rest) = rest.split_once(|c: char| !c.is_ascii_digit())?;
        Some((number.parse().ok()?, rest.trim_start_matches(':').trim().to_owned()))
    };
    if let Some((line, message)) = of_chunk(first) {
        return (Some(line), message);
    }
    // Raised elsewhere: the traceback says which line of the program has called.
    let caller = text.lines().skip(1).find_map(|line| {
        let rest = line.trim().trim_start_matches("[string \"").strip_prefix("program")?;
        let digits: String = rest
            .trim_start_matches("\"]")
            .strip_prefix(':')?
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse().ok()
    });
    let message = match first.strip_prefix("prelude:") {
        Some(rest) => rest.split_once(": ").map_or(rest, |(_, message)| message),
        None => first,
    };
    (caller, message.to_owned())
}
