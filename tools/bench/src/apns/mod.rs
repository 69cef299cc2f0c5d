//! Apple's push service: its simulator, and what the sender of pushes achieves against it and against other servers.

mod load;
mod options;
mod peers;
mod run;
mod simulate;
mod tables;
mod timeline;

use crate::error::CliError;

/// The commands for Apple's push service.
#[derive(Debug, clap::Subcommand)]
pub enum Apns {
    /// Benchmark the sender: windows, connections, bad tokens, CPU, faults
    Bench(Box<options::Bench>),
    /// Simulate Apple's push service with its rules, error reasons and faults, to test senders
    Simulate(Box<simulate::Simulate>),
}

impl Apns {
    pub(crate) fn run(self) -> Result<(), CliError> {
        match self {
            Apns::Bench(bench) => bench.run(),
            Apns::Simulate(simulate) => simulate.run(),
        }
    }
}
