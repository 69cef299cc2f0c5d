//! The servers that the nodes share, each behind a proxy.

use std::path::Path;
use std::time::{Duration, Instant};

use super::faults::{Chance, Fault};
use super::nats::NatsServers;
use super::proxy::{Peer, Proxy};
use super::redis::RedisServers;
use dunlin_load::Error;

/// Limit for servers to find each other, or for one to replace another.
const TIMEOUT: Duration = Duration::from_secs(90);
const TURN: Duration = Duration::from_millis(50);

/// How the servers stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Layout {
    /// One server of Redis
    Single,
    /// A primary of Redis, two replicas, and three Sentinels
    Sentinel,
    /// A Redis Cluster of three primaries and three replicas
    Cluster,
    /// One server of NATS with JetStream
    Nats,
    /// Three servers of NATS, each with all streams of JetStream
    NatsCluster,
}

impl Layout {
    pub(super) fn is_nats(self) -> bool {
        matches!(self, Layout::Nats | Layout::NatsCluster)
    }

    /// Returns whether another server can replace a failed one.
    pub(super) fn has_others(self) -> bool {
        !matches!(self, Layout::Single | Layout::Nats)
    }
}

/// Which servers of Redis the nodes read histories from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReadFrom {
    /// Those that are written to
    Primary,
    /// One of their replicas, as far as it has what is wanted
    ReplicaPreferred,
}

impl ReadFrom {
    /// Returns the line of the engine's settings.
    pub(super) fn setting(self) -> &'static str {
        match self {
            ReadFrom::Primary => "",
            ReadFrom::ReplicaPreferred => "read_from = \"replica_preferred\"\n",
        }
    }
}

/// The servers.
pub(super) trait Deployment {
    /// Returns the engine settings with which a node reaches the servers.
    fn engine(&self, node: Peer) -> String;

    /// Returns the proxies through which nodes reach the servers.
    fn proxies(&self) -> Box<dyn Iterator<Item = &Proxy> + '_>;

    /// Injects a fault into one of the servers, and waits until all are healthy again.
    fn harm(&mut self, fault: Fault, chance: &mut Chance) -> Result<(), Error>;
}

/// Starts the servers for this number of nodes.
pub(super) fn start(
    layout: Layout,
    nodes: u8,
    scratch: &Path,
) -> Result<Box<dyn Deployment>, Error> {
    Ok(match layout.is_nats() {
        true => Box::new(NatsServers::start(layout, nodes, scratch)?),
        false => Box::new(RedisServers::start(layout, nodes, scratch)?),
    })
}

/// Waits until `holds` returns true.
pub(super) fn until(what: &str, holds: impl Fn() -> bool) -> Result<(), Error> {
    let since = Instant::now();
    while !holds() {
        if since.elapsed() > TIMEOUT {
            return Err(Error::new(format!(
                "after {TIMEOUT:?} it does not come about that {what}"
            )));
        }
        std::thread::sleep(TURN);
    }
    Ok(())
}
