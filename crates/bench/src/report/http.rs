//! The section on `bench http`: the generator beside others, and what must be true of it.

use super::page::{Page, group, percent};
use super::results::Results;
use crate::contest::{Distance, Generators, Ledgers, Memory, Omission, Stalled, StalledRow};
use crate::http::time;

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
pub(super) const MEMORY_PLOT: &str = "http-memory.svg";
const MIB: f64 = (1 << 20) as f64;

/// The results of `dunlin bench contest`.
#[derive(Debug)]
pub(super) struct Http {
    pub(super) generators: Option<Generators>,
    pub(super) distance: Option<Distance>,
    pub(super) ledgers: Option<Ledgers>,
    pub(super) omission: Option<Omission>,
    pub(super) memory: Option<Memory>,
    pub(super) stalled: Option<Stalled>,
}

/// Rows of the table of promises: what, asked, measured, kept.
pub(super) fn promises(http: &Http) -> Vec<(&'static str, String, String, bool)> {
    let mut rows = Vec::new();
    if let Some(generators) = &http.generators {
        for (depth, min) in TO_BEST_MIN {
            let ours =
                generators.contenders.iter().find(|one| one.name == "dunlin" && one.depth == depth);
            if let Some((ours, ratio)) = ours.and_then(|ours| Some((ours, ours.to_best_other?))) {
                let what = match depth {
                    1 => "bench http, requests/s on a core, one at a time, beside the best other",
                    16 => "the same, 16 in flight",
                    _ => "the same, 100 in flight",
                };
                let limit = if ours.server_idle_share < IDLE_SHARE_MIN {
                    format!(
                        ", the server's core {} idle: nearly a limit too",
                        percent(ours.server_idle_share)
                    )
                } else {
                    String::new()
                };
                let measured =
                    format!("{ratio:.2} ×, {} /s{limit}", group(ours.requests_per_second));
                rows.push((what, format!("≥ {min} ×"), measured, ratio >= min));
            }
        }
    }
    if let Some(distance) = &http.distance
        && let Some(at) = distance.distances.iter().find(|one| one.rtt_ms == PIPELINED_AT_MS)
    {
        let ratio = at.pipelined_to_one_at_a_time;
        rows.push((
            "pipelined beside one at a time on each connection, 50 ms away",
            format!("≥ {PIPELINED_MIN} ×"),
            format!("{ratio:.0} ×"),
            ratio >= PIPELINED_MIN,
        ));
    }
    if let Some(ledgers) = &http.ledgers {
        let holds = ledgers.trials.iter().all(|trial| trial.holds);
        let agreed: Vec<_> =
            ledgers.trials.iter().map(|trial| group(trial.agreement.agreed as f64)).collect();
        rows.push((
            "requests with an id to servers that close and reset: both ledgers agree",
            format!("{} each", group(LEDGER_REQUESTS as f64)),
            agreed.join(" and "),
            holds && ledgers.trials.len() == 2 && ledgers.requests >= LEDGER_REQUESTS,
        ));
    }
    if let Some(memory) = &http.memory {
        rows.push((
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
        rows.push((
            "first bytes that wait behind a stalled answer, beside a calculation",
            "≤ 2 % of all apart".into(),
            percent(apart),
            stalled.agrees,
        ));
    }
    if let Some(omission) = &http.omission {
        rows.push((
            "latencies when the server stands still for 1 s, beside a calculation",
            "≤ 3 % of the stall apart".into(),
            percent(omission.difference),
            omission.agrees,
        ));
    }
    rows
}

impl Page<'_> {
    pub(super) fn http(&mut self, results: &Results) {
        self.head("HTTP load generators");
        let http = &results.http;
        match &http.generators {
            Some(generators) => self.generators(generators),
            None => self.missing("http"),
        }
        if let Some(distance) = &http.distance {
            self.distance(distance);
        }
        if let Some(ledgers) = &http.ledgers {
            self.ledgers(ledgers);
        }
        if let Some(omission) = &http.omission {
            self.omission(omission);
        }
        if let Some(stalled) = &http.stalled {
            self.stalled(stalled);
        }
        if let Some(memory) = &http.memory {
            self.memory(memory);
        }
    }

    fn generators(&mut self, of: &Generators) {
        self.line(format!(
            "Each generator on core 1, by turns, {} connections, {:.0} s a turn, median of {} rounds; the server, `{}`, on \
             core 0. Every answer is parsed and matched to its request by `dunlin bench http`. A server that is idle for a \
             part of the time is not the limit.",
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
            self.line("");
            self.line(format!(
                "**The server was nearly as busy as the generator** with {}: both cores were full, so these figures are what \
                 the two can do together, and the generator alone may do more.",
                near.join(", ")
            ));
        }
        self.line("");
        self.line("| in flight | generator | requests/s | beside the best other | server idle | generator busy |");
        self.line("|---:|---|---:|---:|---:|---:|");
        for one in &of.contenders {
            let bold = if one.name == "dunlin" { "**" } else { "" };
            self.line(format!(
                "| {} | {bold}{}{bold} | {bold}{}{bold} | {} | {:.0} % | {:.0} % |",
                one.depth,
                one.name,
                group(one.requests_per_second),
                one.to_best_other.map_or("–".into(), |ratio| format!("{ratio:.2} ×")),
                one.server_idle_share * 100.0,
                one.generator_busy_share * 100.0
            ));
        }
        self.line("");
        if !of.missing.is_empty() {
            self.line(format!("Not installed here: {}.", of.missing.join(", ")));
            self.line("");
        }
        self.line("oha does not pipeline HTTP/1.1, so it stands at depth 1 alone.");
        self.line("");
        for (depth, _) in TO_BEST_MIN {
            self.plot(&plot_name(depth), &format!("Requests a second, {depth} in flight"));
        }
        self.source(&[&of.host]);
    }

    fn distance(&mut self, of: &Distance) {
        self.line("### A server far away");
        self.line("");
        self.line(format!(
            "{} requests through a proxy that holds every byte back for half a round trip; {} connections, {} in flight \
             on each where it is pipelined. Ten seconds are enough to know the rate of the slow modes.",
            group(of.requests as f64),
            of.connections,
            of.in_flight
        ));
        self.line("");
        self.line("| round trip | | answers | seconds | requests/s |");
        self.line("|---:|---|---:|---:|---:|");
        for distance in &of.distances {
            for mode in &distance.modes {
                self.line(format!(
                    "| {} ms | {} | {} | {:.2} | {} |",
                    distance.rtt_ms,
                    mode.name,
                    group(mode.answered as f64),
                    mode.seconds,
                    group(mode.requests_per_second)
                ));
            }
            self.line(format!(
                "| {} ms | **pipelined beside one at a time on each** | | | **{:.0} ×** |",
                distance.rtt_ms, distance.pipelined_to_one_at_a_time
            ));
        }
        self.line("");
        self.source(&[&of.host]);
    }

    fn ledgers(&mut self, of: &Ledgers) {
        self.line("### Every request exactly once");
        self.line("");
        self.line(format!(
            "{} GET requests, each with an id, {} connections, {} in flight. The server names each of its answers; the \
             client's ledger has a line for each request with the name of the answer it got. An answer *agrees* when the \
             server's log has that name with that id. A request whose connection was reset is sent again, so the server \
             may do it twice; it is answered once.",
            group(of.requests as f64),
            of.connections,
            of.depth
        ));
        self.line("");
        self.line("| server | answered | agree | disagree | sent again | done twice | connections | requests/s | |");
        self.line("|---|---:|---:|---:|---:|---:|---:|---:|---|");
        for trial in &of.trials {
            let agreement = &trial.agreement;
            self.line(format!(
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                trial.server,
                group(agreement.answered as f64),
                group(agreement.agreed as f64),
                group(agreement.disagreed as f64),
                group(agreement.sent_again as f64),
                group(agreement.done_twice as f64),
                group(trial.connections_opened as f64),
                group(trial.requests_per_second),
                if trial.holds { "holds" } else { "**broken**" }
            ));
        }
        self.line("");
        self.source(&[&of.host]);
    }

    fn omission(&mut self, of: &Omission) {
        self.line("### A server that stands still");
        self.line("");
        self.line(format!(
            "{} requests a second by a timetable, for {:.0} s; in the middle the server does nothing for {:.2} s. Every \
             request of that time waits for the rest of it: that gives the computed column. The last column is a client that \
             waits for each answer before it asks again, and sees nearly nothing.",
            group(of.rate),
            of.seconds,
            of.stall_seconds
        ));
        self.line("");
        self.line("| | computed | measured | closed loop |");
        self.line("|---|---:|---:|---:|");
        let closed = of.closed_us;
        let closed = [closed.p50, closed.p90, closed.p99, closed.p999, closed.max];
        for (row, closed) in of.rows.iter().zip(closed) {
            self.line(format!(
                "| {} | {} | {} | {} |",
                row.name,
                time(row.computed_us),
                time(row.measured_us),
                time(closed)
            ));
        }
        self.line("");
        self.source(&[&of.host]);
    }

    fn stalled(&mut self, of: &Stalled) {
        self.line("### Behind a slow answer");
        self.line("");
        self.line(format!(
            "One connection; one request in {} takes the server {} ms, before the head of its answer or between head and body, \
             and those behind it wait for it. The time to the first byte has that wait in it, the time as the oldest of the \
             connection has not. How many first bytes wait follows from the depth: with N in flight it is N of {}, and one less \
             when only the body is late.",
            of.one_in, of.slow_ms, of.one_in
        ));
        self.line("");
        self.line(
            "| late | in flight | requests/s | first byte, p50 | p99 | as the oldest, p50 | p99 | waiting | computed |",
        );
        self.line("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
        for row in &of.rows {
            self.line(format!(
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                row.stalled,
                row.depth,
                group(row.requests_per_second),
                time(row.first_byte_us.p50),
                time(row.first_byte_us.p99),
                time(row.service_us.p50),
                time(row.service_us.p99),
                percent(row.waiting_measured),
                percent(row.waiting_computed)
            ));
        }
        self.line("");
        self.source(&[&of.host]);
    }

    fn memory(&mut self, of: &Memory) {
        let mib = |bytes: u64| bytes as f64 / MIB;
        self.line("### The generator's memory");
        self.line("");
        self.line(format!(
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
        self.line("");
        if of.curve.len() > 1 {
            let points: Vec<_> = (0..=CURVE_COLUMNS)
                .map(|column| of.curve[column * (of.curve.len() - 1) / CURVE_COLUMNS])
                .collect();
            let row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
            let titles = points.iter().map(|(at_s, _)| format!("{at_s:.0} s"));
            self.line(row(std::iter::once("after".to_owned()).chain(titles).collect()));
            self.line(format!("|---|{}", "---:|".repeat(points.len())));
            let cells = points.iter().map(|(_, bytes)| format!("{:.2}", mib(*bytes)));
            self.line(row(std::iter::once("MiB".to_owned()).chain(cells).collect()));
            self.line("");
            self.plot(MEMORY_PLOT, "Resident memory of the generator");
        }
        self.source(&[&of.host]);
    }
}

/// The curve of the generator's memory, in MiB.
pub(super) fn mib(of: &Memory) -> Vec<(f64, f64)> {
    of.curve.iter().map(|(at_s, bytes)| (*at_s, *bytes as f64 / MIB)).collect()
}

fn plot_name(depth: u32) -> String {
    format!("http-{depth}.svg")
}

/// A plot of the section: the name of its file, its title, and its bars.
pub(super) struct Bars {
    pub(super) file: String,
    pub(super) title: String,
    pub(super) bars: Vec<(String, f64)>,
}

pub(super) fn bars(http: &Http) -> Vec<Bars> {
    let Some(generators) = &http.generators else { return Vec::new() };
    TO_BEST_MIN
        .iter()
        .map(|(depth, _)| {
            let here = generators.contenders.iter().filter(|one| one.depth == *depth);
            let bars = here.map(|one| (one.name.clone(), one.requests_per_second)).collect();
            let title = format!("requests a second on one core, {depth} in flight (logarithmic)");
            Bars { file: plot_name(*depth), title, bars }
        })
        .collect()
}
