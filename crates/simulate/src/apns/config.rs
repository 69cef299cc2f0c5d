//! What a simulator is started with, and does not change while it runs.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{Behaviour, ProviderKey, Rule};
use crate::Authority;

/// Which of Apple's two environments a key, or a simulator, belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Environment {
    /// `api.sandbox.push.apple.com`; its answers carry `apns-unique-id`.
    #[default]
    Sandbox,
    /// `api.push.apple.com`.
    Production,
}

/// What a simulator is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address that accepts pushes; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where `GET /ledger` and the like are answered over HTTP/1.1; `None`: nowhere.
    pub control: Option<SocketAddr>,
    /// TLS with ALPN `h2`; without it plain HTTP/2 with prior knowledge, for measurements.
    pub tls: bool,
    /// The authority that signs the server's certificate; `None`: a new one, gone with the simulator.
    pub authority: Option<Authority>,
    /// Which environment it plays.
    pub environment: Environment,
    /// Keys whose provider tokens are taken. With none, every well-formed token is: its claims are judged, its
    /// signature is not.
    pub keys: Vec<ProviderKey>,
    /// How device tokens are judged, the first rule that fits. See [`Rule::defaults`].
    pub rules: Vec<Rule>,
    /// Entries the ledger keeps; later ones are only counted. At most 10,000,000; an entry takes about 120 B.
    pub ledger_max: usize,
    /// Connections served at once; more are closed unread.
    pub connections_max: usize,
    /// How it behaves at first.
    pub behaviour: Behaviour,
}

impl Default for Config {
    /// TLS on a free port of 127.0.0.1, every token accepted, a ledger of 100,000 entries, no faults.
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
