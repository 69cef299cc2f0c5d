//! The configuration of an engine on NATS.

use std::num::NonZeroU64;

use super::credentials::Credentials;
use super::raw::RawSubjects;
use crate::links::Server;

/// The configuration of an engine on NATS.
#[derive(Clone, Debug)]
pub struct NatsConfig {
    /// One server, or servers of one NATS cluster. The engine connects to one of them, and to another when that one is gone.
    pub servers: Vec<Server>,
    /// The login of the connection.
    pub login: Login,
    /// The name of the connection in a server's `connz`.
    pub name: String,
    /// The prefix of all subjects, and the name of the stream: letters, digits, `_` and `-`. Fleets that share a server need
    /// different ones.
    pub prefix: String,
    /// Whether TLS is used, and how it begins.
    pub tls: TlsMode,
    /// Maps channels directly to subjects, with payloads from any publisher. Requires `stream` to be `None`.
    pub raw: Option<Box<RawSubjects>>,
    /// The stream for histories; `None`: channels have no history.
    pub stream: Option<StreamConfig>,
    /// Milliseconds that requests wait for a connection before they fail.
    pub hold_ms: u64,
    /// Milliseconds after which a request without an answer of JetStream fails.
    pub answer_ms: u64,
    /// Maximum bytes of waiting publications; further ones fail at once.
    pub queue_bytes_max: usize,
    /// Milliseconds between two probes, messages through the connection to itself.
    pub probe_interval_ms: u64,
    /// Milliseconds without a returned probe after which the connection is closed.
    pub probe_timeout_ms: u64,
}

/// How TLS begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// No TLS.
    #[default]
    Off,
    /// The server sends its greeting in plain text, then TLS begins on the same connection. No secret is sent before.
    Upgrade,
    /// TLS from the first byte: `handshake_first` of nats-server 2.10.4 or later, or a TLS proxy in front of the server.
    HandshakeFirst,
}

/// The login of a connection. Default: anonymous.
#[derive(Clone, Default)]
pub struct Login {
    /// The user name; used with `password`.
    pub user: Option<String>,
    /// The password of `user`.
    pub password: Option<String>,
    /// A token, instead of user and password.
    pub token: Option<String>,
    /// An nkey, or a JWT with its nkey, instead of all of the above.
    pub credentials: Option<Credentials>,
}

impl std::fmt::Debug for Login {
    /// Omits the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Login");
        shown.field("user", &self.user).field("credentials", &self.credentials);
        shown.finish_non_exhaustive()
    }
}

/// The JetStream stream for histories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// The number of replicas: 1 to 5.
    pub replicas: u8,
    /// Stores the stream in memory; it is lost when the servers stop.
    pub in_memory: bool,
    /// Milliseconds after which a message is removed; `None`: never. A channel without publications for so long begins a new
    /// epoch.
    pub max_age_ms: Option<NonZeroU64>,
    /// Maximum bytes of all messages, beyond which the oldest are removed; `None`: the limit of the servers.
    pub bytes_max: Option<NonZeroU64>,
    /// Maximum messages of a channel, beyond which its oldest are removed.
    pub channel_messages_max: u32,
    /// Milliseconds for which idempotency keys are stored.
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
