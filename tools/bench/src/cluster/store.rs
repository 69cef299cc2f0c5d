//! The server that nodes share: a Redis, or a NATS with JetStream.

use std::net::SocketAddr;
use std::time::Duration;

use dunlin_load::client::Client;
use dunlin_load::installed::{find, installed, version};
use dunlin_load::{Context, Error, Process, Scratch};
use serde_json::Value;

use crate::fleet::{Redis, address};

/// The kind of server that nodes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum StoreKind {
    /// A Redis
    Redis,
    /// A NATS, streams in its memory
    Nats,
}

impl StoreKind {
    /// Returns its name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Nats => "nats",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Nats => "nats-server",
        }
    }

    /// Returns the version installed on this machine.
    pub(super) fn version(self) -> Option<String> {
        version(&find(self.program(), &[])?, "--version")
    }
}

/// A running server.
#[derive(Debug)]
pub(super) enum Store {
    Redis(Redis),
    Nats(Nats),
}

/// A server of NATS.
#[derive(Debug)]
pub(super) struct Nats {
    address: SocketAddr,
    /// Address of its monitoring port.
    monitor: SocketAddr,
    process: Process,
}

impl Store {
    /// Starts a server on these cores, which keeps everything in memory.
    pub(super) fn start(
        kind: StoreKind,
        scratch: &Scratch,
        cores: &[usize],
    ) -> Result<Self, Error> {
        let directory = scratch.path().join(kind.name());
        match kind {
            StoreKind::Redis => {
                let at = address(200, 6379);
                Ok(Self::Redis(Redis::start(at, directory, cores, "appendonly no")?))
            }
            StoreKind::Nats => {
                std::fs::create_dir_all(&directory)
                    .context("cannot create a directory for NATS")?;
                let (address, monitor) = (address(200, 4222), address(200, 8222));
                let file = directory.join("nats.conf");
                let settings = format!(
                    "listen: \"{address}\"\nhttp: \"{monitor}\"\njetstream {{ store_dir: {directory:?} }}\n"
                );
                std::fs::write(&file, settings).context("cannot write the settings of NATS")?;
                let program = installed(kind.program(), "nats-server")?;
                let command = format!("{} -c {}", program.display(), file.display());
                let process = Process::start(&command, cores, address, None)?;
                Ok(Self::Nats(Nats { address, monitor, process }))
            }
        }
    }

    /// Returns the settings with which nodes of Dunlin reach it.
    pub(super) fn settings(&self) -> String {
        match self {
            Self::Redis(redis) => format!("addresses = [\"{}\"]", redis.address),
            Self::Nats(nats) => {
                format!(
                    "type = \"nats\"\naddresses = [\"{}\"]\nstream_in_memory = true",
                    nats.address
                )
            }
        }
    }

    /// Returns the Redis.
    ///
    /// # Errors
    /// When it is another kind of server.
    pub(super) fn redis(&self) -> Result<&Redis, Error> {
        match self {
            Self::Redis(redis) => Ok(redis),
            Self::Nats(_) => Err(Error::new("only Redis can be measured so; leave --store out")),
        }
    }

    pub(super) fn cpu_ns(&self) -> u64 {
        match self {
            Self::Redis(redis) => redis.process().map_or(0, Process::cpu_ns),
            Self::Nats(nats) => nats.process.cpu_ns(),
        }
    }

    /// Counts the commands, or messages, that it receives within `time`.
    pub(super) fn commands(&self, time: Duration) -> Result<u64, Error> {
        match self {
            Self::Redis(redis) => redis.commands(time),
            Self::Nats(nats) => {
                let before = nats.messages()?;
                std::thread::sleep(time);
                Ok(nats.messages()? - before)
            }
        }
    }
}

impl Nats {
    /// Returns the number of messages received from clients since its start, without pings.
    fn messages(&self) -> Result<u64, Error> {
        let mut client = Client::connect(self.monitor)?;
        client.call("GET", "/varz", "application/json", b"")?;
        let said: Value = serde_json::from_slice(client.body()).unwrap_or_default();
        let count = said["in_msgs"].as_u64();
        count.ok_or_else(|| Error::new("NATS does not say how many messages it was sent"))
    }
}
