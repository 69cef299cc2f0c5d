//! Real NATS servers.

use std::net::Ipv4Addr;
use std::ops::{Deref, DerefMut};

use dunlin_engine::nats::NatsConfig;
use dunlin_engine::{Server, ServerRole};
use dunlin_testkit::Nats;

/// A server, killed when it is dropped.
pub struct NatsServer {
    pub port: u16,
    nats: Nats,
}

impl Deref for NatsServer {
    type Target = Nats;

    fn deref(&self) -> &Nats {
        &self.nats
    }
}

impl DerefMut for NatsServer {
    fn deref_mut(&mut self) -> &mut Nats {
        &mut self.nats
    }
}

impl NatsServer {
    pub fn start(arguments: &[&str]) -> NatsServer {
        NatsServer::start_with(arguments, "")
    }

    /// Starts a server with this configuration text.
    pub fn start_with(arguments: &[&str], config: &str) -> NatsServer {
        let nats = Nats::start(arguments, config);
        NatsServer { port: nats.addr.port(), nats }
    }

    pub fn config(&self) -> NatsConfig {
        NatsConfig::new(vec![Server {
            host: Ipv4Addr::LOCALHOST.to_string(),
            port: self.port,
            role: ServerRole::Data,
        }])
    }
}
