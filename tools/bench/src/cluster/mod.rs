//! Measures several nodes that share channels through Redis or NATS: publishes, messages between nodes, requests to
//! the server at rest, and connections that Redis closes. Nodes of a peer take turns with those of Dunlin.

mod fleet;
mod held;
mod messages;
mod report;
mod rest;
mod store;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use self::fleet::{Channel, Fleet};
use self::report::{Peer, Round, Turn, row};
use self::store::StoreKind;
use crate::protocol::{Protocol, ProtocolName};
use crate::swarm::{Ping, Plan, Swarm};
use dunlin_load::{Clock, Context, Error, ExitStatus, Output, Progress, say};

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of `dunlin bench cluster`.
#[derive(Debug, clap::Args)]
pub struct ClusterBench {
    /// The server program
    #[arg(long, value_name = "PROGRAM", default_value = "dunlin")]
    program: String,
    /// Workers of each node
    #[arg(long, default_value_t = 1)]
    workers: u8,
    /// The server that nodes share
    #[arg(long, value_enum, default_value_t = StoreKind::Redis)]
    store: StoreKind,
    /// A peer that takes turns with it: tests/interop/centrifuge, built. It shares no NATS
    #[arg(long, value_name = "PROGRAM")]
    peer: Option<PathBuf>,
    /// Only these measurements; without it all but those of `--clients`
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Measurement>,
    /// Channels, and clients where each has one
    #[arg(long, default_value_t = 10_000)]
    channels: usize,
    /// Publishes of a measurement
    #[arg(long, default_value_t = 150_000)]
    publishes: usize,
    /// Seconds of a measurement by time
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Seconds at rest: a peer writes every 27 s who is present
    #[arg(long, default_value_t = 27)]
    rest_s: u32,
    /// Channels that are heard when Redis ends the connections
    #[arg(long, default_value_t = 100_000)]
    heard: usize,
    /// Clients that are held, or get a message each
    #[arg(long, default_value_t = 200_000)]
    clients: usize,
    /// Seconds that clients are held
    #[arg(long, default_value_t = 60)]
    hold_s: u32,
    /// Rounds of each measurement but those at rest, which have one; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Cores of the nodes, e.g. 0 or 0,1
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    server_core: Vec<usize>,
    /// Cores of the server and of the generator
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
    /// What the server is asked while clients with presence do nothing
    PresenceAtRest,
    /// What the server is asked while channels with recovery have no messages
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
    /// Returns the measurements that need neither more memory nor more descriptors than an ordinary machine has.
    fn small(kind: StoreKind) -> Vec<Measurement> {
        let all = <Measurement as clap::ValueEnum>::value_variants().iter().copied();
        all.filter(|one| !matches!(one, Self::Each | Self::EachAlone | Self::Held))
            .filter(|one| kind == StoreKind::Redis || *one != Self::Killed)
            .collect()
    }

    /// Returns whether a peer can be measured too.
    fn has_peer(self) -> bool {
        use Measurement::*;
        matches!(
            self,
            Publish
                | PublishHistory
                | Batch
                | Across
                | AcrossBatch
                | LatencyAcross
                | PresenceAtRest
                | Killed
        )
    }
}

/// The software of the measured nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Peer,
}

pub(crate) fn run(options: &ClusterBench) -> Result<ExitStatus, Error> {
    dunlin_load::system::pin(&options.core)
        .map_err(|error| Error::io(format!("cannot run on cores {:?}", options.core), error))?;
    let chosen = match &options.only[..] {
        [] => Measurement::small(options.store),
        only => only.to_vec(),
    };
    let mut peer = options.peer.as_deref().map(Peer::find).transpose()?;
    if peer.is_some() && options.store != StoreKind::Redis {
        return Err(Error::new("the peer shares nothing but Redis: leave --peer out"));
    }
    if peer.is_none()
        && options.store == StoreKind::Redis
        && chosen.iter().any(|one| one.has_peer())
    {
        say("cluster: without --peer, Dunlin is measured alone");
    }
    let turns = chosen.iter().map(|one| u64::from(options.rounds_of(*one))).sum();
    let mut progress = Progress::new("cluster: rounds", turns);
    let (mut rows, mut wrong, mut done) = (serde_json::Map::new(), 0, 0);
    for measurement in chosen {
        let name = json!(measurement).as_str().unwrap_or_default().to_owned();
        let mut turns = Vec::new();
        for number in 0..options.rounds_of(measurement) {
            let measure = |side| {
                measure(options, side, measurement)
                    .map_err(|error| Error::new(format!("{name}, {side:?}: {error}")))
            };
            // If the peer fails this is logged, and Dunlin is measured all the same.
            let measure_peer = || match measure(Side::Peer) {
                Ok(round) => Some(round),
                Err(error) => {
                    say(format!("cluster: {error}"));
                    None
                }
            };
            let with_peer = peer.is_some() && measurement.has_peer();
            let first = if with_peer && number % 2 == 1 { measure_peer() } else { None };
            let ours = measure(Side::Ours)?;
            let last = if with_peer && number % 2 == 0 { measure_peer() } else { None };
            let turn = Turn { ours, peer: first.or(last) };
            wrong += turn.ours.lost + turn.ours.thrown_out;
            turns.push(turn);
            done += 1;
            progress.set(done);
        }
        let row = row(options.store, turns.iter().map(|turn| &turn.ours));
        say(format!("{name}: {row}"));
        if let Some(peer) = &mut peer {
            peer.add(&name, &turns);
        }
        rows.insert(name, row);
    }
    drop(progress);
    let mut report = json!({
        "channels": options.channels,
        "publishes": options.publishes,
        "rest_s": options.rest_s,
        "heard": options.heard,
        "clients": options.clients,
        "hold_s": options.hold_s,
        "rounds": options.rounds,
        "workers": options.workers,
        "rows": rows,
    });
    report[options.store.name()] = json!(options.store.version());
    if let Some(peer) = peer.filter(Peer::has_rows) {
        report["peer"] = json!(peer);
    }
    options.output.report("cluster", &report)?;
    Ok(if wrong == 0 { ExitStatus::Passed } else { ExitStatus::Failed })
}

fn measure(options: &ClusterBench, side: Side, measurement: Measurement) -> Result<Round, Error> {
    use Measurement::*;
    let fleet = |nodes, channel| Fleet::start(options, side, nodes, channel);
    match measurement {
        Publish => messages::publish(options, &fleet(1, Channel::Plain)?),
        PublishHistory => messages::publish(options, &fleet(1, Channel::History)?),
        Batch => messages::batch(options, &fleet(1, Channel::History)?, false),
        Burst => messages::batch(options, &fleet(1, Channel::History)?, true),
        Across => messages::across(options, &fleet(2, Channel::History)?, 1),
        AcrossBatch => messages::across(options, &fleet(2, Channel::History)?, 100),
        LatencyAcross => messages::latency(options, &fleet(2, Channel::History)?),
        LatencyAlone => messages::latency(options, &fleet(1, Channel::History)?),
        PresenceAtRest => rest::at_rest(options, &fleet(2, Channel::Presence)?),
        RecoveryAtRest => rest::at_rest(options, &fleet(2, Channel::History)?),
        Killed => rest::killed(options, &fleet(2, Channel::History)?),
        Each => held::each(options, 2),
        EachAlone => held::each(options, 1),
        Held => held::held(options),
    }
}

impl ClusterBench {
    /// Returns the number of rounds: counts at rest do not depend on the machine, so one is enough.
    fn rounds_of(&self, measurement: Measurement) -> u32 {
        use Measurement::*;
        if matches!(measurement, PresenceAtRest | RecoveryAtRest) { 1 } else { self.rounds }
    }

    /// Returns a plan for clients of this node, each in a channel of that name.
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

    /// Sends this many requests with this program's load generator, on 64 connections, and waits for the answers.
    fn requests(
        &self,
        node: SocketAddr,
        path: &str,
        body: &str,
        requests: usize,
    ) -> Result<Duration, Error> {
        let mut command = Command::new(&self.program);
        let (url, count) = (format!("http://{node}{path}"), requests.to_string());
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

/// Connects all clients. Returns the swarm, and how many could not connect.
fn connected(plan: &Plan) -> Result<(Swarm, u64), Error> {
    let swarm = Swarm::start(plan)?;
    let counts = swarm.wait_ready(READY_TIMEOUT, |_| {})?;
    Ok((swarm, counts.failed + counts.closed))
}
