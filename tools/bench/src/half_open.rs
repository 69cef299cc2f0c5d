//! Hundreds of thousands of silent connections, and the connect rate of other clients beside them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde::Serialize;

use crate::dunlin::{Dunlin, OPEN};
use crate::swarm::Swarm;
use crate::target::Target;
use dunlin_load::reactor::{Events, Flags, Reactor, socket};
use dunlin_load::system::{
    bind_source, descriptors_per_thread, own_descriptor_table, run_when_idle,
};
use dunlin_load::{Clock, Context, Error, ExitStatus, Output, Process, Scratch, say};

/// Source network of the silent connections; other clients use 127.1.0.0/16.
const NETWORK: u32 = u32::from_be_bytes([127, 2, 0, 0]);
/// Events per wait: closed connections that are reopened together.
const EVENTS: usize = 64;
/// How long a thread waits for closed connections before it checks whether to end.
const PAUSE_NS: u64 = 20_000_000;
const SHARE_MIN: f64 = 0.8;

/// Options of `dunlin bench half-open`.
#[derive(Debug, clap::Args)]
pub struct HalfOpen {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    dunlin: Dunlin,
    /// Connections that say nothing; those that the server closes are opened again
    #[arg(long, default_value_t = 100_000)]
    silent: usize,
    /// Addresses they come from
    #[arg(long, default_value_t = 1_000)]
    addresses: u32,
    /// Clients that connect beside them
    #[arg(long, default_value_t = 10_000)]
    connects: usize,
    /// Times each of both is measured, by turns
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct HalfOpenReport {
    silent: usize,
    addresses: u32,
    connects: usize,
    workers: u8,
    rounds: Vec<Round>,
    /// Median connect rate beside the silent connections, divided by that without them.
    share: f64,
    /// The same beside connections that have sent the first byte of a request.
    begun_share: f64,
}

#[derive(Debug, Serialize)]
struct Round {
    /// Connects a second without silent connections, each up to its subscription.
    alone_per_s: f64,
    beside_per_s: f64,
    /// Connects a second beside as many connections that have sent the first byte of a request.
    begun_per_s: f64,
    /// Server CPU time per connect; beside the silent connections it includes theirs.
    alone_cpu_us: f64,
    beside_cpu_us: f64,
    begun_cpu_us: f64,
    failed: u64,
    /// Silent connections opened, including those opened again.
    opened: u64,
    begun_opened: u64,
}

/// What is sent on a connection that is held open.
#[derive(Clone, Copy, PartialEq)]
enum Sent {
    Nothing,
    /// The first byte of a request.
    Byte,
}

pub(crate) fn run(options: &HalfOpen) -> Result<ExitStatus, Error> {
    options.target.settle()?;
    let scratch = Scratch::temporary("half-open")?;
    let serve = || options.dunlin.start(&options.target, &scratch, "half-open", OPEN, false);
    let alone = || connect_all(options, &serve()?);
    let mut rounds = Vec::new();
    for number in 0..options.rounds.max(1) {
        // The baseline is measured first in even rounds and last in odd ones, so that drift of the machine affects all
        // measurements alike.
        let first = if number % 2 == 0 { Some(alone()?) } else { None };
        let (silent, opened) = beside(options, &serve()?, Sent::Nothing)?;
        let (begun, begun_opened) = beside(options, &serve()?, Sent::Byte)?;
        let alone = first.map_or_else(alone, Ok)?;
        let round = Round {
            alone_per_s: alone.per_s,
            beside_per_s: silent.per_s,
            begun_per_s: begun.per_s,
            alone_cpu_us: alone.cpu_us,
            beside_cpu_us: silent.cpu_us,
            begun_cpu_us: begun.cpu_us,
            failed: alone.failed + silent.failed + begun.failed,
            opened,
            begun_opened,
        };
        say(format!(
            "{:.0} connects/s alone, {:.0} beside {opened} silent ones, {:.0} beside {begun_opened} with a byte; server CPU {:.1}, {:.1} and {:.1} us each; {} failed",
            round.alone_per_s,
            round.beside_per_s,
            round.begun_per_s,
            round.alone_cpu_us,
            round.beside_cpu_us,
            round.begun_cpu_us,
            round.failed
        ));
        rounds.push(round);
    }
    let median = |of: fn(&Round) -> f64| {
        let mut rates: Vec<f64> = rounds.iter().map(of).collect();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let alone_per_s = median(|round| round.alone_per_s);
    let share = median(|round| round.beside_per_s) / alone_per_s;
    let begun_share = median(|round| round.begun_per_s) / alone_per_s;
    let passed = share >= SHARE_MIN && rounds.iter().all(|round| round.failed == 0);
    let report = HalfOpenReport {
        silent: options.silent,
        addresses: options.addresses,
        connects: options.connects,
        workers: options.dunlin.workers,
        rounds,
        share,
        begun_share,
    };
    options.output.report("half-open", &report)?;
    Ok(if passed { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// The rate at which clients connected and subscribed.
struct Connects {
    per_s: f64,
    cpu_us: f64,
    failed: u64,
}

fn connect_all(options: &HalfOpen, server: &Process) -> Result<Connects, Error> {
    let url = options.target.address()?;
    let plan = options.target.plan(&url, Some("c"), options.connects, Clock::new())?;
    let (began, cpu_before_ns) = (Instant::now(), server.cpu_ns());
    let swarm = Swarm::start(&plan)?;
    let counts = swarm.wait_ready(Duration::from_secs(30), |_| {})?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu_ns = server.cpu_ns() - cpu_before_ns;
    Ok(Connects {
        per_s: counts.ready as f64 / seconds,
        cpu_us: cpu_ns as f64 / 1e3 / counts.ready.max(1) as f64,
        failed: counts.failed + counts.closed,
    })
}

/// Measures the same while silent connections are held. Returns also how many of these were opened.
fn beside(options: &HalfOpen, process: &Process, sent: Sent) -> Result<(Connects, u64), Error> {
    let server = options.target.address()?.address;
    let per_thread = descriptors_per_thread();
    let (over, opened) = (AtomicBool::new(false), AtomicU64::new(0));
    let threads = options.silent.div_ceil(per_thread);
    std::thread::scope(|scope| {
        let silent: Vec<_> = (0..threads)
            .map(|at| {
                let numbers = at * per_thread..options.silent.min((at + 1) * per_thread);
                let (over, opened) = (&over, &opened);
                scope.spawn(move || hold(server, options.addresses, sent, numbers, over, opened))
            })
            .collect();
        while (opened.load(Ordering::Relaxed) as usize) < options.silent
            && silent.iter().any(|thread| !thread.is_finished())
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        let rate = connect_all(options, process);
        over.store(true, Ordering::Relaxed);
        for thread in silent {
            thread.join().map_err(|_| Error::new("a thread of silent ones panicked"))??;
        }
        Ok((rate?, opened.load(Ordering::Relaxed)))
    })
}

/// Opens connections and holds them until the end; reopens those that the server closes.
fn hold(
    server: SocketAddr,
    addresses: u32,
    sent: Sent,
    numbers: std::ops::Range<usize>,
    over: &AtomicBool,
    opened: &AtomicU64,
) -> Result<(), Error> {
    own_descriptor_table().context("cannot give a thread its own descriptor table")?;
    // Real attackers have machines of their own: here they must use only CPU time that the server and the measured
    // clients leave.
    run_when_idle().context("cannot have a thread give way to all others")?;
    let open = |number: usize| -> Result<OwnedFd, Error> {
        let stream = socket(server).context("cannot open another socket")?;
        let index = number as u32 % addresses.max(1);
        let source = Ipv4Addr::from(NETWORK | (1 + index / 250) << 8 | (1 + index % 250));
        bind_source(stream.as_fd(), IpAddr::V4(source))
            .context(format!("cannot connect from {source}"))?;
        match rustix::net::connect(&stream, &server) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(Error::io("cannot connect", std::io::Error::from(error))),
        }
        if sent == Sent::Byte {
            match rustix::net::send(&stream, b"G", SendFlags::NOSIGNAL) {
                // One that is not open yet, or not any more, stays silent.
                Ok(_) | Err(Errno::AGAIN | Errno::CONNRESET | Errno::PIPE) => {}
                Err(error) => return Err(Error::io("cannot send", std::io::Error::from(error))),
            }
        }
        opened.fetch_add(1, Ordering::Relaxed);
        Ok(stream)
    };
    let closings = Reactor::new()?;
    let watch = |stream: &OwnedFd, at: usize| {
        let flags = Flags::IN | Flags::RDHUP | Flags::ET;
        closings.watch(stream, at as u64, flags).context("cannot watch a connection")
    };
    let mut held = Vec::with_capacity(numbers.len());
    for number in numbers.clone() {
        if over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let stream = open(number)?;
        watch(&stream, held.len())?;
        held.push(stream);
    }
    let mut events = Events::with_capacity(EVENTS);
    while !over.load(Ordering::Relaxed) {
        closings.wait(Some(PAUSE_NS), &mut events)?;
        for (at, _) in events.iter() {
            let at = at as usize;
            let flags = RecvFlags::DONTWAIT;
            let is_open =
                rustix::net::recv(&held[at], &mut [0_u8; 64][..], flags) == Err(Errno::AGAIN);
            if !is_open {
                held[at] = open(numbers.start + at)?;
                watch(&held[at], at)?;
            }
        }
    }
    Ok(())
}
