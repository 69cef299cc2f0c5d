//! `dunlin apns`: commands for Apple's push service.

mod channels;
mod credential;
mod send;

use clap::Subcommand;

pub(crate) use self::credential::{Account, ServiceRoute, read, text_or_file};
pub(crate) use self::send::{Send, expiration, report};
use crate::error::CliError;
use crate::tools::Arguments;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send one push and print its outcome; same as `dunlin push send apns`
    Send(Box<Send>),
    /// Manage the broadcast channels of an app: create, list, show, delete
    Channels(Box<channels::Channels>),
    /// Benchmark the sender: windows, connections, bad tokens, CPU, faults; runs the program dunlin-bench
    #[command(disable_help_flag = true)]
    Bench(Arguments),
    /// Simulate Apple's push service with its rules, reasons and faults, to test senders; runs the program dunlin-bench
    #[command(disable_help_flag = true)]
    Simulate(Arguments),
}

impl Command {
    pub(crate) fn run(self) -> Result<(), CliError> {
        match self {
            Command::Send(send) => send.run(),
            Command::Channels(channels) => channels.run(),
            Command::Bench(arguments) => arguments.run(&["apns", "bench"]),
            Command::Simulate(arguments) => arguments.run(&["apns", "simulate"]),
        }
    }
}
