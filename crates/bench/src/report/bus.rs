//! The section about the bus between workers.

use super::grid::Grid;
use super::page::Page;
use super::promise::Promise;
use super::results::Results;
use dunlin_load::figures::group;

pub(super) const TITLE: &str = "The bus between workers";

const AWAKE_HOP_NS_MAX: f64 = 250.0;
const REQUEST_REPLY_NS_MAX: f64 = 2_000.0;
const SLEEPING_HOP_OVER_NS_MAX: f64 = 1_000.0;

pub(super) fn promises(results: &Results) -> Vec<Promise> {
    let Some(bus) = &results.bus else { return Vec::new() };
    [
        ("hop to an awake worker", bus.awake_hop_ns.median, AWAKE_HOP_NS_MAX),
        (
            "request and reply between awake workers",
            bus.request_reply_ns.median,
            REQUEST_REPLY_NS_MAX,
        ),
        (
            "hop to a sleeping worker, beyond a bare eventfd wake",
            bus.sleeping_hop_over_eventfd_ns,
            SLEEPING_HOP_OVER_NS_MAX,
        ),
    ]
    .into_iter()
    .map(|(what, measured, max)| {
        let [asked, said] = [max, measured].map(|ns| format!("{} ns", group(ns)));
        Promise::new(what, format!("≤ {asked}"), said, measured <= max)
    })
    .collect()
}

pub(super) fn section(page: &mut Page<'_>, results: &Results) {
    page.head(TITLE);
    let Some(bus) = &results.bus else { return page.missing("bus") };
    page.paragraph(format!(
        "Two threads of a mesh of {} endpoints, each on a core of its own; {} batches, mesh and floors by turns. Two cores of \
         one socket: between sockets, or between cores that share less, everything here takes longer.",
        bus.endpoints, bus.batches
    ));
    let mut grid = Grid::new(["one way, unless said otherwise", ">median ns", ">best batch ns"]);
    for (name, figure) in [
        ("floor: a cache line written by turns", bus.cache_line_ns),
        ("hop to an awake worker", bus.awake_hop_ns),
        ("request and reply, there and back", bus.request_reply_ns),
        ("floor: a bare eventfd and `epoll_wait`", bus.eventfd_hop_ns),
        ("hop to a sleeping worker", bus.sleeping_hop_ns),
        ("a message of a stream", bus.stream_message_ns),
    ] {
        let ns = |ns: f64| if ns < 1e3 { format!("{ns:.1}") } else { group(ns) };
        grid.row([name.to_owned(), ns(figure.median), ns(figure.best)]);
    }
    page.grid(&grid);
    page.paragraph(format!(
        "A hop to a sleeping worker takes {} ns more than a bare wake (median of the differences within a batch). A stream \
         carries {} messages a second over one edge.",
        group(bus.sleeping_hop_over_eventfd_ns),
        group(bus.stream_messages_per_s)
    ));
    page.source("bus", [&bus.host]);
}
