//! Protocols in Luau: each event of a connection runs in a thread of its own, which yields for calls that wait.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Thread, Value};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Luau, REASON_BYTES_MAX, Shared};
use crate::error::{Fault, FaultKind};
use crate::hook::Field;
use crate::json;
use crate::limits::Limits;
use crate::protocol::{Answer, Call, ConnEvent, ConnKey, Effects, Progress, Target};
use crate::store::Store;

/// The state of a connection, as JSON.
const STATE_BYTES_MAX: usize = 16 << 10;
/// The state is measured after each of the first events of a machine, and then after each of so many.
const STATE_MEASURED_EACH: u64 = 16;
/// The calls that one event may wait for.
const CALLS_MAX: u32 = 1_000;
/// The timers that one event may set.
const TIMERS_MAX: usize = 16;
/// The longest name of a timer, and the longest time of one.
const TIMER_NAME_BYTES_MAX: usize = 64;
const TIMER_S_MAX: f64 = 31.0 * 86_400.0;
/// Threads that are kept for further events.
const THREADS_KEPT: usize = 8;

/// What a machine has of its protocol.
pub(super) struct Protocol {
    pub(super) handlers: [Option<Function>; ConnEvent::NAMES.len()],
    pub(super) upgrade: Option<Function>,
    /// Functions of the prelude.
    enter: Function,
    connection: Table,
    mark: Table,
    /// The connections, by key.
    conns: Table,
    threads: Vec<Thread>,
    /// Events that wait for an answer, and how many they have waited for.
    parked: HashMap<ConnKey, (Thread, u32)>,
    events: u64,
}

impl Protocol {
    pub(super) fn new(
        lua: &Lua,
        (enter, connection, mark): (Function, Table, Table),
    ) -> mlua::Result<Protocol> {
        Ok(Protocol {
            handlers: Default::default(),
            upgrade: None,
            enter,
            connection,
            mark,
            conns: lua.create_table()?,
            threads: Vec::new(),
            parked: HashMap::new(),
            events: 0,
        })
    }
}

/// The host's functions for the prelude.
pub(super) fn host_functions(
    lua: &Lua,
    limits: Limits,
    shared: &Rc<Shared>,
    store: Rc<RefCell<Store>>,
) -> mlua::Result<Table> {
    let host = lua.create_table()?;
    let of = Rc::clone(shared);
    let send = lua.create_function(move |_, bytes: mlua::LuaString| {
        let mut effects = of.effects.borrow_mut();
        let bytes = bytes.as_bytes();
        if effects.output.len() + bytes.len() > limits.output_bytes_max {
            let max = limits.output_bytes_max;
            let why = format!("an event sends at most {max} bytes; send the rest by a timer");
            return Err(mlua::Error::runtime(why));
        }
        effects.output.extend_from_slice(&bytes);
        let end = effects.output.len();
        effects.ends.push(end);
        Ok(())
    })?;
    let of = Rc::clone(shared);
    let close = lua.create_function(move |_, reason: mlua::LuaString| {
        let mut reason = reason.to_string_lossy();
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        of.effects.borrow_mut().close = Some(reason);
        Ok(())
    })?;
    let of = Rc::clone(shared);
    let after =
        lua.create_function(move |_, (seconds, name): (Option<f64>, mlua::LuaString)| {
            let error = |why: &str| Err(mlua::Error::runtime(why));
            let name = name.to_string_lossy();
            if name.len() > TIMER_NAME_BYTES_MAX {
                return error("a timer's name has at most 64 bytes");
            }
            if seconds.is_some_and(|of| !(0.0..=TIMER_S_MAX).contains(&of)) {
                return error("a timer runs for up to 31 days; nil removes it");
            }
            let mut effects = of.effects.borrow_mut();
            if effects.timers.len() >= TIMERS_MAX {
                return error("an event sets at most 16 timers");
            }
            effects.timers.push((name.into(), seconds.map(|of| (of * 1_000.0) as u64)));
            Ok(())
        })?;
    let of = Rc::clone(shared);
    let kv = lua.create_function(move |lua, call: mlua::LuaString| {
        match store.borrow_mut().call(&call.as_bytes(), of.unix_ms.get()) {
            Ok(result) => lua.create_string(result),
            Err((_, why)) => Err(mlua::Error::runtime(format!("dunlin.kv: {why}"))),
        }
    })?;
    host.raw_set("send", send)?;
    host.raw_set("close", close)?;
    host.raw_set("after", after)?;
    host.raw_set("kv", kv)?;
    Ok(host)
}

/// The function of an event, and what it is called with.
type Prepared = (Function, (Table, Value, Value));

/// What a resumed thread has done.
enum Resumed {
    Returned(MultiValue),
    Yielded(MultiValue),
}

impl Luau {
    /// Passes an event to the program.
    pub(super) fn begin_event(
        &mut self,
        conn: ConnKey,
        event: ConnEvent<'_>,
        now_ms: u64,
    ) -> Result<Progress, Fault> {
        self.shared.begin(now_ms);
        self.protocol.events += 1;
        let prepared = self.prepare(conn, event);
        let (function, args) = match prepared {
            Ok(Some(prepared)) => prepared,
            Ok(None) => return Ok(Progress::Done(None)),
            Err(error) => return Err(self.fault_of(error)),
        };
        let thread = match self.protocol.threads.pop() {
            Some(thread) => Ok(thread),
            None => self.lua.create_thread(self.protocol.enter.clone()),
        };
        match thread {
            Ok(thread) => self.resume(conn, thread, 0, (function, args)),
            Err(error) => Err(self.fault_of(error)),
        }
    }

    /// Passes the answer to the event that waits for it.
    pub(super) fn pass_answer(
        &mut self,
        conn: ConnKey,
        answer: Answer<'_>,
        now_ms: u64,
    ) -> Result<Progress, Fault> {
        self.shared.begin(now_ms);
        let Some((thread, calls)) = self.protocol.parked.remove(&conn) else {
            return Ok(Progress::Done(None));
        };
        let values = match answer {
            Ok(result) => {
                json::decode(&self.lua, &self.marks.array, result).map(|of| (of, Value::Nil))
            }
            Err((code, message)) => self.failure(code, message).map(|of| (Value::Nil, of)),
        };
        match values {
            Ok(values) => self.resume(conn, thread, calls, values),
            Err(error) => Err(self.fault_of(error)),
        }
    }

    fn failure(&self, code: u32, message: &str) -> mlua::Result<Value> {
        let table = self.lua.create_table()?;
        table.raw_set("code", code)?;
        table.raw_set("message", message)?;
        Ok(Value::Table(table))
    }

    /// Returns the function of an event, and what it is called with. `None`: the program has none.
    fn prepare(&mut self, conn: ConnKey, event: ConnEvent<'_>) -> mlua::Result<Option<Prepared>> {
        let table = match event {
            ConnEvent::Open(fields) => self.add_conn(conn, fields)?,
            _ => match self.protocol.conns.raw_get(conn)? {
                Some(table) => table,
                None => return Ok(None),
            },
        };
        let Some(handler) = self.protocol.handlers[event.index()].clone() else { return Ok(None) };
        let (first, second) = match event {
            ConnEvent::Open(_) => (Value::Nil, Value::Nil),
            ConnEvent::Frame(frame) => (Value::String(self.lua.create_string(frame)?), Value::Nil),
            ConnEvent::Push(push) => match self.push(push)? {
                Some(push) => (Value::Table(push), Value::Nil),
                None => return Ok(None),
            },
            ConnEvent::Timer(name) => (Value::String(self.lua.create_string(name)?), Value::Nil),
            ConnEvent::Close(code, reason) => {
                let reason = self.lua.create_string(reason)?;
                (Value::Number(code.into()), Value::String(reason))
            }
        };
        Ok(Some((handler, (table, first, second))))
    }

    fn add_conn(
        &mut self,
        conn: ConnKey,
        fields: &[(&'static str, Field<'_>)],
    ) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(0, fields.len() + 3)?;
        self.add_fields(&table, fields)?;
        table.raw_set("state", self.lua.create_table()?)?;
        table.set_metatable(Some(self.protocol.connection.clone()))?;
        self.protocol.conns.raw_set(conn, &table)?;
        Ok(table)
    }

    /// Returns a push as the program sees it. `None`: it is none for programs.
    fn push(&self, text: &[u8]) -> mlua::Result<Option<Table>> {
        let Ok(push) = serde_json::from_slice::<Push<'_>>(text) else { return Ok(None) };
        let table = self.lua.create_table_with_capacity(0, 8)?;
        let (kind, body) = match push {
            Push { publication: Some(of), .. } => ("publication", of),
            Push { message: Some(of), .. } => ("message", of),
            Push { join: Some(of), .. } => ("join", of),
            Push { leave: Some(of), .. } => ("leave", of),
            Push { unsubscribe: Some(of), .. } => ("unsubscribe", of),
            Push { subscribe: Some(of), .. } => ("subscribe", of),
            Push { missed: Some(of), .. } => ("missed", of),
            _ => return Ok(None),
        };
        table.raw_set("kind", kind)?;
        if let Some(channel) = &push.channel {
            table.raw_set("channel", channel.as_ref())?;
        }
        if let Some(data) = body.data {
            table.raw_set("raw", self.lua.create_string(data.get())?)?;
        }
        if let Some(info) = &body.info {
            table.raw_set("user", info.user.as_ref())?;
            table.raw_set("client", info.client.as_ref())?;
        }
        for (name, number) in [("offset", body.offset), ("code", body.code), ("count", body.count)]
        {
            if let Some(number) = number {
                table.raw_set(name, number as f64)?;
            }
        }
        if let Some(tags) = body.tags {
            let tags = json::decode(&self.lua, &self.marks.array, tags.get().as_bytes())?;
            table.raw_set("tags", tags)?;
        }
        if let Some(reason) = &body.reason {
            table.raw_set("reason", reason.as_ref())?;
        }
        table.set_metatable(Some(self.event.clone()))?;
        Ok(Some(table))
    }

    fn resume(
        &mut self,
        conn: ConnKey,
        thread: Thread,
        calls: u32,
        args: impl mlua::IntoLuaMulti,
    ) -> Result<Progress, Fault> {
        self.budget.begin(self.limits.event_time_max);
        let resumed = catch_unwind(AssertUnwindSafe(|| {
            let values = thread.resume::<MultiValue>(args)?;
            Ok(match thread.is_resumable() {
                true => Resumed::Yielded(values),
                false => Resumed::Returned(values),
            })
        }));
        self.last_event_time = self.budget.end();
        match resumed {
            Err(_) => {
                let message = "the host has panicked; please report this".to_owned();
                Err(self.bare_fault(FaultKind::Error, message))
            }
            Ok(Err(error)) => Err(self.fault_of(error)),
            // A program may catch the error that ends its time.
            Ok(Ok(_)) if self.budget.is_over() => {
                Err(self.bare_fault(FaultKind::Time, self.over_time()))
            }
            Ok(Ok(Resumed::Returned(values))) => {
                if self.protocol.threads.len() < THREADS_KEPT
                    && thread.reset(self.protocol.enter.clone()).is_ok()
                {
                    self.protocol.threads.push(thread);
                }
                self.measure_state(conn)?;
                let taken = match values.front() {
                    Some(Value::Integer(taken)) => Some(*taken as f64),
                    Some(Value::Number(taken)) => Some(*taken),
                    _ => None,
                };
                Ok(Progress::Done(taken.filter(|of| *of >= 0.0).map(|of| of as usize)))
            }
            Ok(Ok(Resumed::Yielded(values))) => {
                let Some(call) = self.call(&values) else {
                    let message = "it yields to nobody; only calls of the server wait".to_owned();
                    return Err(self.bare_fault(FaultKind::Error, message));
                };
                if calls >= CALLS_MAX {
                    let message = format!("an event waits for at most {CALLS_MAX} calls");
                    return Err(self.bare_fault(FaultKind::Error, message));
                }
                self.protocol.parked.insert(conn, (thread, calls + 1));
                Ok(Progress::Waits(call))
            }
        }
    }

    /// Returns the call that a thread yields, if the prelude has yielded it.
    fn call(&self, values: &MultiValue) -> Option<Call> {
        let [Value::Table(mark), Value::String(target), Value::String(params)] =
            [values.front()?, values.get(1)?, values.get(2)?]
        else {
            return None;
        };
        if *mark != self.protocol.mark {
            return None;
        }
        let target = Target::of(&target.to_str().ok()?)?;
        Some(Call { target, params: params.as_bytes().to_vec() })
    }

    fn measure_state(&mut self, conn: ConnKey) -> Result<(), Fault> {
        let events = self.protocol.events;
        if events > 4 * STATE_MEASURED_EACH && !events.is_multiple_of(STATE_MEASURED_EACH) {
            return Ok(());
        }
        self.state_text(conn).map(drop)
    }

    fn state_text(&self, conn: ConnKey) -> Result<Vec<u8>, Fault> {
        let state = || -> mlua::Result<Value> {
            match self.protocol.conns.raw_get::<Option<Table>>(conn)? {
                Some(table) => table.raw_get("state"),
                None => Ok(Value::Nil),
            }
        };
        let encoded = state()
            .map_err(|error| error.to_string())
            .and_then(|state| json::encode(&state, &self.marks.array, STATE_BYTES_MAX));
        encoded.map_err(|why| {
            self.bare_fault(FaultKind::Output, format!("the state of a connection: {why}"))
        })
    }

    /// Returns what a connection has of itself, as JSON, for another machine.
    pub(super) fn export_conn(&self, conn: ConnKey) -> Result<Vec<u8>, Fault> {
        self.state_text(conn)
    }

    /// Takes a connection over from another machine, with its state, which `upgrade` may replace.
    pub(super) fn import_conn(
        &mut self,
        conn: ConnKey,
        fields: &[(&'static str, Field<'_>)],
        state: &[u8],
        now_ms: u64,
    ) -> Result<(), Fault> {
        self.shared.begin(now_ms);
        self.budget.begin(self.limits.event_time_max);
        let upgraded = catch_unwind(AssertUnwindSafe(|| -> mlua::Result<()> {
            let table = self.add_conn(conn, fields)?;
            let state = json::decode(&self.lua, &self.marks.array, state)?;
            let state = match &self.protocol.upgrade {
                Some(upgrade) => upgrade.call::<Value>(state)?,
                None => state,
            };
            table.raw_set("state", state)
        }));
        self.last_event_time = self.budget.end();
        match upgraded {
            Ok(Ok(())) if self.budget.is_over() => {
                Err(self.bare_fault(FaultKind::Time, self.over_time()))
            }
            Ok(Ok(())) => self.state_text(conn).map(drop),
            Ok(Err(error)) => Err(self.fault_of(error)),
            Err(_) => {
                let message = "the host has panicked; please report this".to_owned();
                Err(self.bare_fault(FaultKind::Error, message))
            }
        }
    }

    /// Forgets a connection, and the event of it that waits.
    pub(super) fn forget_conn(&mut self, conn: ConnKey) {
        self.protocol.parked.remove(&conn);
        // A table shrinks no sooner than it grows again.
        let _ = self.protocol.conns.raw_set(conn, Value::Nil);
    }

    pub(super) fn effects(&mut self) -> Effects {
        self.shared.effects.take()
    }
}

#[derive(Deserialize)]
struct Push<'a> {
    #[serde(borrow, default)]
    channel: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow, default, rename = "pub")]
    publication: Option<Body<'a>>,
    #[serde(borrow, default)]
    message: Option<Body<'a>>,
    #[serde(borrow, default)]
    join: Option<Body<'a>>,
    #[serde(borrow, default)]
    leave: Option<Body<'a>>,
    #[serde(borrow, default)]
    unsubscribe: Option<Body<'a>>,
    #[serde(borrow, default)]
    subscribe: Option<Body<'a>>,
    #[serde(borrow, default)]
    missed: Option<Body<'a>>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    info: Option<Info<'a>>,
    #[serde(borrow, default)]
    tags: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reason: Option<std::borrow::Cow<'a, str>>,
    #[serde(default)]
    offset: Option<u64>,
    #[serde(default)]
    code: Option<u64>,
    #[serde(default)]
    count: Option<u64>,
}

#[derive(Deserialize)]
struct Info<'a> {
    #[serde(borrow, default)]
    user: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    client: std::borrow::Cow<'a, str>,
}
