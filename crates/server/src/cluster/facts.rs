//! The facts that a node publishes with each lease renewal.

use super::agent::Agent;
use super::lease::Facts;
use super::message::unix_ms;
use crate::metrics::Metric;
use crate::state::ServerState;

impl Agent {
    pub(super) fn facts(&self, members_pending: bool) -> Facts {
        let settings = self.state.settings.load();
        let server = &settings.config.server;
        let (position, _) = self.state.cluster.settings();
        Facts {
            v: Facts::VERSION,
            name: settings.node_name().into(),
            version: env!("CARGO_PKG_VERSION").into(),
            client_addr: server.client_addr.to_string().into(),
            admin_addr: server.admin_addr.to_string().into(),
            started_unix_s: unix_ms() / 1000 - self.state.uptime_s(),
            revision: settings.revision,
            sessions: self.state.total(Metric::Sessions),
            lag_us: self.lag.as_micros() as u64,
            tokens: tokens_of(&self.state),
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
pub(super) fn tokens_of(state: &ServerState) -> u32 {
    let settings = state.settings.load();
    let token = &settings.config.client.token;
    let keys = (&token.hmac_secret, &token.keys, &token.jwks_public_endpoint);
    let text = serde_json::to_vec(&keys).unwrap_or_default();
    let digest = ring::digest::digest(&ring::digest::SHA256, &text);
    digest.as_ref().iter().take(4).fold(0, |bits, byte| bits << 8 | u32::from(*byte))
}
