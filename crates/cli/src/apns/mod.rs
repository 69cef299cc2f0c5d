//! `dunlin apns`: what has to do with Apple's push service.

mod bench;
mod channels;
mod credential;
mod send;
mod simulate;

use clap::Subcommand;

pub(crate) use self::credential::{Account, Way, read, text_or_file};
pub(crate) use self::send::{Send, expiration, report};
use crate::error::CliError;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send one push, and say what happened; the same as `dunlin push send apns`
    Send(Box<Send>),
    /// The broadcast channels of an app: create, list, show, delete
    Channels(Box<channels::Channels>),
    /// Measure the sender: windows, connections, bad tokens, CPU, a storm
    Bench(Box<bench::Bench>),
    /// Be Apple's push service, to test senders against: its rules, its reasons, and its faults
    Simulate(Box<simulate::Simulate>),
}

impl Command {
    pub(crate) fn run(self) -> Result<(), CliError> {
        match self {
            Command::Send(send) => send.run(),
            Command::Channels(channels) => channels.run(),
            Command::Bench(bench) => bench.run(),
            Command::Simulate(simulate) => simulate.run(),
        }
    }
}
