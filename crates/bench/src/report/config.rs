//! The section about changes of the configuration.

use super::grid::Grid;
use super::page::Page;
use super::promise::Promise;
use super::results::Results;
use crate::config::{Counted, Findings, Rate};
use dunlin_load::figures::group;

pub(super) const TITLE: &str = "Changes of the configuration";

/// Beyond these a promise is broken.
const ONE_PER_S_MIN: f64 = 25_000.0;
const ONE_P50_US_MAX: f64 = 40.0;
const DURABLE_PER_S_MIN: f64 = 5_000.0;
const MEMBER_P99_US_MAX: f64 = 1_000.0;
const MEMBER_SPREAD_MAX: f64 = 0.2;
const REPLACE_MS_MAX: f64 = 200.0;
const REPLACE_P99_MORE_US_MAX: f64 = 1_000.0;
const STEADY_CORE_MAX: f64 = 0.05;

pub(super) fn promises(results: &Results) -> Vec<Promise> {
    let cost = results.config.iter().flat_map(|of| cost_promises(of));
    cost.chain(results.config_count.iter().map(|of| counted(of))).collect()
}

fn cost_promises(of: &Findings) -> Vec<Promise> {
    let one = |what: &str, rate: &Rate| {
        Promise::new(
            what,
            format!("≥ {}/s, p50 ≤ {ONE_P50_US_MAX:.0} µs", group(ONE_PER_S_MIN)),
            format!("{}/s, p50 {:.1} µs", group(rate.per_s), rate.p50_us),
            rate.per_s >= ONE_PER_S_MIN && rate.p50_us <= ONE_P50_US_MAX,
        )
    };
    let durable = &of.durable;
    let group_rate = durable.disk_syncs_per_s * durable.writers as f64;
    let durable_min = DURABLE_PER_S_MIN.min(group_rate);
    let p50 = |members: usize| {
        of.members.iter().find(|one| one.members == members).map_or(0.0, |one| one.rate.p50_us)
    };
    let p99 = of.members.iter().map(|one| one.rate.p99_us).fold(0.0, f64::max);
    let apart =
        [1_000, 100_000].map(|members| p50(members) / p50(10_000).max(f64::MIN_POSITIVE) - 1.0);
    let replace = &of.replace;
    let more_us = replace.more_p99_us();
    vec![
        one("a change of one key, one at a time, answered when every worker runs it", &of.one),
        one(
            &format!("the same with {} idle WebSocket clients", group(of.clients as f64)),
            &of.with_clients,
        ),
        Promise::new(
            format!("changes on disk before they are answered, {} connections", durable.writers),
            format!("≥ {}/s", group(durable_min)),
            format!("{}/s", group(durable.rate.per_s)),
            durable.rate.per_s >= durable_min,
        ),
        Promise::new(
            "one upstream member changed among 1,000, 10,000 and 100,000: p99, the longest of the three",
            format!("≤ {} µs", group(MEMBER_P99_US_MAX)),
            format!("{} µs", group(p99)),
            p99 <= MEMBER_P99_US_MAX,
        ),
        Promise::new(
            "its cost (p50) among 1,000 and among 100,000, beside that among 10,000",
            format!("± {:.0} %", MEMBER_SPREAD_MAX * 100.0),
            format!("{:+.0} % and {:+.0} %", apart[0] * 100.0, apart[1] * 100.0),
            apart.iter().all(|apart| apart.abs() <= MEMBER_SPREAD_MAX),
        ),
        Promise::new(
            "10,000 namespaces replaced at once",
            format!("≤ {REPLACE_MS_MAX:.0} ms"),
            format!("{:.0} ms", replace.p50_ms),
            replace.p50_ms <= REPLACE_MS_MAX,
        ),
        Promise::new(
            "p99 of messages delivered during such replaces, more than without",
            format!("≤ {} µs", group(REPLACE_P99_MORE_US_MAX)),
            format!("{} µs", group(more_us)),
            more_us <= REPLACE_P99_MORE_US_MAX,
        ),
        Promise::new(
            "50 changes a second among 10,000 namespaces: server CPU",
            format!("< {:.0} % of a core", STEADY_CORE_MAX * 100.0),
            format!("{:.1} %", of.steady_core * 100.0),
            of.steady_core < STEADY_CORE_MAX,
        ),
    ]
}

fn counted(of: &Counted) -> Promise {
    let measured = match of.holds() {
        true => format!(
            "{} clients, {} changes: it is so",
            group(of.clients as f64),
            group(of.changes as f64)
        ),
        false => format!(
            "{} of {} clients have all, {} messages missing, {} connections ended",
            group(of.complete as f64),
            group(of.clients as f64),
            group(of.missing() as f64),
            group(of.closed as f64)
        ),
    };
    Promise::new(
        "clients that count their messages while changes and undos are drawn by lot",
        "each offset once, no connection ends",
        measured,
        of.holds(),
    )
}

pub(super) fn section(page: &mut Page<'_>, results: &Results) {
    page.head(TITLE);
    let Some(config) = &results.config else { return page.missing("config") };
    cost(page, config);
    page.source("config", [&config.host]);
    if let Some(counted) = &results.config_count {
        count(page, counted);
        page.source("config", [&counted.host]);
    }
}

fn cost(page: &mut Page<'_>, of: &Findings) {
    page.paragraph(format!(
        "A client changes one key after the other over one connection of the config API, and waits for each answer, which means \
         that all {} workers run the change. The floor is a thread that answers requests of the same length with an answer of \
         the same length and does nothing else; client, floor and server stand on core 0, for waking a thread on another core \
         takes longer than all of this. Dunlin's rate beside the floor's, median of the rounds: {:.2}.",
        of.workers, of.one_to_floor
    ));
    let mut grid = Grid::new(["", ">changes/s", ">p50 µs", ">p99 µs", ">max µs"]);
    let mut row = |what: String, rate: &Rate| {
        let us = |us: f64| if us < 1e3 { format!("{us:.1}") } else { group(us) };
        grid.row([what, group(rate.per_s), us(rate.p50_us), us(rate.p99_us), us(rate.max_us)]);
    };
    row("floor: a ping-pong of HTTP".into(), &of.floor);
    row("one connection".into(), &of.one);
    let clients = group(of.clients as f64);
    row(format!("the same, {clients} idle WebSocket clients"), &of.with_clients);
    row(format!("on disk first, {} connections", of.durable.writers), &of.durable.rate);
    for members in &of.members {
        let count = group(members.members as f64);
        row(format!("one upstream member among {count}"), &members.rate);
    }
    page.grid(&grid);
    let replace = &of.replace;
    page.paragraph(format!(
        "The disk by itself does {} fsyncs a second, one after the other.",
        group(of.durable.disk_syncs_per_s)
    ));
    page.paragraph(format!(
        "All {} namespaces replaced with one request, {} times: p50 {:.0} ms, at most {:.0} ms. Messages delivered to 100 \
         subscribers meanwhile: p99 {} µs, without replaces {} µs, {} µs more (medians of {} rounds, each without and with).",
        group(replace.namespaces as f64),
        replace.replaces,
        replace.p50_ms,
        replace.max_ms,
        group(replace.meanwhile_p99_us),
        group(replace.quiet_p99_us),
        group(replace.more_p99_us()),
        replace.rounds
    ));
    page.paragraph(format!(
        "50 changes a second among {} namespaces take {:.2} % of a core.",
        group(replace.namespaces as f64),
        of.steady_core * 100.0
    ));
    if let Some(nginx) = &of.nginx {
        page.paragraph(format!(
            "The peer, nginx with an upstream of {} members, gets a new file and a reload for each change, and a change counts \
             until a new connection is answered by it: p50 {:.0} ms, at most {:.0} ms.",
            group(nginx.members as f64),
            nginx.p50_ms,
            nginx.max_ms
        ));
    }
}

fn count(page: &mut Page<'_>, of: &Counted) {
    page.paragraph(format!(
        "{} clients of one channel counted {} messages while {} valid changes of every kind were made, drawn by lot (seed \
         {}), among them {} returns to an earlier revision and {} listeners opened, moved or closed: {} messages arrived \
         in {:.0} s, {} missing, {} twice, {} out of order, {} offsets that jump; {} connections ended.",
        group(of.clients as f64),
        group(f64::from(of.publications)),
        group(of.changes as f64),
        of.seed,
        group(of.undos as f64),
        group(of.listeners as f64),
        group(of.arrived as f64),
        of.seconds,
        group(of.missing() as f64),
        group(of.faults.duplicated as f64),
        group(of.faults.reordered as f64),
        group(of.faults.offset_jumps as f64),
        group(of.closed as f64),
    ));
}
