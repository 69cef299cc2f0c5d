//! As many clients as a machine can hold, on two nodes, and a distinct message for each of many at once.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::json;

use super::fleet::{Channel, Fleet, FleetPlan, Server};
use super::{ClusterBench, Round};
use crate::swarm::{Counts, Ping, Plan, Swarm};
use dunlin_load::client::Client;
use dunlin_load::{Clock, Error, Progress};

/// The kernel spreads connections over the workers by address hash: this many per worker leave room for imbalance,
/// below a descriptor table's 19,900.
const CLIENTS_PER_WORKER: usize = 18_000;
const READY_TIMEOUT: Duration = Duration::from_secs(120);
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that work after the last connect needs to finish.
const SETTLED_AFTER: Duration = Duration::from_secs(3);
/// Clients read their sockets at multiples of this time, if there are too many to wake one by one.
const COALESCE: Duration = Duration::from_millis(10);
/// Two cores cannot ping two million clients every 25 s.
const PING_INTERVAL: Duration = Duration::from_secs(100);
/// Number of messages to all.
const BROADCASTS: u64 = 3;
/// Payload of a message to one client.
const PAYLOAD_BYTES: usize = 100;
const BATCH: usize = 100;
/// Concurrent publishing connections, each waiting for its answer.
const PUBLISHERS: usize = 16;
/// Source networks of the clients, by node.
const SOURCES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 1, 0, 0), Ipv4Addr::new(127, 2, 0, 0)];

/// Holds half of the clients on each node, all in one channel.
pub(super) fn held(options: &ClusterBench) -> Result<Round, Error> {
    let fleet = start(options, 2, Channel::History)?;
    let memory_before = memory(&fleet);
    let began = Instant::now();
    let names = ["c".to_owned(), "c".to_owned()];
    let clients = Clients::connect(options, &fleet, &names, Ping::ExpectEvery(PING_INTERVAL))?;
    let connect_s = began.elapsed().as_secs_f64();
    let connected = clients.counts().ready;
    for swarm in &clients.swarms {
        swarm.coalesce(COALESCE);
    }
    std::thread::sleep(SETTLED_AFTER);
    let bytes_each = memory(&fleet).saturating_sub(memory_before) as f64 / connected as f64;

    let time = Duration::from_secs(options.hold_s.into());
    let (began, cpu) = (Instant::now(), fleet.cpu());
    let mut progress = Progress::new("hold, seconds", time.as_secs());
    while began.elapsed() < time {
        progress.set(began.elapsed().as_secs());
        std::thread::sleep(Duration::from_secs(1));
    }
    drop(progress);
    let cores = fleet.cores(&cpu, began.elapsed());
    let commands = fleet.store.commands(SETTLED_AFTER)?;

    let (began, cpu) = (Instant::now(), fleet.cpu());
    let mut publisher = Client::connect(fleet.nodes[0].client)?;
    for number in 1..=BROADCASTS {
        let body = json!({"channel": "c", "data": {"number": number}}).to_string();
        publish(&mut publisher, "/api/publish", body.as_bytes())?;
        clients.wait(connected * number);
    }
    let (took, delivered) = (began.elapsed(), connected * BROADCASTS);
    let mut round = Round {
        connected: Some(connected),
        connect_s: Some(connect_s),
        bytes_each: Some(bytes_each),
        cores: Some(cores),
        commands_per_s: Some(commands as f64 / SETTLED_AFTER.as_secs_f64()),
        per_s: Some(delivered as f64 / took.as_secs_f64()),
        lost: delivered.abs_diff(clients.counts().publications)
            + (options.clients as u64).abs_diff(connected),
        ..Round::default()
    };
    fleet.cost(&cpu, delivered as usize, &mut round);
    for swarm in clients.swarms {
        let tally = swarm.finish(0)?;
        round.thrown_out += tally.counts.closed + tally.silent;
        round.lost += tally.faults.offset_jumps;
    }
    Ok(round)
}

/// Sends a message of 100 bytes to each client, in its own channel, as fast as possible. The channels are in Redis,
/// with half of the clients on each of two nodes, or in the memory of one node.
pub(super) fn each(options: &ClusterBench, nodes: u8) -> Result<Round, Error> {
    let fleet = start(options, nodes, Channel::Plain)?;
    let prefix = if nodes == 1 { "local:" } else { "" };
    let names: Vec<String> = (0..nodes).map(|node| format!("{prefix}n{node}c{{n}}")).collect();
    let clients = Clients::connect(options, &fleet, &names, Ping::Answer)?;
    let connected = clients.counts().ready;
    std::thread::sleep(SETTLED_AFTER);

    let bodies = bodies(prefix, options.clients, usize::from(nodes));
    let (cpu, began, began_ns) = (fleet.cpu(), Instant::now(), clients.clock.now_ns());
    publish_all(&fleet, &bodies)?;
    let expected = options.clients as u64;
    let counts = clients.wait(expected);
    let seconds = counts.last_publication_ns.saturating_sub(began_ns) as f64 / 1e9;
    let mut round = Round {
        connected: Some(connected),
        per_s: Some(expected as f64 / seconds),
        seconds: Some(seconds),
        cores: Some(fleet.cores(&cpu, began.elapsed())),
        thrown_out: counts.closed,
        lost: expected.abs_diff(counts.publications) + expected.abs_diff(connected),
        ..Round::default()
    };
    fleet.cost(&cpu, options.clients, &mut round);
    Ok(round)
}

/// Starts nodes with enough workers.
fn start(options: &ClusterBench, nodes: u8, channel: Channel) -> Result<Fleet, Error> {
    let workers = options.clients.div_ceil(nodes.into()).div_ceil(CLIENTS_PER_WORKER);
    let workers = u8::try_from(workers).map_err(|_| Error::new("too many clients for a node"))?;
    Fleet::with(
        options,
        &FleetPlan {
            nodes,
            workers,
            client: &format!("ping_interval_ms = {}\n", PING_INTERVAL.as_millis()),
            channel,
        },
    )
}

/// Returns the private memory of all nodes.
fn memory(fleet: &Fleet) -> u64 {
    fleet.nodes.iter().map(|node| node.process.sample().pss_bytes).sum()
}

/// The clients of all nodes.
struct Clients {
    swarms: Vec<Swarm>,
    clock: Clock,
}

impl Clients {
    /// Connects the same number of clients to each node, to channels with these names.
    fn connect(
        options: &ClusterBench,
        fleet: &Fleet,
        channels: &[String],
        ping: Ping,
    ) -> Result<Clients, Error> {
        let clock = Clock::new();
        let count = options.clients / fleet.nodes.len();
        let start = |((node, channel), sources): ((&Server, &String), Ipv4Addr)| {
            let plan = options.plan(node.client, Some(channel), count);
            Swarm::start(&Plan { sources: Some(sources), ping, clock, ..plan })
        };
        let places = fleet.nodes.iter().zip(channels).zip(SOURCES);
        let swarms = places.map(start).collect::<Result<Vec<_>, _>>()?;
        let mut progress = Progress::new("connections", options.clients as u64);
        let mut others = 0;
        for swarm in &swarms {
            let counts =
                swarm.wait_ready(READY_TIMEOUT, |counts| progress.set(others + counts.ready))?;
            others += counts.ready;
        }
        Ok(Clients { swarms, clock })
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for swarm in &self.swarms {
            counts.add(&swarm.counts());
        }
        counts
    }

    /// Waits until this many messages have arrived in total, or none for a while.
    fn wait(&self, publications: u64) -> Counts {
        let mut last = (0, Instant::now());
        loop {
            let counts = self.counts();
            if counts.publications != last.0 {
                last = (counts.publications, Instant::now());
            }
            if counts.publications >= publications || last.1.elapsed() > DELIVERY_TIMEOUT {
                return counts;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns request bodies with a message for each client, a hundred per request.
fn bodies(prefix: &str, clients: usize, nodes: usize) -> Vec<String> {
    let text = "x".repeat(PAYLOAD_BYTES - 2);
    let each = clients / nodes;
    let commands = (0..each * nodes).map(|client| {
        let (node, number) = (client % nodes, client / nodes);
        json!({"publish": {"channel": format!("{prefix}n{node}c{number}"), "data": text}})
    });
    let commands: Vec<_> = commands.collect();
    commands.chunks(BATCH).map(|batch| json!({ "commands": batch }).to_string()).collect()
}

/// Sends them over several connections to each node; each connection waits for an answer before its next request.
fn publish_all(fleet: &Fleet, bodies: &[String]) -> Result<(), Error> {
    std::thread::scope(|scope| {
        let publishers: Vec<_> = (0..PUBLISHERS)
            .map(|publisher| {
                let node = fleet.nodes[publisher % fleet.nodes.len()].client;
                scope.spawn(move || -> Result<(), Error> {
                    let mut client = Client::connect(node)?;
                    for body in bodies.iter().skip(publisher).step_by(PUBLISHERS) {
                        publish(&mut client, "/api/batch", body.as_bytes())?;
                    }
                    Ok(())
                })
            })
            .collect();
        for publisher in publishers {
            publisher.join().map_err(|_| Error::new("a publisher panicked"))??;
        }
        Ok(())
    })
}

fn publish(client: &mut Client, path: &str, body: &[u8]) -> Result<(), Error> {
    client.call("POST", path, "application/json", body)?;
    match memchr::memmem::find(client.body(), b"\"error\"") {
        None => Ok(()),
        Some(_) => Err(Error::new("a publish was refused")),
    }
}
