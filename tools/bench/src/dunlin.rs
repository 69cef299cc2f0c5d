//! Starts Dunlin with settings for a benchmark.

use std::fmt::Write as _;
use std::net::SocketAddr;

use crate::target::Target;
use dunlin_load::client::Client;
use dunlin_load::{Error, Process, Scratch};

/// The program that is started, and how.
#[derive(Debug, Clone, clap::Args)]
pub struct Dunlin {
    /// The server program
    #[arg(long, value_name = "PROGRAM", default_value = "dunlin")]
    pub(crate) program: String,
    /// Its admin port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8381")]
    pub(crate) admin: SocketAddr,
    /// Its workers
    #[arg(long, default_value_t = 2)]
    pub(crate) workers: u8,
}

/// Settings that allow everything to everyone.
pub(crate) const OPEN: &str = "[client]\nanonymous = true\n[api]\nwithout_key = true\n[channel.without_namespace]\n\
                               allow_subscribe_for_anonymous = true\nallow_subscribe_for_client = true\n";

/// Token of the admin port of servers that a benchmark starts: changes need one.
const ADMIN_TOKEN: &str = "the token of the benchmark";

impl Dunlin {
    /// Returns a client of the admin port.
    pub(crate) fn admin_client(&self) -> Result<Client, Error> {
        Ok(Client::connect(self.admin)?.with_token(ADMIN_TOKEN))
    }

    /// Returns another instance to run at the same time, and its target, with ports `ports` higher.
    pub(crate) fn beside(&self, target: &Target, ports: u16) -> Result<(Self, Target), Error> {
        let mut client = target.address()?.address;
        client.set_port(client.port().saturating_add(ports));
        let mut other = self.clone();
        other.admin.set_port(self.admin.port().saturating_add(ports));
        Ok((other, Target { url: format!("ws://{client}/"), ..target.clone() }))
    }

    /// Starts it at the address and on the cores of `target`, with the settings in `text` and, if requested, with its
    /// state in `scratch`.
    pub(crate) fn start(
        &self,
        target: &Target,
        scratch: &Scratch,
        name: &str,
        text: &str,
        with_state: bool,
    ) -> Result<Process, Error> {
        let text = format!("{text}\n[admin]\ntoken = \"{ADMIN_TOKEN}\"\n");
        let file = scratch.file(&format!("{name}.toml"), &text)?;
        let mut command = format!(
            "{} serve --config {} --client {} --admin {} --workers {}",
            self.program,
            file.display(),
            target.address()?.address,
            self.admin,
            self.workers
        );
        if with_state {
            // Writing to a String cannot fail.
            let _ = write!(command, " --state {}", scratch.path().join(name).display());
        }
        let log = target.server_log.as_deref();
        Process::start(&command, &target.server_core, self.admin, log)
    }
}
