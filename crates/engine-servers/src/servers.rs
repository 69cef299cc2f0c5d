//! The servers of an engine, as the settings name them.

use std::num::NonZeroU64;

use dunlin_engine::nats::{Login, NatsConfig, StreamConfig, TlsMode};
use dunlin_engine::{Server, ServerRole};

use dunlin_access::namespace::raw_subjects;

/// The servers of an engine.
pub fn servers(config: &dunlin_config::Engine, role: ServerRole) -> Vec<Server> {
    let server = |address: &String| {
        if let Some(path) = address.strip_prefix("unix:") {
            return Server { host: path.to_owned(), port: 0, role };
        }
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Server { host, port: port.parse().unwrap_or_default(), role }
    };
    config.addresses.iter().map(server).collect()
}

/// Returns the configuration of a NATS engine, without the credentials: they are read for each connection, because a JWT
/// expires and its file is replaced.
pub fn nats_config(config: &dunlin_config::Engine) -> NatsConfig {
    let reveal = |secret: &Option<dunlin_config::Secret>| {
        secret.as_ref().map(|secret| secret.reveal().to_owned())
    };
    let stream = StreamConfig {
        replicas: config.stream_replicas,
        in_memory: config.stream_in_memory,
        max_age_ms: NonZeroU64::new(config.stream_max_age_ms),
        bytes_max: NonZeroU64::new(config.stream_bytes_max),
        channel_messages_max: config.stream_channel_messages_max,
        idempotency_ms: config.stream_idempotency_ms,
    };
    NatsConfig {
        login: Login {
            user: config.user.as_deref().map(str::to_owned),
            password: reveal(&config.password),
            token: reveal(&config.token),
            credentials: None,
        },
        prefix: config.prefix.to_string(),
        tls: match (config.tls, config.tls_handshake_first) {
            (false, _) => TlsMode::Off,
            (true, false) => TlsMode::Upgrade,
            (true, true) => TlsMode::HandshakeFirst,
        },
        raw: raw_subjects(config).map(Box::new),
        stream: (config.jetstream && !config.raw).then_some(stream),
        // A request that waits for a connection fails before the hub times it out, so the hub knows that nothing was stored.
        hold_ms: config.timeout_ms / 2,
        answer_ms: config.timeout_ms,
        queue_bytes_max: config.queue_bytes_max,
        ..NatsConfig::new(servers(config, ServerRole::Data))
    }
}
