//! `dunlin apns`: commands for Apple's push service.

mod bench;
mod channels;
mod credential;
mod send;
mod simulate;

use clap::Subcommand;

pub(crate) use self::credential::{Account, ServiceRoute, read, text_or_file};
pub(crate) use self::send::{Send, expiration, report};
use crate::error::CliError;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send one push and print its outcome; same as `dunlin push send apns`
    Send(Box<Send>),
    /// Manage the broadcast channels of an app: create, list, show, delete
    Channels(Box<channels::Channels>),
    /// Benchmark the sender: windows, connections, bad tokens, CPU, faults
    Bench(Box<bench::Bench>),
    /// Simulate Apple's push service with its rules, error reasons and faults, to test senders
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
