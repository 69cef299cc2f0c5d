//! The tables of the benchmark.

mod connections;
mod cpu;
mod reference;
mod storm;
mod vary;
mod windows;

use std::collections::HashMap;
use std::fs;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::pushes::{PushRow as Row, PushTable as Table};
use dunlin_push::{Connections, Outcome, SenderMetrics};
use dunlin_simulate::apns::{Behaviour, Config, Simulator, SlowDown};

use super::load::{Load, Measured, Target, payload, push, run, sender};
use super::options::Bench;
use crate::error::CliError;

type Show<'a> = &'a dyn Fn(&Row) -> Result<(), CliError>;

const WINDOW: f64 = 65_535.0;
/// A window so large that it never limits.
const WINDOW_LARGE: u32 = 16 << 20;
const STREAMS: f64 = 1_000.0;
/// Time limit for a server to answer a first push.
const GREETING: Duration = Duration::from_secs(10);
const QUEUE_BYTES: usize = 8 << 20;

pub(super) fn measure(bench: &Bench, table: Table, show: Show<'_>) -> Result<Vec<Row>, CliError> {
    match table {
        Table::Windows if bench.server.is_some() => windows::other_windows(bench, show),
        Table::Windows => windows::windows(bench, show),
        Table::Connections => connections::connections(show),
        Table::Bad => bad(bench, show),
        Table::Reference => reference::reference(bench, show),
        Table::Cpu => cpu::cpu(bench, show),
        Table::Queue => cpu::queue(bench, show),
        Table::Storm => storm::storm(bench, show),
        Table::Vary => vary::vary(bench, show),
        Table::Drift => vary::drift(bench, show),
    }
}

/// The simulator, and how to reach it.
struct World {
    simulator: Simulator,
    target: Target,
    roots: tempfile::NamedTempFile,
}

impl World {
    fn new(behaviour: Behaviour, ledger_max: usize) -> Result<World, CliError> {
        let simulator = Simulator::start(Config {
            listen: ([127, 0, 0, 1], 0).into(),
            ledger_max,
            behaviour,
            ..Config::default()
        })?;
        let roots = tempfile::NamedTempFile::new()?;
        fs::write(roots.path(), simulator.ca_pem())?;
        let target = Target {
            host: "localhost".to_owned(),
            address: simulator.addr().to_string(),
            roots_pem: roots.path().to_owned(),
            devices: NonZeroU64::MAX,
        };
        Ok(World { simulator, target, roots })
    }
}

fn load(target: &Target, payload_bytes: usize, duration: Duration) -> Load {
    Load {
        target: target.clone(),
        connections: Connections::Fixed(1),
        payload_bytes,
        rate: None,
        in_flight_max: None,
        duration,
        warm_up: Duration::from_secs(2),
        pushes_max: u64::MAX,
        queue_bytes_max: QUEUE_BYTES,
        answer_within: Duration::from_secs(30),
        device: Arc::new({
            let target = target.clone();
            move |number| (target.device(number), false)
        }),
        resend_uncertain: false,
        keep_outcomes: false,
    }
}

/// Returns the limit that bound for most of the time, over all connections.
fn binding(metrics: &SenderMetrics) -> String {
    let mut seconds: HashMap<String, f64> = HashMap::new();
    for connection in &metrics.connections {
        for (binding, bound_s) in &connection.bound_s {
            *seconds.entry(format!("{binding:?}").to_lowercase()).or_default() += bound_s;
        }
    }
    let longest = seconds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    longest.map_or_else(|| "nothing".to_owned(), |(binding, _)| binding)
}

/// Returns the server named on the command line.
fn other(bench: &Bench) -> Result<Target, CliError> {
    let (Some(address), Some(roots)) = (&bench.server, &bench.roots) else {
        return Err("name the server with --server and its certificate with --roots".into());
    };
    Ok(Target {
        host: bench.host.clone(),
        address: address.clone(),
        roots_pem: roots.clone(),
        devices: bench.devices.unwrap_or(NonZeroU64::MAX),
    })
}

/// Sends one push that must be answered: a server that rejects it must not be reported with a rate of zero.
pub(super) fn greet(bench: &Bench) -> Result<(), CliError> {
    let load = load(&other(bench)?, 128, GREETING);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let mut first = push(&load, 0, &payload(load.payload_bytes))?;
        first.timeout = GREETING;
        Ok::<_, CliError>(sender(&load)?.send(&first).await)
    })?;
    match outcome {
        Outcome::Accepted(_) | Outcome::Rejected(_) => Ok(()),
        Outcome::NotSent(why) => Err(format!("{}: {why}", bench.name).into()),
        Outcome::Uncertain(why) => Err(format!("{}: {why}", bench.name).into()),
    }
}

/// Returns a row with the rate from `from` on.
fn row(what: String, measured: &Measured, rtt: Duration, from: Duration) -> Row {
    let metrics = &measured.metrics;
    Row {
        what,
        who: "dunlin".to_owned(),
        rate: measured.rate(from, rtt),
        answer_p50_s: measured.answer_p50_s,
        answer_p99_s: measured.answer_p99_s,
        answer_min_s: metrics.connections.iter().filter_map(|link| link.rtt_min_s).reduce(f64::min),
        rtt_s: rtt.as_secs_f64(),
        binding: binding(metrics),
        connections: metrics.connections.len(),
        cpu_s_per_10k: Some(measured.cpu_s_per_10k()),
        holds: true,
        ..Row::default()
    }
}

fn bad(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, CliError> {
    let rtt = Duration::from_millis(250);
    let behaviour = Behaviour {
        rtt_ms: 250,
        connection_window: WINDOW_LARGE,
        slow_down: SlowDown { streams: 100, answers: 500 },
        ..Behaviour::default()
    };
    let world = World::new(behaviour, 0)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut clean = 0.0;
    for (percent, apart) in [(0, true), (1, true), (1, false), (5, true), (5, false)] {
        // Half of the devices that were not seen working before are bad.
        let device = move |number: u64| {
            let place = number % 200;
            let is_bad = place < 2 * percent && place.is_multiple_of(2);
            let is_new = place < 4 * percent;
            let prefix = if is_bad { "bad0" } else { "aaaa" };
            (format!("{prefix}{number:060x}"), apart && is_new)
        };
        let measured =
            run(Load { device: Arc::new(device), ..load(&world.target, 437, bench.duration()) })?;
        let kind = if apart { "new ones apart" } else { "not kept apart" };
        let mut row =
            row(format!("{percent} % bad, {kind}"), &measured, rtt, Duration::from_secs(2));
        if percent == 0 {
            clean = row.rate;
        } else {
            row.allowed = Some(clean);
            row.holds = !apart || row.rate >= 0.8 * clean;
        }
        show(&row)?;
        rows.push(row);
    }
    Ok(rows)
}
