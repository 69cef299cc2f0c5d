//! Benchmarks of the mesh between workers, with floors measured in the same run.
//!
//! Measures two threads, each on its own core if there are two. Every figure is measured in batches that alternate
//! between mesh and floor, so that other load on the machine affects both alike.

use std::hint::{black_box, spin_loop};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use dunlin_bus::{Endpoint, MeshConfig, RequestId, RequestTable, mesh};
use rustix::event::EventfdFlags;
use serde::Serialize;
use serde_json::json;

use dunlin_load::figures::median;
use dunlin_load::reactor::{Events, Flags, Reactor};
use dunlin_load::{Context, Error, ExitStatus, Output, Progress};

/// Options of `dunlin bench bus`.
#[derive(Debug, clap::Args)]
pub struct BusBench {
    /// Round trips in a batch; a tenth of it for those through a sleeping thread
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..))]
    rounds: u32,
    /// Batches of each figure
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    batches: u32,
    /// Endpoints of the mesh; two of them exchange messages
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=128))]
    endpoints: u32,
    /// Cores of the two threads
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1])]
    core: Vec<usize>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Figure {
    median: f64,
    best: f64,
}

impl Figure {
    fn of(batches: &[f64]) -> Self {
        Self {
            median: median(batches).unwrap_or(0.0),
            best: batches.iter().copied().fold(f64::INFINITY, f64::min),
        }
    }
}

enum BenchMessage {
    Ping(u64),
    Ask(RequestId, u64),
    Answer(RequestId, u64),
    Stop,
}

pub(crate) fn run(options: &BusBench) -> Result<ExitStatus, Error> {
    let bench = Bench { endpoints: options.endpoints as usize, cores: options.core.clone() };
    let rounds = u64::from(options.rounds);
    let mut batches: [Vec<f64>; 6] = Default::default();
    let mut progress = Progress::new("bus", u64::from(options.batches));
    for batch in 0..options.batches {
        let failed = "the mesh or an eventfd could not be opened";
        let figures = [
            bench.cache_line(rounds),
            bench.awake_hop(rounds).context(failed)?,
            bench.request_reply(rounds).context(failed)?,
            bench.eventfd_hop(rounds / 10).context(failed)?,
            bench.sleeping_hop(rounds / 10).context(failed)?,
            bench.stream(rounds * 50).context(failed)?,
        ];
        for (batches, figure) in batches.iter_mut().zip(figures) {
            batches.push(figure);
        }
        progress.set(u64::from(batch) + 1);
    }
    drop(progress);
    let [cache_line, awake, reply, bare, asleep, stream] = &batches;
    let over: Vec<f64> = asleep.iter().zip(bare).map(|(asleep, bare)| asleep - bare).collect();
    let stream_message_ns = Figure::of(stream);
    options.output.report(
        "bus",
        &json!({
            "endpoints": options.endpoints,
            "batches": options.batches,
            // The floor: a word written by two threads alternately, one way.
            "cache_line_ns": Figure::of(cache_line),
            "awake_hop_ns": Figure::of(awake),
            // A request through the request table, and its reply.
            "request_reply_ns": Figure::of(reply),
            // The floor: a bare eventfd and epoll_wait, one way.
            "eventfd_hop_ns": Figure::of(bare),
            "sleeping_hop_ns": Figure::of(asleep),
            // The mesh's overhead over a bare wake-up: median of the differences within a batch.
            "sleeping_hop_over_eventfd_ns": median(&over),
            "stream_message_ns": stream_message_ns,
            "stream_messages_per_s": 1e9 / stream_message_ns.median,
        }),
    )?;
    Ok(ExitStatus::Passed)
}

struct Bench {
    endpoints: usize,
    cores: Vec<usize>,
}

impl Bench {
    /// Binds this thread to the first or second core given. Where the machine has no such core the scheduler decides,
    /// and the floors show what that costs.
    fn pin(&self, side: usize) {
        if let Some(&core) = self.cores.get(side) {
            let _ = dunlin_load::system::pin(&[core]);
        }
    }

    fn cache_line(&self, rounds: u64) -> f64 {
        #[repr(align(128))]
        struct Line(AtomicU64);
        const HERE: u64 = 1;
        let word = &Line(AtomicU64::new(0)).0;
        let wait_for = |value| {
            while word.load(Ordering::Acquire) != value {
                spin_loop();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                self.pin(1);
                // Signals that the thread runs: its start-up time must not count as a hop.
                word.store(HERE, Ordering::Release);
                for round in 0..rounds {
                    wait_for(HERE + 2 * round + 1);
                    word.store(HERE + 2 * round + 2, Ordering::Release);
                }
            });
            self.pin(0);
            wait_for(HERE);
            let start = Instant::now();
            for round in 0..rounds {
                word.store(HERE + 2 * round + 1, Ordering::Release);
                wait_for(HERE + 2 * round + 2);
            }
            ns_each(start, 2 * rounds)
        })
    }

    fn awake_hop(&self, rounds: u64) -> io::Result<f64> {
        self.with_peer(spin, echo(spin), |endpoint| {
            let start = Instant::now();
            for round in 0..rounds {
                send(endpoint, 1, BenchMessage::Ping(round));
                black_box(spin(endpoint));
            }
            ns_each(start, 2 * rounds)
        })
    }

    fn request_reply(&self, rounds: u64) -> io::Result<f64> {
        self.with_peer(spin, echo(spin), |endpoint| {
            let mut requests = RequestTable::new(1_000);
            let start = Instant::now();
            for round in 0..rounds {
                let Ok(id) = requests.insert(round + 1_000, round) else {
                    unreachable!("one request at a time in a table of a thousand")
                };
                send(endpoint, 1, BenchMessage::Ask(id, round));
                if let (_, BenchMessage::Answer(id, answer)) = spin(endpoint) {
                    assert_eq!(requests.take(id), Some(answer - 1), "a reply finds its request");
                }
            }
            ns_each(start, rounds)
        })
    }

    /// Measures the minimum cost of waking a thread through an event loop: one write, one `epoll_wait`.
    fn eventfd_hop(&self, rounds: u64) -> io::Result<f64> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bells = [rustix::event::eventfd(0, flags)?, rustix::event::eventfd(0, flags)?];
        let ring = |bell: &OwnedFd| rustix::io::write(bell, &1u64.to_ne_bytes()).map(|_| ());
        let (mut ours, mut theirs) = (bed(bells[0].as_fd())?, bed(bells[1].as_fd())?);
        thread::scope(|scope| {
            let peer = scope.spawn(|| {
                self.pin(1);
                for _ in 0..rounds {
                    sleep(&mut theirs)?;
                    ring(&bells[0])?;
                }
                io::Result::Ok(())
            });
            self.pin(0);
            let start = Instant::now();
            for _ in 0..rounds {
                ring(&bells[1])?;
                sleep(&mut ours)?;
            }
            let each = ns_each(start, 2 * rounds);
            match peer.join() {
                Ok(outcome) => outcome.map(|()| each),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Measures ping-pong between two threads that sleep in `epoll_wait` whenever they are idle.
    fn sleeping_hop(&self, rounds: u64) -> io::Result<f64> {
        let mut endpoints = mesh::<BenchMessage>(self.endpoints, &MeshConfig::default())?;
        let [ours, theirs, ..] = &mut endpoints[..] else {
            unreachable!("a mesh has at least two endpoints")
        };
        let receive = |mut bed: Reactor| {
            move |endpoint: &mut Endpoint<BenchMessage>| loop {
                if let Some(message) = endpoint.recv() {
                    return message;
                }
                if endpoint.prepare_sleep() {
                    // If sleeping fails this spins, which the figure shows.
                    let _ = sleep(&mut bed);
                }
                endpoint.wake();
            }
        };
        let (first, theirs_bed) = (bed(ours.doorbell())?, bed(theirs.doorbell())?);
        let mut measured = receive(bed(ours.doorbell())?);
        Ok(self.between(ours, theirs, receive(first), echo(receive(theirs_bed)), |endpoint| {
            let start = Instant::now();
            for round in 0..rounds {
                send(endpoint, 1, BenchMessage::Ping(round));
                black_box(measured(endpoint));
            }
            ns_each(start, 2 * rounds)
        }))
    }

    /// Measures a stream from one thread to another, both awake, flushed every 64 messages.
    fn stream(&self, messages: u64) -> io::Result<f64> {
        let count = move |endpoint: &mut Endpoint<BenchMessage>| {
            for _ in 0..messages {
                black_box(spin(endpoint));
            }
            send(endpoint, 0, BenchMessage::Stop);
        };
        self.with_peer(spin, count, |endpoint| {
            let start = Instant::now();
            for index in 0..messages {
                let mut message = BenchMessage::Ping(index);
                while let Err(refused) = endpoint.send(1, message) {
                    message = refused.into_value();
                    spin_loop();
                }
                if index % 64 == 63 {
                    endpoint.flush();
                }
            }
            endpoint.flush();
            black_box(spin(endpoint));
            ns_each(start, messages)
        })
    }

    fn with_peer(
        &self,
        receive: impl FnMut(&mut Endpoint<BenchMessage>) -> (usize, BenchMessage),
        serve: impl FnOnce(&mut Endpoint<BenchMessage>) + Send,
        measure: impl FnOnce(&mut Endpoint<BenchMessage>) -> f64,
    ) -> io::Result<f64> {
        let mut endpoints = mesh::<BenchMessage>(self.endpoints, &MeshConfig::default())?;
        let [ours, theirs, ..] = &mut endpoints[..] else {
            unreachable!("a mesh has at least two endpoints")
        };
        Ok(self.between(ours, theirs, receive, serve, measure))
    }

    /// Runs `measure` on endpoint 0 while endpoint 1 runs `serve` on its own thread. A first message confirms that
    /// both have started.
    fn between(
        &self,
        ours: &mut Endpoint<BenchMessage>,
        theirs: &mut Endpoint<BenchMessage>,
        mut receive: impl FnMut(&mut Endpoint<BenchMessage>) -> (usize, BenchMessage),
        serve: impl FnOnce(&mut Endpoint<BenchMessage>) + Send,
        measure: impl FnOnce(&mut Endpoint<BenchMessage>) -> f64,
    ) -> f64 {
        thread::scope(|scope| {
            scope.spawn(|| {
                self.pin(1);
                send(theirs, 0, BenchMessage::Ping(0));
                serve(theirs);
            });
            self.pin(0);
            receive(ours);
            let figure = measure(ours);
            // Fails only if the peer has already finished.
            let _ = ours.send(1, BenchMessage::Stop);
            ours.flush();
            figure
        })
    }
}

fn ns_each(start: Instant, count: u64) -> f64 {
    start.elapsed().as_nanos() as f64 / count as f64
}

/// Answers everything until the stop message.
fn echo(
    mut receive: impl FnMut(&mut Endpoint<BenchMessage>) -> (usize, BenchMessage),
) -> impl FnOnce(&mut Endpoint<BenchMessage>) {
    move |endpoint| {
        loop {
            match receive(endpoint) {
                (from, BenchMessage::Ping(value)) => {
                    send(endpoint, from, BenchMessage::Ping(value));
                }
                (from, BenchMessage::Ask(id, value)) => {
                    send(endpoint, from, BenchMessage::Answer(id, value + 1));
                }
                (_, BenchMessage::Answer(..) | BenchMessage::Stop) => return,
            }
        }
    }
}

/// Sends one message. Only one is in flight at a time, so the ring has room.
fn send(endpoint: &mut Endpoint<BenchMessage>, to: usize, message: BenchMessage) {
    assert!(endpoint.send(to, message).is_ok(), "an empty ring takes a message");
    endpoint.flush();
}

/// Creates a reactor that watches one doorbell.
fn bed(doorbell: BorrowedFd<'_>) -> io::Result<Reactor> {
    let reactor = Reactor::new().map_err(io::Error::other)?;
    reactor.watch(doorbell, 0, Flags::IN | Flags::ET)?;
    Ok(reactor)
}

fn sleep(reactor: &mut Reactor) -> io::Result<()> {
    // A wait ends without an event only on a signal.
    let mut events = Events::with_capacity(1);
    while reactor.wait(None, &mut events).map_err(io::Error::other)? == 0 {}
    Ok(())
}

fn spin(endpoint: &mut Endpoint<BenchMessage>) -> (usize, BenchMessage) {
    loop {
        if let Some(message) = endpoint.recv() {
            return message;
        }
        spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_measured() {
        let bench = Bench { endpoints: 3, cores: Vec::new() };
        assert!(bench.eventfd_hop(10).unwrap() > 0.0);
        assert!(bench.sleeping_hop(10).unwrap() > 0.0);
        assert!(bench.awake_hop(10).unwrap() > 0.0);
        assert!(bench.request_reply(10).unwrap() > 0.0);
        assert!(bench.stream(100).unwrap() > 0.0);
    }
}
