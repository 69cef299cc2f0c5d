//! Programs in Luau that decide in the place of backends, and that speak protocols ([`program_conns`](super::program_conns)): one machine
//! for each program and worker.
//!
//! All programs of a worker share a bound on the time of a turn. What comes after it waits, as a call of a backend does, until a later
//! turn has time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use dunlin_config::{Config, OnError, Program};
use dunlin_program::{Decision, Fault, Field, Hook, Instance, Limits, LogLine, Store};

use super::backends::BackendResult;
use super::clients::Clients;
use super::deciders::Deciders;
use super::parts::{CallAnswer, FastMap, ForwardedFields, ProxyCall};
use super::permission::Permission;
use super::sessions::Sessions;
use super::turn::{Core, Turn};
use crate::metrics::log_gate::LogGate;
use crate::programs::{ProgramMetric, ProgramStats, compiled};
use crate::proxy::{Denial, Event, ProxyError, ProxyReply, Question};
use dunlin_protocol::centrifuge::ErrorCode;
use dunlin_protocol::{Encoding, Payload};

/// The time of a turn that all programs of a worker share. The event that crosses it is still finished.
const TURN_TIME_MAX: Duration = Duration::from_micros(500);
/// The most versions of a program that live at once.
const VERSIONS_MAX: usize = 2;
/// The same while connections are being handed on: those that wait for the server follow when they are answered.
const HANDED_ON_VERSIONS_MAX: usize = 8;
/// What a program may have in `dunlin.shared`, on all workers together.
const SHARED_BYTES_MAX: usize = 16 << 20;
/// Lines of a program that a worker logs in a second; the others are counted.
const LOG_LINES_MAX: u32 = 64;

/// The programs of one worker.
#[derive(Default)]
pub(super) struct Programs {
    of: BTreeMap<Arc<str>, Loaded>,
    /// What they have used of this turn.
    spent: Duration,
    /// Events that wait for a later turn, by the number of their call; oldest first.
    waiting: VecDeque<(u64, Vec<(&'static str, OwnedField)>)>,
    versions: u64,
    /// Programs whose code has changed, or that are gone, and whose connections do not know yet.
    pub(super) changed: Vec<Arc<str>>,
    /// What programs have in `dunlin.shared`, of the keys whose home this worker is.
    shared: FastMap<Arc<str>, Store>,
}

/// A program that the settings name.
pub(super) struct Loaded {
    pub(super) config: Program,
    pub(super) running: Running,
    /// The versions before, oldest first, as long as they have connections.
    pub(super) earlier: Vec<Running>,
    pub(super) stats: Arc<ProgramStats>,
    /// It has handled an event in this turn.
    used: bool,
    faults: LogGate,
    /// Lines logged in this second, and the second.
    logged: (u32, u64),
}

/// A version of a program, with the connections whose protocol it speaks.
pub(super) struct Running {
    pub(super) version: u64,
    pub(super) instance: Instance,
    pub(super) conns: usize,
}

/// A field of an event that waits.
enum OwnedField {
    Bytes(Box<[u8]>),
    Bool(bool),
    Pairs(Vec<(String, String)>),
}

impl OwnedField {
    fn of(field: &Field<'_>) -> OwnedField {
        match *field {
            Field::Bytes(bytes) => OwnedField::Bytes(bytes.into()),
            Field::Bool(value) => OwnedField::Bool(value),
            Field::Pairs(pairs) => OwnedField::Pairs(pairs.to_vec()),
        }
    }

    fn get(&self) -> Field<'_> {
        match self {
            OwnedField::Bytes(bytes) => Field::Bytes(bytes),
            OwnedField::Bool(value) => Field::Bool(*value),
            OwnedField::Pairs(pairs) => Field::Pairs(pairs),
        }
    }
}

fn raw<'a>(data: &'a Option<Payload<'_>>) -> Option<(&'static str, Field<'a>)> {
    data.as_ref().map(|data| ("raw", Field::Bytes(data.as_bytes())))
}

fn hook(event: Event) -> Hook {
    match event {
        Event::Connect => Hook::Connect,
        Event::Subscribe => Hook::Subscribe,
        Event::Publish => Hook::Publish,
        Event::Rpc => Hook::Rpc,
        Event::Refresh => Hook::Refresh,
        Event::SubRefresh => Hook::SubRefresh,
    }
}

impl Programs {
    /// Applies the settings: a program with other code gets a new machine, one that is gone ends.
    pub(super) fn apply(&mut self, core: &Core<'_>) {
        let programs = &core.settings.config.programs;
        let changed = &mut self.changed;
        self.of.retain(|name, _| {
            let stays = programs.contains_key(name);
            if !stays {
                changed.push(Arc::clone(name));
            }
            stays
        });
        self.shared.retain(|name, _| programs.contains_key(name));
        for (name, config) in programs.iter_shared() {
            if let Some(loaded) = self.of.get_mut(name)
                && loaded.config.source == config.source
            {
                loaded.config = Program::clone(config);
                continue;
            }
            match compiled(name, &config.source) {
                Ok(code) => {
                    self.versions += 1;
                    let (stats, instance, earlier) = match self.of.remove(name) {
                        Some(Loaded { stats, running, mut earlier, .. }) => {
                            self.changed.push(Arc::clone(name));
                            let live_max = match code.upgrades() {
                                true => HANDED_ON_VERSIONS_MAX,
                                false => VERSIONS_MAX,
                            };
                            let instance = running.instance.succeeded_by(code);
                            earlier.extend(Some(running).filter(|of| of.conns > 0));
                            earlier.drain(..(earlier.len() + 1).saturating_sub(live_max));
                            (stats, instance, earlier)
                        }
                        None => {
                            let instance = Instance::new(code, Limits::default());
                            (core.state.programs.begin(core.index, name), instance, Vec::new())
                        }
                    };
                    let loaded = Loaded {
                        config: Program::clone(config),
                        running: Running { version: self.versions, instance, conns: 0 },
                        earlier,
                        stats,
                        used: false,
                        faults: LogGate::default(),
                        logged: (0, 0),
                    };
                    self.of.insert(Arc::clone(name), loaded);
                }
                // Validation has compiled it; without it, what it guards is closed.
                Err(error) => {
                    tracing::error!("{error}");
                    self.of.remove(name);
                    self.changed.push(Arc::clone(name));
                }
            }
        }
    }

    /// Adds what programs see of the requests of clients.
    pub(super) fn add_wanted(config: &Config, wanted: &mut ForwardedFields) {
        for program in config.programs.values() {
            for name in program.http_headers.iter() {
                if !wanted.http_headers.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                    wanted.http_headers.push(name.clone());
                }
            }
            wanted.meta |= program.include_connection_meta;
        }
    }

    /// Whether there is a program of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.of.contains_key(name)
    }

    /// Whether the rules decide if the program fails to. `None`: there is no such program.
    pub(super) fn falls_back(&self, name: &str) -> Option<bool> {
        self.of.get(name).map(|loaded| loaded.config.on_error == OnError::Allow)
    }

    /// Whether events wait, so that the worker must not sleep.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Logs and counts a result of a program that is not valid. Returns `false` if there is no such program.
    pub(super) fn report(&mut self, name: &str, now_ms: u64, fault: &ProxyError) -> bool {
        let Some(loaded) = self.of.get_mut(name) else { return false };
        if let ProxyError::Malformed(_) = fault {
            loaded.stats.counters.count(ProgramMetric::Malformed);
            if let Some(before) = loaded.faults.pass(now_ms) {
                tracing::warn!(program = name, before, "a program has not decided: {fault}");
            }
        }
        true
    }

    /// Asks a program.
    fn ask(
        &mut self,
        name: &Arc<str>,
        event: Event,
        fields: &[(&'static str, Field<'_>)],
        (now_ms, unix_ms): (u64, u64),
    ) -> BackendResult {
        let Some(loaded) = self.of.get_mut(name) else { return Err(ProxyError::Cancelled) };
        let decided = loaded.measure(name, None, now_ms, &mut self.spent, |instance| {
            instance.ask(hook(event), fields, (now_ms, unix_ms))
        });
        let Some(decided) = decided else { return Err(ProxyError::Cancelled) };
        match decided {
            Ok(Decision::Rules) => match event {
                Event::Subscribe | Event::Publish => Err(ProxyError::Undecided),
                Event::Rpc => Ok(ProxyReply::Refused(ErrorCode::MethodNotFound)),
                Event::Connect | Event::Refresh | Event::SubRefresh => Ok(ProxyReply::Nothing),
            },
            Ok(Decision::Granted(result)) => Ok(ProxyReply::Result(result.into())),
            Ok(Decision::Denied) => Ok(ProxyReply::Refused(ErrorCode::PermissionDenied)),
            Ok(Decision::Refused(code, reason)) => {
                Ok(ProxyReply::Denied(Denial::error(code, reason)))
            }
            Ok(Decision::Disconnected(code, reason)) => {
                Ok(ProxyReply::Denied(Denial::disconnect(code, reason)))
            }
            Err(fault) => {
                loaded.report(name, now_ms, &fault);
                Err(ProxyError::Program)
            }
        }
    }

    pub(super) fn get(&mut self, name: &str) -> Option<&mut Loaded> {
        self.of.get_mut(name)
    }

    /// Whether programs have used their time of this turn.
    pub(super) fn has_no_time(&self) -> bool {
        self.spent >= TURN_TIME_MAX
    }

    /// Runs an event of a connection in the version of the program that has it. `None`: that is gone.
    pub(super) fn run_event<T>(
        &mut self,
        (name, version): (&str, u64),
        now_ms: u64,
        run: impl FnOnce(&mut Instance) -> T,
    ) -> Option<T> {
        let loaded = self.of.get_mut(name)?;
        loaded.measure(name, Some(version), now_ms, &mut self.spent, run)
    }

    /// Executes a call of a program's store that all workers share; this worker is the home of its key.
    pub(super) fn call_shared(
        &mut self,
        name: &Arc<str>,
        call: &[u8],
        (now_ms, workers): (u64, usize),
    ) -> CallAnswer {
        if !self.of.contains_key(name) {
            return Err((100, "the program is gone".into()));
        }
        let store = self.shared.entry(Arc::clone(name));
        let store = store.or_insert_with(|| Store::new(SHARED_BYTES_MAX.div_ceil(workers)));
        let called = store.call(call, now_ms);
        called.map(Into::into).map_err(|(code, why)| (code, why.into()))
    }

    /// A turn ends: machines free memory, and the next turn has its own time.
    pub(super) fn end_turn(&mut self) {
        self.spent = Duration::ZERO;
        for loaded in self.of.values_mut().filter(|loaded| loaded.used) {
            loaded.used = false;
            let (mut bytes, mut conns) = (0, 0);
            for running in std::iter::once(&mut loaded.running).chain(&mut loaded.earlier) {
                running.instance.collect();
                bytes += running.instance.memory_bytes();
                conns += running.conns;
            }
            loaded.stats.counters.set(ProgramMetric::Memory, bytes as u64);
            loaded.stats.counters.set(ProgramMetric::Connections, conns as u64);
        }
    }
}

impl Loaded {
    /// Runs an event in a version of the program; `None`: in the newest. Measures it, and passes on what it has logged. Returns `None`
    /// if that version is gone.
    fn measure<T>(
        &mut self,
        name: &str,
        version: Option<u64>,
        now_ms: u64,
        spent: &mut Duration,
        run: impl FnOnce(&mut Instance) -> T,
    ) -> Option<T> {
        let version = version.unwrap_or(self.running.version);
        let (outcome, took, restarts, lines) = {
            let instance = &mut self.version(version)?.instance;
            let before = instance.restarts();
            let outcome = run(instance);
            let (took, restarts) = (instance.last_event_time(), instance.restarts() - before);
            (outcome, took, restarts, instance.take_log())
        };
        self.used = true;
        self.stats.counters.count(ProgramMetric::Calls);
        *spent += took;
        self.stats.durations.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        self.stats.counters.add(ProgramMetric::Restarts, restarts);
        self.log(name, now_ms, lines);
        Some(outcome)
    }

    /// Returns a version of the program.
    pub(super) fn version(&mut self, version: u64) -> Option<&mut Running> {
        match version == self.running.version {
            true => Some(&mut self.running),
            false => self.earlier.iter_mut().find(|of| of.version == version),
        }
    }

    /// A connection has left a version, which ends with its last one if there is a newer.
    pub(super) fn conn_left(&mut self, version: u64) {
        self.used = true;
        if let Some(of) = self.version(version) {
            of.conns = of.conns.saturating_sub(1);
        }
        self.earlier.retain(|of| of.conns > 0);
    }

    pub(super) fn report(&mut self, name: &str, now_ms: u64, fault: &Fault) {
        self.stats.counters.count(ProgramMetric::of(fault.kind));
        if let Some(before) = self.faults.pass(now_ms) {
            let Fault { kind, line, message, .. } = fault;
            tracing::warn!(program = name, line, ?kind, before, "a program has failed: {message}");
        }
    }

    /// Passes on what the program has logged.
    fn log(&mut self, name: &str, now_ms: u64, lines: Vec<LogLine>) {
        for line in lines {
            let second = now_ms / 1000;
            if self.logged.1 != second {
                let suppressed = self.logged.0.saturating_sub(LOG_LINES_MAX);
                if suppressed > 0 {
                    tracing::warn!(program = name, suppressed, "a program logs too much");
                }
                self.logged = (0, second);
            }
            self.logged.0 += 1;
            if self.logged.0 <= LOG_LINES_MAX {
                tracing::info!(program = name, line = line.line, "{}", line.text);
            }
        }
    }
}

impl Deciders {
    /// Asks a program. Returns the call with the answer; `None`: it waits for a later turn.
    pub(super) fn ask_program(
        &mut self,
        turn: &mut Turn<'_, '_>,
        sessions: &Sessions,
        mut call: ProxyCall,
        question: &Question<'_>,
    ) -> Option<(ProxyCall, BackendResult)> {
        let Some(loaded) = self.programs.of.get(&call.proxy) else {
            return Some((call, Err(ProxyError::Cancelled)));
        };
        let flow = turn.flow_of(call.conn, Some(call.session));
        let peer = turn.cx.data(call.conn).map(|link| link.peer);
        let unix_ms = turn.now().unix_ms;
        let core = &*turn.core;
        let Some(view) = core.hub.session(call.session) else {
            return Some((call, Err(ProxyError::Cancelled)));
        };
        let (client, address) = (
            call.session.to_string(),
            peer.and_then(|peer| core.peers.address(peer)).map(|address| address.to_string()),
        );
        let transport = Encoding::of(view.encoding).unwrap_or(Encoding::Poll).transport();
        let mut fields: Vec<(&'static str, Field<'_>)> = Vec::with_capacity(12);
        fields.push(("client", Field::from(client.as_str())));
        fields.push(("user", view.user.into()));
        fields.push(("transport", transport.into()));
        fields.extend(address.as_deref().map(|address| ("address", address.into())));
        let passed = sessions.forwarded.get(call.conn);
        let headers: Vec<(String, String)> = passed
            .into_iter()
            .flat_map(|passed| &passed.http_headers)
            .filter(|(name, _)| {
                loaded.config.http_headers.iter().any(|wanted| wanted.eq_ignore_ascii_case(name))
            })
            .cloned()
            .collect();
        if !loaded.config.http_headers.is_empty() {
            fields.push(("headers", Field::Pairs(&headers)));
        }
        if loaded.config.include_connection_meta
            && let Some(meta) = passed.and_then(|passed| passed.meta.as_ref())
        {
            fields.push(("raw_meta", Field::Bytes(meta.raw())));
        }
        let permitted = |channel: &str, permission| {
            Field::Bool(sessions.permits_without_proxy(core, call.session, channel, permission))
        };
        let number;
        match *question {
            Question::Connect(of) => {
                fields.push(("name", Field::Bytes(of.name.as_bytes())));
                fields.push(("version", Field::Bytes(of.version.as_bytes())));
                fields.extend(raw(&of.data));
            }
            Question::Subscribe(of) => {
                fields.push(("channel", Field::Bytes(of.channel.as_bytes())));
                fields.push(("permitted", permitted(&of.channel, Permission::Subscribe)));
                fields.extend(raw(&of.data));
            }
            Question::Publish(of) => {
                fields.push(("channel", Field::Bytes(of.channel.as_bytes())));
                fields.push(("permitted", permitted(&of.channel, Permission::Publish)));
                fields.extend(raw(&of.data));
            }
            Question::Rpc(of) => {
                fields.push(("method", Field::Bytes(of.method.as_bytes())));
                fields.extend(raw(&of.data));
            }
            Question::Refresh => {}
            Question::SubRefresh { channel } => fields.push(("channel", channel.into())),
        }
        if !self.programs.waiting.is_empty() || self.programs.spent >= TURN_TIME_MAX {
            loaded.stats.counters.count(ProgramMetric::Waited);
            number = self.proxy_calls.next_number();
            let owned = fields.iter().map(|(name, field)| (*name, OwnedField::of(field))).collect();
            call.flow = flow;
            let bytes_max = core.waiting_bytes_max();
            if let Err(call) = self.proxy_calls.insert(number, call, bytes_max) {
                return Some((call, Err(ProxyError::ShareFull)));
            }
            self.programs.waiting.push_back((number, owned));
            return None;
        }
        let now = (turn.cx.now_ms(), unix_ms);
        let answer = self.programs.ask(&call.proxy, call.event, &fields, now);
        Some((call, answer))
    }
}

impl Clients {
    /// Begins the programs' time of a turn: asks about what waits.
    pub(super) fn run_programs(&mut self, turn: &mut Turn<'_, '_>) {
        self.deciders.programs.end_turn();
        while self.deciders.programs.spent < TURN_TIME_MAX {
            let Some((number, owned)) = self.deciders.programs.waiting.pop_front() else { return };
            let Some(call) = self.deciders.proxy_calls.take(number) else { continue };
            let answer = match call.gone {
                true => Err(ProxyError::Cancelled),
                false => {
                    let fields: Vec<_> = owned.iter().map(|(name, of)| (*name, of.get())).collect();
                    let now = (turn.cx.now_ms(), turn.now().unix_ms);
                    self.deciders.programs.ask(&call.proxy, call.event, &fields, now)
                }
            };
            self.answered(turn, &call, answer);
        }
    }
}
