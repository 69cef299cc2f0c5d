//! The sections about latency: alone, and beside broadcasts to others.

use super::grid::Grid;
use super::page::Page;
use super::promise::Promise;
use super::results::Results;
use dunlin_load::figures::group;

pub(super) const PACING: &str = "Beside a broadcast";

/// The crowd that is asked about.
const CROWD: usize = 100_000;

pub(super) fn promises(results: &Results) -> Vec<Promise> {
    let p99_us = |label: &str| {
        let of = results.pacing.iter().find(|one| {
            one.label.as_deref() == Some(label)
                && one.crowd.as_ref().is_some_and(|crowd| crowd.clients == CROWD)
        });
        Some(of?.arrivals.latency_us.p99)
    };
    let Some((paced, at_once)) = p99_us("by and by").zip(p99_us("in one turn")) else {
        return Vec::new();
    };
    vec![Promise::new(
        format!(
            "p99 of another channel's messages during a broadcast to {} clients, with pacing and without",
            group(CROWD as f64)
        ),
        "both shown",
        format!("{} and {} µs", group(paced), group(at_once)),
        paced < at_once,
    )]
}

pub(super) fn latency(page: &mut Page<'_>, results: &Results) {
    page.head("Latency");
    if results.latencies.is_empty() {
        return page.missing("latency");
    }
    page.paragraph(
        "From when each publish should have left, by a timetable that does not wait for the server, to its arrival at each \
         subscriber, µs. *Left late* is how far the generator itself was behind the timetable: that much of the latency is its \
         own. With 10,000 subscribers a message takes as long as it takes to write it 10,000 times, so that the median \
         subscriber waits for half of it.",
    );
    let mut grid = Grid::new([
        ">publishes/s",
        ">subscribers",
        ">p50 µs",
        ">p90",
        ">p99",
        ">p99.9",
        ">max",
        ">left late, p50",
        ">p99",
        ">delivered",
    ]);
    for one in &results.latencies {
        let (of, late) = (one.arrivals.latency_us, one.arrivals.late_us);
        let all = [of.p50, of.p90, of.p99, of.p999, of.max, late.p50, late.p99];
        let head = [f64::from(one.rate), one.subscribers as f64];
        let delivered = format!(
            "{} of {}",
            group(one.arrivals.delivered as f64),
            group(one.arrivals.expected as f64)
        );
        grid.row(head.into_iter().chain(all).map(group).chain([delivered]));
    }
    page.grid(&grid);
    page.source("latency", results.latencies.iter().map(|one| &one.host));
}

pub(super) fn pacing(page: &mut Page<'_>, results: &Results) {
    page.head(PACING);
    if results.pacing.is_empty() {
        return page.missing("pacing");
    }
    page.paragraph(
        "Latency on one channel while messages are broadcast, every two seconds, to a crowd on another: in one turn of each \
         worker's loop (`limits.broadcast_quantum = 0`), and by and by (64 clients a turn, the default). All workers share \
         core 0.",
    );
    let mut grid = Grid::new([
        ">crowd",
        "broadcasts leave",
        ">p50 µs",
        ">p90",
        ">p99",
        ">max",
        ">longest broadcast, ms",
        ">delivered",
    ]);
    for one in &results.pacing {
        let (of, Some(crowd)) = (one.arrivals.latency_us, &one.crowd) else { continue };
        let delivered =
            format!("{} of {}", group(crowd.delivered as f64), group(crowd.expected as f64));
        grid.row([
            group(crowd.clients as f64),
            one.label.clone().unwrap_or_default(),
            group(of.p50),
            group(of.p90),
            group(of.p99),
            group(of.max),
            group(crowd.longest_ms),
            delivered,
        ]);
    }
    page.grid(&grid);
    page.source("pacing", results.pacing.iter().map(|one| &one.host));
}
