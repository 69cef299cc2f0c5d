//! `dunlin apns`: what has to do with Apple's push service.

mod simulate;

use clap::Subcommand;

use crate::Refusal;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Be Apple's push service, to test senders against: its rules, its reasons, and its moods
    Simulate(Box<simulate::Simulate>),
}

impl Command {
    pub(crate) fn run(self) -> Result<(), Refusal> {
        match self {
            Command::Simulate(simulate) => simulate.run(),
        }
    }
}
