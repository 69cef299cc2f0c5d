//! A server for the connections of a protocol in tests: one process, virtual time, channels without rules.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value, json};

use crate::code::{Code, KV_BYTES_MAX};
use crate::framing::{Cut, Framing, Input};
use crate::hook::Field;
use crate::instance::Instance;
use crate::limits::Limits;
use crate::machine::LogLine;
use crate::protocol::{Answer, Call, ConnEvent, ConnKey, Effects, Progress, Target};
use crate::store::Store;

/// What a test answers in place of the server: the result, or code and message of an error. `None`: the server answers.
pub(super) type Answered = Option<Result<Value, (u32, String)>>;

/// The server.
pub(super) struct FakeServer {
    instance: Instance,
    framing: Framing,
    conns: BTreeMap<ConnKey, FakeConn>,
    shared: Store,
    /// The last offset of each channel.
    offsets: BTreeMap<String, u64>,
    last: ConnKey,
}

#[derive(Default)]
struct FakeConn {
    input: Input,
    events: VecDeque<Pending>,
    waits: bool,
    /// A frame is being handled: its bytes.
    frame: Option<usize>,
    sent: Vec<u8>,
    timers: BTreeMap<Box<str>, u64>,
    user: Option<String>,
    channels: BTreeSet<String>,
    /// Why it has ended.
    closed: Option<String>,
}

enum Pending {
    Open(String),
    Push(Vec<u8>),
    Timer(Box<str>),
    Close(u32, String),
}

impl FakeServer {
    pub(super) fn new(code: &Code, limits: Limits) -> FakeServer {
        FakeServer {
            instance: Instance::new(code.clone(), limits),
            framing: Framing::Lines { bytes_max: 8_192 },
            conns: BTreeMap::new(),
            shared: Store::new(16 * KV_BYTES_MAX),
            offsets: BTreeMap::new(),
            last: 0,
        }
    }

    /// Sets how bytes become frames, by the name that the setting has.
    pub(super) fn set_framing(&mut self, name: &str, bytes_max: usize) -> Result<(), String> {
        let length = |prefix_bytes, little_endian| Framing::Length {
            prefix_bytes,
            little_endian,
            bytes_max,
        };
        self.framing = match name {
            "lines" => Framing::Lines { bytes_max },
            "length8" => length(1, false),
            "length16" => length(2, false),
            "length16_le" => length(2, true),
            "length32" => length(4, false),
            "length32_le" => length(4, true),
            "raw" => Framing::Raw { bytes_max },
            _ => {
                return Err("framing is lines, length8, length16, length16_le, length32, length32_le or raw".into());
            }
        };
        Ok(())
    }

    pub(super) fn take_log(&mut self) -> Vec<LogLine> {
        self.instance.take_log()
    }

    /// Opens a connection.
    pub(super) fn open(&mut self, address: &str) -> ConnKey {
        self.last += 1;
        let mut conn = FakeConn::default();
        conn.events.push_back(Pending::Open(address.to_owned()));
        self.conns.insert(self.last, conn);
        self.last
    }

    /// The client sends bytes.
    pub(super) fn feed(&mut self, key: ConnKey, bytes: &[u8]) {
        if let Some(conn) = self.conns.get_mut(&key).filter(|of| of.closed.is_none()) {
            conn.input.add(bytes);
        }
    }

    /// The client closes the connection.
    pub(super) fn close(&mut self, key: ConnKey) {
        self.end(key, 3000, "connection closed");
    }

    /// Takes what the client was sent.
    pub(super) fn sent(&mut self, key: ConnKey) -> Vec<u8> {
        self.conns.get_mut(&key).map(|of| std::mem::take(&mut of.sent)).unwrap_or_default()
    }

    /// Why a connection has ended; `None`: it is open.
    pub(super) fn closed(&self, key: ConnKey) -> Option<&str> {
        self.conns.get(&key)?.closed.as_deref()
    }

    /// A backend publishes.
    pub(super) fn publish(&mut self, channel: &str, data: &Value, by: Option<ConnKey>) -> u64 {
        let offset = self.offsets.entry(channel.to_owned()).or_default();
        *offset += 1;
        let mut publication = json!({"data": data, "offset": *offset});
        let offset = *offset;
        if let Some(info) = by.and_then(|key| self.info(key)) {
            publication["info"] = info;
        }
        self.push_to_channel(channel, &json!({"channel": channel, "pub": publication}));
        offset
    }

    /// A backend sends to a user.
    pub(super) fn send(&mut self, user: &str, data: &Value) {
        let push = json!({"message": {"data": data}}).to_string();
        for conn in self.conns.values_mut().filter(|of| of.user.as_deref() == Some(user)) {
            conn.events.push_back(Pending::Push(push.clone().into_bytes()));
        }
    }

    fn push_to_channel(&mut self, channel: &str, push: &Value) {
        let push = push.to_string();
        for conn in self.conns.values_mut().filter(|of| of.channels.contains(channel)) {
            conn.events.push_back(Pending::Push(push.clone().into_bytes()));
        }
    }

    fn info(&self, key: ConnKey) -> Option<Value> {
        let user = self.conns.get(&key)?.user.as_deref()?;
        Some(json!({"user": user, "client": key.to_string()}))
    }

    fn end(&mut self, key: ConnKey, code: u32, reason: &str) {
        if let Some(conn) = self.conns.get_mut(&key).filter(|of| of.closed.is_none()) {
            conn.closed = Some(reason.to_owned());
            conn.waits = false;
            conn.events.clear();
            conn.input = Input::default();
            conn.timers.clear();
            conn.events.push_back(Pending::Close(code, reason.to_owned()));
        }
    }

    /// The time of the next timer.
    pub(super) fn next_timer(&self) -> Option<u64> {
        self.conns.values().flat_map(|of| of.timers.values()).min().copied()
    }

    /// Lets the program handle all that there is. `answer` is asked first about each call.
    pub(super) fn run(
        &mut self,
        now_ms: u64,
        answer: &mut dyn FnMut(&str, &Value) -> Result<Answered, String>,
    ) -> Result<(), String> {
        for conn in self.conns.values_mut() {
            let due: Vec<Box<str>> = conn
                .timers
                .iter()
                .filter(|(_, at)| **at <= now_ms)
                .map(|(name, _)| name.clone())
                .collect();
            for name in due {
                conn.timers.remove(&name);
                conn.events.push_back(Pending::Timer(name));
            }
        }
        // A program may make work for others without end.
        for _ in 0..100_000 {
            let Some(key) = self.next_ready() else { return Ok(()) };
            self.step(key, now_ms, answer)?;
        }
        Err("the connections of this test never come to rest".into())
    }

    fn next_ready(&mut self) -> Option<ConnKey> {
        let framing = self.framing;
        let ready = |(_, conn): &(&ConnKey, &mut FakeConn)| !conn.waits && !conn.events.is_empty();
        if let Some((key, _)) = self.conns.iter_mut().find(ready) {
            return Some(*key);
        }
        let has_frame = |(_, conn): &mut (&ConnKey, &mut FakeConn)| {
            !conn.waits && conn.closed.is_none() && conn.input.peek(&framing) != Cut::More
        };
        self.conns.iter_mut().find_map(|mut of| has_frame(&mut of).then_some(*of.0))
    }

    fn step(
        &mut self,
        key: ConnKey,
        now_ms: u64,
        answer: &mut dyn FnMut(&str, &Value) -> Result<Answered, String>,
    ) -> Result<(), String> {
        let now = (now_ms, now_ms);
        let framing = self.framing;
        let Some(conn) = self.conns.get_mut(&key) else { return Ok(()) };
        let pending = conn.events.pop_front();
        let is_close = matches!(pending, Some(Pending::Close(..)));
        let mut progress = match &pending {
            Some(Pending::Open(address)) => {
                let fields =
                    [("transport", Field::from("tcp")), ("address", address.as_str().into())];
                self.instance.handle_event(key, ConnEvent::Open(&fields), now)
            }
            Some(Pending::Push(push)) => {
                self.instance.handle_event(key, ConnEvent::Push(push), now)
            }
            Some(Pending::Timer(name)) => {
                self.instance.handle_event(key, ConnEvent::Timer(name), now)
            }
            Some(Pending::Close(code, reason)) => {
                self.instance.handle_event(key, ConnEvent::Close(*code, reason), now)
            }
            None => match conn.input.cut(&framing) {
                Cut::Frame(frame, bytes) => {
                    conn.frame = Some(bytes);
                    self.instance.handle_event(key, ConnEvent::Frame(frame), now)
                }
                Cut::More => return Ok(()),
                Cut::TooLong => {
                    self.end(key, 3501, "a frame is too long");
                    return Ok(());
                }
            },
        };
        loop {
            match progress {
                Err(fault) => {
                    self.instance.forget(key);
                    self.end(key, 3004, &fault.to_string());
                    if is_close || fault.message.contains("starts anew") {
                        self.conns.entry(key).and_modify(|of| of.events.clear());
                    }
                    return Ok(());
                }
                Ok(Progress::Done(taken)) => {
                    let effects = self.instance.take_effects();
                    self.apply(key, now_ms, effects);
                    let Some(conn) = self.conns.get_mut(&key) else { return Ok(()) };
                    if let (Some(bytes), Some(taken), Framing::Raw { .. }) =
                        (conn.frame.take(), taken, framing)
                        && conn.closed.is_none()
                        && !conn.input.give_back(bytes.saturating_sub(taken), &framing)
                    {
                        self.end(key, 3501, "a frame is too long");
                    }
                    if is_close {
                        self.instance.forget(key);
                    }
                    return Ok(());
                }
                Ok(Progress::Waits(call)) => {
                    let effects = self.instance.take_effects();
                    self.apply(key, now_ms, effects);
                    let params: Value =
                        serde_json::from_slice(&call.params).map_err(|of| of.to_string())?;
                    let answered = match answer(call.target.name(), &params)? {
                        Some(answered) => answered,
                        None => self.answer(key, &call, &params, now_ms),
                    };
                    let text = answered.map(|result| result.to_string());
                    let answer: Answer<'_> = match &text {
                        Ok(result) => Ok(result.as_bytes()),
                        Err((code, message)) => Err((*code, message)),
                    };
                    progress = self.instance.handle_answer(key, answer, now);
                }
            }
        }
    }

    fn apply(&mut self, key: ConnKey, now_ms: u64, effects: Effects) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        if conn.closed.is_none() {
            conn.sent.extend_from_slice(&effects.output);
            for (name, delay_ms) in effects.timers {
                match delay_ms {
                    Some(delay_ms) => {
                        conn.timers.insert(name, now_ms + delay_ms.max(1));
                    }
                    None => {
                        conn.timers.remove(&name);
                    }
                }
            }
        }
        if let Some(reason) = effects.close {
            self.end(key, 3000, &reason);
        }
    }

    /// Answers a call as a server that permits everything.
    fn answer(
        &mut self,
        key: ConnKey,
        call: &Call,
        params: &Value,
        now_ms: u64,
    ) -> Result<Value, (u32, String)> {
        let text = |name: &str| params[name].as_str().unwrap_or_default().to_owned();
        let error = |code: u32, why: &str| Err((code, why.to_owned()));
        let channel = text("channel");
        let needs_channel = !matches!(
            call.target,
            Target::Shared | Target::Server("send") | Target::Client("connect" | "rpc")
        );
        if needs_channel && channel.is_empty() {
            return error(107, "bad request");
        }
        if let Target::Client(command) = call.target {
            let Some(conn) = self.conns.get_mut(&key).filter(|of| of.closed.is_none()) else {
                return error(100, "the connection is closing");
            };
            let connected = conn.user.is_some();
            match (command, connected) {
                ("connect", true) => return error(107, "a connection connects once"),
                ("connect", false) => {
                    let user = match (text("user"), text("token")) {
                        (user, _) if !user.is_empty() => user,
                        // The tests of a program have no keys: a token is the name of its user.
                        (_, token) => token,
                    };
                    conn.user = Some(user.clone());
                    return Ok(json!({"client": key.to_string(), "user": user}));
                }
                (_, false) => {
                    return error(107, "it is not connected: call conn:connect first");
                }
                (_, true) => {}
            }
        }
        let joins =
            |server: &FakeServer| params["join_leave"] == true && server.info(key).is_some();
        match call.target {
            Target::Client("subscribe") => {
                let is_new =
                    self.conns.get_mut(&key).is_some_and(|of| of.channels.insert(channel.clone()));
                if !is_new {
                    return error(105, "already subscribed");
                }
                if joins(self) {
                    let join = json!({"channel": channel, "join": {"info": self.info(key)}});
                    self.push_to_channel(&channel, &join);
                }
                Ok(json!({}))
            }
            Target::Client("unsubscribe") => {
                self.conns.entry(key).and_modify(|of| {
                    of.channels.remove(&channel);
                });
                Ok(json!({}))
            }
            Target::Client("publish") => {
                self.publish(&channel, &params["data"], Some(key));
                Ok(json!({}))
            }
            Target::Client("presence") => {
                let present = self.conns.iter().filter(|(_, of)| of.channels.contains(&channel));
                let present: Map<String, Value> = present
                    .filter_map(|(key, _)| Some((key.to_string(), self.info(*key)?)))
                    .collect();
                Ok(json!({"presence": present}))
            }
            Target::Client(_) => error(108, "not available"),
            Target::Server("publish") => {
                Ok(json!({"offset": self.publish(&channel, &params["data"], None)}))
            }
            Target::Server(_) => {
                self.send(&text("user"), &params["data"]);
                Ok(json!({}))
            }
            Target::Shared => {
                let called = self.shared.call(&call.params, now_ms);
                let called = called.map_err(|(code, why)| (code, why.to_owned()))?;
                serde_json::from_slice(&called).map_err(|of| (100, of.to_string()))
            }
        }
    }
}
