//! `dunlin bench serve`: a test server for HTTP clients, fast enough not to be the bottleneck, with configurable faults.
//!
//! The request's path or flags select the behaviour (see [`Behaviour`]). A request that repeats the previous one is
//! answered with a copy of the previous answer, so that a benchmark measures the load generator and not this server:
//! requests are still parsed one by one, and each gets its own answer.

mod answer;
mod behaviour;
mod connection;
mod log;
mod thread;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;

pub use behaviour::{Behaviour, BrokenAnswer};
pub use tls::ServeTls;

use crate::reactor::{address_of, listen};
use crate::{Error, ExitStatus, say};
use connection::Shared;
use log::Log;
use thread::Thread;

/// Options of `dunlin bench serve`.
#[derive(Debug, clap::Args)]
pub struct Serve {
    /// Address to listen on; port 0 selects a free port
    #[arg(long, default_value = "127.0.0.1:8500")]
    listen: SocketAddr,
    /// Threads, each with its own listener
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Cores it may run on, e.g. 0 or 0,1
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    core: Vec<usize>,
    /// Append a line for each request that has an id: number of the response, id, outcome
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    tls: ServeTls,
    #[command(flatten)]
    behaviour: Behaviour,
}

/// Runs the server until the process is ended.
///
/// # Errors
/// When it cannot listen, or write its log.
pub fn run(options: &Serve) -> Result<ExitStatus, Error> {
    crate::system::descriptors_per_thread();
    crate::system::pin(&options.core)
        .map_err(|error| Error::io(format!("cannot run on cores {:?}", options.core), error))?;
    let log = options.log.as_deref().map(Log::open).transpose()?;
    // Each thread has its own listener.
    let first = listen(options.listen, true)?;
    let address = address_of(&first)?;
    let mut listeners = vec![first];
    for _ in 1..options.threads {
        listeners.push(listen(address, true)?);
    }
    let config = options.tls.config(address)?;
    let scheme = if config.is_some() { "https" } else { "http" };
    say(format!("{scheme}://{address}/ answers; GET / lists what a path can ask for"));
    let mut threads = Vec::new();
    for (number, listener) in listeners.into_iter().enumerate() {
        let mut shared =
            Shared::new(options.behaviour.clone(), number as u64, u64::from(options.threads));
        shared.log = log.clone().map(Log::new);
        let thread = Thread::new(listener, config.clone(), shared)?;
        threads.push(std::thread::spawn(move || thread.run()));
    }
    for thread in threads {
        thread.join().map_err(|_| Error::new("a thread of the server panicked"))??;
    }
    Ok(ExitStatus::Passed)
}
