//! Holds many connections for a time, answers their pings, then sends a message to all of them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::swarm::{Counts, Ping, Swarm};
use crate::target::Target;
use dunlin_load::process::{KernelMemory, Sample, own_pss_bytes};
use dunlin_load::url::duration;
use dunlin_load::{Clock, Error, ExitStatus, Output, Process, Progress, say};

/// Options of `dunlin bench connections`.
#[derive(Debug, clap::Args)]
pub struct Connections {
    #[command(flatten)]
    target: Target,
    /// Connections to hold
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// How long to hold them, e.g. 30s or 10m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    hold: Duration,
    /// Report connections that were silent for 1.5 × this time. A plain WebSocket client sends pings at this interval;
    /// in the Centrifugal protocol the server does
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "25s", value_parser = duration)]
    ping: Option<Duration>,
    /// Messages to all at the end, one at a time (needs --channel without a placeholder, or a plain WebSocket server)
    #[arg(long, default_value_t = 0)]
    publishes: u32,
    /// Filler in each message, bytes: 29 make 109 of it in the Centrifugal protocol
    #[arg(long, default_value_t = 29)]
    pad_bytes: usize,
    /// Once connected, let clients read their sockets only at multiples of this time, so that the server's CPU does not
    /// include waking them up
    #[arg(long, value_name = "TIME", value_parser = duration)]
    coalesce: Option<Duration>,
    /// Time to wait for the messages to arrive
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    delivery: Duration,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(options: &Connections) -> Result<ExitStatus, Error> {
    let target = &options.target;
    target.settle()?;
    let clock = Clock::new();
    let url = target.address()?;
    let process = target.process(url.address)?;
    let mut plan = target.plan(&url, target.channel.as_deref(), options.connections, clock)?;
    plan.ping = match options.ping {
        None => Ping::Answer,
        Some(interval) if target.protocol == crate::ProtocolName::Websocket => {
            Ping::SendEvery(interval)
        }
        Some(interval) => Ping::ExpectEvery(interval),
    };

    let before = Usage::now(process.as_ref());
    let start = Instant::now();
    let swarm = Swarm::start(&plan)?;
    let connected = {
        let mut progress = Progress::new("connections", options.connections as u64);
        swarm.wait_ready(Duration::from_secs(60), |counts| progress.set(counts.ready))?
    };
    let connect_seconds = start.elapsed().as_secs_f64();
    say(format!(
        "{} connections in {connect_seconds:.1} s, {} failed, {} tried again, {} closed meanwhile",
        connected.ready, connected.failed, connected.retried, connected.closed
    ));
    if let Some(interval) = options.coalesce {
        swarm.coalesce(interval);
    }
    std::thread::sleep(Duration::from_millis(1500));
    let held = Usage::now(process.as_ref());

    let hold_seconds = hold(options.hold);
    let measured = Measured {
        connected,
        in_hold: swarm.counts(),
        usage: [before, held, Usage::now(process.as_ref())],
        connect_seconds,
        hold_seconds,
    };
    let broadcast = match options.publishes {
        0 => None,
        publishes => {
            let hold_cores = measured.hold_cores();
            Some(broadcast(options, publishes, &swarm, process.as_ref(), hold_cores, clock)?)
        }
    };
    let mut report = measured.to_json(options);
    report["threads"] = json!(swarm.threads());
    let tally = swarm.finish(options.publishes)?;
    let delivered = broadcast.as_ref().is_none_or(|broadcast| {
        broadcast["delivered"] == broadcast["expected"] && tally.complete == connected.ready
    });
    let held_all = connected.ready == options.connections as u64;
    let lost = measured.in_hold.closed + tally.silent;
    let clean = held_all && lost == 0 && tally.faults.is_none() && delivered;
    report["broadcast"] = json!(broadcast.map(|mut broadcast| {
        // Connections that got every message exactly once.
        broadcast["complete"] = json!(tally.complete);
        broadcast
    }));
    report["pings_per_connection_min"] = json!(tally.pings_min);
    report["silent"] = json!(tally.silent);
    report["faults"] = json!(tally.faults);
    report["reasons"] = json!(tally.reasons);
    options.output.report("connections", &report)?;
    Ok(if clean { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// Waits for `time`. Returns the seconds that passed.
fn hold(time: Duration) -> f64 {
    let start = Instant::now();
    let mut progress = Progress::new("hold, seconds", time.as_secs());
    while start.elapsed() < time {
        progress.set(start.elapsed().as_secs());
        std::thread::sleep(Duration::from_millis(200).min(time.saturating_sub(start.elapsed())));
    }
    start.elapsed().as_secs_f64()
}

/// The measurements while connecting and holding.
struct Measured {
    /// After connecting.
    connected: Counts,
    /// At the end of the hold.
    in_hold: Counts,
    /// Before connecting, after it, and at the end of the hold.
    usage: [Usage; 3],
    connect_seconds: f64,
    hold_seconds: f64,
}

impl Measured {
    fn hold_cores(&self) -> Option<f64> {
        let [_, held, after] = &self.usage;
        Some(after.cpu_ns_since(held)? / 1e9 / self.hold_seconds)
    }

    fn to_json(&self, options: &Connections) -> Value {
        let [before, held, after] = &self.usage;
        let connections = self.connected.ready.max(1) as i64;
        let grown = |later: &Usage, of: fn(Sample) -> u64| {
            Some(of(later.server?) as i64 - of(before.server?) as i64)
        };
        let per_connection =
            |later: &Usage| Some(grown(later, |server| server.pss_bytes)? / connections);
        let own = |server: Sample| server.pss_bytes - server.file_bytes;
        let per_pair = |of: fn(&KernelMemory) -> u64| {
            (of(&held.kernel) as i64 - of(&before.kernel) as i64) / connections
        };
        let pings = self.in_hold.pings - self.connected.pings;
        let pings_sent = self.in_hold.pings_sent - self.connected.pings_sent;
        json!({
            "connections": options.connections,
            // Clients read their sockets only at multiples of this time; null: whenever something arrives.
            "coalesce_ms": options.coalesce.map(|interval| interval.as_secs_f64() * 1e3),
            "connected": self.connected.ready,
            "connect_failed": self.connected.failed,
            "connect_retried": self.connected.retried,
            "connect_seconds": self.connect_seconds,
            "connects_per_s": self.connected.ready as f64 / self.connect_seconds,
            "connect_cpu_us": held.cpu_ns_since(before).map(|ns| ns / 1e3 / connections as f64),
            // User memory of the server per connection: once connected, and at the end of the hold.
            "user_bytes_per_connection": per_connection(held),
            "user_bytes_per_connection_held": per_connection(after),
            // The same without file pages of the program, which the first connection faults in for all; and those pages.
            "own_bytes_per_connection": grown(held, own).map(|bytes| bytes / connections),
            "program_bytes_read_in": grown(held, |server| server.file_bytes),
            "server_pss_bytes": after.server.map(|server| server.pss_bytes),
            "server_pss_bytes_before": before.server.map(|server| server.pss_bytes),
            "generator_bytes_per_connection":
                (held.own_bytes as i64 - before.own_bytes as i64) / connections,
            // Both ends of a connection, if both are on this machine.
            "kernel_bytes_per_pair": per_pair(|kernel| kernel.slab_bytes),
            "kernel_unreclaimable_bytes_per_pair":
                per_pair(|kernel| kernel.slab_unreclaimable_bytes),
            // Decrease of the machine's available memory, everything included.
            "machine_bytes_per_pair": -per_pair(|kernel| kernel.available_bytes),
            "tcp_buffer_bytes": held.kernel.tcp_buffer_bytes,
            "hold_seconds": self.hold_seconds,
            "hold_cores": self.hold_cores(),
            // Server CPU per ping and its answer, including its share of the event loop.
            "ping_cpu_us": after.cpu_ns_since(held)
                .filter(|_| pings + pings_sent > 0)
                .map(|ns| ns / 1e3 / (pings + pings_sent) as f64),
            "pings": pings,
            "pings_sent": pings_sent,
            "pongs": self.in_hold.pongs - self.connected.pongs,
            "lost_in_hold": self.in_hold.closed,
        })
    }
}

/// Sends messages to all clients, one at a time.
fn broadcast(
    options: &Connections,
    publishes: u32,
    swarm: &Swarm,
    process: Option<&Process>,
    hold_cores: Option<f64>,
    clock: Clock,
) -> Result<Value, Error> {
    let target = &options.target;
    let mut publishing =
        target.publishing(&target.address()?, target.channel.as_deref().unwrap_or("c"))?;
    publishing.pad_bytes = options.pad_bytes;
    publishing.numbered_after = Some(0);
    let mut publisher = publishing.connect()?;
    let before: Counts = swarm.counts();
    let alive = before.ready - before.closed;
    let expected = alive * u64::from(publishes);
    let cpu_ns = process.map(Process::cpu_ns);
    let start_ns = clock.now_ns();
    let mut progress = Progress::new("messages", expected);
    let mut counts = before;
    for sequence in 1..=publishes {
        publisher.publish(sequence, 1)?;
        // The next message leaves when every client has this one: this measures one message to all, without queueing.
        let so_far = before.publications + alive * u64::from(sequence);
        counts = swarm.wait_publications(so_far, options.delivery, |counts| {
            progress.set(counts.publications - before.publications);
        });
    }
    drop(progress);
    std::thread::sleep(Duration::from_millis(200));
    let cpu_ns = process.map(Process::cpu_ns).zip(cpu_ns).map(|(after, before)| after - before);
    // Counted after the sleep, so that duplicates have arrived too.
    let delivered = swarm.counts().publications - before.publications;
    let seconds = counts.last_publication_ns.saturating_sub(start_ns) as f64 / 1e9;
    let each_us = |ns: f64| ns.max(0.0) / 1e3 / delivered.max(1) as f64;
    let pings_ns = hold_cores.unwrap_or(0.0) * seconds * 1e9;
    let arrived = (counts.publications - before.publications).max(1) as f64;
    Ok(json!({
        "publishes": publishes,
        "expected": expected,
        "delivered": delivered,
        "seconds": seconds,
        "messages_per_s": delivered as f64 / seconds.max(1e-9),
        "cpu_us_per_message": cpu_ns.map(|ns| each_us(ns as f64)),
        // The same minus the CPU of pings during that time, estimated from the hold.
        "cpu_us_per_message_without_pings": cpu_ns.map(|ns| each_us(ns as f64 - pings_ns)),
        "server_pss_bytes_after": process.map(|process| process.sample().pss_bytes),
        "message_bytes": (counts.publication_bytes - before.publication_bytes) as f64 / arrived,
    }))
}

/// Memory and CPU at one time.
#[derive(Debug)]
struct Usage {
    server: Option<Sample>,
    own_bytes: u64,
    kernel: KernelMemory,
}

impl Usage {
    fn now(process: Option<&Process>) -> Self {
        Self {
            server: process.map(Process::sample),
            own_bytes: own_pss_bytes(),
            kernel: KernelMemory::now(),
        }
    }

    /// Returns the server's CPU time between two samples, in nanoseconds.
    fn cpu_ns_since(&self, earlier: &Usage) -> Option<f64> {
        Some((self.server?.cpu_ns - earlier.server?.cpu_ns) as f64)
    }
}
