//! The facts that a node publishes with each lease renewal.

use dunlin_config::Config;

use super::agent::Agent;
use super::lease::Facts;
use super::node_message::unix_ms;

impl Agent {
    pub(super) fn facts(&self, members_pending: bool) -> Facts {
        let snapshot = self.node.snapshot();
        let server = &snapshot.config.server;
        let (position, _) = self.node.cluster().settings();
        Facts {
            v: Facts::VERSION,
            name: self.node.name(),
            version: env!("CARGO_PKG_VERSION").into(),
            client_addr: server.client_addr.to_string().into(),
            admin_addr: server.admin_addr.to_string().into(),
            started_unix_s: unix_ms() / 1000 - self.node.uptime_ms() / 1000,
            revision: snapshot.revision,
            sessions: self.node.sessions(),
            lag_us: self.lag.as_micros() as u64,
            tokens: tokens_of(&snapshot.config),
            settings_log: position.log,
            settings_revision: position.revision,
            secret: self.secret_check(),
            lease_ms: self.lease.lease_ms,
            left: false,
            members_pending,
            shares_occupancy: true,
        }
    }
}

/// 32 bits of a hash of the token keys: enough to distinguish two clusters, too few to recover a key.
pub(super) fn tokens_of(config: &Config) -> u32 {
    let token = &config.client.token;
    let keys = (&token.hmac_secret, &token.keys, &token.jwks_public_endpoint);
    let text = serde_json::to_vec(&keys).unwrap_or_default();
    let digest = ring::digest::digest(&ring::digest::SHA256, &text);
    digest.as_ref().iter().take(4).fold(0, |bits, byte| bits << 8 | u32::from(*byte))
}
