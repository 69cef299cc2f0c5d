//! Connections whose protocol a program speaks.
//!
//! Such a connection has a session like that of any other client. The program's calls are commands of the Centrifugal protocol, executed
//! where all commands are ([`command`](super::command)), so that permissions and budgets are the same; the replies wait in the core, for
//! [`take_program_answers`](Clients::take_program_answers). Pushes wait in the session's outbox, with its policy for overflow, until the
//! program takes them, and bytes of the client in the socket. A connection has one event at a time.

use std::sync::{Arc, Mutex, PoisonError};

use dunlin_config::{Framing as FramingName, Program};
use dunlin_hub::SessionId;
use dunlin_net::{ConnId, http, websocket};
use dunlin_program::{
    Answer, Call, ConnEvent, Cut, Effects, Fault, FaultKind, Field, Framing, Progress, Target,
};
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::{ConnectPhase, ConnectRequest, DisconnectCode};
use dunlin_wire::websocket::Opcode;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Worker;
use super::clients::Clients;
use super::connect::AcceptedClient;
use super::link::{Link, Role};
use super::parts::{CallAnswer, CallForm, NewCall, Pending, ProgramConn, Stage};
use super::programs::Loaded;
use super::routes::origin_refused;
use super::turn::Turn;
use crate::api::Method;
use crate::auth::Identity;
use crate::limits::budget::{CommandKind, Work};
use crate::message::worker::{StoreCall, WorkerMessage};
use crate::metrics::Metric;
use dunlin_net::Context;

/// A client with more output than this has to take some before its program goes on.
const OUTPUT_MARK: usize = 64 << 10;
/// Codes of errors of the Centrifugal protocol.
const INTERNAL: u32 = 100;
const BAD_REQUEST: u32 = 107;

/// Answers of the server API: the connection, the number of its call, and the response.
type ServerAnswers = Mutex<Vec<(ConnId, u32, Vec<u8>)>>;

/// Calls of the server API by programs, and their answers.
#[derive(Default)]
pub(super) struct ServerCalls {
    asked: Vec<(ConnId, u32, Method, Vec<u8>)>,
    answered: Arc<ServerAnswers>,
    outstanding: usize,
}

/// What an event has come to.
struct Outcome {
    progress: Result<Progress, Fault>,
    effects: Effects,
    /// The program's machine has ended, and knows none of its connections any more.
    ended: bool,
}

/// What a connection has to do next.
enum Next {
    Open,
    Answer(CallAnswer),
    Upgrade,
    Timer(Box<str>),
    Push(Vec<u8>),
    Frame,
    Close(u32, Box<str>),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Connect<'a> {
    #[serde(borrow)]
    user: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    info: Option<&'a RawValue>,
    expire_at: Option<u64>,
}

/// Returns how a program's frames are cut.
fn framing(config: &Program) -> Framing {
    let bytes_max = config.frame_bytes_max;
    let length =
        |prefix_bytes, little_endian| Framing::Length { prefix_bytes, little_endian, bytes_max };
    match config.framing {
        FramingName::Lines => Framing::Lines { bytes_max },
        FramingName::Length8 => length(1, false),
        FramingName::Length16 => length(2, false),
        FramingName::Length16Le => length(2, true),
        FramingName::Length32 => length(4, false),
        FramingName::Length32Le => length(4, true),
        FramingName::Raw => Framing::Raw { bytes_max },
    }
}

impl Clients {
    /// A connection has come in through a listener of a program.
    pub(super) fn open_program_conn(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let local = turn.cx.local_addr(conn);
        let settings = turn.core.settings.snapshot();
        let listener = local.map(|local| settings.listener_at(local));
        let program = listener
            .and_then(|name| settings.config.listeners.get(name))
            .and_then(|listener| listener.program.clone());
        match program {
            Some(program) => self.begin_program_conn(turn, conn, program, None),
            None => turn.cx.close(conn),
        }
    }

    /// Upgrades a request to the WebSocket of a program. Returns `false` if no program has this path.
    pub(super) fn open_program_websocket(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        request: &http::Request<'_>,
    ) -> bool {
        let settings = turn.core.settings.snapshot();
        let mut programs = settings.config.programs.iter_shared();
        let named = programs.find(|(_, of)| *of.websocket_path == *request.path);
        let Some((program, _)) = named else { return false };
        if !turn.core.is_same_or_allowed_origin(request) {
            turn.answer(conn, &origin_refused());
            return true;
        }
        if turn.upgrade(conn, request, &[]).is_none() {
            return true;
        }
        if let Some(link) = turn.cx.data(conn) {
            link.role = Role::Client(Encoding::Program);
        }
        self.sessions.keep_headers(turn.core, conn, request);
        self.begin_program_conn(turn, conn, Arc::clone(program), Some(false));
        true
    }

    fn begin_program_conn(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        program: Arc<str>,
        websocket: Option<bool>,
    ) {
        let loaded = self.deciders.programs.get(&program);
        let Some(Loaded { running, .. }) = loaded.filter(|of| of.running.instance.code().speaks())
        else {
            return turn.cx.close(conn);
        };
        running.conns += 1;
        let version = running.version;
        let of = ProgramConn::new(program, version, websocket);
        self.program_conns.insert(conn, of);
        turn.await_connect(conn);
        self.run_program_conn(turn, conn);
    }

    /// Handles bytes of a client. `None`: it sends nothing more.
    pub(super) fn program_data(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        bytes: Option<&[u8]>,
    ) {
        let Some(of) = self.program_conns.get(conn) else { return };
        match bytes {
            Some(bytes) => of.input.add(bytes),
            None => of.eof = true,
        }
        self.run_program_conn(turn, conn);
    }

    /// Handles a message of a client's WebSocket.
    pub(super) fn program_message(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        message: &websocket::Message<'_>,
    ) {
        let Some(of) = self.program_conns.get(conn) else { return };
        of.websocket = Some(message.opcode == Opcode::Binary);
        of.messages.push_back(message.payload.into());
        self.run_program_conn(turn, conn);
    }

    /// The socket of a client is closed.
    pub(super) fn program_conn_closed(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let Some(of) = self.program_conns.get(conn) else { return };
        of.gone = true;
        of.blocked = false;
        if of.stage == Stage::Closed {
            return self.program_conns.remove(conn);
        }
        let closed = DisconnectCode::ConnectionClosed;
        of.end.get_or_insert_with(|| (u32::from(closed.code()), closed.text().into()));
        self.run_program_conn(turn, conn);
    }

    /// The session of a client has ended, or it gets none: its program handles that.
    pub(super) fn end_program_conn(&mut self, conn: ConnId, code: u32, reason: &str) {
        if let Some(of) = self.program_conns.get(conn) {
            of.end.get_or_insert_with(|| (code, reason.into()));
            self.program_conns.wake(conn);
        }
    }

    /// There is a push for a program, or room for its output.
    pub(super) fn wake_program_conn(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        if let Some(of) = self.program_conns.get(conn) {
            of.blocked = of.blocked && turn.cx.output_bytes(conn) > OUTPUT_MARK;
            self.program_conns.wake(conn);
        }
    }

    /// Applies the settings of programs: connections of other code are given to the new one, if it takes them.
    pub(super) fn apply_programs(&mut self, turn: &mut Turn<'_, '_>) {
        self.deciders.programs.apply(turn.core);
        for program in std::mem::take(&mut self.deciders.programs.changed) {
            let all = self.program_conns.of_program(&program);
            let all: Vec<(ConnId, u64)> = all.map(|(conn, of)| (conn, of.version)).collect();
            for (conn, version) in all {
                let loaded = self.deciders.programs.get(&program);
                if loaded.is_some_and(|of| of.version(version).is_some()) {
                    self.program_conns.wake(conn);
                    continue;
                }
                let why = DisconnectCode::ForceReconnect.with_reason(
                    "the program was taken away, or replaced twice while it had this connection",
                );
                self.disconnect(turn, conn, &why);
            }
        }
    }

    /// Lets programs handle what their connections have.
    pub(super) fn run_program_conns(&mut self, turn: &mut Turn<'_, '_>) {
        self.take_program_answers(turn);
        // Those that are not ready yet come in the next turn.
        for _ in 0..self.program_conns.ready() {
            if self.deciders.programs.has_no_time() {
                return;
            }
            let Some(conn) = self.program_conns.next_ready() else { return };
            self.run_program_conn(turn, conn);
        }
        if let Some(delay_ms) = self.program_conns.arm_timer(turn.cx.now_ms()) {
            turn.cx.run_after(delay_ms, super::timer::Timer::Programs as u64);
        }
    }

    /// Whether connections of programs have something to do, so that the worker must not sleep.
    pub(super) fn has_program_work(&self, turn: &Turn<'_, '_>) -> bool {
        let answered =
            self.server_calls.outstanding > 0 && !lock(&self.server_calls.answered).is_empty();
        answered
            || self.program_conns.is_ready()
            || !turn.core.program_answers.is_empty()
            || !self.server_calls.asked.is_empty()
    }

    /// Passes the replies to commands of programs to those who wait.
    fn take_program_answers(&mut self, turn: &mut Turn<'_, '_>) {
        while let Some((conn, id, reply)) = turn.core.program_answers.pop_front() {
            self.program_answered(conn, id, answer_of(&reply));
        }
        if self.server_calls.outstanding > 0 {
            let answered = std::mem::take(&mut *lock(&self.server_calls.answered));
            self.server_calls.outstanding -= answered.len();
            for (conn, id, response) in answered {
                self.program_answered(conn, id, answer_of(&response));
            }
        }
    }

    /// The call of a program is answered. Its connection may wait for none any more.
    pub(super) fn program_answered(&mut self, conn: ConnId, id: u32, answer: CallAnswer) {
        if let Some(of) = self.program_conns.get(conn)
            && of.waits == Some(id)
        {
            of.answer = Some(answer);
            self.program_conns.wake(conn);
        }
    }

    /// Lets a program handle what a connection has, while there is time.
    fn run_program_conn(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        loop {
            if self.deciders.programs.has_no_time() {
                turn.cx.pause_read(conn);
                return self.program_conns.wake(conn);
            }
            let Some(next) = self.next_event(turn, conn) else { return };
            let Some(outcome) = self.run_event(turn, conn, &next) else {
                continue;
            };
            self.handle_outcome(turn, conn, outcome);
            self.take_program_answers(turn);
        }
    }

    /// Returns what a connection has to do next. `None`: nothing, or not now.
    fn next_event(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) -> Option<Next> {
        let of = self.program_conns.get(conn)?;
        if of.stage == Stage::Closed {
            return None;
        }
        if of.stage == Stage::Open
            && let Some((code, reason)) = of.end.clone()
        {
            of.stage = Stage::Closing;
            (of.waits, of.answer) = (None, None);
            return Some(Next::Close(code, reason));
        }
        if of.waits.is_some() {
            let Some(answer) = of.answer.take() else {
                turn.cx.pause_read(conn);
                return None;
            };
            of.waits = None;
            return Some(Next::Answer(answer));
        }
        if of.stage == Stage::Closing {
            return None;
        }
        if !of.opened {
            of.opened = true;
            return Some(Next::Open);
        }
        if of.blocked || turn.cx.output_bytes(conn) > OUTPUT_MARK && turn.cx.want_writable(conn) {
            of.blocked = true;
            turn.cx.pause_read(conn);
            return None;
        }
        let loaded = self.deciders.programs.get(&of.program);
        if loaded.is_some_and(|loaded| {
            loaded.running.version != of.version && loaded.running.instance.code().upgrades()
        }) {
            return Some(Next::Upgrade);
        }
        if let Some(name) = of.due.pop_front() {
            return Some(Next::Timer(name));
        }
        let waits = self.backlogs.contains(conn);
        let has_frame = !waits && (!of.input.is_empty() || !of.messages.is_empty());
        let session = turn.cx.data(conn).and_then(|link| link.session());
        // Frames and pushes take turns.
        if !(has_frame && of.pushed)
            && let Some(session) = session
            && let Some(push) = take_push(turn, session)
        {
            of.pushed = true;
            return Some(Next::Push(push));
        }
        of.pushed = false;
        if has_frame && self.has_frame(turn, conn) {
            return Some(Next::Frame);
        }
        let of = self.program_conns.get(conn)?;
        if of.end.is_some() {
            // Its input was malformed.
            return self.next_event(turn, conn);
        }
        if of.eof && !waits {
            let closed = DisconnectCode::ConnectionClosed;
            of.end = Some((u32::from(closed.code()), closed.text().into()));
            return self.next_event(turn, conn);
        }
        if let Some(session) = session {
            turn.core.hub.set_blocked(session, false);
            if turn.core.hub.outbox_bytes(session) > 0 {
                // A frame was due first.
                self.program_conns.wake(conn);
            }
        }
        if !waits {
            turn.cx.resume_read(conn);
        }
        None
    }

    /// Whether a whole frame is here. Disconnects a client whose frame is too long.
    fn has_frame(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) -> bool {
        let Some(of) = self.program_conns.get(conn) else { return false };
        if !of.messages.is_empty() {
            return true;
        }
        let Some(loaded) = self.deciders.programs.get(&of.program) else { return false };
        match of.input.peek(&framing(&loaded.config)) {
            Cut::Frame(..) => true,
            Cut::More => false,
            Cut::TooLong => {
                turn.core.count(Metric::ProtocolErrors);
                let max = loaded.config.frame_bytes_max;
                let why = format!(
                    "a frame of more than {max} bytes; see programs.{}.frame_bytes_max",
                    of.program
                );
                self.disconnect(turn, conn, &DisconnectCode::BadRequest.with_reason(why));
                false
            }
        }
    }

    /// Passes an event to the program. `None`: there was nothing to pass.
    fn run_event(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, next: &Next) -> Option<Outcome> {
        if matches!(next, Next::Upgrade) {
            self.upgrade_program_conn(turn, conn);
            return None;
        }
        let now = (turn.cx.now_ms(), turn.now().unix_ms);
        let address = turn
            .cx
            .data(conn)
            .map(|link| link.peer)
            .and_then(|peer| turn.core.peers.address(peer))
            .map(|address| address.to_string());
        let of = self.program_conns.get(conn)?;
        let (program, version, key) = (Arc::clone(&of.program), of.version, of.key);
        let fields = open_fields(of, address.as_deref());
        let message;
        let event = match next {
            Next::Open => ConnEvent::Open(&fields),
            Next::Push(push) => ConnEvent::Push(push),
            Next::Timer(name) => ConnEvent::Timer(name),
            Next::Close(code, reason) => ConnEvent::Close(*code, reason),
            Next::Frame => {
                if let Some(first) = of.messages.pop_front() {
                    of.frame = Some((first.len(), false));
                    message = first;
                    ConnEvent::Frame(&message)
                } else {
                    let framing = framing(&self.deciders.programs.get(&program)?.config);
                    let Cut::Frame(frame, bytes) = of.input.cut(&framing) else { return None };
                    of.frame = Some((bytes, false));
                    ConnEvent::Frame(frame)
                }
            }
            Next::Answer(_) | Next::Upgrade => ConnEvent::Timer(""),
        };
        let run = |instance: &mut dunlin_program::Instance| {
            let restarts = instance.restarts();
            let progress = match next {
                Next::Answer(answer) => {
                    let answer: Answer<'_> =
                        answer.as_deref().map_err(|(code, why)| (*code, &**why));
                    instance.handle_answer(key, answer, now)
                }
                _ => instance.handle_event(key, event, now),
            };
            let effects = match progress {
                Ok(_) => instance.take_effects(),
                Err(_) => Effects::default(),
            };
            Outcome { progress, effects, ended: instance.restarts() != restarts }
        };
        let outcome = self.deciders.programs.run_event((&program, version), now.0, run);
        if outcome.is_none() {
            self.finish_program_conn(turn, conn);
        }
        outcome
    }

    /// Gives a connection to the newest version of its program.
    fn upgrade_program_conn(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let now = (turn.cx.now_ms(), turn.now().unix_ms);
        let link = turn.cx.data(conn).copied();
        let address = link.and_then(|link| turn.core.peers.address(link.peer));
        let address = address.map(|address| address.to_string());
        let session = link.and_then(|link| link.session());
        let client = session.map(|session| session.to_string());
        let user = session.and_then(|session| turn.core.hub.session(session)).map(|of| of.user);
        let Some(of) = self.program_conns.get(conn) else { return };
        let (program, before, key) = (Arc::clone(&of.program), of.version, of.key);
        let mut fields = open_fields(of, address.as_deref());
        fields.extend(client.as_deref().map(|client| ("client", Field::from(client))));
        fields.extend(user.map(|user| ("user", Field::from(user))));
        let Some(loaded) = self.deciders.programs.get(&program) else { return };
        let state = loaded.version(before).and_then(|of| {
            let state = of.instance.export(key);
            of.instance.forget(key);
            state
        });
        let version = loaded.running.version;
        loaded.running.conns += 1;
        loaded.conn_left(before);
        of.version = version;
        let imported = state.map(|state| {
            self.deciders.programs.run_event((&program, version), now.0, |instance| {
                let restarts = instance.restarts();
                let imported = instance.import(key, &fields, &state, now);
                (imported, instance.restarts() != restarts)
            })
        });
        let outcome = match imported.flatten() {
            Some((Ok(()), _)) => return,
            Some((Err(fault), ended)) => {
                Outcome { progress: Err(fault), effects: Effects::default(), ended }
            }
            None => {
                let why = DisconnectCode::ForceReconnect.with_reason("its state is lost");
                return self.disconnect(turn, conn, &why);
            }
        };
        self.handle_outcome(turn, conn, outcome);
    }

    /// Brings about what an event has come to.
    fn handle_outcome(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, outcome: Outcome) {
        let Outcome { progress, effects, ended } = outcome;
        self.apply_program_effects(turn, conn, effects);
        let Some(of) = self.program_conns.get(conn) else { return };
        let (program, version) = (Arc::clone(&of.program), of.version);
        match progress {
            Ok(Progress::Waits(call)) => {
                of.calls = of.calls.wrapping_add(1).max(1);
                of.waits = Some(of.calls);
                if let Some((_, called)) = &mut of.frame {
                    *called = true;
                }
                let id = of.calls;
                self.call_by_program(turn, conn, id, &call);
            }
            Ok(Progress::Done(_)) if of.stage == Stage::Closing => {
                self.finish_program_conn(turn, conn);
            }
            Ok(Progress::Done(taken)) => self.frame_done(turn, conn, taken),
            Err(fault) => {
                let now_ms = turn.cx.now_ms();
                let is_closing = of.stage == Stage::Closing;
                if let Some(loaded) = self.deciders.programs.get(&program) {
                    loaded.report(&program, now_ms, &fault);
                }
                if ended {
                    self.lose_program_conns(turn, &program, version);
                } else if is_closing {
                    self.finish_program_conn(turn, conn);
                } else {
                    let code = match fault.kind {
                        FaultKind::Resting => DisconnectCode::Shutdown,
                        _ => DisconnectCode::ServerError,
                    };
                    self.disconnect(turn, conn, &code.with_reason(&fault));
                }
            }
        }
    }

    fn apply_program_effects(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, effects: Effects) {
        let Some(of) = self.program_conns.get(conn) else { return };
        let is_gone = of.gone;
        let mut why = None;
        if !effects.output.is_empty() && !is_gone {
            let counters = &turn.core.state.counters[turn.core.index];
            counters.add(Metric::BytesOut, effects.output.len() as u64);
            let sent = match of.websocket {
                None => turn.cx.write(conn, &effects.output),
                Some(is_binary) => effects.messages().try_for_each(|message| {
                    let is_text = !is_binary && std::str::from_utf8(message).is_ok();
                    let opcode = if is_text { Opcode::Text } else { Opcode::Binary };
                    turn.cx.ws_send(conn, opcode, message)
                }),
            };
            if sent == Err(dunlin_net::WriteError::Full) {
                why = Some(DisconnectCode::Slow.into());
            }
        }
        let now_ms = turn.cx.now_ms();
        for (name, delay_ms) in effects.timers {
            let at_ms = delay_ms.filter(|_| !is_gone).map(|of| now_ms + of.max(1));
            if !self.program_conns.set_timer(conn, name, at_ms) {
                why = Some(DisconnectCode::ServerError.with_reason("it has too many timers"));
            }
        }
        if let Some(reason) = effects.close
            && !is_gone
        {
            let closed = DisconnectCode::ConnectionClosed;
            if let Some(link) = turn.cx.data(conn) {
                link.closing = true;
            }
            let linger_ms = turn.core.settings.config.client.pong_timeout_ms;
            turn.cx.set_deadline(conn, Some(now_ms + linger_ms));
            self.end_program_conn(conn, u32::from(closed.code()), &reason);
        }
        if let Some(why) = why {
            self.disconnect(turn, conn, &why);
        }
    }

    /// A program has handled a frame: it is charged, and what the program has left of it is kept.
    fn frame_done(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, taken: Option<usize>) {
        let Some(of) = self.program_conns.get(conn) else { return };
        let Some((bytes, called)) = of.frame.take() else { return };
        let Some(loaded) = self.deciders.programs.get(&of.program) else { return };
        let mut bytes_taken = bytes;
        let framing = framing(&loaded.config);
        if let (Framing::Raw { .. }, Some(taken), None) = (framing, taken, of.websocket) {
            bytes_taken = taken.min(bytes);
            if !of.input.give_back(bytes - bytes_taken, &framing) {
                turn.core.count(Metric::ProtocolErrors);
                let why = "a frame that is longer than programs.*.frame_bytes_max";
                return self.disconnect(turn, conn, &DisconnectCode::BadRequest.with_reason(why));
            }
        }
        let spent = loaded
            .version(of.version)
            .map_or(0, |of| of.instance.last_event_time().as_nanos() as u64);
        let work = Work {
            commands: u64::from(!called) as _,
            bytes: bytes_taken as u64,
            spent_ns: spent,
            ..Work::default()
        };
        if let Some(ready_ms) = turn.charge_request(conn, None, work)
            && !self.backlogs.contains(conn)
        {
            self.hold_back(turn, conn, Vec::new().into(), ready_ms);
        }
    }

    /// The program knows a connection no more: it is closed when its output is sent.
    fn finish_program_conn(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let Some(of) = self.program_conns.get(conn) else { return };
        of.stage = Stage::Closed;
        (of.waits, of.answer) = (None, None);
        of.messages.clear();
        of.input = dunlin_program::Input::default();
        if let Some(loaded) = self.deciders.programs.get(&of.program) {
            if let Some(running) = loaded.version(of.version) {
                running.instance.forget(of.key);
            }
            loaded.conn_left(of.version);
        }
        if of.gone {
            return self.program_conns.remove(conn);
        }
        if let Some(link) = turn.cx.data(conn) {
            link.closing = true;
        }
        turn.cx.close(conn);
    }

    /// The machine of a program has ended, and its connections with it.
    fn lose_program_conns(&mut self, turn: &mut Turn<'_, '_>, program: &str, version: u64) {
        let all = self.program_conns.of_program(program);
        let lost: Vec<ConnId> =
            all.filter(|(_, of)| of.version == version).map(|(conn, _)| conn).collect();
        let why = "the program has failed five times within a minute, and starts anew";
        for conn in lost {
            self.disconnect(turn, conn, &DisconnectCode::ServerError.with_reason(why));
            self.finish_program_conn(turn, conn);
        }
    }

    /// Executes the call of a program.
    fn call_by_program(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, id: u32, call: &Call) {
        let link = turn.cx.data(conn).filter(|link| !link.closing).copied();
        let refused = match (call.target, link) {
            (Target::Client(_), None) => Some((INTERNAL, "the connection is closing")),
            (Target::Client("connect"), Some(link))
                if link.protocol_state.phase() != ConnectPhase::Opened =>
            {
                Some((BAD_REQUEST, "a connection connects once"))
            }
            (Target::Client(of), Some(link)) if of != "connect" && link.session().is_none() => {
                Some((BAD_REQUEST, "it is not connected: call conn:connect first"))
            }
            _ => None,
        };
        if let Some((code, why)) = refused {
            return self.program_answered(conn, id, Err((code, why.into())));
        }
        match call.target {
            Target::Client("connect") => self.connect_by_program(turn, conn, id, &call.params),
            Target::Client(command) => {
                let frame = command_text(id, command, &call.params);
                self.handle_frame(turn, conn, &frame);
            }
            Target::Server(method) => {
                count_call(turn, conn, (id, method));
                let Some(method) = Method::of(method) else { return };
                self.charge_call(turn, conn, Some(CommandKind::Publish), &call.params);
                self.server_calls.asked.push((conn, id, method, call.params.clone()));
            }
            Target::Shared => {
                count_call(turn, conn, (id, "shared"));
                self.charge_call(turn, conn, None, &call.params);
                self.call_shared(turn, conn, id, &call.params);
            }
        }
    }

    fn charge_call(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        kind: Option<CommandKind>,
        params: &[u8],
    ) {
        let work = Work { commands: 1, kind, bytes: params.len() as u64, ..Work::default() };
        if let Some(ready_ms) = turn.charge_request(conn, None, work)
            && !self.backlogs.contains(conn)
        {
            self.hold_back(turn, conn, Vec::new().into(), ready_ms);
        }
    }

    /// Opens the session of a connection: as a user whom the program knows, or by a token and the rules as any other client.
    fn connect_by_program(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        id: u32,
        params: &[u8],
    ) {
        let Ok(connect) = serde_json::from_slice::<Connect<'_>>(params) else {
            let why = "connect takes { user, info, expire_at }, or { token }";
            return self.program_answered(conn, id, Err((BAD_REQUEST, why.into())));
        };
        if connect.user.is_empty() {
            let frame = command_text(id, "connect", params);
            return self.handle_frame(turn, conn, &frame);
        }
        count_call(turn, conn, (id, "connect"));
        let identity = Identity {
            user: connect.user.into_owned(),
            info: connect.info.map(ToOwned::to_owned),
            expire_at_s: connect.expire_at,
            ..Identity::default()
        };
        let accepted = AcceptedClient { by_proxy: true, ..AcceptedClient::from(identity) };
        self.connect_as(turn, conn, Some(id), &ConnectRequest::default(), accepted);
        self.charge_call(turn, conn, None, params);
    }

    /// Executes a call of the store that all workers share, at the home of its key.
    fn call_shared(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, id: u32, params: &[u8]) {
        #[derive(Deserialize)]
        struct Key<'a> {
            #[serde(borrow)]
            key: std::borrow::Cow<'a, str>,
        }
        let Some(of) = self.program_conns.get(conn) else { return };
        let program = Arc::clone(&of.program);
        let Ok(Key { key }) = serde_json::from_slice(params) else {
            let why = "dunlin.shared: a key is text";
            return self.program_answered(conn, id, Err((BAD_REQUEST, why.into())));
        };
        let workers = turn.core.state.workers();
        let home = home_of(&program, &key, workers);
        if home == turn.core.index {
            let answer = self.answer_shared(turn, &program, params);
            return self.program_answered(conn, id, answer);
        }
        let pending = Pending::ProgramStore { conn: conn.to_u64(), id };
        let Some(token) = self.token(turn, pending) else { return };
        let from = turn.core.index;
        let call = StoreCall { from, token, program, params: params.into() };
        let to = turn.core.state.bus.worker(home);
        let message = WorkerMessage::ProgramStore(Box::new(call));
        if turn.core.endpoint.send(to, message).is_err()
            && let Some(pending) = turn.core.pending.take(token)
        {
            self.fail(turn, &pending, dunlin_hub::Error::Overloaded);
        }
    }

    fn answer_shared(
        &mut self,
        turn: &mut Turn<'_, '_>,
        program: &Arc<str>,
        params: &[u8],
    ) -> CallAnswer {
        let now = (turn.now().unix_ms, turn.core.state.workers());
        self.deciders.programs.call_shared(program, params, now)
    }

    /// Another worker calls the store, of a key whose home this is.
    pub(super) fn handle_store_call(&mut self, turn: &mut Turn<'_, '_>, call: &StoreCall) {
        let answer = self.answer_shared(turn, &call.program, &call.params);
        let to = turn.core.state.bus.worker(call.from);
        let reply = WorkerMessage::ProgramStored(Box::new((call.token, answer)));
        // Without room the call times out.
        let _ = turn.core.endpoint.send(to, reply);
    }

    /// The home of a key has answered.
    pub(super) fn handle_store_reply(
        &mut self,
        turn: &mut Turn<'_, '_>,
        token: u64,
        answer: CallAnswer,
    ) {
        if let Some(Pending::ProgramStore { conn, id }) = turn.core.pending.take(token) {
            self.program_answered(ConnId::from_u64(conn), id, answer);
        }
    }
}

impl Worker<'_> {
    /// Lets programs handle what their connections have, and executes their calls of the server API.
    pub(super) fn run_program_conns(&mut self, cx: &mut Context<Link>) {
        self.clients.run_program_conns(&mut self.core.turn(cx));
        for (conn, id, method, params) in std::mem::take(&mut self.clients.server_calls.asked) {
            let calls = &mut self.clients.server_calls;
            calls.outstanding += 1;
            let answered = Arc::clone(&calls.answered);
            let then = move |response: &[u8]| lock(&answered).push((conn, id, response.to_vec()));
            let call = NewCall::without_connection(CallForm::Single, method);
            let call = NewCall { then: Some(Box::new(then)), ..call };
            let turn = &mut self.core.turn(cx);
            self.api.serve_call(turn, &mut self.clients, call, method, &params);
        }
    }
}

/// A program's call is a command of its client, though no frame brought it.
fn count_call(turn: &mut Turn<'_, '_>, conn: ConnId, call: (u32, &'static str)) {
    if let Some(&mut link) = turn.cx.data(conn) {
        turn.core.command(link, call.into());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_fields<'a>(of: &ProgramConn, address: Option<&'a str>) -> Vec<(&'static str, Field<'a>)> {
    let transport = if of.websocket.is_some() { "websocket" } else { "tcp" };
    let mut fields = vec![("transport", Field::from(transport))];
    fields.extend(address.map(|address| ("address", Field::from(address))));
    fields
}

/// Takes the next push out of a session's outbox. What the hub adds meanwhile waits there.
fn take_push(turn: &mut Turn<'_, '_>, session: SessionId) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(borrow)]
        push: &'a RawValue,
    }
    loop {
        let mut line = Vec::new();
        {
            let mut slices = [std::io::IoSlice::new(&[]); 4];
            let pieces = turn.core.hub.outbox(session, &mut slices);
            for slice in &slices[..pieces] {
                match slice.iter().position(|byte| *byte == b'\n') {
                    Some(end) => {
                        line.extend_from_slice(&slice[..=end]);
                        break;
                    }
                    None => line.extend_from_slice(slice),
                }
            }
        }
        if line.is_empty() {
            return None;
        }
        turn.core.hub.advance(session, line.len());
        turn.core.delivered(session, line.len());
        // Others are no pushes.
        if let Ok(Line { push }) = serde_json::from_slice(&line) {
            return Some(push.get().as_bytes().to_vec());
        }
    }
}

/// Returns the command that a program's call is.
fn command_text(id: u32, command: &str, params: &[u8]) -> Vec<u8> {
    let mut text = format!("{{\"id\":{id},\"{command}\":").into_bytes();
    text.extend_from_slice(params);
    text.push(b'}');
    text
}

/// Returns what a reply to a command, or a response of the server API, says.
fn answer_of(reply: &[u8]) -> CallAnswer {
    #[derive(Deserialize)]
    struct Error<'a> {
        code: u32,
        #[serde(borrow, default)]
        message: std::borrow::Cow<'a, str>,
    }
    let members: std::collections::BTreeMap<&str, &RawValue> =
        serde_json::from_slice(reply).unwrap_or_default();
    if let Some(error) = members.get("error") {
        let error: Result<Error<'_>, _> = serde_json::from_str(error.get());
        return Err(error.map_or((INTERNAL, "an error".into()), |of| (of.code, of.message.into())));
    }
    let result = members.into_iter().find(|(name, _)| *name != "id");
    Ok(result.map_or(&b"{}"[..], |(_, value)| value.get().as_bytes()).into())
}

/// Returns the worker that has a key of a program's shared store: the same on each worker (FNV-1a).
fn home_of(program: &str, key: &str, workers: usize) -> usize {
    let bytes = program.bytes().chain([0]).chain(key.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    // The lower bits alone spread short keys badly.
    ((hash >> 32) % workers.max(1) as u64) as usize
}
