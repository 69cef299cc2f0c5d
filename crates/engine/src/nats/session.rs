//! The session with a server: greeting, probes and reconnects.

use std::fmt::Write as _;

use dunlin_wire::backoff::{Backoff, Jitter};
use dunlin_wire::nats::{Limits, Operation, PONG, encode_publish, parse};

use super::{NatsEngine, Pipe, StreamPhase, TlsMode, refusals};
use crate::links::Server;
use crate::status::{RefusalReason, ShardState};

/// Delay between attempts to connect; each attempt tries all servers.
const RETRY: Backoff = Backoff { min_ms: 50, max_ms: 1_000 };

/// Maximum milliseconds from the start of a connection to the server's greeting.
pub(super) const GREETING_MS: u64 = 10_000;

/// The id of the subscription to answers.
pub(super) const ANSWERS: u64 = 1;

/// The state of the connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) phase: Phase,
    /// The index of its server in the configuration.
    at: usize,
    attempts: u32,
    /// When the phase times out, or the next attempt is due.
    pub(super) due_ms: u64,
    /// The number of connections that were greeted.
    pub(super) connection: u32,
    /// The connection has to be closed.
    close: bool,
    /// TLS has to begin.
    pub(super) begin_tls: bool,
    /// An incomplete operation, or the bytes that arrived where TLS has to begin.
    pub(super) input: Vec<u8>,
    /// The nonce that the server wants signed.
    pub(super) nonce: String,
    pub(super) state: ShardState,
    pub(super) since_ms: u64,
    pub(super) detail: String,
    pub(super) version: String,
    pub(super) refusing: Option<RefusalReason>,
    pub(super) max_payload: usize,
    /// The generation of the server's data.
    pub(super) generation: u64,
    probe_ms: u64,
    /// When the outstanding probe was sent; 0: none is outstanding.
    probed_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Connecting,
    /// The server's greeting is awaited.
    Connected,
    /// The server has sent its greeting, and TLS begins.
    Securing,
    /// The answer to the client's greeting is awaited.
    Greeting,
    Up,
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
            begin_tls: false,
            input: Vec::new(),
            nonce: String::new(),
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

    /// Handles the opened connection.
    pub fn handle_connected(&mut self, now_ms: u64) {
        if self.session.phase == Phase::Connecting {
            self.session.phase = Phase::Connected;
            self.session.due_ms = now_ms + GREETING_MS;
        }
    }

    /// Handles a connection that was lost or could not be opened; `reason` may be empty. It reopens by itself.
    pub fn handle_closed(&mut self, now_ms: u64, reason: &str) {
        let session = &mut self.session;
        if session.phase == Phase::Idle {
            return;
        }
        // A server sends its error before it closes.
        let was_reached = session.phase != Phase::Connecting;
        if !(was_reached && matches!(session.state, ShardState::Refused(_))) {
            if !reason.is_empty() {
                reason.clone_into(&mut session.detail);
            }
            session.enter(now_ms, ShardState::Connecting);
            if session.phase == Phase::Connected {
                self.no_greeting(now_ms);
            }
        }
        self.disconnected(now_ms);
    }

    pub(super) fn disconnected(&mut self, now_ms: u64) {
        let mut jitter = Jitter::new(self.random());
        let session = &mut self.session;
        // The other servers are tried without a delay.
        let delay_ms = match session.attempts / self.config.servers.len() as u32 {
            0 => 0,
            round => RETRY.jittered_ms(round + 1, &mut jitter),
        };
        session.attempts += 1;
        session.at += 1;
        (session.phase, session.due_ms) = (Phase::Idle, now_ms + delay_ms);
        session.input.clear();
        session.begin_tls = false;
        self.out.clear();
        self.lost(now_ms);
    }

    /// Closes the connection and opens another.
    pub(super) fn give_up(&mut self, now_ms: u64) {
        self.session.close = true;
        self.disconnected(now_ms);
    }

    pub(super) fn refuse(&mut self, now_ms: u64, refusal: RefusalReason, text: &str) {
        text.clone_into(&mut self.session.detail);
        self.session.enter(now_ms, ShardState::Refused(refusal));
    }

    /// Handles received bytes.
    pub fn handle_data(&mut self, now_ms: u64, bytes: &[u8]) {
        if self.session.phase == Phase::Securing && self.session.begin_tls {
            return self.keep_unread(bytes);
        }
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
            match self.session.phase {
                Phase::Idle => return,
                // These bytes come from an unauthenticated peer.
                Phase::Securing => return self.keep_unread(&all[at..]),
                _ => {}
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
        let mut refusal = refusals::of_text(text);
        if refusal == refusals::WRONG_PASSWORD && self.has_expired(now_ms) {
            refusal = refusals::EXPIRED;
        }
        if refusal == refusals::NO_PERMISSION {
            // The connection stays open. Only publications to this subject are refused.
            text.clone_into(&mut self.session.detail);
            self.session.refusing = Some(refusal);
            let subject = text.split('"').nth(1).unwrap_or_default().to_owned();
            return self.forbidden(now_ms, &subject);
        }
        // The server closes the connection.
        self.refuse(now_ms, refusal, text);
    }

    pub(super) fn session_due(&mut self, now_ms: u64) {
        let session = &mut self.session;
        if now_ms < session.due_ms() {
            return;
        }
        match session.phase {
            Phase::Idle => {}
            Phase::Connected => {
                self.no_greeting(now_ms);
                self.give_up(now_ms);
            }
            Phase::Connecting | Phase::Securing | Phase::Greeting => self.give_up(now_ms),
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

    /// Opens or closes the connection if that is due.
    pub(super) fn flush_session(&mut self, now_ms: u64, pipe: &mut impl Pipe) {
        self.flush_tls(now_ms, pipe);
        if std::mem::take(&mut self.session.close) {
            pipe.close();
        }
        if self.session.phase == Phase::Idle && now_ms >= self.session.due_ms {
            (self.session.phase, self.session.due_ms) = (Phase::Connecting, now_ms + GREETING_MS);
            pipe.open(self.server(), self.config.tls == TlsMode::HandshakeFirst);
        }
    }

    /// Sends a request to JetStream or any other responder; its answer contains the token.
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
