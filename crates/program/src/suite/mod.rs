//! Tests of a program, in Luau: each asks its hooks and looks at the decisions, at a time that stands until they move it.
//!
//! A test file has these functions beside those of programs:
//!
//! - `test(name, function)` declares a test; each has the program anew.
//! - `ask(hook, event)` returns `{ decision = "rules" | "granted" | "denied" | "refused" | "disconnected" | "fault", ... }` with
//!   `result`, or `code` and `reason`, or `line` and `reason`.
//! - `advance(seconds)` moves the time.
//! - `equal(a, b)` raises an error if two values differ.
//!
//! A program that speaks a protocol has a server without rules, in which all that is due is done at once:
//!
//! - `open(address?)` opens a connection, with the functions `feed(bytes)`, `sent()`, which takes what the client was sent, `close()` and
//!   `closed()`, which returns why it has ended.
//! - `framing(name, bytes_max?)` cuts bytes as the setting does; lines without it.
//! - `publish(channel, data)` and `send_to(user, data)` are a backend's.
//! - `answer(function(call, params) ... end)` answers calls in place of the server: with a result, with `nil, { code = ..., message = ... }`,
//!   or not at all, and then the server does.

mod server;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use mlua::{Function, Lua, Table, Value};

use self::server::{Answered, FakeServer};

use crate::code::{Code, KV_BYTES_MAX};
use crate::error::ProgramError;
use crate::hook::{Decision, Field, Hook};
use crate::instance::Instance;
use crate::json;
use crate::limits::Limits;
use crate::luau::Budget;
use crate::luau::{CHUNK, Luau, Marks, Opened, compile, located};
use crate::machine::LogLine;
use crate::store::Store;

/// The time at which each test begins, in Unix milliseconds.
pub const BEGINS_MS: u64 = 1_700_000_000_000;
/// What the tests themselves may use; the program has its own bounds.
const TESTS: Limits = Limits {
    memory_bytes_max: 64 << 20,
    event_time_max: Duration::from_secs(10),
    start_time_max: Duration::from_secs(10),
    output_bytes_max: 1 << 20,
    log_bytes_max: 64 << 10,
};
const SUITE: &str = include_str!("suite.luau");

/// The result of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The name of the test.
    pub name: String,
    /// Line and message of the error that ended it; `None`: it has passed.
    pub failure: Option<(Option<u32>, String)>,
    /// What the program has logged in it.
    pub log: Vec<LogLine>,
}

/// A program between its hooks and whoever asks them: a host without a server.
pub struct FakeHost {
    instance: Instance,
    now_ms: u64,
    server: FakeServer,
    /// What answers calls in place of the server.
    answer: Option<Function>,
}

impl FakeHost {
    /// Creates a host whose clock stands at [`BEGINS_MS`].
    pub fn new(code: &Code, limits: Limits) -> FakeHost {
        FakeHost {
            instance: Instance::new(code.clone(), limits),
            now_ms: BEGINS_MS,
            server: FakeServer::new(code, limits),
            answer: None,
        }
    }

    /// Returns the program.
    pub fn instance(&mut self) -> &mut Instance {
        &mut self.instance
    }

    /// Asks a hook about an event as JSON. `data` and `meta` are what a client has sent; all other members are texts, truth values,
    /// or tables of texts.
    ///
    /// # Errors
    /// The event is none, or the program has not decided.
    pub fn ask(&mut self, hook: Hook, event: &serde_json::Value) -> Result<Decision, String> {
        let serde_json::Value::Object(members) = event else {
            return Err("an event is a JSON object".into());
        };
        enum Owned {
            Text(String),
            Bool(bool),
            Pairs(Vec<(String, String)>),
        }
        const NAMES: [&str; 14] = [
            "client",
            "user",
            "transport",
            "address",
            "headers",
            "raw",
            "data",
            "raw_meta",
            "meta",
            "name",
            "version",
            "channel",
            "method",
            "permitted",
        ];
        let mut fields = Vec::new();
        for (name, value) in members {
            let Some(name) = NAMES.into_iter().find(|known| known == name) else {
                return Err(format!(
                    "events have no member {name:?}; they have {}",
                    NAMES.join(", ")
                ));
            };
            let owned = match (name, value) {
                ("data" | "meta", value) => Owned::Text(value.to_string()),
                (_, serde_json::Value::String(text)) => Owned::Text(text.clone()),
                (_, serde_json::Value::Bool(value)) => Owned::Bool(*value),
                (_, serde_json::Value::Object(of)) => {
                    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
                    let pairs = of.iter().map(|(name, value)| Some((name.clone(), text(value)?)));
                    let pairs: Option<Vec<_>> = pairs.collect();
                    Owned::Pairs(pairs.ok_or_else(|| format!("{name}: its values are texts"))?)
                }
                _ => {
                    return Err(format!(
                        "{name}: it is a text, a truth value or an object of texts"
                    ));
                }
            };
            let name = match name {
                "data" => "raw",
                "meta" => "raw_meta",
                name => name,
            };
            fields.push((name, owned));
        }
        let fields: Vec<(&'static str, Field<'_>)> = fields
            .iter()
            .map(|(name, owned)| {
                let field = match owned {
                    Owned::Text(text) => Field::from(text.as_str()),
                    Owned::Bool(value) => Field::Bool(*value),
                    Owned::Pairs(pairs) => Field::Pairs(pairs),
                };
                (*name, field)
            })
            .collect();
        let now = (self.now_ms, self.now_ms);
        self.instance.ask(hook, &fields, now).map_err(|fault| fault.to_string())
    }
}

/// What became of a client's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// What it was sent.
    pub sent: Vec<u8>,
    /// Why the program has closed the connection, or what it has failed by.
    pub closed: Option<String>,
    /// What it has logged.
    pub log: Vec<LogLine>,
}

/// Passes the bytes of one client to a program, in lines, with a server that permits everything.
///
/// # Errors
/// The program never comes to rest.
pub fn exchange(code: &Code, input: &[u8], limits: Limits) -> Result<Exchange, String> {
    let mut server = FakeServer::new(code, limits);
    let key = server.open("192.0.2.1");
    server.feed(key, input);
    server.run(BEGINS_MS, &mut |_, _| Ok(None))?;
    let closed = server.closed(key).map(str::to_owned);
    Ok(Exchange { sent: server.sent(key), closed, log: server.take_log() })
}

/// Runs the tests of a program.
///
/// # Errors
/// The test file cannot be loaded, with the line.
pub fn run(code: &Code, source: &str, limits: Limits) -> Result<Vec<Outcome>, ProgramError> {
    let name = format!("{}'s tests", code.name());
    let error = |line, message| ProgramError { program: name.clone(), line, message };
    let of_lua = |failed: mlua::Error| {
        let (line, message) = located(&failed.to_string());
        error(line, message)
    };
    let bytecode = compile(&name, source)?;
    let budget = Rc::new(Budget::default());
    let host: Rc<RefCell<FakeHost>> = Rc::new(RefCell::new(FakeHost::new(code, limits)));
    let tests: Rc<RefCell<Vec<(String, Function)>>> = Rc::default();
    let store = Rc::new(RefCell::new(Store::new(KV_BYTES_MAX)));
    let Opened { lua, .. } = Luau::open(TESTS, &budget, store, |lua, marks| {
        let suite = lua.load(SUITE).set_name("=suite").into_function()?;
        let declared = Rc::clone(&tests);
        let test = lua.create_function(move |_, test: (String, Function)| {
            declared.borrow_mut().push(test);
            Ok(())
        })?;
        let (ask, advance) =
            (ask_function(lua, marks, &host)?, advance_function(lua, marks, &host)?);
        suite.call((ask, advance, test, server_functions(lua, marks, &host)?))
    })
    .map_err(of_lua)?;
    budget.begin(TESTS.start_time_max);
    let loaded =
        lua.load(&bytecode[..]).set_name(CHUNK).set_mode(mlua::chunk::ChunkMode::Binary).exec();
    budget.end();
    loaded.map_err(of_lua)?;
    let mut outcomes = Vec::new();
    for (name, function) in tests.take() {
        *host.borrow_mut() = FakeHost::new(code, limits);
        budget.begin(TESTS.event_time_max);
        let ended = function.call::<()>(());
        budget.end();
        let failure = match ended {
            _ if budget.is_over() => {
                Some((None, format!("it runs longer than {:?}", TESTS.event_time_max)))
            }
            Ok(()) => None,
            Err(failed) => Some(located(&failed.to_string())),
        };
        let mut log = host.borrow_mut().instance.take_log();
        log.extend(host.borrow_mut().server.take_log());
        outcomes.push(Outcome { name, failure, log });
    }
    match outcomes.is_empty() {
        true => Err(error(
            None,
            "there are no tests; write `test(\"what is shown\", function() ... end)`".into(),
        )),
        false => Ok(outcomes),
    }
}

fn ask_function(lua: &Lua, marks: &Marks, host: &Rc<RefCell<FakeHost>>) -> mlua::Result<Function> {
    let (host, array) = (Rc::clone(host), marks.array.clone());
    lua.create_function(move |lua, (hook, event): (String, Table)| {
        let Some(hook) = Hook::of(&hook) else {
            return Err(mlua::Error::runtime(format!("there is no hook {hook:?}")));
        };
        let text = json::encode(&Value::Table(event), &array, TESTS.output_bytes_max)
            .map_err(mlua::Error::runtime)?;
        let event = serde_json::from_slice(&text)
            .map_err(|error| mlua::Error::runtime(error.to_string()))?;
        let decided = host.borrow_mut().ask(hook, &event);
        let answer = lua.create_table()?;
        let decision = |name: &str| answer.raw_set("decision", name);
        match decided {
            Ok(Decision::Rules) => decision("rules")?,
            Ok(Decision::Denied) => decision("denied")?,
            Ok(Decision::Granted(result)) => {
                decision("granted")?;
                answer.raw_set("result", json::decode(lua, &array, &result)?)?;
            }
            Ok(Decision::Refused(code, reason)) => {
                decision("refused")?;
                answer.raw_set("code", code)?;
                answer.raw_set("reason", reason)?;
            }
            Ok(Decision::Disconnected(code, reason)) => {
                decision("disconnected")?;
                answer.raw_set("code", code)?;
                answer.raw_set("reason", reason)?;
            }
            Err(fault) => {
                decision("fault")?;
                answer.raw_set("reason", fault)?;
            }
        }
        Ok(answer)
    })
}

fn advance_function(
    lua: &Lua,
    marks: &Marks,
    host: &Rc<RefCell<FakeHost>>,
) -> mlua::Result<Function> {
    let (host, array) = (Rc::clone(host), marks.array.clone());
    lua.create_function(move |lua, seconds: f64| {
        if !(0.0..=1e9).contains(&seconds) {
            return Err(mlua::Error::runtime("time goes forward, by seconds"));
        }
        let until_ms = host.borrow().now_ms + (seconds * 1_000.0) as u64;
        // Each timer at its time, in order.
        loop {
            let next_ms = host.borrow().server.next_timer().filter(|at| *at <= until_ms);
            host.borrow_mut().now_ms = next_ms.unwrap_or(until_ms);
            run_server(lua, &array, &host)?;
            if next_ms.is_none() {
                return Ok(());
            }
        }
    })
}

/// Lets the connections of a test come to rest.
fn run_server(lua: &Lua, array: &Table, host: &Rc<RefCell<FakeHost>>) -> mlua::Result<()> {
    let answer = host.borrow().answer.clone();
    let mut answer = |call: &str, params: &serde_json::Value| -> Result<Answered, String> {
        let Some(answer) = &answer else { return Ok(None) };
        let answered = || -> mlua::Result<Answered> {
            let params = json::decode(lua, array, params.to_string().as_bytes())?;
            let (result, failure) = answer.call::<(Value, Option<Table>)>((call, params))?;
            if let Some(failure) = failure {
                return Ok(Some(Err((failure.get("code")?, failure.get("message")?))));
            }
            if result.is_nil() {
                return Ok(None);
            }
            let text = json::encode(&result, array, TESTS.output_bytes_max)
                .map_err(mlua::Error::runtime)?;
            let value = serde_json::from_slice(&text)
                .map_err(|error| mlua::Error::runtime(error.to_string()))?;
            Ok(Some(Ok(value)))
        };
        answered().map_err(|error| error.to_string())
    };
    let FakeHost { server, now_ms, .. } = &mut *host.borrow_mut();
    server.run(*now_ms, &mut answer).map_err(mlua::Error::runtime)
}

/// The functions of a test for connections of a protocol.
fn server_functions(lua: &Lua, marks: &Marks, host: &Rc<RefCell<FakeHost>>) -> mlua::Result<Table> {
    let functions = lua.create_table()?;
    let array = marks.array.clone();
    let (of, mark) = (Rc::clone(host), array.clone());
    let open = lua.create_function(move |lua, address: Option<String>| {
        let key = of.borrow_mut().server.open(address.as_deref().unwrap_or("192.0.2.1"));
        run_server(lua, &mark, &of)?;
        Ok(key)
    })?;
    functions.raw_set("open", open)?;
    let (of, mark) = (Rc::clone(host), array.clone());
    let feed = lua.create_function(move |lua, (key, bytes): (u32, mlua::LuaString)| {
        of.borrow_mut().server.feed(key, &bytes.as_bytes());
        run_server(lua, &mark, &of)
    })?;
    functions.raw_set("feed", feed)?;
    let of = Rc::clone(host);
    let sent = lua.create_function(move |lua, key: u32| {
        lua.create_string(of.borrow_mut().server.sent(key))
    })?;
    functions.raw_set("sent", sent)?;
    let (of, mark) = (Rc::clone(host), array.clone());
    let close = lua.create_function(move |lua, key: u32| {
        of.borrow_mut().server.close(key);
        run_server(lua, &mark, &of)
    })?;
    functions.raw_set("close", close)?;
    let of = Rc::clone(host);
    let closed = lua.create_function(move |_, key: u32| {
        Ok(of.borrow().server.closed(key).map(str::to_owned))
    })?;
    functions.raw_set("closed", closed)?;
    let of = Rc::clone(host);
    let framing = lua.create_function(move |_, (name, bytes_max): (String, Option<usize>)| {
        let set = of.borrow_mut().server.set_framing(&name, bytes_max.unwrap_or(8_192));
        set.map_err(mlua::Error::runtime)
    })?;
    functions.raw_set("framing", framing)?;
    let of = Rc::clone(host);
    let answer = lua.create_function(move |_, answer: Option<Function>| {
        of.borrow_mut().answer = answer;
        Ok(())
    })?;
    functions.raw_set("answer", answer)?;
    for (name, to_user) in [("publish", false), ("send_to", true)] {
        let (of, mark) = (Rc::clone(host), array.clone());
        let function = lua.create_function(move |lua, (to, data): (String, Value)| {
            let text =
                json::encode(&data, &mark, TESTS.output_bytes_max).map_err(mlua::Error::runtime)?;
            let data: serde_json::Value = serde_json::from_slice(&text)
                .map_err(|error| mlua::Error::runtime(error.to_string()))?;
            match to_user {
                true => of.borrow_mut().server.send(&to, &data),
                false => {
                    of.borrow_mut().server.publish(&to, &data, None);
                }
            }
            run_server(lua, &mark, &of)
        })?;
        functions.raw_set(name, function)?;
    }
    Ok(functions)
}
