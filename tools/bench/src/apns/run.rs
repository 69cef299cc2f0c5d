//! `dunlin apns bench`: measures what the sender achieves on a connection, against the simulator and other servers.

use super::options::Bench;
use super::tables;
use crate::error::CliError;
use crate::pushes::{PushReport, PushRow as Row, PushRows, PushTable as Table};
use crate::style::{BOLD, DIM, paint, print};

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

    /// Shows a row on standard output, or as progress on standard error if standard output is for the result.
    fn show(&self, row: &Row) -> Result<(), CliError> {
        if self.output.is_json() {
            eprint!("{}", text(row));
            return Ok(());
        }
        print(&text(row))
    }
}

/// Formats a row for display during the measurement.
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
