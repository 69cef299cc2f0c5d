//! The sections about idle connections, and about one message to many subscribers.

use super::grid::{Grid, cell};
use super::page::Page;
use super::plot::{Plot, Shape};
use super::promise::Promise;
use super::results::Results;
use crate::fanout::Summary;
use dunlin_load::figures::{group, percent};

pub(super) const IDLE: &str = "Idle connections";
pub(super) const ONE: &str = "One publish at a time";
pub(super) const BURST: &str = "Bursts";

const IDLE_BYTES_MAX: f64 = 300.0;
const ONE_TO_FLOOR_MIN: f64 = 0.95;
const ONE_CPU_TO_FLOOR_MAX: f64 = 1.05;
const BURST_TO_FLOOR_MIN: f64 = 0.75;
const BURST_TO_REDIS_MIN: f64 = 2.0;

/// Ours in a result, under either of its names.
fn ours(contenders: &[Summary]) -> Option<&Summary> {
    contenders.iter().find(|one| is_ours(one))
}

fn is_ours(one: &Summary) -> bool {
    one.name.starts_with("dunlin")
}

/// Beside the floor or a peer: where it is many times as much, so many times.
fn ratio(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.1} ×") } else { percent(ratio) }
}

pub(super) fn idle_promises(results: &Results) -> Vec<Promise> {
    let idle = results.idle.as_ref();
    let bytes = idle.and_then(|idle| idle.user_bytes_per_connection);
    let promise = bytes.map(|bytes| {
        Promise::new(
            "user memory of an idle WebSocket with session and one subscription",
            format!("≤ {IDLE_BYTES_MAX} B"),
            format!("{bytes} B"),
            bytes as f64 <= IDLE_BYTES_MAX,
        )
    });
    promise.into_iter().collect()
}

pub(super) fn one_promises(results: &Results) -> Vec<Promise> {
    let mut rows = Vec::new();
    for (of, how) in [
        (&results.one, "one publish at a time to 10,000 subscribers"),
        (&results.apart, "the same, each message in a write of its own for each subscriber"),
    ] {
        let Some(ours) = of.as_ref().and_then(|of| ours(&of.contenders)) else { continue };
        if let Some(rate) = ours.rate_to_floor {
            let asked = format!("≥ {} of the floor", percent(ONE_TO_FLOOR_MIN));
            let what = format!("{how}: messages a second");
            rows.push(Promise::new(what, asked, ratio(rate), rate >= ONE_TO_FLOOR_MIN));
        }
        if let Some(cpu) = ours.cpu_to_floor {
            let asked = format!("≤ {} of the floor", percent(ONE_CPU_TO_FLOOR_MAX));
            let what = format!("{how}: server CPU a message");
            rows.push(Promise::new(what, asked, ratio(cpu), cpu <= ONE_CPU_TO_FLOOR_MAX));
        }
    }
    rows
}

pub(super) fn burst_promises(results: &Results) -> Vec<Promise> {
    let mut rows = Vec::new();
    let Some(burst) = &results.burst else { return rows };
    let Some(ours) = ours(&burst.contenders) else { return rows };
    if let Some(rate) = ours.rate_to_floor {
        rows.push(Promise::new(
            "100 publishes in one batch to 10,000 subscribers: messages a second",
            format!("≥ {} of the floor", percent(BURST_TO_FLOOR_MIN)),
            ratio(rate),
            rate >= BURST_TO_FLOOR_MIN,
        ));
    }
    if let Some(redis) = burst.contenders.iter().find(|one| one.name == "redis") {
        let times = ours.messages_per_s / redis.messages_per_s;
        rows.push(Promise::new(
            "the same beside Redis",
            format!("≥ {BURST_TO_REDIS_MIN} ×"),
            format!("{times:.1} ×"),
            times >= BURST_TO_REDIS_MIN,
        ));
    }
    rows
}

/// Peers, wherever they were measured.
fn peers(results: &Results) -> impl Iterator<Item = &Summary> {
    let all = [&results.one, &results.burst, &results.burst_slow];
    all.into_iter()
        .flatten()
        .flat_map(|findings| &findings.contenders)
        .filter(|one| one.name != "floor" && !is_ours(one))
}

fn name(one: &Summary) -> String {
    match &one.version {
        Some(version) => format!("{} {version}", one.name),
        None => one.name.clone(),
    }
}

pub(super) fn idle(page: &mut Page<'_>, results: &Results) {
    page.head(IDLE);
    let Some(idle) = &results.idle else { return page.missing("idle") };
    page.paragraph(format!(
        "{} WebSocket connections, each with a session and one subscription, on one worker. User memory is the growth of Pss \
         (memory of the server's processes, shared pages counted by their share) from before the first connection to a second \
         and a half after the last; kernel memory is the growth of the slab, and belongs to *both* ends. The peers' figures \
         are those of their subscribers in the next two sections, in fewer connections: what a process has allocated once is \
         divided by fewer.",
        group(idle.connected as f64)
    ));
    let mut grid =
        Grid::new(["server", ">connections", ">user bytes each", ">kernel bytes a pair"]);
    let bytes = |bytes: Option<i64>| cell(bytes, |bytes| group(bytes as f64));
    grid.row([
        "**dunlin**".to_owned(),
        group(idle.connected as f64),
        format!("**{}**", bytes(idle.user_bytes_per_connection)),
        group(idle.kernel_bytes_per_pair as f64),
    ]);
    for other in peers(results) {
        grid.row([
            name(other),
            group(other.subscribers as f64),
            bytes(other.user_bytes_per_connection),
            group(other.kernel_bytes_per_pair as f64),
        ]);
    }
    page.grid(&grid);
    page.paragraph(format!(
        "Connecting took the server {} µs of CPU each; the generator holds a connection in {} B.",
        cell(idle.connect_cpu_us, |us| format!("{us:.1}")),
        idle.generator_bytes_per_connection
    ));
    page.plot("idle.svg", "User memory of an idle connection");
    page.source("idle", [&idle.host]);
}

fn contenders<'s>(page: &mut Page<'_>, contenders: impl IntoIterator<Item = &'s Summary>) {
    let mut grid = Grid::new([
        "server",
        ">messages/s",
        ">of the floor",
        ">CPU µs a message",
        ">of the floor",
        ">bytes a message",
        "exactly once, in order",
    ]);
    for one in contenders {
        let faults = one.faults;
        let verdict = if faults.is_none() && one.complete == one.subscribers as u64 {
            "all".to_owned()
        } else {
            format!(
                "{} of {} subscribers; lost {}, repeated {}, reordered {}",
                one.complete, one.subscribers, faults.lost, faults.duplicated, faults.reordered
            )
        };
        grid.row([
            name(one),
            group(one.messages_per_s),
            cell(one.rate_to_floor, ratio),
            cell(one.cpu_us_per_message, |us| format!("{us:.3}")),
            cell(one.cpu_to_floor, ratio),
            format!("{:.1}", one.message_bytes),
            verdict,
        ]);
    }
    page.grid(&grid);
}

pub(super) fn one(page: &mut Page<'_>, results: &Results) {
    page.head(ONE);
    let Some(one) = &results.one else { return page.missing("fanout") };
    page.paragraph(format!(
        "One channel, {} subscribers, the next publish when the last was answered; {} publishes a round, {} rounds. The floor is \
         `dunlin bench floor`, a loop that does nothing but `send()` one prebuilt frame to every connection. In `dunlin` what is \
         published while a broadcast is under way joins what waits for each client, so that several messages leave with one \
         write: that is how a server can be above the floor. In `dunlin, apart` (`limits.broadcast_quantum = 0`) each message \
         is a `send()` of its own for each client, as in the floor: that is what compares the code.",
        group(one.subscribers as f64),
        one.publishes_per_round,
        one.rounds
    ));
    let apart = results.apart.iter().flat_map(|apart| &apart.contenders).filter(|one| is_ours(one));
    contenders(page, one.contenders.iter().chain(apart));
    page.plot("fanout.svg", "Messages a second, one publish at a time");
    let apart = results.apart.as_ref().map(|apart| &apart.host);
    page.source("fanout", std::iter::once(&one.host).chain(apart));
}

pub(super) fn burst(page: &mut Page<'_>, results: &Results) {
    page.head(BURST);
    let Some(burst) = &results.burst else { return page.missing("burst") };
    let batch = burst.batch.unwrap_or(1);
    page.paragraph(format!(
        "{batch} publishes at once to {} subscribers: a batch request where the server has one, otherwise as many requests in one \
         write. The floor joins the {batch} frames beforehand and hands each connection all of them in one `send()`; a server \
         that joins several batches, as `dunlin` does, can be above it.",
        group(burst.subscribers as f64),
    ));
    contenders(page, burst_contenders(results));
    page.plot("burst.svg", "Messages a second in a burst");
    let slow = results.burst_slow.as_ref().map(|slow| &slow.host);
    page.source("burst", std::iter::once(&burst.host).chain(slow));
}

fn burst_contenders(results: &Results) -> impl Iterator<Item = &Summary> {
    let slow = results.burst_slow.iter().flat_map(|slow| &slow.contenders);
    let fast = results.burst.iter().flat_map(|burst| &burst.contenders);
    fast.chain(slow.filter(|one| one.name != "floor"))
}

pub(super) fn plots(results: &Results) -> Vec<Plot> {
    let mut plots = Vec::new();
    let mut bars = |file: &str, title: &str, bars: Vec<(String, f64)>| {
        plots.push(Plot { file: file.into(), title: title.into(), shape: Shape::Bars(bars) });
    };
    let rate = |one: &Summary| (one.name.clone(), one.messages_per_s);
    if let Some(idle) = &results.idle {
        let own = idle.user_bytes_per_connection.map(|bytes| ("dunlin".to_owned(), bytes as f64));
        let others = peers(results)
            .filter_map(|one| Some((one.name.clone(), one.user_bytes_per_connection? as f64)));
        let title = "user bytes an idle connection, less is better";
        bars("idle.svg", title, own.into_iter().chain(others).collect());
    }
    if let Some(one) = &results.one {
        let apart = results.apart.iter().flat_map(|apart| &apart.contenders);
        let all = one.contenders.iter().chain(apart.filter(|one| is_ours(one)));
        bars("fanout.svg", "messages a second, one publish at a time", all.map(rate).collect());
    }
    if results.burst.is_some() {
        let all = burst_contenders(results).map(rate).collect();
        bars("burst.svg", "messages a second, 100 publishes at once", all);
    }
    plots
}
