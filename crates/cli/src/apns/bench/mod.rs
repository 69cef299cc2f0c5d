//! `dunlin apns bench`: what the sender gets out of a connection, against the simulator and other servers.

mod load;
mod peers;
mod tables;
mod timeline;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use dunlin_bench::{PushReport, PushRow as Row, PushRows, PushTable as Table};

use self::peers::Peer;
use crate::error::CliError;
use crate::style::{BOLD, DIM, paint, print};
use dunlin_load::Output;

#[derive(Debug, Args)]
#[command(
    after_help = "Without --server each table starts the simulator in-process, on threads of its own. \
                        CPU is that of the sender's thread alone."
)]
pub(crate) struct Bench {
    /// What to measure; may be repeated. By default everything, which takes about ten minutes
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
    /// Seconds of the table `drift`; an hour sees provider tokens renewed
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    drift_seconds: u64,
    /// Of the tables `windows` and `vary` only rows whose name holds this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    #[command(flatten)]
    output: Output,
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let every = [
            Table::Windows,
            Table::Connections,
            Table::Bad,
            Table::Reference,
            Table::Cpu,
            Table::Queue,
            Table::Storm,
            Table::Vary,
        ];
        let other = [Table::Windows, Table::Cpu];
        let wanted: &[Table] = match (&self.tables[..], &self.server) {
            ([], None) => &every,
            ([], Some(_)) => &other,
            (tables, _) => tables,
        };
        if self.server.is_some() {
            tables::greet(&self)?;
        }
        let server = if self.server.is_some() { self.name.as_str() } else { "simulator" };
        let mut tables = Vec::new();
        for &table in wanted {
            if !self.output.is_json() {
                let name = paint(BOLD, format!("{table:?}"));
                print(&format!("{name}  {}\n", paint(DIM, server)))?;
            }
            let show = |row: &Row| self.show(row);
            tables.push(PushRows { table, rows: tables::measure(&self, table, &show)? });
        }
        let failed =
            tables.iter().flat_map(|measured| &measured.rows).filter(|row| !row.holds).count();
        let report = PushReport { server: server.to_owned(), tables };
        self.output.write("apns", &report)?;
        match failed {
            0 => Ok(()),
            _ => Err(format!("{failed} rows did not hold").into()),
        }
    }

    /// On standard output what a person reads; where that belongs to the result, on standard error as progress.
    fn show(&self, row: &Row) -> Result<(), CliError> {
        if self.output.is_json() {
            eprint!("{}", text(row));
            return Ok(());
        }
        print(&text(row))
    }

    /// Whether a row of this name is not asked for.
    fn omits(&self, what: &str) -> bool {
        self.only.as_ref().is_some_and(|only| !what.contains(only))
    }

    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

/// A row as it is shown while the others are measured.
fn text(row: &Row) -> String {
    let allowed = row.allowed.map_or(String::new(), |allowed| {
        format!(" of {allowed:.0} ({:.1} %)", 100.0 * row.rate / allowed)
    });
    let answers = match (row.answer_p50_s, row.rtt_s) {
        (Some(p50), rtt) if rtt > 0.0 => {
            format!(", answers {:.0} ms ({:.2} RTT)", p50 * 1e3, p50 / rtt)
        }
        (Some(p50), _) => format!(", answers {:.2} ms", p50 * 1e3),
        (None, _) => String::new(),
    };
    let reached = row.reached_s.map_or(String::new(), |at| format!(", after {at:.1} s"));
    let cpu = row.cpu_s_per_10k.map_or(String::new(), |cpu| format!(", {cpu:.3} s CPU/10k"));
    format!(
        "  {:<36} {:<7} {:>8.0}/s{allowed}{reached}{answers}, {} bound, {} connections{cpu}{}{}\n",
        row.what,
        row.who,
        row.rate,
        row.binding,
        row.connections,
        row.note.as_ref().map_or(String::new(), |note| format!("; {note}")),
        if row.holds { "" } else { "  <- does not hold" }
    )
}
