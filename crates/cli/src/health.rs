//! `dunlin health`: whether a server serves, as an exit code.

use clap::Args;

use crate::config::Server;
use crate::error::CliError;
use crate::style;

#[derive(Debug, Args)]
pub(crate) struct Health {
    #[command(flatten)]
    server: Server,
}

impl Health {
    /// Returns whether the server serves. One that cannot be reached is an error.
    pub(crate) fn run(&self) -> Result<bool, CliError> {
        let (status, health) = self.server.get_any("/health")?;
        match self.server.wants_json() {
            true => style::print(&format!("{health:#}\n"))?,
            false => {
                let word = health["status"].as_str().unwrap_or("no answer that is known");
                style::print(&format!("{word}\n"))?;
            }
        }
        Ok(status == 200)
    }
}
