#![doc = include_str!("../README.md")]
//!
//! It holds many connections with few bytes each, publishes, checks that every connection got every message once and in
//! order, and reports the cost for the server: user memory (Pss), kernel memory, CPU per message. It speaks plain
//! WebSocket, the Centrifugal JSON protocol, SSE, HTTP streaming and the native protocols of Redis, NATS and MQTT
//! brokers, so that Dunlin and its peers are measured by the same program in the same run.
//!
//! The generator must never be the limit, so it does not use `dunlin-net`: a client is 24 bytes of plain data, each
//! thread has one receive buffer, and bytes that were scanned for one client are not scanned again for the next (see
//! `src/swarm`). Its separate small scanner also checks the server's codecs independently.

#![forbid(unsafe_code)]

mod abuse;
mod apns;
mod background_load;
mod bus;
mod chaos;
mod cluster;
mod config;
mod connections;
mod connections_floor;
mod dunlin;
mod error;
mod fanout;
mod fleet;
mod floor;
mod front_door;
mod half_open;
mod latency;
mod page;
mod peer;
mod protocol;
mod publisher;
mod pushes;
mod schedule;
mod style;
mod swarm;
mod target;
mod token;
mod webhooks;

pub use abuse::Abuse;
pub use apns::Apns;
pub use bus::BusBench;
pub use chaos::Chaos;
pub use cluster::ClusterBench;
pub use config::ConfigBench;
pub use connections::Connections;
pub use connections_floor::ConnectionsFloor;
pub use dunlin::Dunlin;
pub use fanout::{Fanout, Mode};
pub use floor::Floor;
pub use front_door::FrontDoor;
pub use half_open::HalfOpen;
pub use latency::Latency;
pub use page::Page;
pub use peer::PeerName;
pub use protocol::ProtocolName;
pub use pushes::{PushReport, PushRow, PushRows, PushTable};
pub use target::Target;
pub use webhooks::Webhooks;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use dunlin_load::delay::Delay;
use dunlin_load::http::{Http, LedgerCheck};
use dunlin_load::serve::Serve;
use dunlin_load::{Error, ExitStatus};

use error::CliError;

/// Measures push servers, loads and attacks them, and simulates what they talk to.
#[derive(Debug, clap::Parser)]
#[command(name = "dunlin-bench", version, styles = style::HELP, propagate_version = false, arg_required_else_help = true)]
struct Program {
    #[command(subcommand)]
    command: ProgramCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ProgramCommand {
    #[command(flatten)]
    Bench(Box<Command>),
    /// Apple's push service: benchmark the sender, run a simulator
    #[command(subcommand, arg_required_else_help = true)]
    Apns(Apns),
    /// Print a completion script, as in `dunlin-bench completions bash > /etc/bash_completion.d/dunlin-bench`
    Completions {
        /// The shell it is for
        shell: clap_complete::Shell,
    },
    /// Write a man page for each command into a directory
    #[command(hide = true)]
    Man {
        /// The directory
        directory: PathBuf,
    },
}

/// Runs the program `dunlin-bench`.
pub fn main() -> ExitCode {
    let outcome = match Program::parse().command {
        ProgramCommand::Bench(command) => match run(*command) {
            Ok(status) => return status.into(),
            Err(error) => Err(CliError::from(error)),
        },
        ProgramCommand::Apns(apns) => apns.run(),
        ProgramCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Program::command(), "dunlin-bench", &mut script);
            style::print(&String::from_utf8_lossy(&script))
        }
        ProgramCommand::Man { directory } => {
            clap_mangen::generate_to(Program::command(), directory).map_err(Into::into)
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has closed it: `dunlin-bench apns bench | head`.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(is_broken_pipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            anstream::eprintln!("{} {error}", style::paint(style::BAD, "error:"));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// What `dunlin bench` can measure.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Hold many connections, answer their pings, then send one message to all
    Connections(Connections),
    /// Publish to many subscribers and compare the rate with the floor of this kernel and with peers
    Fanout(Fanout),
    /// Latency at a fixed publish rate, counted from the time each publish was scheduled for
    Latency(Latency),
    /// The mesh between workers: hops, request and reply, throughput
    Bus(BusBench),
    /// Time until every worker runs a configuration change, compared with a reload of nginx
    Config(ConfigBench),
    /// Attacks on a server, and their effect on other clients
    Abuse(Abuse),
    /// Nodes that share channels through Redis: publish rate, latency, Redis commands, lost connections
    Cluster(ClusterBench),
    /// Fail the nodes, Redis and links of a cluster, and verify what its clients received
    Chaos(Chaos),
    /// Time to connect while 100,000 half-open connections are held
    HalfOpen(HalfOpen),
    /// CPU cost of connects, tokens, backend calls, unicast, subscriptions, encodings and deltas
    FrontDoor(FrontDoor),
    /// Webhook throughput compared with a plain HTTP client, and its effect on other clients
    Webhooks(Webhooks),
    /// The floor of fan-out: a server that only calls send() with one prebuilt frame for every connection
    Floor(Floor),
    /// The floor of many connections: a server that only accepts, pings and sends one prebuilt message to all
    ConnectionsFloor(ConnectionsFloor),
    /// Load test an HTTP server: pipelining, open-model schedules, checks, reports
    Http(Box<Http>),
    /// A test server for HTTP clients; the path selects fast, slow, closing or broken responses
    Serve(Box<Serve>),
    /// A proxy that adds latency: it forwards bytes half a round trip after they arrive
    Delay(Delay),
    /// Compare the ledger of `bench http` with the log of the server, line by line
    Ledger(LedgerCheck),
    /// Write docs/BENCHMARKS.md and its plots from the results of earlier runs
    #[command(hide = true)]
    Page(Page),
}

/// Runs one benchmark to its end and prints its report.
///
/// The report goes to standard output, progress to standard error. With `--json` the last line of standard
/// output is one JSON object.
///
/// # Errors
/// When the benchmark could not be carried out: a server that does not answer, a limit of the machine.
pub fn run(command: Command) -> Result<ExitStatus, Error> {
    match command {
        Command::Connections(options) => connections::run(&options),
        Command::Fanout(options) => fanout::run(&options),
        Command::Latency(options) => latency::run(&options),
        Command::Bus(options) => bus::run(&options),
        Command::Config(options) => config::run(&options),
        Command::Abuse(options) => abuse::run(&options),
        Command::Cluster(options) => cluster::run(&options),
        Command::Chaos(options) => chaos::run(&options),
        Command::HalfOpen(options) => half_open::run(&options),
        Command::FrontDoor(options) => front_door::run(&options),
        Command::Webhooks(options) => webhooks::run(&options),
        Command::Floor(options) => floor::run(&options),
        Command::ConnectionsFloor(options) => connections_floor::run(&options),
        Command::Http(options) => dunlin_load::http::run(&options),
        Command::Ledger(options) => dunlin_load::http::check_ledger(&options),
        Command::Serve(options) => dunlin_load::serve::run(&options),
        Command::Delay(options) => dunlin_load::delay::run(&options),
        Command::Page(options) => page::run(&options),
    }
}
