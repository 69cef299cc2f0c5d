//! The section about pushes to Apple, from what `dunlin apns bench --json` said.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::page::group;
use crate::host::Host;

pub(super) const INTRODUCTION: &str = "\
What the sender gets out of connections to Apple's push service, played by `dunlin apns simulate` in the same process \
(on threads of its own; CPU is that of the sender's thread alone) and by other people's HTTP/2 servers behind a delay \
line. *Allowed* is what the limit that binds permits: window ÷ (payload × round trip), or streams ÷ round trip. A row \
that misses its promise says so. Why short connections won for others who pushed from far away: a new connection brings \
a new window of 65,535 bytes. Where a server gives windows back late, or never, a long connection waits for its window \
while short ones always have a fresh one; a sender that sees the window opens connections when it binds, and keeps them.";

/// What one run of `dunlin apns bench` found.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Findings {
    pub(super) host: Host,
    pub(super) server: String,
    pub(super) tables: Vec<Table>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Table {
    table: String,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Row {
    what: String,
    rate: f64,
    allowed: Option<f64>,
    answer_p50_s: Option<f64>,
    rtt_s: f64,
    binding: String,
    connections: usize,
    cpu_s_per_10k: f64,
    note: Option<String>,
    holds: bool,
}

/// Allowed and reached, for the rows of one connection whose limit is known.
pub(super) fn reached(findings: &Findings) -> Vec<(f64, f64)> {
    let windows = findings.tables.iter().filter(|table| table.table == "windows");
    let rows = windows.flat_map(|table| &table.rows);
    rows.filter_map(|row| Some((row.allowed?, row.rate))).collect()
}

/// The tables of a run.
pub(super) fn text(findings: &Findings) -> String {
    let mut text = String::new();
    for table in &findings.tables {
        let title = match table.table.as_str() {
            "windows" => "One connection, each window, round trip and payload",
            "connections" => "As many connections as pay, and fixed ones",
            "bad" => "Bad tokens, with the stream limit lowered after each",
            "reference" => "Serial, 150 in flight, batches, adaptive",
            "cpu" => "CPU, next door",
            "queue" => "A bounded queue",
            "storm" => "A storm, both ledgers compared push by push",
            other => other,
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "### {title} ({})\n", findings.server);
        text.push_str(
            "| what | pushes/s | allowed | reached | median answer | in RTT | binding | connections | CPU s / 10,000 | |\n\
             |---|---:|---:|---:|---:|---:|---|---:|---:|---|\n",
        );
        for row in &table.rows {
            let dash = || "–".to_owned();
            let allowed = row.allowed.map_or_else(dash, group);
            let share = row
                .allowed
                .map_or_else(dash, |allowed| format!("{:.1} %", 100.0 * row.rate / allowed));
            let answer = row.answer_p50_s.map_or_else(dash, |p50| format!("{:.1} ms", p50 * 1e3));
            let in_rtt = match row.answer_p50_s {
                Some(p50) if row.rtt_s > 0.0 => format!("{:.2}", p50 / row.rtt_s),
                _ => dash(),
            };
            let mut note = row.note.clone().unwrap_or_default();
            if !row.holds {
                note = format!("**misses its promise** {note}");
            }
            let _ = writeln!(
                text,
                "| {} | {} | {allowed} | {share} | {answer} | {in_rtt} | {} | {} | {:.3} | {} |",
                row.what,
                group(row.rate),
                row.binding,
                row.connections,
                row.cpu_s_per_10k,
                note.trim()
            );
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_misses_its_promise_says_so() {
        let rows = |holds: bool| {
            let row = Row {
                what: "64 KiB".to_owned(),
                rate: 590.0,
                allowed: Some(600.0),
                answer_p50_s: Some(0.251),
                rtt_s: 0.25,
                binding: "window".to_owned(),
                connections: 1,
                cpu_s_per_10k: 0.1,
                note: None,
                holds,
            };
            let table = Table { table: "windows".to_owned(), rows: vec![row] };
            let host = Host::now();
            let findings = Findings { host, server: "simulator".to_owned(), tables: vec![table] };
            assert_eq!(reached(&findings), [(600.0, 590.0)]);
            text(&findings)
        };
        assert!(rows(true).contains("| 590 | 600 | 98.3 % | 251.0 ms | 1.00 | window |"));
        assert!(rows(false).contains("misses its promise"));
    }
}
