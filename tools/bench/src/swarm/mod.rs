//! A swarm: many connections to one server, held by few threads.
//!
//! It does not use `dunlin-net`, because the generator shares the machine with the server that it measures, so each of
//! its bytes and instructions reduces how many clients fit. A client is 24 bytes of plain data. A thread has one
//! receive buffer, one epoll instance, and its own descriptor table, because `RLIMIT_NOFILE` counts per table. Sockets
//! are edge-triggered and read until a short read, so that a message costs one `epoll_wait` entry and one `read`. The
//! bytes of a broadcast are scanned once for many clients (see `scan`).

mod client;
mod counters;
mod order;
mod scan;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dunlin_load::clock::new_histogram;
use dunlin_load::{Clock, Context, Error};
use hdrhistogram::Histogram;
use rustls::ClientConfig;

pub(crate) use counters::Counts;
pub(crate) use order::Faults;
pub(crate) use scan::{SEQUENCE_DIGITS, SEQUENCE_MARK};

use crate::protocol::Protocol;
use counters::Counters;

/// The time at which each message was due, nanoseconds on the [`Clock`], by sequence; 0 if it is not measured.
#[derive(Debug)]
pub(crate) struct Departures {
    table: Box<[AtomicU64]>,
}

impl Departures {
    pub(crate) fn new(sequences_max: usize) -> Self {
        Self { table: (0..=sequences_max).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Sets the time of a message. Must be called before the message is sent: the socket orders this write before the
    /// arrival.
    pub(crate) fn set(&self, sequence: u32, at_ns: u64) {
        if let Some(entry) = self.table.get(sequence as usize) {
            entry.store(at_ns, Ordering::Release);
        }
    }

    pub(crate) fn get(&self, sequence: u32) -> Option<u64> {
        let at_ns = self.table.get(sequence as usize)?.load(Ordering::Acquire);
        (at_ns != 0).then_some(at_ns)
    }
}

/// How clients check that the connection is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ping {
    /// Answer the server's pings; expect none.
    Answer,
    /// Answer the server's pings, and report clients that received nothing for 1.5 × this time.
    ExpectEvery(Duration),
    /// Send a WebSocket ping at this interval, and report clients that received nothing for 1.5 × this time.
    SendEvery(Duration),
}

/// Parameters of a swarm.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) server: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) connections: usize,
    /// TLS configuration of the clients; a TLS session takes some tens of KiB.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// 0: as few as the descriptor limit allows.
    pub(crate) threads: usize,
    /// Cores the threads may run on; empty: any.
    pub(crate) cores: Vec<usize>,
    /// Connects a second, all threads together; `None`: as fast as the server answers.
    pub(crate) connects_per_second: Option<u32>,
    /// Clients between `connect` and ready at one time, all threads together.
    pub(crate) opening_max: usize,
    /// Network of the source addresses, e.g. 127.1.0.0; `None`: the kernel's choice.
    pub(crate) sources: Option<Ipv4Addr>,
    pub(crate) ping: Ping,
    pub(crate) departures: Option<Arc<Departures>>,
    pub(crate) clock: Clock,
}

/// Limit of clients per thread: buffers of cut messages are numbered with 16 bits.
const CLIENTS_PER_THREAD_MAX: usize = 65_000;

/// Clients per source address. The default range of local ports holds 28,232, and a nearly full one is slow to search.
const CLIENTS_PER_SOURCE: usize = 8_000;

impl Plan {
    /// The address client `number` connects from: one of a /16 as large as needed, never .0 or .255.
    pub(crate) fn source(&self, number: usize) -> Option<IpAddr> {
        let network = u32::from(self.sources?);
        let index = (number / CLIENTS_PER_SOURCE) as u32 % (254 * 254);
        Some(Ipv4Addr::from(network | (1 + index / 254) << 8 | (1 + index % 254)).into())
    }
}

/// Totals of all clients at the end.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    pub(crate) faults: Faults,
    /// Why connections failed or were closed, each reason with its count.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// Clients that were connected at the end and had received every message up to the last.
    pub(crate) complete: u64,
    pub(crate) latencies: Option<Histogram<u64>>,
    /// Fewest pings any client connected at the end had seen from the server.
    pub(crate) pings_min: u64,
    /// Clients that at some point heard nothing for longer than the plan allows.
    pub(crate) silent: u64,
}

/// The running threads of a swarm. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Swarm {
    threads: Vec<JoinHandle<Result<thread::Outcome, Error>>>,
    shared: Arc<Shared>,
    connections: usize,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    /// The threads do not sleep while this is set.
    pub(crate) awake: AtomicBool,
    /// Threads read their sockets only at multiples of this time; 0: whenever something arrives.
    pub(crate) coalesce_ns: AtomicU64,
    pub(crate) counters: Vec<Counters>,
}

impl Swarm {
    /// Starts connecting.
    pub(crate) fn start(plan: &Plan) -> Result<Self, Error> {
        let per_thread_max =
            dunlin_load::system::descriptors_per_thread().min(CLIENTS_PER_THREAD_MAX);
        let threads = match plan.threads {
            0 => plan.connections.div_ceil(per_thread_max).max(1),
            threads => threads,
        };
        let per_thread = plan.connections.div_ceil(threads);
        if per_thread > per_thread_max {
            return Err(Error::new(format!(
                "{} connections in {threads} threads are {per_thread} descriptors a thread, and a thread may open \
                 {per_thread_max}: use --threads {} or raise the limit with `ulimit -n`",
                plan.connections,
                plan.connections.div_ceil(per_thread_max),
            )));
        }
        let counters = (0..threads).map(|_| Counters::default()).collect();
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            awake: AtomicBool::new(false),
            coalesce_ns: AtomicU64::new(0),
            counters,
        });
        let plan = Arc::new(plan.clone());
        let mut swarm = Self { threads: Vec::new(), shared, connections: plan.connections };
        for index in 0..threads {
            let first = index * per_thread;
            let numbers = first..plan.connections.min(first + per_thread);
            let (plan, shared) = (Arc::clone(&plan), Arc::clone(&swarm.shared));
            let handle = std::thread::Builder::new()
                .name(format!("swarm-{index}"))
                // Virtual size: the loop is shallow and touches only a few pages.
                .stack_size(256 << 10)
                .spawn(move || thread::run(&plan, &shared, index, threads, numbers))
                .context("cannot start a thread of the generator")?;
            swarm.threads.push(handle);
        }
        Ok(swarm)
    }

    /// Makes the threads read their sockets only at multiples of `interval`, all threads at the same instants.
    ///
    /// A client on this machine is woken by the thread that sends to it, so the server pays for the wake-up: a third of
    /// the cost of a message to one of many clients. A remote client causes no such cost for its server, and the
    /// network card between them coalesces interrupts in the same way.
    pub(crate) fn coalesce(&self, interval: Duration) {
        self.shared.coalesce_ns.store(interval.as_nanos() as u64, Ordering::Release);
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections
    }

    pub(crate) fn threads(&self) -> usize {
        self.shared.counters.len()
    }

    /// Returns the sum over the threads; each count is at most one turn of its loop old.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for counters in &self.shared.counters {
            counts.add(&counters.load());
        }
        counts
    }

    /// Waits until every client is ready or has failed for good. `report` is called about ten times a second.
    ///
    /// # Errors
    /// When nothing changed for `timeout`, or when no client got ready.
    pub(crate) fn wait_ready(
        &self,
        timeout: Duration,
        mut report: impl FnMut(&Counts),
    ) -> Result<Counts, Error> {
        let mut progress = (0, 0, Instant::now());
        loop {
            let counts = self.counts();
            report(&counts);
            if counts.ready + counts.failed >= self.connections as u64 {
                return if counts.ready == 0 { Err(self.why_not()) } else { Ok(counts) };
            }
            if (counts.ready, counts.failed) != (progress.0, progress.1) {
                progress = (counts.ready, counts.failed, Instant::now());
            } else if progress.2.elapsed() > timeout {
                let why =
                    self.first_failure().map_or(String::new(), |why| format!("; first: {why}"));
                return Err(Error::new(format!(
                    "{} of {} clients ready, {} failed, {} closed, and nothing happened for {timeout:?}{why}",
                    counts.ready, self.connections, counts.failed, counts.closed
                )));
            }
            if self.threads.iter().any(JoinHandle::is_finished) {
                return Err(self.why_not());
            }
            std::thread::sleep(Duration::from_millis(if self.connections > 50_000 {
                100
            } else {
                10
            }));
        }
    }

    fn why_not(&self) -> Error {
        let why = self.first_failure().unwrap_or_else(|| "no reason known".into());
        Error::new(format!("no client got ready: {why}"))
    }

    fn first_failure(&self) -> Option<String> {
        self.shared.counters.iter().find_map(Counters::first_failure)
    }

    /// Keeps the threads from sleeping while `awake` is set.
    ///
    /// A sender pays for waking a sleeping receiver: here a sixth of the cost of a message. Whether a thread sleeps
    /// depends on a tiny difference in speed between generator and server, which would favour one of two equal
    /// servers. With an awake generator the cost is the same for every server.
    pub(crate) fn keep_awake(&self, awake: bool) {
        self.shared.awake.store(awake, Ordering::Release);
    }

    /// Waits until `publications` messages have arrived in total, or nothing arrived for `timeout`.
    pub(crate) fn wait_publications(
        &self,
        publications: u64,
        timeout: Duration,
        report: impl FnMut(&Counts),
    ) -> Counts {
        self.wait(publications, timeout, |counts| counts.publications, report)
    }

    /// Does the same for publications that the bench numbered, because others may publish to the channel.
    pub(crate) fn wait_numbered(&self, publications: u64, timeout: Duration) -> Counts {
        self.wait(publications, timeout, |counts| counts.numbered, |_| {})
    }

    fn wait(
        &self,
        wanted: u64,
        timeout: Duration,
        arrived: impl Fn(&Counts) -> u64,
        mut report: impl FnMut(&Counts),
    ) -> Counts {
        let mut progress = (0, Instant::now());
        loop {
            let counts = self.counts();
            report(&counts);
            let arrived = arrived(&counts);
            if arrived >= wanted {
                return counts;
            }
            if arrived != progress.0 {
                progress = (arrived, Instant::now());
            } else if progress.1.elapsed() > timeout {
                return counts;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops the threads, which closes the connections, and returns the totals.
    pub(crate) fn finish(mut self, last_sequence: u32) -> Result<Tally, Error> {
        self.shared.stop.store(true, Ordering::Release);
        let mut tally = Tally { pings_min: u64::MAX, ..Tally::default() };
        for thread in self.threads.drain(..) {
            let outcome =
                thread.join().map_err(|_| Error::new("a thread of the generator panicked"))??;
            outcome.add_to(&mut tally, last_sequence);
        }
        tally.counts = self.counts();
        if tally.pings_min == u64::MAX {
            tally.pings_min = 0;
        }
        Ok(tally)
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // The swarm was abandoned: nobody can receive the error.
            let _ = thread.join();
        }
    }
}
