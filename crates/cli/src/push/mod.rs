//! `dunlin push`: sends notifications to one device or to many.

mod content;
mod import;
mod journal;
mod list;
mod results;
mod scheduled;
mod send;

use clap::Subcommand;

use crate::error::CliError;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send one notification to one device: through Apple, FCM or Web Push
    Send(Box<send::Send>),
    /// Send one notification to all devices of a file, of any push service; run it again to resume
    Import(Box<import::Import>),
    /// List or cancel the durable pushes of a server that wait for their time
    Scheduled(scheduled::Scheduled),
}

impl Command {
    pub(crate) fn run(self) -> Result<(), CliError> {
        match self {
            Command::Send(send) => send.run(),
            Command::Import(import) => import.run(),
            Command::Scheduled(scheduled) => scheduled.run(),
        }
    }
}
