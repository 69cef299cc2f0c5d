//! docs/BENCHMARKS.md: what was asked, what was measured, with which command, on which machine.

use std::fmt::Write as _;

use super::config;
use super::results::Results;
use crate::fanout::Summary;
use crate::host::Host;

/// Beyond these a promise of the issue is broken; each is said with its result at the top of the page.
const IDLE_BYTES_MAX: f64 = 300.0;
const ONE_TO_FLOOR_MIN: f64 = 0.95;
const ONE_CPU_TO_FLOOR_MAX: f64 = 1.05;
const BURST_TO_FLOOR_MIN: f64 = 0.75;
const BURST_TO_REDIS_MIN: f64 = 2.0;
const AWAKE_HOP_NS_MAX: f64 = 250.0;
const REQUEST_REPLY_NS_MAX: f64 = 2_000.0;
const SLEEPING_HOP_OVER_NS_MAX: f64 = 1_000.0;
const MILLION: usize = 1_000_000;
const MILLION_HOLD_S: f64 = 600.0;

pub(super) fn write(results: &Results, directory: &str) -> String {
    let mut page = Page { text: String::new(), directory };
    page.line("# Benchmarks");
    page.line("");
    page.line("<!-- Written by `make bench`; edit crates/bench/src/report/page.rs instead. -->");
    page.line("");
    page.line(
        "Everything here is measured by `dunlin bench`, which treats every server alike: it holds the connections, \
         publishes numbered messages, and checks that each subscriber got each message once and in order. A figure \
         with a lost or repeated message says so.",
    );
    page.line("");
    page.line(
        "Server and generator run on the same machine over loopback: the server on core 0, the generator on core 1. \
         Absolute numbers belong to that machine and that hour; what is meant to be compared is a server with the \
         *floor* and the peers of the same run. The floor is `dunlin bench floor`: a loop that does nothing but \
         `send()` one prebuilt frame to every connection. The servers of a run take turns, each alone on the machine \
         with its own subscribers while it is measured, in an order that moves on by one each round; ratios are taken \
         within each round, and the median round is shown.",
    );
    page.line("");
    page.line(
        "`make bench` measures it all and writes this page. `scripts/bench/run idle fanout` measures only that; the \
         parts are `idle`, `fanout`, `burst`, `latency`, `pacing`, `bus`, `config`, `scale`, `million`, `http`, `instructions` and `apns`.",
    );
    page.line("");
    page.promises(results);
    page.idle(results);
    page.one(results);
    page.burst(results);
    page.latency(results);
    page.pacing(results);
    page.bus(results);
    page.config(results);
    page.scale(results);
    page.million(results);
    page.http(results);
    page.instructions(results);
    page.apns(results);
    page.text
}

pub(super) struct Page<'a> {
    text: String,
    directory: &'a str,
}

impl Page<'_> {
    pub(super) fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    pub(super) fn head(&mut self, title: &str) {
        self.line(format!("## {title}"));
        self.line("");
    }

    pub(super) fn missing(&mut self, section: &str) {
        self.line(format!("Not here: not measured yet. `scripts/bench/run {section}`"));
        self.line("");
    }

    /// The command of a run, and where it ran.
    pub(super) fn source(&mut self, hosts: &[&Host]) {
        self.line("```sh");
        for host in hosts {
            self.line(&host.command);
        }
        self.line("```");
        self.line("");
        if let Some(host) = hosts.first() {
            let commit =
                host.commit.as_ref().map_or(String::new(), |commit| format!(", commit {commit}"));
            self.line(format!(
                "{}, {} cores, {} GiB, {}, {}{commit}.",
                host.cpu, host.cores, host.memory_gib, host.kernel, host.day
            ));
            self.line("");
        }
    }

    fn promises(&mut self, results: &Results) {
        let mut rows: Vec<(&str, String, String, bool)> = Vec::new();
        if let Some(idle) = &results.idle
            && let Some(bytes) = idle.user_bytes_per_connection
        {
            rows.push((
                "user memory of an idle WebSocket with session and one subscription",
                format!("≤ {IDLE_BYTES_MAX} B"),
                format!("{bytes} B"),
                bytes as f64 <= IDLE_BYTES_MAX,
            ));
        }
        if let Some(ours) = ours(results.one.as_ref().map(|one| &one.contenders[..])) {
            if let Some(ratio) = ours.rate_to_floor {
                rows.push((
                    "one publish at a time to 10,000, messages a second",
                    format!("≥ {} of the floor", percent(ONE_TO_FLOOR_MIN)),
                    percent(ratio),
                    ratio >= ONE_TO_FLOOR_MIN,
                ));
            }
            if let Some(ratio) = ours.cpu_to_floor {
                rows.push((
                    "the same, CPU a message",
                    format!("≤ {} of the floor", percent(ONE_CPU_TO_FLOOR_MAX)),
                    percent(ratio),
                    ratio <= ONE_CPU_TO_FLOOR_MAX,
                ));
            }
        }
        let burst = results.burst.as_ref().map(|burst| &burst.contenders[..]);
        if let Some(ours) = ours(burst) {
            if let Some(ratio) = ours.rate_to_floor {
                rows.push((
                    "100 publishes in one batch to 10,000, messages a second",
                    format!("≥ {} of the floor", percent(BURST_TO_FLOOR_MIN)),
                    percent(ratio),
                    ratio >= BURST_TO_FLOOR_MIN,
                ));
            }
            if let Some(redis) = burst.unwrap_or_default().iter().find(|one| one.name == "redis") {
                let ratio = ours.messages_per_s / redis.messages_per_s;
                rows.push((
                    "the same, beside Redis",
                    format!("≥ {BURST_TO_REDIS_MIN} ×"),
                    format!("{ratio:.1} ×"),
                    ratio >= BURST_TO_REDIS_MIN,
                ));
            }
        }
        if let Some(bus) = &results.bus {
            let at_most = |ns: f64| format!("≤ {} ns", group(ns));
            for (what, measured, max) in [
                ("bus: hop to an awake worker", bus.awake_hop_ns.median, AWAKE_HOP_NS_MAX),
                (
                    "bus: request and reply, awake",
                    bus.request_reply_ns.median,
                    REQUEST_REPLY_NS_MAX,
                ),
                (
                    "bus: hop to a sleeping worker, more than a bare eventfd wake",
                    bus.sleeping_hop_over_eventfd_ns,
                    SLEEPING_HOP_OVER_NS_MAX,
                ),
            ] {
                rows.push((what, at_most(max), format!("{} ns", group(measured)), measured <= max));
            }
        }
        rows.extend(results.config.iter().flat_map(config::promises));
        rows.extend(results.config_count.iter().map(config::counted));
        if let Some(million) = &results.million {
            let lost = million.lost_in_hold + million.silent;
            rows.push((
                "1,000,000 connections held 10 minutes with pings",
                "none lost".into(),
                format!(
                    "{} held {:.0} s, {lost} lost",
                    group(million.connected as f64),
                    million.hold_seconds
                ),
                million.connected >= MILLION as u64
                    && lost == 0
                    && million.hold_seconds >= MILLION_HOLD_S,
            ));
            if let Some(broadcast) = &million.broadcast {
                rows.push((
                    "then one message to all",
                    "every one delivered".into(),
                    format!("{} in {:.1} s", group(broadcast.delivered as f64), broadcast.seconds),
                    broadcast.delivered == broadcast.expected
                        && broadcast.complete == million.connected
                        && million.faults.is_none(),
                ));
            }
        }
        rows.extend(super::http::promises(&results.http));
        if rows.is_empty() {
            return;
        }
        self.head("In short");
        self.line("| what | asked | measured | |");
        self.line("|---|---|---|---|");
        for (what, asked, measured, kept) in rows {
            let verdict = if kept { "kept" } else { "**missed**" };
            self.line(format!("| {what} | {asked} | {measured} | {verdict} |"));
        }
        self.line("");
    }

    fn idle(&mut self, results: &Results) {
        self.head("Idle connections");
        let Some(idle) = &results.idle else { return self.missing("idle") };
        self.line(format!(
            "{} WebSocket connections, each with a session and one subscription, on one worker. User memory is the growth \
             of Pss of the server's processes; kernel memory is the growth of the slab for *both* ends.",
            group(idle.connected as f64)
        ));
        self.line("");
        self.line("| server | user bytes a connection | kernel bytes a pair |");
        self.line("|---|---:|---:|");
        let bytes = |bytes: Option<i64>| bytes.map_or("–".into(), |bytes| group(bytes as f64));
        self.line(format!(
            "| **dunlin** | **{}** | {} |",
            bytes(idle.user_bytes_per_connection),
            group(idle.kernel_bytes_per_pair as f64)
        ));
        let others = [&results.one, &results.burst, &results.burst_slow];
        for other in others.into_iter().flatten().flat_map(|findings| &findings.contenders) {
            if !["floor", "dunlin"].contains(&other.name.as_str()) {
                self.line(format!(
                    "| {} ({} connections) | {} | {} |",
                    other.name,
                    group(other.subscribers as f64),
                    bytes(other.user_bytes_per_connection),
                    group(other.kernel_bytes_per_pair as f64)
                ));
            }
        }
        self.line("");
        self.line(format!(
            "Connecting took the server {} µs of CPU each; the generator holds a connection in {} B.",
            idle.connect_cpu_us.map_or("–".into(), |us| format!("{us:.1}")),
            idle.generator_bytes_per_connection
        ));
        self.line("");
        self.plot("idle.svg", "User memory of an idle connection");
        self.source(&[&idle.host]);
    }

    pub(super) fn plot(&mut self, name: &str, title: &str) {
        let directory = self.directory;
        self.line(format!("![{title}]({directory}/{name})"));
        self.line("");
    }

    fn contenders(&mut self, contenders: &[&Summary]) {
        self.line("| server | messages/s | of the floor | CPU µs a message | of the floor | bytes a message | exactly once, in order |");
        self.line("|---|---:|---:|---:|---:|---:|---|");
        for one in contenders {
            let ratio = |ratio: Option<f64>| ratio.map_or("–".into(), percent);
            let faults = one.faults;
            let verdict = if faults.is_none() && one.complete == one.subscribers as u64 {
                "all".to_owned()
            } else {
                format!(
                    "{} of {} subscribers; lost {}, repeated {}, reordered {}",
                    one.complete, one.subscribers, faults.lost, faults.duplicated, faults.reordered
                )
            };
            self.line(format!(
                "| {} | {} | {} | {} | {} | {:.1} | {verdict} |",
                one.name,
                group(one.messages_per_s),
                ratio(one.rate_to_floor),
                one.cpu_us_per_message.map_or("–".into(), |us| format!("{us:.3}")),
                ratio(one.cpu_to_floor),
                one.message_bytes,
            ));
        }
        self.line("");
    }

    fn one(&mut self, results: &Results) {
        self.head("One publish at a time");
        let Some(one) = &results.one else { return self.missing("fanout") };
        self.line(format!(
            "One channel, {} subscribers, the next publish when the last was answered; {} publishes a round, {} rounds. \
             What is published while a broadcast is under way joins what waits for each client, as in `dunlin`; \
             with `limits.broadcast_quantum = 0`, in `dunlin, apart`, each message is a `send()` of its own for each client, \
             as in the floor.",
            group(one.subscribers as f64),
            one.publishes_per_round,
            one.rounds
        ));
        self.line("");
        let apart = results.apart.iter().flat_map(|apart| &apart.contenders);
        let apart = apart.filter(|one| one.name != "floor");
        self.contenders(&one.contenders.iter().chain(apart).collect::<Vec<_>>());
        self.plot("fanout.svg", "Messages a second, one publish at a time");
        let apart_host = results.apart.as_ref().map(|apart| &apart.host);
        self.source(&std::iter::once(&one.host).chain(apart_host).collect::<Vec<_>>());
    }

    fn burst(&mut self, results: &Results) {
        self.head("Bursts");
        let Some(burst) = &results.burst else { return self.missing("burst") };
        self.line(format!(
            "{} publishes at once to {} subscribers: a batch request where the server has one, otherwise as many requests in \
             one write. The floor joins the {} frames beforehand and hands each connection all of them in one `send()`.",
            burst.batch.unwrap_or(1),
            group(burst.subscribers as f64),
            burst.batch.unwrap_or(1),
        ));
        self.line("");
        let slow = results.burst_slow.iter().flat_map(|slow| &slow.contenders);
        let slow = slow.filter(|one| one.name != "floor");
        self.contenders(&burst.contenders.iter().chain(slow).collect::<Vec<_>>());
        self.plot("burst.svg", "Messages a second in a burst");
        let slow_host = results.burst_slow.as_ref().map(|slow| &slow.host);
        self.source(&std::iter::once(&burst.host).chain(slow_host).collect::<Vec<_>>());
    }

    fn latency(&mut self, results: &Results) {
        self.head("Latency");
        if results.latencies.is_empty() {
            return self.missing("latency");
        }
        self.line(
            "From when each publish should have left, by a timetable that does not wait for the server, to its arrival at \
             each subscriber. *Left late* is how far the generator itself was behind the timetable.",
        );
        self.line("");
        self.line("| publishes/s | subscribers | p50 µs | p90 | p99 | p99.9 | max | left late, p50 | p99 |");
        self.line("|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
        for one in &results.latencies {
            let (of, late) = (one.latency_us, one.late_us);
            self.line(format!(
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                group(f64::from(one.rate)),
                group(one.subscribers as f64),
                group(of.p50),
                group(of.p90),
                group(of.p99),
                group(of.p999),
                group(of.max),
                group(late.p50),
                group(late.p99),
            ));
        }
        self.line("");
        self.source(&results.latencies.iter().map(|one| &one.host).collect::<Vec<_>>());
    }

    fn pacing(&mut self, results: &Results) {
        self.head("Beside a broadcast");
        if results.pacing.is_empty() {
            return self.missing("pacing");
        }
        self.line(
            "Latency on one channel while messages are broadcast, every two seconds, to a crowd on another: in one turn of each \
             worker's loop (`limits.broadcast_quantum = 0`), and by and by (64 clients a turn, the default). All workers \
             share core 0.",
        );
        self.line("");
        self.line("| crowd | broadcasts leave | p50 µs | p90 | p99 | max | longest broadcast, ms | delivered |");
        self.line("|---:|---|---:|---:|---:|---:|---:|---:|");
        for one in &results.pacing {
            let (of, Some(crowd)) = (one.latency_us, &one.crowd) else { continue };
            self.line(format!(
                "| {} | {} | {} | {} | {} | {} | {} | {} of {} |",
                group(crowd.clients as f64),
                one.label.as_deref().unwrap_or("–"),
                group(of.p50),
                group(of.p90),
                group(of.p99),
                group(of.max),
                group(crowd.longest_ms),
                group(crowd.delivered as f64),
                group(crowd.expected as f64),
            ));
        }
        self.line("");
        self.source(&results.pacing.iter().map(|one| &one.host).collect::<Vec<_>>());
    }

    fn config(&mut self, results: &Results) {
        self.head("Changes of the configuration");
        let Some(config) = &results.config else { return self.missing("config") };
        self.line(config::section(config));
        self.source(&[&config.host]);
        if let Some(counted) = &results.config_count {
            self.line(config::count_section(counted));
            self.source(&[&counted.host]);
        }
    }

    fn bus(&mut self, results: &Results) {
        self.head("The bus between workers");
        let Some(bus) = &results.bus else { return self.missing("bus") };
        self.line(format!(
            "Two threads of a mesh of {} endpoints, each on a core of its own; {} batches, mesh and floors by turns.",
            bus.endpoints, bus.batches
        ));
        self.line("");
        self.line("| one way, unless said otherwise | median ns | best batch ns |");
        self.line("|---|---:|---:|");
        for (name, figure) in [
            ("floor: a cache line written by turns", bus.cache_line_ns),
            ("hop to an awake worker", bus.awake_hop_ns),
            ("request and reply, there and back", bus.request_reply_ns),
            ("floor: a bare eventfd and `epoll_wait`", bus.eventfd_hop_ns),
            ("hop to a sleeping worker", bus.sleeping_hop_ns),
        ] {
            self.line(format!("| {name} | {} | {} |", group(figure.median), group(figure.best)));
        }
        let stream = bus.stream_message_ns;
        self.line(format!("| a message of a stream | {:.1} | {:.1} |", stream.median, stream.best));
        self.line("");
        self.line(format!(
            "A hop to a sleeping worker takes {} ns more than a bare wake (median of the differences within a batch). A \
             stream carries {} messages a second over one edge.",
            group(bus.sleeping_hop_over_eventfd_ns),
            group(bus.stream_messages_per_s)
        ));
        self.line("");
        self.source(&[&bus.host]);
    }

    fn scale(&mut self, results: &Results) {
        self.head("Growth");
        if results.scale.is_empty() {
            return self.missing("scale");
        }
        self.line(
            "The same at every size: connect, subscribe to one channel, hold, then publish one message at a time to all. \
             Server on core 0, generator on core 1. A process may open a limited number of descriptors in one table, so the \
             server has as many workers, each with its own table, as the size needs. The last row is the run of the \
             next section, which holds its clients for ten minutes first.",
        );
        self.line("");
        self.line("| connections | user bytes each | kernel bytes a pair | CPU µs to connect | CPU µs a message | pings left out | messages/s | delivered |");
        self.line("|---:|---:|---:|---:|---:|---:|---:|---:|");
        for one in &results.scale {
            let decimal =
                |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.2}"));
            let broadcast = one.broadcast.as_ref();
            self.line(format!(
                "| {} | {} | {} | {} | {} | {} | {} | {} |",
                group(one.connected as f64),
                one.user_bytes_per_connection.map_or("–".into(), |bytes| group(bytes as f64)),
                group(one.kernel_bytes_per_pair as f64),
                decimal(one.connect_cpu_us),
                decimal(broadcast.and_then(|broadcast| broadcast.cpu_us_per_message)),
                decimal(broadcast.and_then(|broadcast| broadcast.cpu_us_per_message_without_pings)),
                broadcast.map_or("–".into(), |broadcast| group(broadcast.messages_per_s)),
                broadcast.map_or("–".into(), |broadcast| {
                    let all = broadcast.delivered == broadcast.expected && one.faults.is_none();
                    let count = group(broadcast.delivered as f64);
                    if all {
                        count
                    } else {
                        format!("{count} of {}", group(broadcast.expected as f64))
                    }
                }),
            ));
        }
        self.line("");
        self.line(
            "A million clients are pinged 40,000 times a second, and that goes on while the message is delivered; the \
             column *pings left out* subtracts what pings cost in the seconds before.",
        );
        self.line("");
        self.plot("scale-memory.svg", "User memory a connection by number of connections");
        self.plot("scale-cpu.svg", "CPU a message by number of connections");
        self.source(&results.scale.iter().map(|one| &one.host).collect::<Vec<_>>());
    }

    fn million(&mut self, results: &Results) {
        self.head("A million connections");
        let Some(million) = &results.million else { return self.missing("million") };
        self.line("Both ends on this machine.");
        self.line("");
        let optional = |value: Option<f64>, unit: &str| {
            value.map_or("–".into(), |value| format!("{value:.2} {unit}"))
        };
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
                    million.server_pss_bytes.map_or("–".into(), |bytes| gib(bytes as f64)),
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
                    "{}; {} without the pings of those seconds",
                    optional(broadcast.cpu_us_per_message, "µs"),
                    optional(broadcast.cpu_us_per_message_without_pings, "µs")
                ),
            ));
            rows.push((
                "user memory of the server after it",
                broadcast.server_pss_bytes_after.map_or("–".into(), |bytes| gib(bytes as f64)),
            ));
        }
        self.line("| | |");
        self.line("|---|---|");
        for (what, value) in rows {
            self.line(format!("| {what} | {value} |"));
        }
        self.line("");
        if !million.reasons.is_empty() {
            self.line("What went wrong on the way, and how often:");
            self.line("");
            for (reason, count) in &million.reasons {
                self.line(format!("- {count} × {reason}"));
            }
            self.line("");
        }
        self.source(&[&million.host]);
    }

    fn apns(&mut self, results: &Results) {
        self.head("Pushes to Apple");
        if results.apns.is_empty() {
            return self.missing("apns");
        }
        self.line(super::apns::INTRODUCTION);
        self.line("");
        self.plot("apns.svg", "What one connection reaches of what binds it");
        for findings in &results.apns {
            self.line(super::apns::text(findings));
        }
        let hosts: Vec<&Host> = results.apns.iter().map(|findings| &findings.host).collect();
        self.source(&hosts);
    }

    fn instructions(&mut self, results: &Results) {
        self.head("Instructions");
        let Some(instructions) = &results.instructions else { return self.missing("instructions") };
        self.line(
            "Counted by Cachegrind, so they do not depend on what else the machine does: a change of a few per cent is a \
             change of the code.",
        );
        self.line("");
        self.line("| structure | instructions |");
        self.line("|---|---:|");
        for kernel in &instructions.kernels {
            self.line(format!("| {} | {} |", kernel.name, group(kernel.instructions)));
        }
        self.line("");
        self.source(&[&instructions.host]);
    }
}

fn ours(contenders: Option<&[Summary]>) -> Option<&Summary> {
    contenders?.iter().find(|one| one.name == "dunlin")
}

pub(super) fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

/// A whole number with its thousands apart.
pub(crate) fn group(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    if value < 0.0 && digits != "0" {
        out.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        // Writing to a String cannot fail.
        let _ = write!(out, "{digit}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::group;

    #[test]
    fn thousands_are_apart() {
        assert_eq!(group(0.4), "0");
        assert_eq!(group(999.6), "1,000");
        assert_eq!(group(-1_234_567.0), "-1,234,567");
        assert_eq!(group(-0.1), "0");
    }
}
