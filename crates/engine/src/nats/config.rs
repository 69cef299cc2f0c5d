//! How an engine reaches NATS.

use std::num::NonZeroU64;

use super::credentials::Credentials;
use super::raw::RawSubjects;
use crate::links::Server;

/// How an engine reaches NATS, and what it does there.
#[derive(Clone, Debug)]
pub struct NatsConfig {
    /// Servers of one NATS cluster, or one server: one of them is connected to, and another when that one is gone.
    pub servers: Vec<Server>,
    /// As whom.
    pub login: Login,
    /// What the connection is called in a server's `connz`.
    pub name: String,
    /// What all subjects begin with, and the name of the stream. Letters, digits, `_` and `-`. Of fleets that share a
    /// server, each has its own.
    pub prefix: String,
    /// Whether the connection is made by TLS, and how that begins.
    pub tls: TlsMode,
    /// Channels are subjects as they are, and payloads what is published there by anybody. Without `stream`.
    pub raw: Option<Box<RawSubjects>>,
    /// Where histories are kept; none: channels keep nothing.
    pub stream: Option<StreamConfig>,
    /// Milliseconds that requests wait for a connection before they fail.
    pub hold_ms: u64,
    /// Milliseconds until a request that JetStream has not answered has failed.
    pub answer_ms: u64,
    /// Bytes of publications that wait; beyond it they fail at once.
    pub queue_bytes_max: usize,
    /// Milliseconds between two messages through the connection to itself, which show that it is alive.
    pub probe_interval_ms: u64,
    /// Milliseconds without such a message after which the connection is given up.
    pub probe_timeout_ms: u64,
}

/// How TLS begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// There is none.
    #[default]
    Off,
    /// The server says who it is in plain text, then TLS begins on the same connection. No secret leaves before.
    Upgrade,
    /// From the first byte: `handshake_first` of nats-server 2.10.4 or later, or something in front of it that speaks TLS.
    HandshakeFirst,
}

/// As whom to log in. Default: as nobody.
#[derive(Clone, Default)]
pub struct Login {
    /// With `password`.
    pub user: Option<String>,
    /// Of `user`.
    pub password: Option<String>,
    /// In place of both.
    pub token: Option<String>,
    /// In place of all of them: an nkey, or a JWT with its nkey.
    pub credentials: Option<Credentials>,
}

impl std::fmt::Debug for Login {
    /// Without what is secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Login");
        shown.field("user", &self.user).field("credentials", &self.credentials);
        shown.finish_non_exhaustive()
    }
}

/// The stream of JetStream in which histories are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Servers that have all of it: 1 to 5.
    pub replicas: u8,
    /// It is in memory, and gone when the servers are.
    pub in_memory: bool,
    /// Milliseconds that a message is kept; `None`: without end. A channel to which nothing was published for so long begins
    /// anew.
    pub max_age_ms: Option<NonZeroU64>,
    /// Bytes of all messages, beyond which the oldest go; `None`: as many as the servers allow.
    pub bytes_max: Option<NonZeroU64>,
    /// Messages of one channel, beyond which its oldest go.
    pub channel_messages_max: u32,
    /// Milliseconds that idempotency keys are remembered.
    pub idempotency_ms: u64,
}

impl Default for StreamConfig {
    fn default() -> StreamConfig {
        StreamConfig {
            replicas: 1,
            in_memory: false,
            max_age_ms: NonZeroU64::new(24 * 60 * 60 * 1000),
            bytes_max: None,
            channel_messages_max: 1_000,
            idempotency_ms: 5 * 60 * 1000,
        }
    }
}

impl NatsConfig {
    /// The defaults: prefix `dunlin`, histories in a stream of one replica.
    pub fn new(servers: Vec<Server>) -> NatsConfig {
        NatsConfig {
            servers,
            login: Login::default(),
            name: "dunlin".to_owned(),
            prefix: "dunlin".to_owned(),
            tls: TlsMode::Off,
            raw: None,
            stream: Some(StreamConfig::default()),
            hold_ms: 1000,
            answer_ms: 2000,
            queue_bytes_max: 16 << 20,
            probe_interval_ms: 2000,
            probe_timeout_ms: 5000,
        }
    }
}
