//! The start of a connection: the server's greeting, TLS, and the client's greeting.
//!
//! A NATS server first sends plain text, which is not authenticated. If TLS is required, no secret is sent in reply to it, and
//! no bytes from before the handshake are accepted as received through TLS.

use dunlin_wire::nats::{Limits, Operation, PING, encode_connect, encode_subscribe, parse};
use serde::{Deserialize, Serialize};

use super::session::{ANSWERS, GREETING_MS, Phase};
use super::{Credentials, CredentialsError, NatsConfig, NatsEngine, Pipe, TlsMode, refusals};
use crate::status::ShardState;

/// Maximum bytes examined of what arrived where TLS has to begin.
const UNREAD_BYTES_MAX: usize = 4096;

/// The server's information: the JSON object after `INFO`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServerInfo {
    /// The id of the server, different at each start.
    pub server_id: String,
    /// The version, such as `2.9.10`.
    pub version: String,
    /// Whether messages may have headers.
    pub headers: bool,
    /// Maximum bytes of headers and payload of a message; 0 if unknown.
    pub max_payload: usize,
    /// Whether JetStream is enabled.
    pub jetstream: bool,
    /// Whether the server requires TLS.
    pub tls_required: bool,
    /// Whether the server accepts TLS.
    pub tls_available: bool,
    /// The nonce to be signed for a login by key; empty if the server accepts none.
    pub nonce: String,
    /// The name of the server's cluster.
    pub cluster: Option<String>,
}

/// The client's information.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    nkey: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sig: Option<String>,
    tls_required: bool,
}

/// Returns the client's `CONNECT` for a server that sent this nonce. `None` for a login by key without a nonce to sign.
pub fn greeting(config: &NatsConfig, nonce: &str) -> Option<Vec<u8>> {
    let login = &config.login;
    let key = login.credentials.as_ref();
    if key.is_some() && nonce.is_empty() {
        return None;
    }
    let jwt = key.and_then(Credentials::jwt);
    let connect = Connect {
        verbose: false,
        pedantic: false,
        headers: true,
        no_responders: true,
        echo: true,
        lang: "rust",
        version: env!("CARGO_PKG_VERSION"),
        protocol: 1,
        name: &config.name,
        user: login.user.as_deref(),
        pass: login.password.as_deref(),
        auth_token: login.token.as_deref(),
        // The JWT contains the key.
        nkey: key.filter(|_| jwt.is_none()).map(Credentials::public_key),
        jwt,
        sig: key.map(|key| key.sign(nonce.as_bytes())),
        tls_required: config.tls != TlsMode::Off,
    };
    serde_json::to_vec(&connect).ok()
}

impl NatsEngine {
    pub(super) fn handle_info(&mut self, now_ms: u64, json: &[u8]) {
        let info: ServerInfo = serde_json::from_slice(json).unwrap_or_default();
        let session = &mut self.session;
        if info.max_payload > 0 {
            session.max_payload = info.max_payload;
        }
        if session.phase != Phase::Connected {
            return;
        }
        session.version.clone_from(&info.version);
        // A single server may lose its data when it stops; in a cluster, a majority has stored what was acknowledged.
        let is_alone = info.jetstream && info.cluster.is_none();
        session.generation = match is_alone {
            true => info.server_id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            }),
            false => 1,
        };
        session.nonce = info.nonce;
        if !info.headers {
            self.refuse(now_ms, refusals::TOO_OLD, "the server takes no headers");
            return self.give_up(now_ms);
        }
        match self.config.tls {
            TlsMode::Off if info.tls_required => {
                self.refuse(now_ms, refusals::TLS_REQUIRED, "the server asks for TLS");
                self.give_up(now_ms);
            }
            TlsMode::Off | TlsMode::HandshakeFirst => self.connect(now_ms),
            TlsMode::Upgrade if info.tls_required || info.tls_available => {
                // TLS begins at the end of the turn.
                self.session.phase = Phase::Securing;
                self.session.due_ms = now_ms + GREETING_MS;
                self.session.begin_tls = true;
            }
            TlsMode::Upgrade => {
                self.refuse(now_ms, refusals::TLS_UNAVAILABLE, "the server does not offer TLS");
                self.give_up(now_ms);
            }
        }
    }

    /// Keeps bytes that arrived where TLS has to begin, or has begun. They are not parsed, and TLS does not begin.
    pub(super) fn keep_unread(&mut self, bytes: &[u8]) {
        let input = &mut self.session.input;
        let room = UNREAD_BYTES_MAX.saturating_sub(input.len());
        input.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Begins TLS on the connection if the server awaits it.
    pub(super) fn flush_tls(&mut self, now_ms: u64, pipe: &mut impl Pipe) {
        if self.session.phase != Phase::Securing || !std::mem::take(&mut self.session.begin_tls) {
            return;
        }
        let unread = std::mem::take(&mut self.session.input);
        // A server without capacity sends its error in plain text and closes.
        if let Ok(Some((Operation::Error(text), _))) = parse(&unread, &Limits::default()) {
            self.refuse(now_ms, refusals::of_text(text), text);
            return self.give_up(now_ms);
        }
        let server = self.server().clone();
        if let Err(reason) = pipe.begin_tls(&server, &unread) {
            self.refuse(now_ms, refusals::TLS_FAILED, &reason);
            self.give_up(now_ms);
        }
    }

    /// Handles the end of the handshake that [`Pipe::begin_tls`] began.
    pub fn handle_secured(&mut self, now_ms: u64) {
        if self.session.phase == Phase::Securing {
            self.connect(now_ms);
        }
    }

    /// Handles a TLS failure during or after the handshake, which also ends the connection. Another one is opened.
    pub fn handle_tls_failed(&mut self, now_ms: u64, reason: &str) {
        if self.session.phase != Phase::Idle {
            self.refuse(now_ms, refusals::TLS_FAILED, reason);
            self.disconnected(now_ms);
        }
    }

    /// Replaces the credentials after they were read again. Unreadable credentials count as a refusal until they can be read.
    pub fn handle_credentials(&mut self, now_ms: u64, read: Result<Credentials, CredentialsError>) {
        match read {
            Ok(credentials) => self.config.login.credentials = Some(credentials),
            Err(error) => {
                self.refuse(now_ms, refusals::BAD_CREDENTIALS, &error.to_string());
                self.give_up(now_ms);
            }
        }
    }

    /// Returns whether the credentials have expired by the clock of this machine.
    pub(super) fn has_expired(&self, now_ms: u64) -> bool {
        let expires_s = self.config.login.credentials.as_ref().and_then(Credentials::expires_s);
        expires_s.is_some_and(|expires_s| expires_s <= (now_ms + self.unix_ms) / 1000)
    }

    /// Sends the client's greeting.
    fn connect(&mut self, now_ms: u64) {
        let Some(connect) = greeting(&self.config, &self.session.nonce) else {
            self.refuse(now_ms, refusals::NO_NONCE, "the server gave nothing to sign");
            return self.give_up(now_ms);
        };
        encode_connect(&mut self.out, &connect);
        let answers = format!("{}*", self.answers);
        encode_subscribe(&mut self.out, answers.as_bytes(), ANSWERS);
        self.out.extend_from_slice(PING);
        self.session.phase = Phase::Greeting;
        self.session.due_ms = now_ms + GREETING_MS;
    }

    /// Handles a connection that was closed or timed out before the server's greeting.
    pub(super) fn no_greeting(&mut self, now_ms: u64) {
        self.session.enter(now_ms, ShardState::Refused(refusals::NO_GREETING));
        "the server said nothing".clone_into(&mut self.session.detail);
    }
}
