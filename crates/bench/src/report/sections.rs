//! Everything on docs/BENCHMARKS.md, in its order: what was asked, what was measured, with which command, where.

use super::page::Page;
use super::plot::Plot;
use super::promise::{self, Promises};
use super::results::Results;
use super::{apns, bus, config, fanout, growth, http, instructions, latency, webhooks};

const INTRODUCTION: &str = "\
Everything here is measured by `dunlin bench` and `dunlin apns bench`, which treat every server alike: they hold the \
connections, publish numbered messages, and check that each subscriber got each message once and in order. A figure with \
a lost or repeated message says so.

Server and generator run on one machine over loopback: the server on core 0, the generator on core 1, unless a section \
says otherwise. Absolute numbers belong to that machine and that hour; what is meant to be compared is a server with the \
*floor* and the *peers* of the same run. A floor is the least that the kernel lets anybody pay for the same work; each \
section says what it is. A peer is other people's software, in the version that is named, as its package sets it up. The \
servers of a run take turns, each alone on the machine with its own subscribers while it is measured, in an order that \
moves on by one each round; ratios are taken within each round, and the median round is shown.";

const HOW: &str = "\
`make bench` measures all of it and writes this page. `scripts/bench/run idle fanout` measures only these parts, and \
leaves the rest as it is; it installs the peers on Debian, or says which are missing. The parts are `idle`, `fanout`, \
`burst`, `latency`, `pacing`, `bus`, `config`, `webhooks`, `scale`, `million`, `http`, `instructions` and `apns`. Below \
each section stand its part, the commands that this comes down to (`dunlin` is `target/release/dunlin`; files below \
`.cache` are made by the part), and the machine, the day and the commit of the result, which is kept in \
`docs/benchmarks/*.json`.";

pub(super) fn write(results: &Results, directory: &str) -> String {
    let mut page = Page::new(directory);
    page.paragraph("# Benchmarks");
    page.paragraph("<!-- Written by `make bench`; edit crates/bench/src/report instead. -->");
    page.paragraph(INTRODUCTION);
    page.paragraph(HOW);
    page.head("In short");
    page.markdown(&promise::text(&promises(results)));
    fanout::idle(&mut page, results);
    fanout::one(&mut page, results);
    fanout::burst(&mut page, results);
    latency::latency(&mut page, results);
    latency::pacing(&mut page, results);
    bus::section(&mut page, results);
    config::section(&mut page, results);
    webhooks::section(&mut page, results);
    growth::scale(&mut page, results);
    growth::million(&mut page, results);
    http::section(&mut page, results);
    apns::section(&mut page, results);
    instructions::section(&mut page, results);
    page.text()
}

fn promises(results: &Results) -> Vec<Promises> {
    vec![
        Promises { section: fanout::IDLE, rows: fanout::idle_promises(results) },
        Promises { section: fanout::ONE, rows: fanout::one_promises(results) },
        Promises { section: fanout::BURST, rows: fanout::burst_promises(results) },
        Promises { section: bus::TITLE, rows: bus::promises(results) },
        Promises { section: config::TITLE, rows: config::promises(results) },
        Promises { section: latency::PACING, rows: latency::promises(results) },
        Promises { section: webhooks::TITLE, rows: webhooks::promises(results) },
        Promises { section: growth::MILLION, rows: growth::promises(results) },
        Promises { section: http::TITLE, rows: http::promises(results) },
        Promises { section: apns::TITLE, rows: apns::promises(results) },
    ]
}

/// Every plot there are results for.
pub(super) fn plots(results: &Results) -> Vec<Plot> {
    let mut plots = fanout::plots(results);
    plots.extend(growth::plots(results));
    plots.extend(http::plots(results));
    plots.extend(apns::plots(results));
    plots
}
