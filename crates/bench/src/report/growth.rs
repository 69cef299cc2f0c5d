//! The sections about growing numbers of connections, up to the million.

use super::grid::{Grid, cell};
use super::page::Page;
use super::plot::{Axis, Curve, Curves, Plot, Shape};
use super::promise::Promise;
use super::results::Results;
use crate::connections::{Broadcast, Findings};
use dunlin_load::figures::group;

pub(super) const MILLION: &str = "A million connections";

const CONNECTIONS: u64 = 1_000_000;
const HOLD_S: f64 = 600.0;

pub(super) fn promises(results: &Results) -> Vec<Promise> {
    let Some(million) = &results.million else { return Vec::new() };
    let lost = million.lost_in_hold + million.silent;
    let held = Promise::new(
        "1,000,000 connections held 10 minutes with pings",
        "none lost",
        format!(
            "{} held {:.0} s, {lost} lost",
            group(million.connected as f64),
            million.hold_seconds
        ),
        million.connected >= CONNECTIONS && lost == 0 && million.hold_seconds >= HOLD_S,
    );
    let told = million.broadcast.as_ref().map(|broadcast| {
        Promise::new(
            "then one message to all of them",
            "every one delivered, once",
            format!("{} in {:.1} s", group(broadcast.delivered as f64), broadcast.seconds),
            broadcast.delivered == broadcast.expected
                && broadcast.complete == million.connected
                && million.faults.is_none(),
        )
    });
    std::iter::once(held).chain(told).collect()
}

fn decimal(value: Option<f64>) -> String {
    cell(value, |value| format!("{value:.2}"))
}

pub(super) fn scale(page: &mut Page<'_>, results: &Results) {
    page.head("Growth");
    if results.scale.is_empty() {
        return page.missing("scale");
    }
    page.paragraph(
        "The same at every size: connect, subscribe to one channel, hold, then publish one message at a time to all. A process \
         may open a limited number of descriptors in one table, so the server has as many workers, each with its own table, as \
         the size needs; all of them share core 0. The last row is the run of the next section, which holds its clients for ten \
         minutes first. What the process allocates once for its first connections is divided by their number, so that user \
         memory each looks larger where they are few.",
    );
    let mut grid = Grid::new([
        ">connections",
        ">user bytes each",
        ">kernel bytes a pair",
        ">CPU µs to connect",
        ">CPU µs a message",
        ">pings left out",
        ">messages/s",
        ">delivered",
    ]);
    for one in &results.scale {
        let broadcast = one.broadcast.as_ref();
        grid.row([
            group(one.connected as f64),
            cell(one.user_bytes_per_connection, |bytes| group(bytes as f64)),
            group(one.kernel_bytes_per_pair as f64),
            decimal(one.connect_cpu_us),
            decimal(broadcast.and_then(|broadcast| broadcast.cpu_us_per_message)),
            decimal(broadcast.and_then(|broadcast| broadcast.cpu_us_per_message_without_pings)),
            cell(broadcast, |broadcast| group(broadcast.messages_per_s)),
            cell(broadcast, |broadcast| delivered(one, broadcast)),
        ]);
    }
    page.grid(&grid);
    page.paragraph(
        "A million clients are pinged 40,000 times a second, and that goes on while the message is delivered. *Pings left out* \
         subtracts for these seconds what pings cost in the seconds before, when each of them woke a worker; while a message \
         goes out they cost less, for then nobody sleeps. So what a message costs lies between the two columns.",
    );
    page.plot("scale-memory.svg", "User memory a connection by number of connections");
    page.plot("scale-cpu.svg", "CPU a message by number of connections");
    page.source("scale", results.scale.iter().map(|one| &one.host));
}

fn delivered(of: &Findings, broadcast: &Broadcast) -> String {
    let count = group(broadcast.delivered as f64);
    if broadcast.delivered == broadcast.expected && of.faults.is_none() {
        count
    } else {
        format!("{count} of {}", group(broadcast.expected as f64))
    }
}

pub(super) fn million(page: &mut Page<'_>, results: &Results) {
    page.head(MILLION);
    let Some(million) = &results.million else { return page.missing("million") };
    page.paragraph(
        "Both ends on this machine: the server's workers on core 0, the generator on core 1. Each connection is a WebSocket \
         with a session and one subscription, all to the same channel; the server pings each of them every 25 s.",
    );
    let mut grid = Grid::new(["", ""]);
    for (what, value) in million_rows(million) {
        grid.row([what.to_owned(), value]);
    }
    page.grid(&grid);
    if !million.reasons.is_empty() {
        page.paragraph("What went wrong on the way, and how often:");
        for (reason, count) in &million.reasons {
            page.line(format!("- {count} × {reason}"));
        }
        page.line("");
    }
    page.source("million", [&million.host]);
}

fn million_rows(million: &Findings) -> Vec<(&'static str, String)> {
    let optional =
        |value: Option<f64>, unit: &str| cell(value, |value| format!("{value:.2} {unit}"));
    let gib = |bytes: f64| format!("{:.2} GiB", bytes / f64::from(1 << 30));
    let connected = million.connected as f64;
    let mut rows = vec![
        (
            "connected, with session and subscription",
            format!(
                "{} in {:.1} s, {} a second, {} failed, {} tried again",
                group(connected),
                million.connect_seconds,
                group(million.connects_per_s),
                million.connect_failed,
                million.connect_retried
            ),
        ),
        (
            "held",
            format!(
                "{:.0} s; closed {}, silent {}",
                million.hold_seconds, million.lost_in_hold, million.silent
            ),
        ),
        (
            "pings of the server, all answered",
            format!(
                "{}, at least {} each",
                group(million.pings as f64),
                million.pings_per_connection_min
            ),
        ),
        ("server while it held them", optional(million.hold_cores, "cores")),
        ("CPU of the server for a ping and its answer", optional(million.ping_cpu_us, "µs")),
        (
            "user memory of the server",
            format!(
                "{}, {} B a connection; after the hold {} B",
                cell(million.server_pss_bytes, |bytes| gib(bytes as f64)),
                million.user_bytes_per_connection.unwrap_or_default(),
                million.user_bytes_per_connection_held.unwrap_or_default(),
            ),
        ),
        (
            "kernel memory of both ends",
            format!(
                "{}, {} B a pair, {} B of it not reclaimable",
                gib(million.kernel_bytes_per_pair as f64 * connected),
                group(million.kernel_bytes_per_pair as f64),
                group(million.kernel_unreclaimable_bytes_per_pair as f64)
            ),
        ),
        (
            "memory of the generator",
            format!(
                "{} B a connection, {} threads",
                million.generator_bytes_per_connection, million.threads
            ),
        ),
    ];
    if let Some(broadcast) = &million.broadcast {
        rows.push((
            "one message to all",
            format!(
                "{} of {} delivered in {:.2} s, {} a second; {} clients have it exactly once",
                group(broadcast.delivered as f64),
                group(broadcast.expected as f64),
                broadcast.seconds,
                group(broadcast.messages_per_s),
                group(broadcast.complete as f64)
            ),
        ));
        rows.push((
            "CPU of the server for each of them",
            format!(
                "{}, pings of those seconds included; at least {}",
                optional(broadcast.cpu_us_per_message, "µs"),
                optional(broadcast.cpu_us_per_message_without_pings, "µs")
            ),
        ));
        let after = broadcast.server_pss_bytes_after;
        rows.push(("user memory of the server after it", cell(after, |bytes| gib(bytes as f64))));
    }
    rows
}

pub(super) fn plots(results: &Results) -> Vec<Plot> {
    if results.scale.is_empty() {
        return Vec::new();
    }
    let curve = |y: fn(&Findings) -> Option<f64>| Curve {
        name: "dunlin".into(),
        points: results.scale.iter().filter_map(|of| Some((of.connected as f64, y(of)?))).collect(),
        joined: true,
    };
    let plot = |file: &str, title: &str, unit: &'static str, curve: Curve| Plot {
        file: file.into(),
        title: title.into(),
        shape: Shape::Curves(Curves {
            x: Axis { name: "connections", logarithmic: true },
            y: Axis { name: unit, logarithmic: false },
            curves: vec![curve],
            level: None,
        }),
    };
    let memory = curve(|of| Some(of.user_bytes_per_connection? as f64));
    let cpu = curve(|of| of.broadcast.as_ref()?.cpu_us_per_message);
    vec![
        plot("scale-memory.svg", "user memory of the server", "bytes a connection", memory),
        plot("scale-cpu.svg", "server CPU a message, pings included", "µs", cpu),
    ]
}
