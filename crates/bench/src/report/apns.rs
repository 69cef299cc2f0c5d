//! The section about pushes to Apple, from what `dunlin apns bench --json` said.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::page::group;
use crate::host::Host;

pub(super) const INTRODUCTION: &str = "\
What the sender gets out of connections to Apple's push service, played by `dunlin apns simulate` in the same process \
(on threads of its own; CPU is that of the sender's thread alone, with what makes the pushes, after the first two \
seconds) and by other people's HTTP/2 servers behind a delay line. *Allowed* is what the limit that binds permits: \
window ÷ (payload × round trip), or streams ÷ round trip. *After* is how long it took from the start, before the first \
connection, to 95 % of it. *Shortest* is the quickest answer: what the path really took. A row that misses its promise \
says so. Beside it a2 (Rust) and apns2 (Go), unchanged, on one connection, with 1,000 callers; their CPU is that of \
their process. They find the rate too, for they fill every window there is; what they push beyond it waits, and the \
answers take as much longer.";

/// What is to be said of a table beside its figures.
fn remark(table: &str) -> Option<&'static str> {
    Some(match table {
        "windows" => {
            "A server that returns its window *by halves* keeps up to half of it back at any moment; allowed is what the \
             other half permits, so that more than all of it can be reached."
        }
        "connections" => {
            "*Auto* is asked for 10,000 a second and opens connections while each pays for itself; the note says how many the \
             limit needs at least. The rate is that of the last five seconds."
        }
        "bad" => {
            "After each 4xx the server allows 100 streams until it has accepted 500 pushes. Pushes to tokens that nobody has \
             seen working go on a connection of their own, *apart*; allowed is the clean rate."
        }
        "reference" => {
            "Why did batches on short connections beat one long connection, for those who pushed to Apple from 200 to 300 ms \
             away? Because a new connection brings a new window of 65,535 bytes, and nothing else: a hundred and fifty pushes \
             of 437 bytes are exactly one window. As long as the server returns what it read, one long connection with 150 \
             in flight is as fast as the window allows, and faster than short ones, which spend three round trips on \
             connecting. Where the server returns it late, or not at all (*never* below), the long connection has sent its \
             window and stands still, while each short one has a fresh one: they win although they waste most of their time \
             on connecting. The number 150 found by hand is the window divided by the payload, and moves with both. A sender \
             that sees the window needs neither: it fills the window, opens a connection where the window binds, and keeps \
             those that pay."
        }
        "cpu" => {
            "At a round trip of nothing the CPU is the limit. h2load knows nothing of pushes: it sends one prepared request \
             again and again, and is what HTTP/2 and TLS cost. For servers other than the simulator *pushes/s* is the \
             server's limit."
        }
        "queue" => "Memory is that of the whole process, at its peak.",
        "storm" => {
            "GOAWAY every 10,000 pushes with the last 20 not processed, resets of accepted streams, lost answers, bursts of \
             503, a stream limit that changes between 1 and 1,000. A push *disagrees* if the sender says accepted and the \
             server has it not once (or, if marked as perhaps sent twice, not at all), or says anything else and the server \
             has it all the same, uncertain ones apart."
        }
        _ => return None,
    })
}

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
    #[serde(default = "ours")]
    who: String,
    rate: f64,
    allowed: Option<f64>,
    reached_s: Option<f64>,
    answer_min_s: Option<f64>,
    answer_p50_s: Option<f64>,
    rtt_s: f64,
    binding: String,
    connections: usize,
    cpu_s_per_10k: f64,
    note: Option<String>,
    holds: bool,
}

fn ours() -> String {
    "dunlin".to_owned()
}

const ORDER: [&str; 7] = ["windows", "connections", "bad", "reference", "cpu", "queue", "storm"];

impl Findings {
    /// Where it stands on the page: the simulator first, tables in their order.
    pub(super) fn place(&self) -> (bool, String, usize) {
        let first = self.tables.first().map_or("", |table| &table.table);
        let rank = ORDER.iter().position(|name| *name == first).unwrap_or(ORDER.len());
        (self.server != "simulator", self.server.clone(), rank)
    }
}

/// Allowed and reached, for the rows of one connection whose limit is known.
pub(super) fn reached(findings: &Findings) -> Vec<(f64, f64)> {
    let windows = findings.tables.iter().filter(|table| table.table == "windows");
    let rows = windows.flat_map(|table| &table.rows).filter(|row| row.who == "dunlin");
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
        if let Some(remark) = remark(&table.table) {
            let _ = writeln!(text, "{remark}\n");
        }
        text.push_str(
            "| what | sender | pushes/s | allowed | reached | after | median answer | in RTT | shortest | binding | \
             connections | CPU s / 10,000 | |\n\
             |---|---|---:|---:|---:|---:|---:|---:|---:|---|---:|---:|---|\n",
        );
        for row in &table.rows {
            let dash = || "–".to_owned();
            let allowed = row.allowed.map_or_else(dash, group);
            let share = row
                .allowed
                .map_or_else(dash, |allowed| format!("{:.1} %", 100.0 * row.rate / allowed));
            let after = row.reached_s.map_or_else(dash, |after| format!("{after:.1} s"));
            let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
            let shortest = row.answer_min_s.map_or_else(dash, ms);
            let answer = row.answer_p50_s.map_or_else(dash, ms);
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
                "| {} | {} | {} | {allowed} | {share} | {after} | {answer} | {in_rtt} | {shortest} | {} | {} | {:.3} | {} |",
                row.what,
                row.who,
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
                who: ours(),
                rate: 590.0,
                allowed: Some(600.0),
                reached_s: Some(1.4),
                answer_min_s: Some(0.2502),
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
        assert!(
            rows(true)
                .contains("| 590 | 600 | 98.3 % | 1.4 s | 251.0 ms | 1.00 | 250.2 ms | window |")
        );
        assert!(rows(false).contains("misses its promise"));
    }
}
