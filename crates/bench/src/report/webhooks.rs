//! The section about events told to a backend.

use super::grid::{Grid, cell};
use super::page::Page;
use super::promise::Promise;
use super::results::Results;
use dunlin_load::figures::{group, percent};

pub(super) const TITLE: &str = "Webhooks";

pub(super) fn promises(results: &Results) -> Vec<Promise> {
    let Some(webhooks) = &results.webhooks else { return Vec::new() };
    let told = || webhooks.rows.iter().filter(|row| row.server_cpu_s_per_10k.is_some());
    let sum = |of: fn(&crate::webhooks::Row) -> u64| told().map(of).sum::<u64>();
    vec![Promise::new(
        "events told to a backend that keeps up",
        "each once, in the order of its channel",
        format!(
            "{} of {}, {} twice, {} out of order",
            group(sum(|row| row.delivered) as f64),
            group(sum(|row| row.published) as f64),
            sum(|row| row.twice),
            sum(|row| row.disordered)
        ),
        told().all(crate::webhooks::Row::is_clean),
    )]
}

pub(super) fn section(page: &mut Page<'_>, results: &Results) {
    page.head(TITLE);
    let Some(webhooks) = &results.webhooks else { return page.missing("webhooks") };
    page.paragraph(format!(
        "Messages are published to {} channels over the server's API; a hook tells a backend of each, over at most {} \
         connections, {} events a request at most, one request of a channel at a time. The backend (Go's `net/http`, on the \
         generator's core) parses the JSON and notes when each event came. *Latency* is from when a message was due to be \
         published, by the timetable, to when the backend had read the event; where as many go as can, from when it was \
         published, and so says how much was on its way. *Posting* is the CPU of whoever makes the requests: of Dunlin the \
         thread of the webhooks, of the floor a plain client which posts prebuilt events of the same length over {} kept \
         connections and waits for each answer. *Server* is Dunlin as a whole, which takes the publishes too. Dunlin signs \
         nothing here; what happens while a request is under way leaves with the next.",
        webhooks.channels, webhooks.connections, webhooks.batch_events_max, webhooks.connections
    ));
    let mut grid = Grid::new([
        "",
        ">events/s",
        ">events a request",
        ">latency p50 µs",
        ">p99",
        ">max",
        ">CPU s / 10,000: posting",
        ">server",
        ">backend",
        ">delivered",
        "once, in order",
    ]);
    for row in &webhooks.rows {
        let ours = row.server_cpu_s_per_10k.is_some();
        let seconds = |seconds: f64| format!("{seconds:.4}");
        grid.row([
            row.what.clone(),
            group(row.events_per_s),
            format!("{:.1}", row.events_per_request),
            group(row.latency_us.p50),
            group(row.latency_us.p99),
            group(row.latency_us.max),
            seconds(row.post_cpu_s_per_10k),
            cell(row.server_cpu_s_per_10k, seconds),
            seconds(row.receiver_cpu_s_per_10k),
            percent(row.delivered as f64 / row.published.max(1) as f64),
            match (ours, row.is_clean()) {
                (false, _) => String::new(),
                (true, true) => "all".to_owned(),
                (true, false) => format!(
                    "**{} twice, {} out of order, {} missed**",
                    row.twice, row.disordered, row.missed
                ),
            },
        ]);
    }
    page.grid(&grid);
    let rate = webhooks.beside.first().map_or(0, |beside| beside.rate);
    page.paragraph(format!(
        "What other clients notice: {} subscribers of a channel that no hook covers, 100 messages a second, while {} events a \
         second are published elsewhere, with a hook for them and without. By turns, medians of {} rounds; here the backend \
         runs only when nobody else on its core wants to, as if it were another machine.",
        webhooks.subscribers,
        group(f64::from(rate)),
        webhooks.beside.first().map_or(0, |beside| beside.rounds.len())
    ));
    let mut grid = Grid::new(["", ">p50 µs", ">p99", ">server, cores", ">delivered"]);
    for beside in &webhooks.beside {
        let sum = |of: fn(&crate::timetable::Arrivals) -> u64| {
            group(beside.rounds.iter().map(of).sum::<u64>() as f64)
        };
        let delivered =
            format!("{} of {}", sum(|round| round.delivered), sum(|round| round.expected));
        grid.row([
            if beside.hooked { "a hook for the events" } else { "no hook" }.to_owned(),
            group(beside.p50_us),
            group(beside.p99_us),
            format!("{:.2}", beside.server_cores),
            delivered,
        ]);
    }
    page.grid(&grid);
    page.source("webhooks", [&webhooks.host]);
}
