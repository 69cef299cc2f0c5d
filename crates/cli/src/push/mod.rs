//! `dunlin push`: notifications to many devices at once.

mod import;
mod results;

use clap::Subcommand;

use crate::Refusal;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send one notification to all device tokens of a file; run it again to go on where it ended
    Import(Box<import::Import>),
}

impl Command {
    pub(crate) fn run(self) -> Result<(), Refusal> {
        match self {
            Command::Import(import) => import.run(),
        }
    }
}
