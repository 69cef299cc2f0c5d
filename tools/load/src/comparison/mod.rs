//! `dunlin bench comparison`: compares the load generator with other generators and with results that can be computed.

mod distance;
mod generators;
mod ledgers;
mod memory;
mod omission;
mod program;
mod stalled;

use std::path::PathBuf;
use std::time::Duration;

use crate::url::duration;
use crate::{Error, ExitStatus, Output};

/// An experiment of `dunlin bench comparison`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Experiment {
    /// Requests a second for each core: wrk, h2load, autocannon, oha and this generator, at depths 1, 16 and 100
    Generators,
    /// One connection, a hundred, and a hundred pipelined, with long round trips
    Distance,
    /// Every request answered exactly once by servers that close and reset: both ledgers, line by line
    Ledgers,
    /// The server stalls for a second, and the reported latencies must show it
    Omission,
    /// Memory of the generator at full rate
    Memory,
    /// Latency behind a stalled response
    Stalled,
}

/// Options of `dunlin bench comparison`.
#[derive(Debug, clap::Args)]
pub struct Comparison {
    #[arg(value_enum)]
    experiment: Experiment,
    /// Core of the servers
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    server_core: usize,
    /// Core of the generators
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    core: usize,
    /// How long each generator runs; for `memory`, the length of the whole run
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    time: Duration,
    /// Rounds; every generator runs once a round
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 100)]
    connections: u32,
    /// Requests of `distance` and `ledgers`; 10,000 and 1,000,000 by default
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Measure this server in place of `bench serve`, started with this command; with --url
    #[arg(long, value_name = "COMMAND", requires = "url")]
    cmd: Option<String>,
    /// Where the server of --cmd answers
    #[arg(long, value_name = "URL", requires = "cmd")]
    url: Option<String>,
    /// Directories to look for generators in, besides PATH
    #[arg(long, value_name = "DIR")]
    programs: Vec<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Runs one experiment and prints its report.
///
/// # Errors
/// When a program could not be started, or printed no result.
pub fn run(options: &Comparison) -> Result<ExitStatus, Error> {
    // Processes started from here on inherit this affinity; servers get a core of their own.
    crate::system::pin(&[options.core])
        .map_err(|error| Error::io(format!("cannot run on core {}", options.core), error))?;
    match options.experiment {
        Experiment::Generators => generators::run(options),
        Experiment::Distance => distance::run(options),
        Experiment::Ledgers => ledgers::run(options),
        Experiment::Omission => omission::run(options),
        Experiment::Memory => memory::run(options),
        Experiment::Stalled => stalled::run(options),
    }
}
