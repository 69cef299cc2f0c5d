//! The results of `dunlin apns bench`, written by it and read by the page.

use clap::ValueEnum;
use serde::Serialize;

/// The results of one run.
#[derive(Debug, Serialize)]
pub struct PushReport {
    /// The server: `simulator`, or the name that the command line gave it.
    pub server: String,
    /// What was measured against it.
    pub tables: Vec<PushRows>,
}

/// A table with its rows.
#[derive(Debug, Serialize)]
pub struct PushRows {
    /// The table's kind.
    pub table: PushTable,
    /// In order of measurement.
    pub rows: Vec<PushRow>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum PushTable {
    /// One connection, each window behaviour, payload and round trip
    Windows,
    /// Connections the sender opens by itself for 10,000 pushes a second at 250 ms, and 1 to 32 fixed ones
    Connections,
    /// 1 % and 5 % bad tokens, with and without a connection for suspects
    Bad,
    /// Serial, 150 in flight, batches on short connections, adaptive
    Reference,
    /// CPU for 10,000 pushes without network latency, and pushes a second on one core
    Cpu,
    /// A million pushes handed to a bounded queue: memory
    Queue,
    /// All faults at once; the sender's and the simulator's ledgers are compared push by push
    Storm,
    /// Answer times that vary, beside h2load and other people's senders
    Vary,
    /// 10,000 a second while answer times change and connections go away
    Drift,
}

/// A row of a table: the measured figures and their limits.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PushRow {
    /// What was done.
    pub what: String,
    /// Whose sender.
    pub who: String,
    /// Pushes a second, once under way.
    pub rate: f64,
    /// Pushes a second that the binding limit allows, if known.
    pub allowed: Option<f64>,
    /// Seconds from the start until the rate reached 95 % of `allowed`.
    pub reached_s: Option<f64>,
    /// The median time from push to answer.
    pub answer_p50_s: Option<f64>,
    /// The 99th percentile of the time from push to answer.
    pub answer_p99_s: Option<f64>,
    /// The shortest time from push to answer: the actual latency of the path with `rtt_s`.
    pub answer_min_s: Option<f64>,
    /// The configured round-trip time; 0 for no added delay.
    pub rtt_s: f64,
    /// The limit that bound for most of the time.
    pub binding: String,
    /// Connections at the end.
    pub connections: usize,
    /// CPU for each 10,000 pushes, where it was measured.
    pub cpu_s_per_10k: Option<f64>,
    /// Other figures of the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// False if the row's target was not met.
    pub holds: bool,
}
