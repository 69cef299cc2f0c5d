//! `dunlin bench config`: the cost of a configuration change, until every worker runs it.
//!
//! The floor is a ping-pong of the same bytes over loopback between threads on the same two cores. Placement matters
//! more than the work done: waking a thread on another core costs several times what a change does. So floor and
//! Dunlin alternate under the same placement.

mod count;
mod floor;
mod load;
mod peer;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Value, json};

use self::peer::Nginx;
use crate::dunlin::{Dunlin, OPEN};
use crate::swarm::Swarm;
use crate::target::Target;
use dunlin_load::client::Client;
use dunlin_load::clock::new_histogram;
use dunlin_load::figures::median;
use dunlin_load::{Clock, Error, ExitStatus, Output, Process, Scratch};

/// Options of `dunlin bench config`.
#[derive(Debug, clap::Args)]
pub struct ConfigBench {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    dunlin: Dunlin,
    /// Where it keeps its state: the disk that is measured. Emptied before and after
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Idle WebSocket clients of the second measurement
    #[arg(long, default_value_t = 10_000)]
    clients: usize,
    /// Changes of one measurement
    #[arg(long, default_value_t = 20_000)]
    changes: u32,
    /// Turns that floor and server take
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Connections that wait for fsync
    #[arg(long, default_value_t = 64)]
    writers: usize,
    /// What to measure
    #[arg(long, value_enum, default_value_t = Table::Cost)]
    table: Table,
    /// Where the drawing of changes begins, for `--table count`
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also measure nginx with this many upstream members and a reload a change; 0 does not
    #[arg(long, default_value_t = 10_000)]
    nginx_members: usize,
    #[command(flatten)]
    output: Output,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Table {
    /// What a change costs, and everyone else meanwhile
    Cost,
    /// Whether clients lose a message or their connection while changes are drawn at random
    Count,
}

/// Results of sequential changes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Rate {
    changes: u64,
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// Namespaces in the configuration.
const NAMESPACES: usize = 10_000;
/// Members of the upstream, one of which is changed.
const MEMBERS: [usize; 3] = [1_000, 10_000, 100_000];
const MEMBER_ROUNDS: u32 = 20;
const STEADY_PER_S: u32 = 50;
const STEADY: Duration = Duration::from_secs(5);
const DISK: Duration = Duration::from_secs(1);
const RELOADS: u32 = 5;
const NGINX_PORT: u16 = 8391;

impl Rate {
    fn of(histogram: &Histogram<u64>, seconds: f64) -> Rate {
        let us = |ns: u64| ns as f64 / 1e3;
        Rate {
            changes: histogram.len(),
            per_s: histogram.len() as f64 / seconds,
            p50_us: us(histogram.value_at_quantile(0.5)),
            p99_us: us(histogram.value_at_quantile(0.99)),
            max_us: us(histogram.max()),
        }
    }
}

pub(crate) fn run(options: &ConfigBench) -> Result<ExitStatus, Error> {
    match options.table {
        Table::Cost => cost(options),
        Table::Count => count::run(options),
    }
}

fn cost(options: &ConfigBench) -> Result<ExitStatus, Error> {
    let target = &options.target;
    let directory = Scratch::below(&options.state, "bench-config")?;
    // Measured before anything is pinned or started, so that nothing else writes.
    let disk_syncs_per_s = floor::syncs_per_s(directory.path(), DISK)?;
    target.settle()?;

    let server = serve(options, &directory, "small", 16, 0, false)?;
    let (floor, one, one_to_floor) = one_by_one(options)?;
    drop(server);

    let with_clients = with_clients(options, &directory)?;

    let server = serve(options, &directory, "durable", 16, 0, true)?;
    let rate = durable(options)?;
    drop(server);
    // The disk's floor is sequential fsyncs.
    let durable =
        json!({"writers": options.writers, "rate": rate, "disk_syncs_per_s": disk_syncs_per_s});

    let members = one_member(options, &directory)?;

    let server = serve(options, &directory, "large", NAMESPACES, 0, false)?;
    let steady_core = steady(options, &server)?;
    let replace = load::replace(options)?;
    drop(server);

    let nginx = match options.nginx_members {
        0 => None,
        members => Some(reload(options, &directory, members)?),
    };
    options.output.report(
        "config",
        &json!({
            "workers": options.dunlin.workers,
            // The ping-pong that does nothing.
            "floor": floor,
            // One connection, one change at a time, no clients; and, per round, the ratio to the floor.
            "one": one,
            "one_to_floor": one_to_floor,
            "clients": options.clients,
            "with_clients": with_clients,
            "durable": durable,
            "members": members,
            "replace": replace,
            // Share of one core used by fifty changes a second among ten thousand objects.
            "steady_core": steady_core,
            "nginx": nginx,
        }),
    )?;
    Ok(ExitStatus::Passed)
}

/// Starts a server with this many objects.
fn serve(
    options: &ConfigBench,
    scratch: &Scratch,
    name: &str,
    namespaces: usize,
    members: usize,
    with_state: bool,
) -> Result<Process, Error> {
    let text = configuration(namespaces, members);
    options.dunlin.start(&options.target, scratch, name, &text, with_state)
}

/// Returns a file with this many namespaces, and an upstream with this many members.
fn configuration(namespaces: usize, members: usize) -> String {
    let mut text = String::from(OPEN);
    for namespace in 0..namespaces {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "[channel.namespaces.ns{namespace}]\nhistory_size = 10\nhistory_ttl_ms = 60000"
        );
    }
    if members > 0 {
        text.push_str("[webhooks.upstreams.pool]\n");
    }
    for member in 0..members {
        let (high, low) = (member / 250, member % 250 + 1);
        let _ = writeln!(
            text,
            "[webhooks.upstreams.pool.members.m{member}]\naddress = \"10.{}.{}.{low}:80\"",
            high / 250,
            high % 250
        );
    }
    text
}

const HISTORY_SIZE: &str = "/config/channel/namespaces/ns7/history_size";

/// Measures floor and server alternately; each change sets another value than the one before.
fn one_by_one(options: &ConfigBench) -> Result<(Rate, Rate, f64), Error> {
    let cores = match &options.target.server_core[..] {
        [] => &options.target.core[..],
        cores => cores,
    };
    let mut floor = Client::connect(floor::ping_pong(cores)?)?;
    let mut ours = options.dunlin.admin_client()?;
    let each = (options.changes / options.rounds).max(1);
    let (mut floor_all, mut ours_all) = (new_histogram(), new_histogram());
    let (mut floor_s, mut ours_s) = (0.0, 0.0);
    let mut ratios = Vec::new();
    changes(&mut floor, each / 10, &mut new_histogram())?;
    changes(&mut ours, each / 10, &mut new_histogram())?;
    for _ in 0..options.rounds {
        let floor_round = changes(&mut floor, each, &mut floor_all)?;
        let ours_round = changes(&mut ours, each, &mut ours_all)?;
        floor_s += floor_round;
        ours_s += ours_round;
        ratios.push(floor_round / ours_round);
    }
    let ratio = median(&ratios).unwrap_or(0.0);
    Ok((Rate::of(&floor_all, floor_s), Rate::of(&ours_all, ours_s), ratio))
}

/// Makes `count` sequential changes. Returns the seconds.
fn changes(client: &mut Client, count: u32, took: &mut Histogram<u64>) -> Result<f64, Error> {
    let began = Instant::now();
    for change in 0..count {
        let body: &[u8] = if change % 2 == 0 { b"20" } else { b"21" };
        took.saturating_record(client.change(HISTORY_SIZE, body)?.as_nanos() as u64);
    }
    Ok(began.elapsed().as_secs_f64())
}

fn with_clients(options: &ConfigBench, directory: &Scratch) -> Result<Rate, Error> {
    let _server = serve(options, directory, "clients", 16, 0, false)?;
    let target = &options.target;
    let url = target.address()?;
    let mut plan = target.plan(&url, Some("idle"), options.clients, Clock::new())?;
    // They are idle, so their threads may run on any core.
    plan.cores = Vec::new();
    let swarm = Swarm::start(&plan)?;
    let counts = swarm.wait_ready(Duration::from_secs(60), |_| {})?;
    if counts.failed > 0 {
        return Err(Error::new(format!("{} clients did not get ready", counts.failed)));
    }
    let mut ours = options.dunlin.admin_client()?;
    let mut all = new_histogram();
    changes(&mut ours, options.changes / 10, &mut new_histogram())?;
    let seconds = changes(&mut ours, options.changes, &mut all)?;
    let tally = swarm.finish(0)?;
    if tally.counts.closed > 0 {
        return Err(Error::new(format!("{} clients lost their connection", tally.counts.closed)));
    }
    Ok(Rate::of(&all, seconds))
}

/// Measures many connections, each with one change in flight that waits for the disk.
fn durable(options: &ConfigBench) -> Result<Rate, Error> {
    let target = |writer: usize| {
        format!("/config/channel/namespaces/ns{}/history_size?durable=1", writer % 16)
    };
    let mut clients = (0..options.writers)
        .map(|_| options.dunlin.admin_client())
        .collect::<Result<Vec<_>, Error>>()?;
    let mut sent = Vec::with_capacity(clients.len());
    let mut value = 100_u32;
    let mut send = |client: &mut Client, writer: usize| {
        value += 1;
        let body = value.to_string();
        client.send("PUT", &target(writer), "application/json", body.as_bytes())?;
        Ok::<Instant, Error>(Instant::now())
    };
    for (writer, client) in clients.iter_mut().enumerate() {
        sent.push(send(client, writer)?);
    }
    let began = Instant::now();
    let mut took = new_histogram();
    let rounds = (options.changes as usize / options.writers.max(1)).max(1);
    for round in 1..=rounds {
        for (writer, client) in clients.iter_mut().enumerate() {
            let status = client.receive()?;
            client.expect_success("PUT", &target(writer), status)?;
            took.saturating_record(sent[writer].elapsed().as_nanos() as u64);
            if round < rounds {
                sent[writer] = send(client, writer)?;
            }
        }
    }
    Ok(Rate::of(&took, began.elapsed().as_secs_f64()))
}

/// Measures a change of one member among few, many and very many, alternately on three servers, so that a noisy
/// neighbour affects all alike.
fn one_member(options: &ConfigBench, directory: &Scratch) -> Result<Vec<Value>, Error> {
    struct Side {
        members: usize,
        _server: Process,
        client: Client,
        took: Histogram<u64>,
        seconds: f64,
    }
    let mut sides = Vec::new();
    for (place, members) in (0_u16..).zip(MEMBERS) {
        let text = configuration(16, members);
        let name = format!("members-{members}");
        let (dunlin, target) = options.dunlin.beside(&options.target, 2 * place)?;
        let server = dunlin.start(&target, directory, &name, &text, false)?;
        let client = dunlin.admin_client()?;
        sides.push(Side { members, _server: server, client, took: new_histogram(), seconds: 0.0 });
    }
    let each = (options.changes / 4 / MEMBER_ROUNDS).max(1);
    for round in 0..=MEMBER_ROUNDS {
        for side in &mut sides {
            if round == 1 {
                // Discards the warm-up.
                (side.took, side.seconds) = (new_histogram(), 0.0);
            }
            let began = Instant::now();
            for change in round * each..(round + 1) * each {
                // A different member each time, spread over the table.
                let member = change as usize * 7_919 % side.members;
                let target = format!("/config/webhooks/upstreams/pool/members/m{member}/weight");
                let weight = 2 + change % 90;
                let took = side.client.change(&target, weight.to_string().as_bytes())?;
                side.took.saturating_record(took.as_nanos() as u64);
            }
            side.seconds += began.elapsed().as_secs_f64();
        }
    }
    let rows = sides
        .iter()
        .map(|side| json!({"members": side.members, "rate": Rate::of(&side.took, side.seconds)}));
    Ok(rows.collect())
}

/// Makes a change every twentieth of a second. Returns the share of a core that the server uses for it.
fn steady(options: &ConfigBench, server: &Process) -> Result<f64, Error> {
    let mut client = options.dunlin.admin_client()?;
    let idle = cores_over(server, STEADY, |_| Ok(()))?;
    let interval = Duration::from_secs(1) / STEADY_PER_S;
    let mut change = 0_usize;
    let busy = cores_over(server, STEADY, |left| {
        change += 1;
        let namespace = change * 7_919 % NAMESPACES;
        let target = format!("/config/channel/namespaces/ns{namespace}/history_size");
        client.change(&target, (20 + change % 50).to_string().as_bytes())?;
        std::thread::sleep(interval.min(left));
        Ok(())
    })?;
    Ok((busy - idle).max(0.0))
}

fn cores_over(
    server: &Process,
    time: Duration,
    mut step: impl FnMut(Duration) -> Result<(), Error>,
) -> Result<f64, Error> {
    let (before, began) = (server.cpu_ns(), Instant::now());
    while began.elapsed() < time {
        step(time.saturating_sub(began.elapsed()))?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let spent = server.cpu_ns().saturating_sub(before);
    Ok(spent as f64 / began.elapsed().as_nanos() as f64)
}

fn reload(options: &ConfigBench, directory: &Scratch, members: usize) -> Result<Value, Error> {
    let address = SocketAddr::from(([127, 0, 0, 1], NGINX_PORT));
    let cores = &options.target.server_core;
    let nginx = Nginx::start(directory.path(), address, members, cores)?;
    let mut ms = Vec::new();
    for value in 1..=RELOADS {
        ms.push(nginx.change(value)?.as_secs_f64() * 1e3);
    }
    let max_ms = ms.iter().copied().fold(0.0, f64::max);
    Ok(json!({"members": members, "changes": RELOADS, "p50_ms": median(&ms), "max_ms": max_ms}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_what_was_recorded_over_the_time() {
        let mut histogram = new_histogram();
        (0..100).for_each(|_| histogram.record(40_000).unwrap());
        let rate = Rate::of(&histogram, 0.004);
        assert_eq!((rate.changes, rate.per_s.round()), (100, 25_000.0));
        // The histogram's resolution here is half a microsecond.
        assert!((39.4..40.6).contains(&rate.p50_us), "{}", rate.p50_us);
    }

    #[test]
    fn a_configuration_has_as_many_tables_as_asked_for() {
        let text = configuration(3, 300);
        assert_eq!(text.matches("[channel.namespaces.").count(), 3);
        assert_eq!(text.matches(".members.m").count(), 300);
        assert!(text.contains("10.0.1.50:80"));
    }
}
