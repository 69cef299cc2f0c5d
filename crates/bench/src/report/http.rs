//! The section on `bench http`: the generator beside others, and what must be true of it.

use super::grid::{Grid, cell};
use super::page::Page;
use super::plot::{Axis, Curve, Curves, Plot, Shape};
use super::promise::Promise;
use super::results::Results;
use dunlin_load::comparison::{
    Distance, Generators, Ledgers, Memory, Omission, Stalled, StalledRow,
};
use dunlin_load::figures::{group, percent};
use dunlin_load::http::time;
use dunlin_load::output::Measured;

pub(super) const TITLE: &str = "HTTP load generators";

/// What each depth asks for, beside the best of the others.
const TO_BEST_MIN: [(u32, f64); 3] = [(1, 1.0), (16, 1.5), (100, 1.5)];
const PIPELINED_MIN: f64 = 30.0;
const PIPELINED_AT_MS: u64 = 50;
const LEDGER_REQUESTS: u64 = 1_000_000;
const MEMORY_SECONDS: f64 = 600.0;
/// A server with less idle time than this is nearly a second limit: what is measured is what both can do together.
const IDLE_SHARE_MIN: f64 = 0.10;

/// Points of the memory's curve in its table, less one; the plot has all.
const CURVE_COLUMNS: usize = 10;
const MEMORY_PLOT: &str = "http-memory.svg";
const MIB: f64 = (1 << 20) as f64;

pub(super) fn promises(results: &Results) -> Vec<Promise> {
    let http = &results.http;
    let mut rows = Vec::new();
    for (depth, min) in TO_BEST_MIN {
        let Some(generators) = &http.generators else { continue };
        let ours =
            generators.contenders.iter().find(|one| one.name == "dunlin" && one.depth == depth);
        if let Some((ours, ratio)) = ours.and_then(|ours| Some((ours, ours.to_best_other?))) {
            let limit = if ours.server_idle_share < IDLE_SHARE_MIN {
                let idle = percent(ours.server_idle_share);
                format!(", the server's core {idle} idle: nearly a limit too")
            } else {
                String::new()
            };
            rows.push(Promise::new(
                format!(
                    "`dunlin bench http`, requests a second on a core, {depth} in flight, beside the best other generator"
                ),
                format!("≥ {min} ×"),
                format!("{ratio:.2} ×, {}/s{limit}", group(ours.requests_per_second)),
                ratio >= min,
            ));
        }
    }
    let at = http.distance.iter().flat_map(|distance| &distance.distances);
    for at in at.filter(|one| one.rtt_ms == PIPELINED_AT_MS) {
        let ratio = at.pipelined_to_one_at_a_time;
        rows.push(Promise::new(
            format!("pipelined beside one request at a time on each connection, {PIPELINED_AT_MS} ms away"),
            format!("≥ {PIPELINED_MIN} ×"),
            format!("{ratio:.0} ×"),
            ratio >= PIPELINED_MIN,
        ));
    }
    if let Some(ledgers) = &http.ledgers {
        let holds = ledgers.trials.iter().all(|trial| trial.holds);
        let agreed: Vec<_> =
            ledgers.trials.iter().map(|trial| group(trial.agreement.agreed as f64)).collect();
        rows.push(Promise::new(
            "requests with an id to servers that close and reset: both ledgers agree",
            format!("{} each", group(LEDGER_REQUESTS as f64)),
            agreed.join(" and "),
            holds && ledgers.trials.len() == 2 && ledgers.requests >= LEDGER_REQUESTS,
        ));
    }
    if let Some(memory) = &http.memory {
        rows.push(Promise::new(
            "memory of the generator at full rate",
            format!("flat over {:.0} min", MEMORY_SECONDS / 60.0),
            format!(
                "{}: {:.1} to {:.1} MiB in {:.0} s, {:+.2} MiB from the second tenth to the last",
                if memory.flat { "flat" } else { "not flat" },
                memory.least_bytes as f64 / MIB,
                memory.most_bytes as f64 / MIB,
                memory.seconds,
                memory.drift_bytes as f64 / MIB,
            ),
            memory.flat && memory.seconds >= MEMORY_SECONDS * 0.99,
        ));
    }
    if let Some(stalled) = &http.stalled {
        let apart = |row: &StalledRow| (row.waiting_measured - row.waiting_computed).abs();
        let apart = stalled.rows.iter().map(apart).fold(0.0, f64::max);
        rows.push(Promise::new(
            "share of first bytes that wait behind a stalled answer, beside a calculation",
            "≤ 2 % of all apart",
            percent(apart),
            stalled.agrees,
        ));
    }
    if let Some(omission) = &http.omission {
        rows.push(Promise::new(
            "latencies when the server stands still for 1 s, beside a calculation",
            "≤ 3 % of the stall apart",
            percent(omission.difference),
            omission.agrees,
        ));
    }
    rows
}

pub(super) fn section(page: &mut Page<'_>, results: &Results) {
    page.head(TITLE);
    let http = &results.http;
    match &http.generators {
        Some(of) => generators(page, of),
        None => page.missing("http"),
    }
    if let Some(of) = &http.distance {
        distance(page, of);
    }
    if let Some(of) = &http.ledgers {
        ledgers(page, of);
    }
    if let Some(of) = &http.omission {
        omission(page, of);
    }
    if let Some(of) = &http.stalled {
        stalled(page, of);
    }
    if let Some(of) = &http.memory {
        memory(page, of);
    }
}

fn generators(page: &mut Page<'_>, of: &Measured<Generators>) {
    page.paragraph(format!(
        "Each generator on core 1, by turns, {} connections, {:.0} s a turn, median of {} rounds; the server, `{}`, on \
         core 0. Every answer is parsed and matched to its request by `dunlin bench http`. A server that is idle for a \
         part of the time is not the limit. *Best other* is the best generator at the same depth that is neither this one nor \
         `dunlin`.",
        of.connections, of.seconds, of.rounds, of.server
    ));
    let near: Vec<String> = of
        .contenders
        .iter()
        .filter(|one| one.server_idle_share < IDLE_SHARE_MIN)
        .map(|one| {
            format!("{} at {} ({} idle)", one.name, one.depth, percent(one.server_idle_share))
        })
        .collect();
    if !near.is_empty() {
        page.paragraph(format!(
            "**The server was nearly as busy as the generator** with {}: both cores were full, so these figures are what \
             the two can do together, and the generator alone may do more.",
            near.join(", ")
        ));
    }
    let mut grid = Grid::new([
        ">in flight",
        "generator",
        ">requests/s",
        ">beside the best other",
        ">server idle",
        ">generator busy",
    ]);
    for one in &of.contenders {
        let bold = if one.name == "dunlin" { "**" } else { "" };
        let version = one.version.as_ref().map_or(String::new(), |version| format!(" {version}"));
        grid.row([
            one.depth.to_string(),
            format!("{bold}{}{bold}{version}", one.name),
            format!("{bold}{}{bold}", group(one.requests_per_second)),
            cell(one.to_best_other, |ratio| format!("{ratio:.2} ×")),
            format!("{:.0} %", one.server_idle_share * 100.0),
            format!("{:.0} %", one.generator_busy_share * 100.0),
        ]);
    }
    page.grid(&grid);
    if !of.missing.is_empty() {
        page.paragraph(format!("Not installed here: {}.", of.missing.join(", ")));
    }
    page.paragraph("oha does not pipeline HTTP/1.1, so it stands at depth 1 alone.");
    for (depth, _) in TO_BEST_MIN {
        page.plot(&plot_name(depth), &format!("Requests a second, {depth} in flight"));
    }
    page.source("http", [&of.host]);
}

fn distance(page: &mut Page<'_>, of: &Measured<Distance>) {
    page.paragraph("### A server far away");
    page.paragraph(format!(
        "{} requests through a proxy that holds every byte back for half a round trip; {} connections, {} in flight \
         on each where it is pipelined. Ten seconds are enough to know the rate of the slow modes.",
        group(of.requests as f64),
        of.connections,
        of.in_flight
    ));
    let mut grid = Grid::new([">round trip", "", ">answers", ">seconds", ">requests/s"]);
    for distance in &of.distances {
        let rtt = format!("{} ms", distance.rtt_ms);
        for mode in &distance.modes {
            grid.row([
                rtt.clone(),
                mode.name.clone(),
                group(mode.answered as f64),
                format!("{:.2}", mode.seconds),
                group(mode.requests_per_second),
            ]);
        }
        grid.row([
            rtt,
            "**pipelined beside one at a time on each**".to_owned(),
            String::new(),
            String::new(),
            format!("**{:.0} ×**", distance.pipelined_to_one_at_a_time),
        ]);
    }
    page.grid(&grid);
    page.source("http", [&of.host]);
}

fn ledgers(page: &mut Page<'_>, of: &Measured<Ledgers>) {
    page.paragraph("### Every request exactly once");
    page.paragraph(format!(
        "{} GET requests, each with an id, {} connections, {} in flight. The server names each of its answers; the \
         client's ledger has a line for each request with the name of the answer it got. An answer *agrees* when the \
         server's log has that name with that id. A request whose connection was reset is sent again, so the server \
         may do it twice; it is answered once.",
        group(of.requests as f64),
        of.connections,
        of.depth
    ));
    let mut grid = Grid::new([
        "server",
        ">answered",
        ">agree",
        ">disagree",
        ">sent again",
        ">done twice",
        ">connections",
        ">requests/s",
        "",
    ]);
    for trial in &of.trials {
        let agreement = &trial.agreement;
        grid.row([
            trial.server.clone(),
            group(agreement.answered as f64),
            group(agreement.agreed as f64),
            group(agreement.disagreed as f64),
            group(agreement.sent_again as f64),
            group(agreement.done_twice as f64),
            group(trial.connections_opened as f64),
            group(trial.requests_per_second),
            if trial.holds { "holds" } else { "**broken**" }.to_owned(),
        ]);
    }
    page.grid(&grid);
    page.source("http", [&of.host]);
}

fn omission(page: &mut Page<'_>, of: &Measured<Omission>) {
    page.paragraph("### A server that stands still");
    page.paragraph(format!(
        "{} requests a second by a timetable, for {:.0} s; in the middle the server does nothing for {:.2} s. Every \
         request of that time waits for the rest of it: that gives the computed column. The last column is a client that \
         waits for each answer before it asks again, and sees nearly nothing.",
        group(of.rate),
        of.seconds,
        of.stall_seconds
    ));
    let mut grid = Grid::new(["", ">computed", ">measured", ">closed loop"]);
    let closed = of.closed_us;
    let closed = [closed.p50, closed.p90, closed.p99, closed.p999, closed.max];
    for (row, closed) in of.rows.iter().zip(closed) {
        let [computed, measured, closed] = [row.computed_us, row.measured_us, closed].map(time);
        grid.row([row.name.clone(), computed, measured, closed]);
    }
    page.grid(&grid);
    page.source("http", [&of.host]);
}

fn stalled(page: &mut Page<'_>, of: &Measured<Stalled>) {
    page.paragraph("### Behind a slow answer");
    page.paragraph(format!(
        "One connection; one request in {} takes the server {} ms, before the head of its answer or between head and body, \
         and those behind it wait for it. The time to the first byte has that wait in it, the time as the oldest of the \
         connection has not. How many first bytes wait follows from the depth: with N in flight it is N of {}, and one less \
         when only the body is late.",
        of.one_in, of.slow_ms, of.one_in
    ));
    let mut grid = Grid::new([
        "late",
        ">in flight",
        ">requests/s",
        ">first byte, p50",
        ">p99",
        ">as the oldest, p50",
        ">p99",
        ">waiting",
        ">computed",
    ]);
    for row in &of.rows {
        grid.row([
            row.stalled.clone(),
            row.depth.to_string(),
            group(row.requests_per_second),
            time(row.first_byte_us.p50),
            time(row.first_byte_us.p99),
            time(row.service_us.p50),
            time(row.service_us.p99),
            percent(row.waiting_measured),
            percent(row.waiting_computed),
        ]);
    }
    page.grid(&grid);
    page.source("http", [&of.host]);
}

fn memory(page: &mut Page<'_>, of: &Measured<Memory>) {
    let mib = |bytes: u64| bytes as f64 / MIB;
    page.paragraph("### The generator's memory");
    page.paragraph(format!(
        "{} answers in {:.0} s, 100 in flight on each connection. Resident memory, sampled every second: **{}**. {:.2} MiB \
         when the first answers were in, {:.2} MiB at the least, {:.2} MiB at the most, {:.2} MiB at the end; the last \
         tenth of the run holds {:+.2} MiB beside the second. Flat is at most 0.5 MiB more, and 4 MiB between the least \
         and the most.",
        group(of.answered as f64),
        of.seconds,
        if of.flat { "flat" } else { "not flat" },
        mib(of.first_bytes),
        mib(of.least_bytes),
        mib(of.most_bytes),
        mib(of.last_bytes),
        of.drift_bytes as f64 / MIB,
    ));
    if of.curve.len() > 1 {
        let points: Vec<_> = (0..=CURVE_COLUMNS)
            .map(|column| of.curve[column * (of.curve.len() - 1) / CURVE_COLUMNS])
            .collect();
        let titles = points.iter().map(|(at_s, _)| format!(">{at_s:.0} s"));
        let mut grid = Grid::new(std::iter::once("after".to_owned()).chain(titles));
        let cells = points.iter().map(|(_, bytes)| format!("{:.2}", mib(*bytes)));
        grid.row(std::iter::once("MiB".to_owned()).chain(cells));
        page.grid(&grid);
        page.plot(MEMORY_PLOT, "Resident memory of the generator");
    }
    page.source("http", [&of.host]);
}

/// The file of a plot of a depth.
fn plot_name(depth: u32) -> String {
    format!("http-{depth}.svg")
}

pub(super) fn plots(results: &Results) -> Vec<Plot> {
    let mut plots = Vec::new();
    for (depth, _) in TO_BEST_MIN {
        let Some(generators) = &results.http.generators else { continue };
        let here = generators.contenders.iter().filter(|one| one.depth == depth);
        let bars = here.map(|one| (one.name.clone(), one.requests_per_second)).collect();
        let title = format!("requests a second on one core, {depth} in flight");
        plots.push(Plot { file: plot_name(depth), title, shape: Shape::Bars(bars) });
    }
    if let Some(memory) = results.http.memory.as_ref().filter(|memory| memory.curve.len() > 1) {
        let points = memory.curve.iter().map(|(at_s, bytes)| (*at_s, *bytes as f64 / MIB));
        let curve = Curve { name: "dunlin".into(), points: points.collect(), joined: true };
        plots.push(Plot {
            file: MEMORY_PLOT.into(),
            title: "resident memory of the generator".into(),
            shape: Shape::Curves(Curves {
                x: Axis { name: "seconds", logarithmic: false },
                y: Axis { name: "MiB", logarithmic: false },
                curves: vec![curve],
                level: None,
            }),
        });
    }
    plots
}
