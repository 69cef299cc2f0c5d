//! The tables, each a question.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_push::{Connections, Outcome, SenderMetrics, results};
use dunlin_simulate::apns::{
    Behaviour, Config, FlipStreams, GoAway, Simulator, SlowDown, Unavailable, WindowReturn,
};

use super::load::{self, Load, Measured, Target};
use super::{Bench, Row, Table, proxy};
use crate::Refusal;

type Show<'a> = &'a dyn Fn(&Row) -> Result<(), Refusal>;

const WINDOW: f64 = 65_535.0;
/// A window large enough that it never binds here.
const WINDOW_LARGE: u32 = 16 << 20;
const STREAMS: f64 = 1_000.0;
const QUEUE_BYTES: usize = 8 << 20;

pub(super) fn measure(bench: &Bench, table: Table, show: Show<'_>) -> Result<Vec<Row>, Refusal> {
    match table {
        Table::Windows if bench.server.is_some() => other_windows(bench, show),
        Table::Windows => windows(bench, show),
        Table::Connections => connections(show),
        Table::Bad => bad(bench, show),
        Table::Reference => reference(bench, show),
        Table::Cpu => cpu(bench, show),
        Table::Queue => queue(bench, show),
        Table::Storm => storm(bench, show),
    }
}

/// The simulator, and where it is.
struct World {
    simulator: Simulator,
    target: Target,
    roots: tempfile::NamedTempFile,
}

impl World {
    fn new(behaviour: Behaviour, ledger_max: usize) -> Result<World, Refusal> {
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
        pushes_max: u64::MAX,
        queue_bytes_max: QUEUE_BYTES,
        device: Arc::new(|number| (format!("{:064x}", (1u128 << 100) + u128::from(number)), false)),
        resend_uncertain: false,
        keep_outcomes: false,
    }
}

/// The limit that bound for most of the time, over all connections.
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

fn row(what: String, measured: &Measured, rtt: Duration, from: f64) -> Row {
    Row {
        what,
        rate: measured.rate(from, rtt),
        allowed: None,
        answer_p50_s: measured.metrics.answer_p50_s,
        answer_p99_s: measured.metrics.answer_p99_s,
        rtt_s: rtt.as_secs_f64(),
        binding: binding(&measured.metrics),
        connections: measured.metrics.connections.len(),
        cpu_s_per_10k: measured.cpu_s_per_10k(),
        note: None,
        holds: true,
    }
}

fn windows(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, Refusal> {
    let kinds = [
        ("64 KiB, at once", WINDOW as u32, WindowReturn::Eager),
        ("64 KiB, by halves", WINDOW as u32, WindowReturn::Half),
        ("16 MiB", WINDOW_LARGE, WindowReturn::Eager),
    ];
    let mut rows = Vec::new();
    for (name, connection_window, window_return) in kinds {
        for rtt_ms in [50, 250] {
            let behaviour =
                Behaviour { rtt_ms, connection_window, window_return, ..Behaviour::default() };
            let world = World::new(behaviour, 0)?;
            for payload in [128, 437, 1_024, 4_096] {
                let rtt = Duration::from_millis(rtt_ms);
                let measured = load::run(load(&world.target, payload, bench.duration()))?;
                let mut row = row(format!("{name}, {rtt_ms} ms, {payload} B"), &measured, rtt, 2.0);
                let per_rtt = match window_return {
                    WindowReturn::Half => WINDOW / 2.0,
                    _ => f64::from(connection_window),
                };
                let streams = STREAMS / rtt.as_secs_f64();
                let allowed = (per_rtt / (payload as f64 * rtt.as_secs_f64())).min(streams);
                row.allowed = Some(allowed);
                row.holds = row.rate >= 0.95 * allowed
                    && row.answer_p50_s.is_some_and(|p50| p50 <= 1.2 * row.rtt_s);
                show(&row)?;
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

fn other(bench: &Bench) -> Result<Target, Refusal> {
    let (Some(address), Some(roots)) = (&bench.server, &bench.roots) else {
        return Err("name the server with --server and its certificate with --roots".into());
    };
    Ok(Target { host: bench.host.clone(), address: address.clone(), roots_pem: roots.clone() })
}

/// What another server allows is its own affair: the rate is shown with the limit that the sender says binds.
fn other_windows(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, Refusal> {
    let target = other(bench)?;
    let mut rows = Vec::new();
    for rtt_ms in [50, 250] {
        let rtt = Duration::from_millis(rtt_ms);
        let line = proxy::start(target.address.clone(), rtt)?;
        let target = Target { address: line.to_string(), ..target.clone() };
        for payload in [128, 437, 1_024, 4_096] {
            let measured = load::run(load(&target, payload, bench.duration()))?;
            let mut row = row(format!("{rtt_ms} ms, {payload} B"), &measured, rtt, 2.0);
            row.holds = row.answer_p50_s.is_some_and(|p50| p50 <= 1.2 * row.rtt_s);
            show(&row)?;
            rows.push(row);
        }
    }
    Ok(rows)
}

fn connections(show: Show<'_>) -> Result<Vec<Row>, Refusal> {
    let rtt = Duration::from_millis(250);
    let kinds = [
        ("64 KiB, at once", WINDOW as u32, WindowReturn::Eager, WINDOW),
        ("64 KiB, by halves", WINDOW as u32, WindowReturn::Half, WINDOW / 2.0),
        ("16 MiB", WINDOW_LARGE, WindowReturn::Eager, f64::from(WINDOW_LARGE)),
    ];
    let mut rows = Vec::new();
    for (name, connection_window, window_return, per_rtt) in kinds {
        let behaviour =
            Behaviour { rtt_ms: 250, connection_window, window_return, ..Behaviour::default() };
        let world = World::new(behaviour, 0)?;
        let asked = 10_000.0;
        let one = (per_rtt / (437.0 * 0.25)).min(STREAMS / 0.25);
        let needed = (asked / one).ceil() as usize;
        let seconds = 40;
        let measured = load::run(Load {
            connections: Connections::Auto { max: 64 },
            rate: Some(asked),
            queue_bytes_max: 512 << 20,
            ..load(&world.target, 437, Duration::from_secs(seconds))
        })?;
        let mut row =
            row(format!("auto, {name}, 10,000/s asked"), &measured, rtt, seconds as f64 - 5.0);
        row.allowed = Some(asked);
        row.holds = row.rate >= 0.95 * asked && row.connections <= needed + 2;
        let reached = (0..measured.tenths.len().saturating_sub(10))
            .find(|&at| measured.tenths[at..at + 10].iter().sum::<u64>() as f64 >= 0.95 * asked);
        row.note = Some(format!(
            "needs {needed}{}",
            reached
                .map_or(String::new(), |at| format!(", reached after {:.1} s", at as f64 / 10.0))
        ));
        show(&row)?;
        rows.push(row);
    }
    let world = World::new(Behaviour { rtt_ms: 250, ..Behaviour::default() }, 0)?;
    for count in [1, 2, 4, 8, 16, 32] {
        let measured = load::run(Load {
            connections: Connections::Fixed(count),
            ..load(&world.target, 437, Duration::from_secs(10))
        })?;
        let mut row = row(format!("{count} connections, 64 KiB, at once"), &measured, rtt, 5.0);
        let allowed = count as f64 * WINDOW / (437.0 * 0.25);
        row.allowed = Some(allowed);
        row.holds = row.rate >= 0.9 * allowed;
        show(&row)?;
        rows.push(row);
    }
    Ok(rows)
}

fn bad(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, Refusal> {
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
        // Of those that nobody has seen working, half are bad.
        let device = move |number: u64| {
            let place = number % 200;
            let is_bad = place < 2 * percent && place.is_multiple_of(2);
            let is_new = place < 4 * percent;
            let prefix = if is_bad { "bad0" } else { "aaaa" };
            (format!("{prefix}{number:060x}"), apart && is_new)
        };
        let measured = load::run(Load {
            device: Arc::new(device),
            ..load(&world.target, 437, bench.duration())
        })?;
        let kind = if apart { "new ones apart" } else { "not told apart" };
        let mut row = row(format!("{percent} % bad, {kind}"), &measured, rtt, 2.0);
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

fn reference(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, Refusal> {
    let rtt = Duration::from_millis(250);
    let mut rows = Vec::new();
    for (name, window_return) in [("at once", WindowReturn::Eager), ("never", WindowReturn::Never)]
    {
        let behaviour = Behaviour { rtt_ms: 250, window_return, ..Behaviour::default() };
        let world = World::new(behaviour, 0)?;
        let short = Duration::from_secs(bench.seconds);
        for (kind, in_flight_max) in
            [("serial", Some(1)), ("150 in flight", Some(150)), ("adaptive", None)]
        {
            let connections = match in_flight_max {
                Some(_) => Connections::Fixed(1),
                None => Connections::Auto { max: 16 },
            };
            let measured =
                load::run(Load { in_flight_max, connections, ..load(&world.target, 437, short) })?;
            let mut row = row(format!("{kind}, window returned {name}"), &measured, rtt, 0.0);
            row.rate = measured.ended as f64 / measured.seconds;
            show(&row)?;
            rows.push(row);
        }
        let row = batches(&world, short, name)?;
        show(&row)?;
        rows.push(row);
    }
    Ok(rows)
}

/// Batches of 150, each on a connection of its own.
fn batches(world: &World, duration: Duration, name: &str) -> Result<Row, Refusal> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let load = load(&world.target, 437, duration);
    let text = load::payload(load.payload_bytes);
    let begin = Instant::now();
    let (ended, connections) = runtime.block_on(async {
        let (mut ended, mut connections) = (0u64, 0);
        while begin.elapsed() < duration {
            let apns = load::sender(&load)?;
            connections += 1;
            let (sender, mut ends) = results();
            for number in 0..150 {
                apns.submit(&load::push(&load, number, &text)?, number, &sender)
                    .await
                    .map_err(|why| why.to_string())?;
            }
            for _ in 0..150 {
                ends.recv().await;
                ended += 1;
            }
            apns.close();
        }
        Ok::<_, Refusal>((ended, connections))
    })?;
    Ok(Row {
        what: format!("batches of 150 on short connections, {name}"),
        rate: ended as f64 / begin.elapsed().as_secs_f64(),
        rtt_s: 0.25,
        binding: "connecting".to_owned(),
        connections,
        holds: true,
        ..Row::default()
    })
}

fn cpu(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, Refusal> {
    let world;
    let target = if bench.server.is_some() {
        other(bench)?
    } else {
        let behaviour = Behaviour { connection_window: WINDOW_LARGE, ..Behaviour::default() };
        world = World::new(behaviour, 0)?;
        world.target
    };
    let mut rows = Vec::new();
    for payload in [128, 437] {
        let measured = load::run(Load {
            pushes_max: bench.pushes.min(500_000),
            ..load(&target, payload, Duration::from_secs(60))
        })?;
        let mut row = row(format!("next door, {payload} B"), &measured, Duration::ZERO, 0.0);
        row.rate = measured.ended as f64 / measured.seconds;
        let per_core = measured.ended as f64 / measured.cpu_s;
        row.note = Some(format!("{per_core:.0}/s for a core of the sender's own"));
        row.holds = row.cpu_s_per_10k <= 0.10 && measured.ended >= bench.pushes.min(500_000);
        show(&row)?;
        rows.push(row);
    }
    Ok(rows)
}

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4_096
}

fn queue(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, Refusal> {
    let behaviour =
        Behaviour { connection_window: WINDOW_LARGE, rtt_ms: 50, ..Behaviour::default() };
    let world = World::new(behaviour, 0)?;
    let before = resident_bytes();
    let measured = load::run(Load {
        pushes_max: bench.pushes,
        queue_bytes_max: 64 << 20,
        ..load(&world.target, 437, Duration::from_secs(120))
    })?;
    let grown = resident_bytes().saturating_sub(before);
    let mut row = row(
        format!("{} pushes handed over, queue of 64 MiB", bench.pushes),
        &measured,
        Duration::from_millis(50),
        0.0,
    );
    row.rate = measured.ended as f64 / measured.seconds;
    row.note = Some(format!("{} MiB more, simulator included", grown >> 20));
    row.holds = grown < 400 << 20 && measured.accepted == measured.ended;
    show(&row)?;
    Ok(vec![row])
}

fn storm(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, Refusal> {
    let behaviour = Behaviour {
        rtt_ms: 10,
        connection_window: WINDOW_LARGE,
        goaway: GoAway { every: 10_000, unprocessed: 20, close: false },
        reset_every: 5_003,
        reset_code: 2,
        lose_answer_every: 20_011,
        unavailable: Unavailable { every: 25_000, burst: 200 },
        flip_streams: FlipStreams { every: 20_000, low: 1 },
        ..Behaviour::default()
    };
    let mut rows = Vec::new();
    for resend_uncertain in [false, true] {
        let world = World::new(behaviour.clone(), 3 * bench.storm as usize)?;
        let measured = load::run(Load {
            connections: Connections::Auto { max: 8 },
            pushes_max: bench.storm,
            keep_outcomes: true,
            resend_uncertain,
            ..load(&world.target, 128, Duration::from_secs(900))
        })?;
        let mut accepted: HashMap<u64, u32> = HashMap::new();
        for entry in world.simulator.ledger() {
            if entry.status == 200 {
                let number =
                    u128::from_str_radix(&entry.device_token, 16).unwrap_or(0) - (1 << 100);
                *accepted.entry(number as u64).or_default() += 1;
            }
        }
        let (mut wrong, mut uncertain, mut twice) = (0u64, 0u64, 0u64);
        for number in 0..bench.storm {
            let times = accepted.get(&number).copied().unwrap_or(0);
            let right = match measured.outcomes.get(number as usize).and_then(Option::as_ref) {
                Some(Outcome::Accepted(how)) if how.perhaps_twice => {
                    twice += u64::from(times > 1);
                    times >= 1
                }
                Some(Outcome::Accepted(_)) => times == 1,
                Some(Outcome::Uncertain(_)) => {
                    uncertain += 1;
                    times <= 1
                }
                Some(Outcome::Rejected(_) | Outcome::NotSent(_)) => times == 0,
                None => false,
            };
            wrong += u64::from(!right);
        }
        let mut row = row(
            format!("storm, uncertain {}", if resend_uncertain { "sent again" } else { "told" }),
            &measured,
            Duration::from_millis(10),
            0.0,
        );
        row.rate = measured.ended as f64 / measured.seconds;
        row.note = Some(format!(
            "{} of {} ended, {wrong} disagree, {uncertain} uncertain, {twice} twice and marked, {} refused and \
             sent again, {} retried",
            measured.ended, bench.storm, measured.metrics.refused, measured.metrics.retried
        ));
        row.holds = wrong == 0 && measured.ended == bench.storm;
        show(&row)?;
        rows.push(row);
        drop(world.roots);
    }
    Ok(rows)
}
