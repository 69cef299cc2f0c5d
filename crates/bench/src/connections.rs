//! Holds many connections for a time, answers their pings, then sends a message to all of them.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::swarm::{Counts, Faults, Ping, Swarm};
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
    /// Report connections without a sign of life for 1.5 × this time. A plain WebSocket client sends a ping this often;
    /// in the Centrifugal protocol the server does
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "25s", value_parser = duration)]
    ping: Option<Duration>,
    /// Messages to all at the end, one at a time (needs --channel without a placeholder, or a plain WebSocket server)
    #[arg(long, default_value_t = 0)]
    publishes: u32,
    /// Filler in each message, bytes: 29 make 109 of it in the Centrifugal protocol
    #[arg(long, default_value_t = 29)]
    pad_bytes: usize,
    /// Once connected, have clients look at their sockets at multiples of this time only, so that the server does not
    /// pay for waking them: clients elsewhere do not cost it that either
    #[arg(long, value_name = "TIME", value_parser = duration)]
    coalesce: Option<Duration>,
    /// How long to wait for the messages
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    delivery: Duration,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
pub(crate) struct ConnectionsReport {
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    /// Clients looked at their sockets at multiples of this time only; `None`: whenever something arrived.
    pub(crate) coalesce_ms: Option<f64>,
    pub(crate) connected: u64,
    pub(crate) connect_failed: u64,
    pub(crate) connect_retried: u64,
    pub(crate) connect_seconds: f64,
    pub(crate) connects_per_s: f64,
    pub(crate) connect_cpu_us: Option<f64>,
    /// Server, user space, after the connections are there.
    pub(crate) user_bytes_per_connection: Option<i64>,
    /// The same at the end of the hold.
    pub(crate) user_bytes_per_connection_held: Option<i64>,
    pub(crate) server_pss_bytes: Option<u64>,
    pub(crate) server_pss_bytes_before: Option<u64>,
    pub(crate) generator_bytes_per_connection: i64,
    /// Both ends of the connection, if both are on this machine.
    pub(crate) kernel_bytes_per_pair: i64,
    pub(crate) kernel_unreclaimable_bytes_per_pair: i64,
    /// Fall of the available memory of the machine, everything included.
    pub(crate) machine_bytes_per_pair: i64,
    pub(crate) tcp_buffer_bytes: u64,
    pub(crate) hold_seconds: f64,
    pub(crate) hold_cores: Option<f64>,
    /// CPU of the server for a ping asked and answered, the loop's share included.
    pub(crate) ping_cpu_us: Option<f64>,
    pub(crate) pings: u64,
    pub(crate) pings_sent: u64,
    pub(crate) pongs: u64,
    pub(crate) pings_per_connection_min: u64,
    pub(crate) silent: u64,
    pub(crate) lost_in_hold: u64,
    pub(crate) broadcast: Option<Broadcast>,
    pub(crate) faults: Faults,
    pub(crate) reasons: std::collections::BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Broadcast {
    pub(crate) publishes: u32,
    pub(crate) expected: u64,
    pub(crate) delivered: u64,
    /// Clients that got every message exactly once.
    pub(crate) complete: u64,
    pub(crate) seconds: f64,
    pub(crate) messages_per_s: f64,
    pub(crate) cpu_us_per_message: Option<f64>,
    /// The same less what the pings of that time cost, as measured in the hold before.
    pub(crate) cpu_us_per_message_without_pings: Option<f64>,
    pub(crate) server_pss_bytes_after: Option<u64>,
    pub(crate) message_bytes: f64,
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

    let hold_start = Instant::now();
    {
        let mut progress = Progress::new("hold, seconds", options.hold.as_secs());
        while hold_start.elapsed() < options.hold {
            progress.set(hold_start.elapsed().as_secs());
            std::thread::sleep(
                Duration::from_millis(200).min(options.hold.saturating_sub(hold_start.elapsed())),
            );
        }
    }
    let hold_seconds = hold_start.elapsed().as_secs_f64();
    let hold_counts = swarm.counts();
    let after = Usage::now(process.as_ref());

    let cpu_ns = |later: &Usage, earlier: &Usage| {
        Some((later.server?.cpu_ns - earlier.server?.cpu_ns) as f64)
    };
    let hold_cores = cpu_ns(&after, &held).map(|ns| ns / 1e9 / hold_seconds);
    let broadcast = match options.publishes {
        0 => None,
        publishes => {
            Some(broadcast(options, publishes, &swarm, process.as_ref(), hold_cores, clock)?)
        }
    };
    let threads = swarm.threads();
    let tally = swarm.finish(options.publishes)?;

    let connections = connected.ready.max(1) as i64;
    let per_connection = |later: &Usage, earlier: &Usage| {
        let (later, earlier) = (later.server?, earlier.server?);
        Some((later.pss_bytes as i64 - earlier.pss_bytes as i64) / connections)
    };
    let per_pair = |of: fn(&KernelMemory) -> u64| {
        (of(&held.kernel) as i64 - of(&before.kernel) as i64) / connections
    };
    let pings = hold_counts.pings - connected.pings;
    let pings_sent = hold_counts.pings_sent - connected.pings_sent;
    let report = ConnectionsReport {
        connections: options.connections,
        threads,
        coalesce_ms: options.coalesce.map(|interval| interval.as_secs_f64() * 1e3),
        connected: connected.ready,
        connect_failed: connected.failed,
        connect_retried: connected.retried,
        connect_seconds,
        connects_per_s: connected.ready as f64 / connect_seconds,
        connect_cpu_us: cpu_ns(&held, &before).map(|ns| ns / 1e3 / connections as f64),
        user_bytes_per_connection: per_connection(&held, &before),
        user_bytes_per_connection_held: per_connection(&after, &before),
        server_pss_bytes: after.server.map(|server| server.pss_bytes),
        server_pss_bytes_before: before.server.map(|server| server.pss_bytes),
        generator_bytes_per_connection: (held.own_bytes as i64 - before.own_bytes as i64)
            / connections,
        kernel_bytes_per_pair: per_pair(|kernel| kernel.slab_bytes),
        kernel_unreclaimable_bytes_per_pair: per_pair(|kernel| kernel.slab_unreclaimable_bytes),
        machine_bytes_per_pair: -per_pair(|kernel| kernel.available_bytes),
        tcp_buffer_bytes: held.kernel.tcp_buffer_bytes,
        hold_seconds,
        hold_cores,
        ping_cpu_us: cpu_ns(&after, &held)
            .filter(|_| pings + pings_sent > 0)
            .map(|ns| ns / 1e3 / (pings + pings_sent) as f64),
        pings,
        pings_sent,
        pongs: hold_counts.pongs - connected.pongs,
        pings_per_connection_min: tally.pings_min,
        silent: tally.silent,
        lost_in_hold: hold_counts.closed,
        broadcast: broadcast.map(|broadcast| Broadcast { complete: tally.complete, ..broadcast }),
        faults: tally.faults,
        reasons: tally.reasons,
    };
    report.print();
    let status = report.status(options);
    options.output.report("connections", &report)?;
    Ok(status)
}

/// One message after the other to everybody.
fn broadcast(
    options: &Connections,
    publishes: u32,
    swarm: &Swarm,
    process: Option<&Process>,
    hold_cores: Option<f64>,
    clock: Clock,
) -> Result<Broadcast, Error> {
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
        // The next leaves when everybody has this one: what is measured is one message to all, not their queue.
        let so_far = before.publications + alive * u64::from(sequence);
        counts = swarm.wait_publications(so_far, options.delivery, |counts| {
            progress.set(counts.publications - before.publications);
        });
    }
    drop(progress);
    std::thread::sleep(Duration::from_millis(200));
    let cpu_ns = process.map(Process::cpu_ns).zip(cpu_ns).map(|(after, before)| after - before);
    // A second message to someone would come now: it is waited for, so that it is counted.
    let delivered = swarm.counts().publications - before.publications;
    let seconds = counts.last_publication_ns.saturating_sub(start_ns) as f64 / 1e9;
    Ok(Broadcast {
        publishes,
        expected,
        delivered,
        complete: 0,
        seconds,
        messages_per_s: delivered as f64 / seconds.max(1e-9),
        cpu_us_per_message_without_pings: cpu_ns.map(|ns| {
            let pings_ns = hold_cores.unwrap_or(0.0) * seconds * 1e9;
            (ns as f64 - pings_ns).max(0.0) / 1e3 / delivered.max(1) as f64
        }),
        cpu_us_per_message: cpu_ns.map(|ns| ns as f64 / 1e3 / delivered.max(1) as f64),
        server_pss_bytes_after: process.map(|process| process.sample().pss_bytes),
        message_bytes: (counts.publication_bytes - before.publication_bytes) as f64
            / (counts.publications - before.publications).max(1) as f64,
    })
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
}

impl ConnectionsReport {
    fn status(&self, options: &Connections) -> ExitStatus {
        let delivered = self.broadcast.as_ref().is_none_or(|broadcast| {
            broadcast.delivered == broadcast.expected && broadcast.complete == self.connected
        });
        let held = self.connected == options.connections as u64
            && self.lost_in_hold == 0
            && self.silent == 0;
        if held && delivered && self.faults.is_none() {
            ExitStatus::Passed
        } else {
            ExitStatus::Failed
        }
    }

    fn print(&self) {
        let optional =
            |value: Option<i64>| value.map_or("unknown".into(), |value| value.to_string());
        say(format!(
            "memory a connection: {} B user ({} B after the hold), {} B kernel for both ends ({} B of it not \
             reclaimable), {} B generator",
            optional(self.user_bytes_per_connection),
            optional(self.user_bytes_per_connection_held),
            self.kernel_bytes_per_pair,
            self.kernel_unreclaimable_bytes_per_pair,
            self.generator_bytes_per_connection,
        ));
        say(format!(
            "held {:.0} s: {} lost, {} pings of the server answered (at least {} each), {} pings sent, {} pongs, {} silent{}",
            self.hold_seconds,
            self.lost_in_hold,
            self.pings,
            self.pings_per_connection_min,
            self.pings_sent,
            self.pongs,
            self.silent,
            self.hold_cores.map_or(String::new(), |cores| format!(", server on {cores:.2} cores")),
        ));
        if let Some(broadcast) = &self.broadcast {
            say(format!(
                "{} of {} messages delivered in {:.2} s, {:.0} a second{}; {} clients have every one",
                broadcast.delivered,
                broadcast.expected,
                broadcast.seconds,
                broadcast.messages_per_s,
                broadcast
                    .cpu_us_per_message
                    .map_or(String::new(), |cpu| format!(", {cpu:.2} us of CPU each")),
                broadcast.complete,
            ));
        }
        for (reason, count) in &self.reasons {
            say(format!("  {count} × {reason}"));
        }
    }
}
