//! The counting run: clients move between the nodes of a cluster while nodes, Redis or NATS and the links between them
//! fail. A ledger checks that each acknowledged message reached each client once and in order.

mod clients;
mod deployment;
mod faults;
mod http;
mod ledger;
mod nats;
mod proxy;
mod publisher;
mod redis;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use serde_json::{Value, json};

use self::clients::{Phase, Progress, Shared};
use self::deployment::{Layout, ReadFrom};
use self::faults::{Chance, Fault, Loss, Stage};
use self::http::Transport;
use self::ledger::Ledger;
use crate::fleet::{Node, SETTINGS};
use dunlin_load::client::Client;
use dunlin_load::url::duration;
use dunlin_load::{Context as _, Error, ExitStatus, Output, Scratch, say};
use dunlin_wire::backoff::Jitter;

/// Without progress for this long, missing subscriptions and messages count as lost.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
const CLIENT_THREADS: usize = 2;
/// Stack of the thread of a client over plain HTTP.
const HTTP_STACK_BYTES: usize = 256 << 10;
const PUBLISHERS: usize = 8;
/// Channels whose presence is compared with the actual followers.
const PRESENCES: usize = 20;

/// Options of `dunlin bench chaos`.
#[derive(Debug, clap::Args)]
pub struct Chaos {
    /// The server program
    #[arg(long, value_name = "PROGRAM", default_value = "dunlin")]
    program: String,
    /// Another version of it: nodes that are rolled go from one to the other and back
    #[arg(long, value_name = "PROGRAM")]
    upgrade: Option<String>,
    /// How the servers of Redis or NATS stand
    #[arg(long, value_enum, default_value_t = Layout::Single)]
    layout: Layout,
    /// Which servers of Redis the nodes read histories from
    #[arg(long, value_enum, default_value_t = ReadFrom::Primary)]
    read_from: ReadFrom,
    /// Nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Workers of each
    #[arg(long, default_value_t = 2)]
    workers: u8,
    /// How long things go wrong
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration)]
    duration: Duration,
    /// Clients with a WebSocket, each of which follows two channels
    #[arg(long, default_value_t = 10_000)]
    clients: usize,
    /// Further clients that poll
    #[arg(long, default_value_t = 100)]
    polls: usize,
    /// Further clients with a unidirectional stream: a third each over server-sent events, as an `EventSource` that reconnects
    /// with its first URL, and over HTTP streams
    #[arg(long, default_value_t = 99)]
    streams: usize,
    /// Channels
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(8..))]
    channels: u64,
    /// Messages a second, over all channels
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Time between two moves of a client, on average
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration)]
    stay: Duration,
    /// Time between two faults, at most; some of them last up to twice as long
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = duration)]
    pause: Duration,
    /// Only these faults
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Fault>,
    /// Order of the faults, and where clients go
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(options: &Chaos) -> Result<ExitStatus, Error> {
    let layout = options.layout;
    if let Some(fault) = options.only.iter().find(|fault| !fault.is_possible(layout)) {
        return Err(Error::new(format!(
            "{fault:?} cannot happen to servers that stand as {layout:?}; choose another --layout"
        )));
    }
    if options.read_from != ReadFrom::Primary && (layout.is_nats() || !layout.has_others()) {
        return Err(Error::new(format!(
            "servers that stand as {layout:?} have no replicas to read from; choose another --layout"
        )));
    }
    let chosen: Vec<Fault> = match &options.only[..] {
        [] => Fault::value_variants().iter().copied().filter(|f| f.is_possible(layout)).collect(),
        only => only.to_vec(),
    };
    let loss = chosen.iter().map(|fault| fault.loss(layout)).max().unwrap_or(Loss::Nothing);
    let scratch = Scratch::temporary("chaos")?;
    let mut stage = stage(options, &scratch)?;
    let ledger = Ledger::new(options.channels as usize, loss);
    let nodes = stage.nodes.iter().map(|node| node.client).collect();
    let shared = Arc::new(Shared::new(ledger, nodes, options.clients, options.stay));
    let others = options.polls + options.streams;
    let progress: Vec<Progress> =
        (0..CLIENT_THREADS + others).map(|_| Progress::default()).collect();
    let over = AtomicBool::new(false);

    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (progress, clients) in progress.iter().zip(parts(options.clients, CLIENT_THREADS)) {
            let shared = &shared;
            threads
                .push(scope.spawn(move || clients::run(shared, progress, clients, options.seed)));
        }
        let mut http_threads = Vec::new();
        for (index, progress) in progress[CLIENT_THREADS..].iter().enumerate() {
            let transport = match index.checked_sub(options.polls) {
                None => Transport::Poll,
                Some(stream) => Transport::of_stream(stream),
            };
            let (shared, number, seed) = (&shared, options.clients + index, options.seed);
            let thread = std::thread::Builder::new().stack_size(HTTP_STACK_BYTES);
            let client = move || http::run(shared, progress, number, transport, seed);
            http_threads
                .push(thread.spawn_scoped(scope, client).context("cannot start another thread")?);
        }
        let every = Duration::from_secs_f64(options.channels as f64 / f64::from(options.rate));
        let mut publishers = Vec::new();
        for channels in parts(options.channels as usize, PUBLISHERS) {
            let (shared, over) = (&shared, &over);
            publishers.push(
                scope.spawn(move || publisher::run(shared, channels, every, options.seed, over)),
            );
        }
        // Inject no faults before clients are subscribed and some of them are between two nodes; earlier faults would
        // test nothing.
        wait(|| missing(&progress));
        std::thread::sleep(2 * options.stay);
        let tortured = stage.torture(&chosen, Instant::now() + options.duration);
        say("chaos: over; waiting until all have what there is");
        over.store(true, Ordering::Release);
        for publisher in publishers {
            publisher.join().map_err(|_| Error::new("a publisher panicked"))??;
        }
        let settled = tortured.and_then(|()| settle(&stage, &shared, &progress, options.seed));
        shared.set_phase(Phase::End);
        for thread in threads {
            thread.join().map_err(|_| Error::new("a thread of clients panicked"))??;
        }
        for thread in http_threads {
            thread.join().map_err(|_| Error::new("the thread of a client panicked"))?;
        }
        settled
    })?;

    let result = shared.ledger.result();
    for described in &result.described {
        say(format!("chaos: {described}"));
    }
    let report = json!({
        "layout": layout,
        "read_from": options.read_from,
        "upgraded": options.upgrade.is_some(),
        "nodes": options.nodes,
        "clients": options.clients,
        "polls": options.polls,
        "streams": options.streams,
        "channels": options.channels,
        "seconds": options.duration.as_secs(),
        "seed": options.seed,
        "faults": stage.counts,
        "fault_count": stage.counts.values().sum::<u64>(),
        "ledger": result,
        "moved": counts(&shared),
    });
    options.output.report("chaos", &report)?;
    Ok(if result.disagreements == 0 { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// Starts the servers of Redis or NATS, and the nodes.
fn stage(options: &Chaos, scratch: &Scratch) -> Result<Stage, Error> {
    let path = scratch.path();
    let deployment = deployment::start(options.layout, options.nodes, path)?;
    let mut nodes = Vec::new();
    for number in 1..=options.nodes {
        let settings = format!(
            "{SETTINGS}history_size = 1000\nhistory_ttl_ms = 600_000\nrecover = true\npositioned = true\npresence = true\n\
             {}{}[cluster]\nengine = \"main\"\n",
            deployment.engine(number.into()),
            options.read_from.setting(),
        );
        nodes.push(Node::start(&options.program, number, options.workers, path, &[], &settings)?);
    }
    for node in &nodes {
        node.ready()?;
    }
    let chance = Chance { random: Jitter::new(options.seed), pause_max: options.pause };
    let version = options.upgrade.as_ref().unwrap_or(&options.program);
    let versions = vec![version.clone(); nodes.len()];
    Ok(Stage { nodes, versions, deployment, chance, counts: BTreeMap::new() })
}

/// Ends all moves, publishes one last message to each channel, and waits until every follower has received it.
fn settle(stage: &Stage, shared: &Shared, progress: &[Progress], seed: u64) -> Result<(), Error> {
    for node in &stage.nodes {
        node.ready()?;
    }
    shared.set_phase(Phase::Stay);
    wait(|| missing(progress));
    publisher::last(shared, seed);
    // Waits until the counts include the turn in which the last message arrived.
    std::thread::sleep(Duration::from_secs(1));
    wait(|| missing(progress) + sum(progress, |progress| &progress.behind));
    for channel in 0..shared.first_http_channel().min(PRESENCES) {
        if !presence(shared, channel) {
            break;
        }
    }
    Ok(())
}

fn sum(progress: &[Progress], of: fn(&Progress) -> &AtomicU64) -> u64 {
    progress.iter().map(|progress| of(progress).load(Ordering::Acquire)).sum()
}

/// Returns the number of subscriptions that are not in place.
fn missing(progress: &[Progress]) -> u64 {
    sum(progress, |progress| &progress.missing)
}

/// Waits until nothing is left, or until there is no progress.
fn wait(left: impl Fn() -> u64) {
    let (mut least, mut since) = (u64::MAX, Instant::now());
    while since.elapsed() < SETTLE_TIMEOUT {
        let now = left();
        if now == 0 {
            return;
        }
        if now < least {
            (least, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns whether each node reports as many members of a channel as follow it.
fn presence(shared: &Shared, channel: usize) -> bool {
    let expected = shared.followers(channel);
    let body = json!({"channel": format!("c{channel}")}).to_string();
    for &node in &shared.nodes {
        let said = AtomicU64::new(u64::MAX);
        wait(|| {
            let count = || {
                let mut client = Client::connect(node).ok()?;
                client
                    .call("POST", "/api/presence_stats", "application/json", body.as_bytes())
                    .ok()?;
                let answer: Value = serde_json::from_slice(client.body()).ok()?;
                answer["result"]["num_clients"].as_u64()
            };
            let count = count().unwrap_or(u64::MAX);
            said.store(count, Ordering::Relaxed);
            u64::from(count != expected)
        });
        let said = said.into_inner();
        if said != expected {
            let what = format!("c{channel}: {node} says {said}, and {expected} follow it");
            shared.ledger.wrong("a presence that is wrong", what);
            return false;
        }
    }
    true
}

fn counts(shared: &Shared) -> Value {
    let counts = &shared.counts;
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    json!({
        "connects": of(&counts.connects),
        "polls": of(&counts.polls),
        "moves": of(&counts.moves),
        "cut": of(&counts.cut),
        "recovered": of(&counts.recovered),
        "notified": of(&counts.notified),
        "unsubscribed": of(&counts.unsubscribed),
        "refused": of(&counts.refused),
    })
}

/// Splits `count` into parts of about equal size.
fn parts(count: usize, parts: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..parts).map(move |part| count * part / parts..count * (part + 1) / parts)
}
