//! The conversation with a server: greeting, signs of life, and when the next connection is made.

use std::fmt::Write as _;

use dunlin_wire::backoff::{Backoff, Jitter};
use dunlin_wire::nats::{
    Limits, Operation, PING, PONG, encode_connect, encode_publish, encode_subscribe, parse,
};
use serde::{Deserialize, Serialize};

use super::{NatsEngine, Pipe, StreamPhase, refusals};
use crate::links::Server;
use crate::status::{RefusalReason, ShardState};

/// Between attempts to connect, each of all servers.
const RETRY: Backoff = Backoff { min_ms: 50, max_ms: 1_000 };

/// Milliseconds that a connection may take until the server has greeted.
const GREETING_MS: u64 = 10_000;

/// The number of the subscription to answers.
pub(super) const ANSWERS: u64 = 1;

/// What is known of the connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) phase: Phase,
    /// Which of the servers it leads to.
    at: usize,
    attempts: u32,
    /// When the phase has lasted for too long, or the next attempt is due.
    due_ms: u64,
    /// Connections that were greeted so far.
    pub(super) connection: u32,
    /// The connection is to be given up.
    close: bool,
    /// The beginning of an operation.
    input: Vec<u8>,
    pub(super) state: ShardState,
    pub(super) since_ms: u64,
    pub(super) detail: String,
    pub(super) version: String,
    pub(super) refusing: Option<RefusalReason>,
    pub(super) max_payload: usize,
    /// Of the server's data.
    pub(super) generation: u64,
    probe_ms: u64,
    /// When the message was sent that has not come back; 0: it has.
    probed_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Connecting,
    /// The server speaks first.
    Connected,
    /// The answer to the greeting is awaited.
    Greeting,
    Up,
}

/// What a server says of itself.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Info {
    server_id: String,
    version: String,
    headers: bool,
    max_payload: usize,
    jetstream: bool,
    tls_required: bool,
    cluster: Option<String>,
}

/// What a client says of itself.
#[derive(Serialize)]
struct Connect<'a> {
    verbose: bool,
    pedantic: bool,
    headers: bool,
    no_responders: bool,
    echo: bool,
    lang: &'a str,
    version: &'a str,
    protocol: u8,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pass: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    auth_token: Option<&'a str>,
    tls_required: bool,
}

impl Session {
    pub(super) fn new(now_ms: u64) -> Session {
        Session {
            phase: Phase::Idle,
            at: 0,
            attempts: 0,
            due_ms: now_ms,
            connection: 0,
            close: false,
            input: Vec::new(),
            state: ShardState::Connecting,
            since_ms: now_ms,
            detail: String::new(),
            version: String::new(),
            refusing: None,
            max_payload: 1 << 20,
            generation: 0,
            probe_ms: 0,
            probed_ms: 0,
        }
    }

    pub(super) fn enter(&mut self, now_ms: u64, state: ShardState) {
        if self.state != state {
            (self.state, self.since_ms) = (state, now_ms);
        }
    }

    pub(super) fn due_ms(&self) -> u64 {
        match self.phase {
            Phase::Up => self.probe_ms,
            _ => self.due_ms,
        }
    }
}

impl NatsEngine {
    pub(super) fn server(&self) -> &Server {
        &self.config.servers[self.session.at % self.config.servers.len()]
    }

    /// The connection that was asked for is open.
    pub fn handle_connected(&mut self, now_ms: u64) {
        if self.session.phase == Phase::Connecting {
            self.session.phase = Phase::Connected;
            self.session.due_ms = now_ms + GREETING_MS;
        }
    }

    /// The connection was lost, or could not be made; `reason` says why, if anybody knows. It is made anew by itself.
    pub fn handle_closed(&mut self, now_ms: u64, reason: &str) {
        let session = &mut self.session;
        if session.phase == Phase::Idle {
            return;
        }
        // What a server refuses it says before it closes.
        let was_reached = session.phase != Phase::Connecting;
        if !(was_reached && matches!(session.state, ShardState::Refused(_))) {
            if !reason.is_empty() {
                reason.clone_into(&mut session.detail);
            }
            session.enter(now_ms, ShardState::Connecting);
        }
        self.disconnected(now_ms);
    }

    fn disconnected(&mut self, now_ms: u64) {
        let mut jitter = Jitter::new(self.random());
        let session = &mut self.session;
        // The other servers are tried at once.
        let delay_ms = match session.attempts / self.config.servers.len() as u32 {
            0 => 0,
            round => RETRY.jittered_ms(round + 1, &mut jitter),
        };
        session.attempts += 1;
        session.at += 1;
        (session.phase, session.due_ms) = (Phase::Idle, now_ms + delay_ms);
        session.input.clear();
        self.out.clear();
        self.lost(now_ms);
    }

    /// Gives the connection up, and makes another.
    fn give_up(&mut self, now_ms: u64) {
        self.session.close = true;
        self.disconnected(now_ms);
    }

    fn refuse(&mut self, now_ms: u64, refusal: RefusalReason, text: &str) {
        text.clone_into(&mut self.session.detail);
        self.session.enter(now_ms, ShardState::Refused(refusal));
    }

    /// Bytes have come.
    pub fn handle_data(&mut self, now_ms: u64, bytes: &[u8]) {
        let mut input = std::mem::take(&mut self.session.input);
        let mut at = 0;
        let all = match input.is_empty() {
            true => bytes,
            false => {
                input.extend_from_slice(bytes);
                &input[..]
            }
        };
        loop {
            if self.session.phase == Phase::Idle {
                return;
            }
            match parse(&all[at..], &Limits::default()) {
                Ok(Some((operation, length))) => {
                    at += length;
                    self.handle_operation(now_ms, operation);
                }
                Ok(None) => break,
                Err(error) => {
                    self.session.detail = error.to_string();
                    self.session.enter(now_ms, ShardState::Connecting);
                    return self.give_up(now_ms);
                }
            }
        }
        if self.session.phase != Phase::Idle {
            self.session.input = all[at..].to_vec();
        }
    }

    fn handle_operation(&mut self, now_ms: u64, operation: Operation<'_>) {
        match operation {
            Operation::Info(json) => self.handle_info(now_ms, json),
            Operation::Message(message) if message.sid == ANSWERS => {
                let token = message.subject.rsplit(|&byte| byte == b'.').next();
                let token = token.and_then(|token| str::from_utf8(token).ok());
                let token = token.and_then(|token| u64::from_str_radix(token, 16).ok());
                match token {
                    Some(0) => self.session.probed_ms = 0,
                    Some(token) => {
                        self.handle_answer(now_ms, token, message.headers, message.payload);
                    }
                    None => {}
                }
            }
            Operation::Message(message) => self.handle_message(&message),
            Operation::Ping => self.out.extend_from_slice(PONG),
            Operation::Pong if self.session.phase == Phase::Greeting => self.greeted(now_ms),
            Operation::Pong => self.confirmed(),
            Operation::Error(text) => self.handle_error(now_ms, text),
            _ => {}
        }
    }

    fn handle_info(&mut self, now_ms: u64, json: &[u8]) {
        let info: Info = serde_json::from_slice(json).unwrap_or_default();
        let session = &mut self.session;
        if info.max_payload > 0 {
            session.max_payload = info.max_payload;
        }
        if session.phase != Phase::Connected {
            return;
        }
        session.version.clone_from(&info.version);
        // What one server keeps it may lose when it ends; of a cluster, others have it, and a majority has answered.
        let is_alone = info.jetstream && info.cluster.is_none();
        session.generation = match is_alone {
            true => info.server_id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            }),
            false => 1,
        };
        if !info.headers {
            self.refuse(now_ms, refusals::TOO_OLD, "the server takes no headers");
            return self.give_up(now_ms);
        }
        if info.tls_required && !self.config.tls {
            self.refuse(now_ms, refusals::TLS_REQUIRED, "the server asks for TLS");
            return self.give_up(now_ms);
        }
        let login = &self.config.login;
        let connect = Connect {
            verbose: false,
            pedantic: false,
            headers: true,
            no_responders: true,
            echo: true,
            lang: "rust",
            version: env!("CARGO_PKG_VERSION"),
            protocol: 1,
            name: &self.config.name,
            user: login.user.as_deref(),
            pass: login.password.as_deref(),
            auth_token: login.token.as_deref(),
            tls_required: self.config.tls,
        };
        let connect = serde_json::to_vec(&connect).unwrap_or_default();
        encode_connect(&mut self.out, &connect);
        let answers = format!("{}*", self.answers);
        encode_subscribe(&mut self.out, answers.as_bytes(), ANSWERS);
        self.out.extend_from_slice(PING);
        self.session.phase = Phase::Greeting;
        self.session.due_ms = now_ms + GREETING_MS;
    }

    fn greeted(&mut self, now_ms: u64) {
        let session = &mut self.session;
        session.phase = Phase::Up;
        session.connection += 1;
        session.attempts = 0;
        (session.probe_ms, session.probed_ms) = (now_ms + self.config.probe_interval_ms, 0);
        session.refusing = None;
        let waits = self.config.stream.is_some();
        self.stream = StreamPhase::Wanted { at_ms: now_ms };
        match waits {
            true => self.session.enter(now_ms, ShardState::Greeting),
            false => self.ready(now_ms),
        }
        self.up();
    }

    pub(super) fn ready(&mut self, now_ms: u64) {
        self.session.enter(now_ms, ShardState::Ready);
        if self.session.refusing.is_none() {
            self.session.detail.clear();
        }
    }

    fn handle_error(&mut self, now_ms: u64, text: &str) {
        let refusal = refusals::of_text(text);
        if refusal == refusals::NO_PERMISSION {
            // The connection stays. What was published there is refused, and nothing else.
            text.clone_into(&mut self.session.detail);
            self.session.refusing = Some(refusal);
            let subject = text.split('"').nth(1).unwrap_or_default().to_owned();
            return self.forbidden(now_ms, &subject);
        }
        // The server closes.
        self.refuse(now_ms, refusal, text);
    }

    pub(super) fn session_due(&mut self, now_ms: u64) {
        let session = &mut self.session;
        if now_ms < session.due_ms() {
            return;
        }
        match session.phase {
            Phase::Idle => {}
            Phase::Connecting | Phase::Connected | Phase::Greeting => self.give_up(now_ms),
            Phase::Up => {
                if session.probed_ms > 0
                    && now_ms >= session.probed_ms + self.config.probe_timeout_ms
                {
                    self.stats.silences += 1;
                    session.enter(now_ms, ShardState::Silent);
                    return self.give_up(now_ms);
                }
                session.probe_ms = now_ms + self.config.probe_interval_ms;
                if session.probed_ms == 0 {
                    session.probed_ms = now_ms;
                    let subject = format!("{}0", self.answers);
                    encode_publish(&mut self.out, subject.as_bytes(), None, &[], &[]);
                }
            }
        }
    }

    /// Makes or gives up the connection, as it is to be.
    pub(super) fn flush_session(&mut self, now_ms: u64, pipe: &mut impl Pipe) {
        if std::mem::take(&mut self.session.close) {
            pipe.close();
        }
        if self.session.phase == Phase::Idle && now_ms >= self.session.due_ms {
            (self.session.phase, self.session.due_ms) = (Phase::Connecting, now_ms + GREETING_MS);
            pipe.open(self.server());
        }
    }

    /// A request to JetStream, or to anybody: its answer comes with the token.
    pub(super) fn request(
        &mut self,
        subject: &str,
        token: u64,
        headers: &[(&str, &str)],
        payload: &[&[u8]],
    ) {
        let mut reply = self.answers.clone();
        let _ = write!(reply, "{token:x}");
        let reply = Some(reply.as_bytes());
        encode_publish(&mut self.out, subject.as_bytes(), reply, headers, payload);
    }
}
