//! What `dunlin apns bench` found: written by it, read by the page.

use clap::ValueEnum;
use serde::Serialize;

/// What one run found.
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
    /// Which one.
    pub table: PushTable,
    /// In the order in which they were measured.
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

/// A row of a table: what was measured, and what it is held against.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PushRow {
    /// What was done.
    pub what: String,
    /// Whose sender.
    pub who: String,
    /// Pushes a second, once under way.
    pub rate: f64,
    /// What the binding limit allows, pushes a second, where that is known.
    pub allowed: Option<f64>,
    /// Seconds from the start to 95 % of it.
    pub reached_s: Option<f64>,
    /// The median time from push to answer.
    pub answer_p50_s: Option<f64>,
    /// What one answer in a hundred exceeded.
    pub answer_p99_s: Option<f64>,
    /// The shortest time from push to answer: what the path of `rtt_s` really took.
    pub answer_min_s: Option<f64>,
    /// The round trip that was asked for; 0 is next door.
    pub rtt_s: f64,
    /// The limit that bound for most of the time.
    pub binding: String,
    /// Connections at the end.
    pub connections: usize,
    /// CPU for each 10,000 pushes, where it was measured.
    pub cpu_s_per_10k: Option<f64>,
    /// Whatever else the table is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// False if what the row promises did not hold.
    pub holds: bool,
}
