//! The configuration of a simulator, fixed at its start.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{Behaviour, ProviderKey, Rule};
use crate::Authority;

/// Apple's environment that a key or a simulator belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Environment {
    /// `api.sandbox.push.apple.com`; its answers carry `apns-unique-id`.
    #[default]
    Sandbox,
    /// `api.push.apple.com`.
    Production,
}

/// The configuration of a simulator.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address that accepts pushes; port 0 selects a free one.
    pub listen: SocketAddr,
    /// Address of the control port (HTTP/1.1, `GET /ledger` and others); `None`: no control port.
    pub control: Option<SocketAddr>,
    /// TLS with ALPN `h2`; otherwise plain HTTP/2 with prior knowledge, for measurements.
    pub tls: bool,
    /// The authority that signs the server's certificate; `None`: a temporary one.
    pub authority: Option<Authority>,
    /// The environment that is simulated.
    pub environment: Environment,
    /// Keys whose provider tokens are accepted. If empty, the claims of every well-formed token are checked, but not
    /// its signature.
    pub keys: Vec<ProviderKey>,
    /// Rules for device tokens; the first matching one decides. See [`Rule::defaults`].
    pub rules: Vec<Rule>,
    /// Maximum number of ledger entries; later ones are only counted. At most 10,000,000; an entry takes about 120 B.
    pub ledger_max: usize,
    /// Maximum number of open connections; further ones are closed unread.
    pub connections_max: usize,
    /// The initial behaviour.
    pub behaviour: Behaviour,
}

impl Default for Config {
    /// Returns a configuration with TLS on a free port of 127.0.0.1, every token accepted, a ledger of 100,000 entries,
    /// no faults.
    fn default() -> Config {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            control: None,
            tls: true,
            authority: None,
            environment: Environment::default(),
            keys: Vec::new(),
            rules: Rule::defaults(),
            ledger_max: 100_000,
            connections_max: 10_000,
            behaviour: Behaviour::default(),
        }
    }
}
