//! What it costs that several nodes share their channels by Redis: publishes, messages from one node to another, what is asked of
//! Redis while nothing happens, and connections that Redis ends.

mod held;
mod messages;
mod rest;

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::fleet::{Node, Redis, SETTINGS, address};
use crate::protocol::{Protocol, ProtocolName};
use crate::swarm::{Ping, Plan, Swarm};
use dunlin_load::figures::median;
use dunlin_load::{Clock, Context, Error, ExitStatus, Output, Process, Progress, Scratch, say};

const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Kept of each channel, where anything is.
const HISTORY: &str =
    "history_size = 100\nhistory_ttl_ms = 300_000\nrecover = true\npositioned = true\n";

/// Options of `dunlin bench cluster`.
#[derive(Debug, clap::Args)]
pub struct ClusterBench {
    /// The program that serves
    #[arg(long, value_name = "PROGRAM", default_value = "dunlin")]
    program: String,
    /// Workers of each node
    #[arg(long, default_value_t = 1)]
    workers: u8,
    /// Only these measurements; without it all but those of `--clients`
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Measurement>,
    /// Channels, and clients where each has one
    #[arg(long, default_value_t = 10_000)]
    channels: usize,
    /// Publishes of a measurement
    #[arg(long, default_value_t = 200_000)]
    publishes: usize,
    /// Seconds of a measurement by time
    #[arg(long, default_value_t = 15)]
    seconds: u32,
    /// Channels that are heard when Redis ends the connections
    #[arg(long, default_value_t = 100_000)]
    heard: usize,
    /// Clients that are held, or get a message each
    #[arg(long, default_value_t = 200_000)]
    clients: usize,
    /// Seconds that clients are held
    #[arg(long, default_value_t = 60)]
    hold_s: u32,
    /// Rounds of each measurement; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Cores of the nodes, e.g. 0 or 0,1
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    server_core: Vec<usize>,
    /// Cores of Redis and of the generator
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    core: Vec<usize>,
    #[command(flatten)]
    output: Output,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Measurement {
    /// Publishes over HTTP, 64 connections, nothing kept
    Publish,
    /// The same with history
    PublishHistory,
    /// A hundred in a request, with history
    Batch,
    /// The same, all of a request in one channel
    Burst,
    /// One node publishes, the other delivers; the next when the last was answered
    Across,
    /// The same, a hundred in a request
    AcrossBatch,
    /// From one node to the other, 1,000 a second
    LatencyAcross,
    /// On one node, 1,000 a second
    LatencyAlone,
    /// What Redis is asked while clients with presence do nothing
    PresenceAtRest,
    /// What Redis is asked while channels with recovery have no messages
    RecoveryAtRest,
    /// Redis ends the connections by which nodes hear publications
    Killed,
    /// A message for each of many clients of two nodes, a hundred in a request
    Each,
    /// The same with one node, whose channels are in its memory
    EachAlone,
    /// As many clients as the machine has room for, at two nodes
    Held,
}

impl Measurement {
    /// Those that need neither more memory nor more descriptors than an ordinary machine has.
    fn small() -> Vec<Measurement> {
        let all = <Measurement as clap::ValueEnum>::value_variants().iter().copied();
        all.filter(|one| !matches!(one, Self::Each | Self::EachAlone | Self::Held)).collect()
    }
}

/// What a round has shown.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Round {
    /// Publications a second.
    per_s: Option<f64>,
    /// CPU for each: of the node that is published to, of the other one, of Redis.
    node_us: Option<f64>,
    other_us: Option<f64>,
    redis_us: Option<f64>,
    /// From the time in the schedule to the arrival.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// Asked of Redis, by all nodes, without what scripts call; and the part of a core that it takes.
    commands_per_s: Option<f64>,
    redis_share: Option<f64>,
    /// Until all channels were heard again.
    heard_again_ms: Option<f64>,
    /// From a publish while nothing was heard to its arrival, the latest.
    late_ms: Option<f64>,
    /// Clients that came in, how long that took all of them, and what one takes of the nodes' memory.
    connected: Option<u64>,
    connect_s: Option<f64>,
    bytes_each: Option<f64>,
    /// From the first request to the last arrival.
    seconds: Option<f64>,
    /// Cores that nodes and Redis took together.
    cores: Option<f64>,
    /// Clients that were disconnected.
    thrown_out: u64,
    /// Messages that did not arrive, arrived twice or out of order, and clients that did not come in.
    lost: u64,
}

pub(crate) fn run(options: &ClusterBench) -> Result<ExitStatus, Error> {
    dunlin_load::system::pin(&options.core)
        .map_err(|error| Error::io(format!("cannot run on cores {:?}", options.core), error))?;
    let chosen = match &options.only[..] {
        [] => Measurement::small(),
        only => only.to_vec(),
    };
    let turns = chosen.len() as u64 * u64::from(options.rounds);
    let mut progress = Progress::new("cluster: turns", turns);
    let (mut rows, mut wrong, mut done) = (serde_json::Map::new(), 0, 0);
    for measurement in chosen {
        let name = json!(measurement).as_str().unwrap_or_default().to_owned();
        let mut rounds = Vec::new();
        for _ in 0..options.rounds {
            let round = measure(options, measurement)
                .map_err(|error| Error::new(format!("{name}: {error}")))?;
            wrong += round.lost + round.thrown_out;
            rounds.push(round);
            done += 1;
            progress.set(done);
        }
        let row = row(&rounds);
        say(format!("{name}: {row}"));
        rows.insert(name, row);
    }
    drop(progress);
    options.output.report(
        "cluster",
        &json!({
            "channels": options.channels,
            "heard": options.heard,
            "clients": options.clients,
            "hold_s": options.hold_s,
            "rounds": options.rounds,
            "workers": options.workers,
            "redis": dunlin_load::installed::find("redis-server", &[])
                .and_then(|program| dunlin_load::installed::version(&program, "--version")),
            "rows": rows,
        }),
    )?;
    Ok(if wrong == 0 { ExitStatus::Passed } else { ExitStatus::Failed })
}

fn measure(options: &ClusterBench, measurement: Measurement) -> Result<Round, Error> {
    use Measurement::*;
    match measurement {
        Publish => messages::publish(options, ""),
        PublishHistory => messages::publish(options, HISTORY),
        Batch => messages::batch(options, false),
        Burst => messages::batch(options, true),
        Across => messages::across(options, 1),
        AcrossBatch => messages::across(options, 100),
        LatencyAcross => messages::latency(options, 2),
        LatencyAlone => messages::latency(options, 1),
        PresenceAtRest => rest::presence(options),
        RecoveryAtRest => rest::recovery(options),
        Killed => rest::killed(options),
        Each => held::each(options, 2),
        EachAlone => held::each(options, 1),
        Held => held::held(options),
    }
}

/// The median of each figure.
fn row(rounds: &[Round]) -> Value {
    let of = |figure: fn(&Round) -> Option<f64>| {
        median(&rounds.iter().filter_map(figure).collect::<Vec<_>>())
    };
    json!({
        "per_s": of(|round| round.per_s),
        "node_us": of(|round| round.node_us),
        "other_us": of(|round| round.other_us),
        "redis_us": of(|round| round.redis_us),
        "p50_us": of(|round| round.p50_us),
        "p99_us": of(|round| round.p99_us),
        "commands_per_s": of(|round| round.commands_per_s),
        "redis_share": of(|round| round.redis_share),
        "heard_again_ms": of(|round| round.heard_again_ms),
        "late_ms": of(|round| round.late_ms),
        "connected": of(|round| round.connected.map(|count| count as f64)),
        "connect_s": of(|round| round.connect_s),
        "bytes_each": of(|round| round.bytes_each),
        "seconds": of(|round| round.seconds),
        "cores": of(|round| round.cores),
        "thrown_out": rounds.iter().map(|round| round.thrown_out).sum::<u64>(),
        "lost": rounds.iter().map(|round| round.lost).sum::<u64>(),
    })
}

/// Nodes and their Redis, for one measurement.
struct Fleet {
    nodes: Vec<Node>,
    redis: Redis,
    _scratch: Scratch,
}

/// What nodes to start.
struct FleetPlan<'a> {
    nodes: u8,
    workers: u8,
    /// Settings of clients, of a channel, and tables of their own.
    client: &'a str,
    channel: &'a str,
    more: &'a str,
}

/// CPU that nodes and Redis have taken.
struct Cpu {
    nodes: Vec<u64>,
    redis: u64,
}

impl Fleet {
    /// So many nodes; `channel` are the settings of a channel.
    fn start(options: &ClusterBench, nodes: u8, channel: &str, more: &str) -> Result<Self, Error> {
        let workers = options.workers;
        Self::with(options, &FleetPlan { nodes, workers, client: "", channel, more })
    }

    fn with(options: &ClusterBench, plan: &FleetPlan<'_>) -> Result<Self, Error> {
        let scratch = Scratch::temporary("cluster")?;
        let directory = scratch.path().join("redis");
        let redis = Redis::start(address(200, 6379), directory, &options.core, "appendonly no")?;
        let FleetPlan { client, channel, more, .. } = plan;
        let settings = SETTINGS.replacen("[client]\n", &format!("[client]\n{client}"), 1);
        let settings = format!(
            "{settings}{channel}[engines.main]\naddresses = [\"{}\"]\n[cluster]\nengine = \"main\"\n{more}",
            redis.address
        );
        let start = |number| {
            let (path, cores) = (scratch.path(), &options.server_core);
            Node::start(&options.program, number, plan.workers, path, cores, &settings)
        };
        let nodes = (1..=plan.nodes).map(start).collect::<Result<Vec<_>, _>>()?;
        for node in &nodes {
            node.ready()?;
        }
        Ok(Self { nodes, redis, _scratch: scratch })
    }

    fn cpu(&self) -> Cpu {
        let of = |process: Option<&Process>| process.map_or(0, Process::cpu_ns);
        let nodes = self.nodes.iter().map(|node| of(node.process())).collect();
        Cpu { nodes, redis: of(self.redis.process()) }
    }

    /// Cores that all of them took since then.
    fn cores(&self, since: &Cpu, time: Duration) -> f64 {
        let sum = |cpu: &Cpu| cpu.nodes.iter().sum::<u64>() + cpu.redis;
        (sum(&self.cpu()) - sum(since)) as f64 / time.as_nanos() as f64
    }

    /// Adds the CPU for each of so many since then to a round.
    fn cost(&self, since: &Cpu, count: usize, round: &mut Round) {
        let now = self.cpu();
        let each = |now: u64, then: u64| Some((now - then) as f64 / 1e3 / count.max(1) as f64);
        round.node_us = each(now.nodes[0], since.nodes[0]);
        round.other_us = now.nodes.get(1).and_then(|&other| each(other, since.nodes[1]));
        round.redis_us = each(now.redis, since.redis);
    }
}

impl ClusterBench {
    /// Clients of this node, each of a channel of that name.
    fn plan(&self, node: SocketAddr, channel: Option<&str>, clients: usize) -> Plan {
        Plan {
            server: node,
            protocol: Protocol {
                name: ProtocolName::Centrifuge,
                host: node.to_string(),
                path: "/connection/websocket".into(),
                channel: channel.map(str::to_owned),
                hello: None,
                tokens: std::sync::Arc::default(),
                delta: false,
                join_leave: false,
            },
            connections: clients,
            tls: None,
            threads: 0,
            cores: self.core.clone(),
            connects_per_second: None,
            opening_max: 512,
            sources: None,
            ping: Ping::Answer,
            departures: None,
            clock: Clock::new(),
        }
    }

    /// Sends so many requests by this program's own load generator, on 64 connections, and waits for their answers.
    fn requests(
        &self,
        node: &Node,
        path: &str,
        body: &str,
        requests: usize,
    ) -> Result<Duration, Error> {
        let mut command = Command::new(&self.program);
        let (url, count) = (format!("http://{}{path}", node.client), requests.to_string());
        command.args(["bench", "http", &url, "--body", body, "-c", "64", "-n", &count, "--json"]);
        command.args(["-H", "Content-Type: application/json"]);
        if !self.core.is_empty() {
            let cores: Vec<String> = self.core.iter().map(usize::to_string).collect();
            command.args(["--core", &cores.join(",")]);
        }
        let began = std::time::Instant::now();
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        let status = status.context(format!("cannot start {}", self.program))?;
        match status.success() {
            true => Ok(began.elapsed()),
            false => Err(Error::new("not every publish was answered well")),
        }
    }
}

/// Connects all, and gives how many could not.
fn connected(plan: &Plan) -> Result<(Swarm, u64), Error> {
    let swarm = Swarm::start(plan)?;
    let counts = swarm.wait_ready(READY_TIMEOUT, |_| {})?;
    Ok((swarm, counts.failed + counts.closed))
}
