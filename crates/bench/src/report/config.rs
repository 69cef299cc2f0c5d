//! The page's section on changes of the configuration.

use std::fmt::Write as _;

use super::page::group;
use crate::config::{Counted, Findings, Rate};

/// Beyond these a promise is broken.
const ONE_PER_S_MIN: f64 = 25_000.0;
const ONE_P50_US_MAX: f64 = 40.0;
const DURABLE_PER_S_MIN: f64 = 5_000.0;
const MEMBER_P99_US_MAX: f64 = 1_000.0;
const MEMBER_SPREAD_MAX: f64 = 0.2;
const REPLACE_MS_MAX: f64 = 200.0;
const REPLACE_P99_MORE_US_MAX: f64 = 1_000.0;
const STEADY_CORE_MAX: f64 = 0.05;

/// A row of the promises: what, what was promised, what was measured, whether it holds.
pub(super) type Promise = (&'static str, String, String, bool);

pub(super) fn promises(of: &Findings) -> Vec<Promise> {
    let one = |what, rate: &Rate| -> Promise {
        (
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
    let spread = [1_000, 100_000]
        .map(|members| (p50(members) / p50(10_000).max(f64::MIN_POSITIVE) - 1.0).abs())
        .into_iter()
        .fold(0.0, f64::max);
    let replace = &of.replace;
    let more_us = replace.more_p99_us;
    vec![
        one("a change of the configuration, one at a time, run by every worker", &of.one),
        one("the same with idle WebSocket clients connected", &of.with_clients),
        (
            "changes on disk before they are answered, many connections",
            format!("≥ {}/s", group(durable_min)),
            format!("{}/s", group(durable.rate.per_s)),
            durable.rate.per_s >= durable_min,
        ),
        (
            "one upstream member changed among 1,000, 10,000 and 100,000",
            format!("p99 ≤ {} µs", group(MEMBER_P99_US_MAX)),
            format!("{} µs", group(p99)),
            p99 <= MEMBER_P99_US_MAX,
        ),
        (
            "the same, its cost beside that among 10,000",
            format!("± {:.0} %", MEMBER_SPREAD_MAX * 100.0),
            format!("± {:.0} %", spread * 100.0),
            spread <= MEMBER_SPREAD_MAX,
        ),
        (
            "10,000 namespaces replaced at once",
            format!("≤ {REPLACE_MS_MAX:.0} ms"),
            format!("{:.0} ms", replace.p50_ms),
            replace.p50_ms <= REPLACE_MS_MAX,
        ),
        (
            "delivery meanwhile, p99",
            format!("≤ {} µs more", group(REPLACE_P99_MORE_US_MAX)),
            format!("{} µs more", group(more_us)),
            more_us <= REPLACE_P99_MORE_US_MAX,
        ),
        (
            "50 changes a second among 10,000 namespaces",
            format!("< {:.0} % of a core", STEADY_CORE_MAX * 100.0),
            format!("{:.1} %", of.steady_core * 100.0),
            of.steady_core < STEADY_CORE_MAX,
        ),
    ]
}

pub(super) fn counted(of: &Counted) -> Promise {
    let lost = of.missing();
    (
        "clients that count their messages while changes and undos are drawn by lot",
        "each offset once, no connection ends".into(),
        match of.holds() {
            true => format!(
                "{} clients, {} changes: it is so",
                group(of.clients as f64),
                group(of.changes as f64)
            ),
            false => format!(
                "{} of {} clients have all, {} messages missing, {} connections ended",
                group(of.complete as f64),
                group(of.clients as f64),
                group(lost as f64),
                group(of.closed as f64)
            ),
        },
        of.holds(),
    )
}

pub(super) fn count_section(of: &Counted) -> String {
    format!(
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
    )
}

pub(super) fn section(of: &Findings) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    line(format!(
        "A client changes one key after the other over one connection, and waits for each answer, which means that all \
         {} workers run the change. The floor is a thread that answers requests of the same length with an answer of \
         the same length and does nothing else; both stand on the server's core. Rate beside the floor, median of the \
         rounds: {:.2}.",
        of.workers, of.one_to_floor
    ));
    line(String::new());
    line("| | changes/s | p50 µs | p99 µs | max µs |".into());
    line("|---|---:|---:|---:|---:|".into());
    let mut row = |what: &str, rate: &Rate| {
        line(format!(
            "| {what} | {} | {:.1} | {:.1} | {} |",
            group(rate.per_s),
            rate.p50_us,
            rate.p99_us,
            group(rate.max_us)
        ));
    };
    row("floor: a ping-pong of HTTP", &of.floor);
    row("one connection", &of.one);
    row(
        &format!("the same, {} idle WebSocket clients", group(of.clients as f64)),
        &of.with_clients,
    );
    row(&format!("on disk first, {} connections", of.durable.writers), &of.durable.rate);
    for members in &of.members {
        let what = format!("one upstream member among {}", group(members.members as f64));
        row(&what, &members.rate);
    }
    let replace = &of.replace;
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\nThe disk by itself does {} fsyncs a second, one after the other.\n\n\
         All {} namespaces replaced with one request, {} times: p50 {:.0} ms, at most {:.0} ms. Messages delivered to \
         100 subscribers meanwhile: p99 {} µs, without replaces {} µs, {} µs more (medians of {} rounds of two seconds \
         without and two with).\n\n\
         50 changes a second among {} namespaces take {:.2} % of a core.\n",
        group(of.durable.disk_syncs_per_s),
        group(replace.namespaces as f64),
        replace.replaces,
        replace.p50_ms,
        replace.max_ms,
        group(replace.meanwhile_p99_us),
        group(replace.quiet_p99_us),
        group(replace.more_p99_us),
        replace.rounds,
        group(replace.namespaces as f64),
        of.steady_core * 100.0
    );
    if let Some(nginx) = &of.nginx {
        let _ = write!(
            text,
            "\nnginx with an upstream of {} members, a new file and a reload for each change, until a new connection is \
             answered by it: p50 {:.0} ms, at most {:.0} ms.\n",
            group(nginx.members as f64),
            nginx.p50_ms,
            nginx.max_ms
        );
    }
    text
}
