//! `dunlin apns bench`: what the sender gets out of a connection, against the simulator and other servers.

mod load;
mod peers;
mod tables;
mod timeline;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use serde::Serialize;

use self::peers::Peer;
use crate::Refusal;
use crate::style::{BOLD, DIM, paint, print};

#[derive(Debug, Args)]
#[command(
    after_help = "Without --server each table starts the simulator in-process, on threads of its own. \
                        CPU is that of the sender's thread alone."
)]
pub(crate) struct Bench {
    /// What to measure; may be given again. Without it everything, which takes about ten minutes
    #[arg(long = "table", value_name = "TABLE")]
    tables: Vec<Table>,
    /// Another HTTP/2 server to measure windows and CPU against
    #[arg(long, value_name = "HOST:PORT", requires = "roots")]
    server: Option<String>,
    /// The name in that server's certificate
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    host: String,
    /// The certificate to trust that server by, PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    roots: Option<PathBuf>,
    /// How many devices that server knows; pushes go to them in turn. Without it each push has a device of its own
    #[arg(long, value_name = "N", requires = "server")]
    devices: Option<NonZeroU64>,
    /// Bytes that its connection window lets pass in a round trip for certain: all of it if it is returned at once,
    /// half if it is returned by halves. With it the rate is judged
    #[arg(long, value_name = "BYTES", requires = "server")]
    window: Option<u32>,
    /// What to call that server
    #[arg(long, value_name = "NAME", default_value = "server")]
    name: String,
    /// Another sender to measure beside ours, by its name on the page; scripts/bench/apns says what it is asked
    #[arg(long = "peer", value_name = "NAME=PROGRAM")]
    peers: Vec<Peer>,
    /// The h2load to measure CPU beside
    #[arg(long, value_name = "PROGRAM")]
    h2load: Option<String>,
    /// Seconds of each measurement of a window
    #[arg(long, value_name = "SECONDS", default_value_t = 6)]
    seconds: u64,
    /// Pushes of the storm
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    storm: u64,
    /// Pushes of the full queue and of the CPU measurement
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pushes: u64,
    /// One line of JSON in the end
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Table {
    /// One connection, each window behaviour, payload and round trip
    Windows,
    /// As many connections as pay: 10,000 a second asked for at 250 ms; and 1 to 32 fixed ones
    Connections,
    /// 1 % and 5 % bad tokens, with and without a connection for suspects
    Bad,
    /// Serial, 150 in flight, batches on short connections, adaptive
    Reference,
    /// CPU for each 10,000 pushes next door, and pushes a second on one core
    Cpu,
    /// A million pushes handed to a bounded queue: memory
    Queue,
    /// Everything that can go wrong; both ledgers compared push by push
    Storm,
}

/// A row of a table: what was measured, and what it is held against.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) what: String,
    /// Whose sender.
    pub(super) who: String,
    /// Pushes a second, once under way.
    pub(super) rate: f64,
    /// What the binding limit allows, where that is known.
    pub(super) allowed: Option<f64>,
    /// Seconds from the start to 95 % of it.
    pub(super) reached_s: Option<f64>,
    pub(super) answer_p50_s: Option<f64>,
    pub(super) answer_p99_s: Option<f64>,
    /// The shortest time from push to answer: what the path of `rtt_s` really took.
    pub(super) answer_min_s: Option<f64>,
    pub(super) rtt_s: f64,
    /// The limit that bound for most of the time.
    pub(super) binding: String,
    pub(super) connections: usize,
    pub(super) cpu_s_per_10k: f64,
    /// Whatever else the table is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    /// False if what the row promises did not hold.
    pub(super) holds: bool,
}

/// What `scripts/bench/run` keeps.
#[derive(Debug, Serialize)]
struct Report<'a, H> {
    host: H,
    server: &'a str,
    tables: Vec<Measured>,
}

#[derive(Debug, Serialize)]
struct Measured {
    table: Table,
    rows: Vec<Row>,
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Refusal> {
        let every = [
            Table::Windows,
            Table::Connections,
            Table::Bad,
            Table::Reference,
            Table::Cpu,
            Table::Queue,
            Table::Storm,
        ];
        let other = [Table::Windows, Table::Cpu];
        let wanted: &[Table] = match (&self.tables[..], &self.server) {
            ([], None) => &every,
            ([], Some(_)) => &other,
            (tables, _) => tables,
        };
        let server = if self.server.is_some() { self.name.as_str() } else { "simulator" };
        let mut tables = Vec::new();
        for &table in wanted {
            if !self.json {
                let name = paint(BOLD, format!("{table:?}"));
                print(&format!("{name}  {}\n", paint(DIM, server)))?;
            }
            let show = |row: &Row| if self.json { Ok(()) } else { print(&row.text()) };
            tables.push(Measured { table, rows: tables::measure(&self, table, &show)? });
        }
        let failed =
            tables.iter().flat_map(|measured| &measured.rows).filter(|row| !row.holds).count();
        if self.json {
            let report = Report { host: dunlin_bench::host(), server, tables };
            print(&format!("{}\n", serde_json::to_string(&report)?))?;
        }
        match failed {
            0 => Ok(()),
            _ => Err(format!("{failed} rows did not hold").into()),
        }
    }

    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

impl Row {
    fn text(&self) -> String {
        let allowed = self.allowed.map_or(String::new(), |allowed| {
            format!(" of {allowed:.0} ({:.1} %)", 100.0 * self.rate / allowed)
        });
        let answers = match (self.answer_p50_s, self.rtt_s) {
            (Some(p50), rtt) if rtt > 0.0 => {
                format!(", answers {:.0} ms ({:.2} RTT)", p50 * 1e3, p50 / rtt)
            }
            (Some(p50), _) => format!(", answers {:.2} ms", p50 * 1e3),
            (None, _) => String::new(),
        };
        let reached = self.reached_s.map_or(String::new(), |at| format!(", after {at:.1} s"));
        format!(
            "  {:<36} {:<7} {:>8.0}/s{allowed}{reached}{answers}, {} bound, {} connections, {:.3} s CPU/10k{}{}\n",
            self.what,
            self.who,
            self.rate,
            self.binding,
            self.connections,
            self.cpu_s_per_10k,
            self.note.as_ref().map_or(String::new(), |note| format!("; {note}")),
            if self.holds { "" } else { "  <- does not hold" }
        )
    }
}
