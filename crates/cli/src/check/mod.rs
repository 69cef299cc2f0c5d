//! `dunlin check`: which limits of this machine are too low for N connections.

mod machine;
mod requirement;

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use dunlin_config::Config;

use self::machine::Machine;
use self::requirement::{Demand, Level, Requirement, requirements};
use crate::config::File;
use crate::error::CliError;
use crate::style;
use crate::style::{BAD, BOLD, DIM, GOOD, LINK, WARN, grouped, paint};

/// More than a machine can hold.
const CONNECTIONS_MAX: u64 = 100_000_000;

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Number of connections to hold
    #[arg(value_name = "N", default_value_t = 1_000_000, value_parser = connections)]
    connections: u64,
    /// The configuration the server will run
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Threads that serve connections; overrides `server.workers`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=128))]
    workers: Option<u8>,
    /// The clients run on this machine too, as with `dunlin bench connections`
    #[arg(long)]
    both_ends: bool,
}

/// Parses a number of connections; digits may be grouped as in `1_000_000`.
fn connections(text: &str) -> Result<u64, String> {
    let number = text.replace('_', "").parse().ok();
    let allowed = number.filter(|number| (1..=CONNECTIONS_MAX).contains(number));
    allowed
        .ok_or_else(|| format!("write a whole number from 1 to {CONNECTIONS_MAX}, as in 1000000"))
}

impl Check {
    /// Returns whether the machine can hold the connections.
    pub(crate) fn run(&self) -> Result<bool, CliError> {
        let config = match &self.config {
            Some(file) => File::read(file)?.config()?,
            None => Config::development(),
        };
        let machine = Machine::read();
        let demand =
            Demand::new(self.connections, self.workers, self.both_ends, &config, machine.cores);
        let requirements = requirements(&machine, &demand);
        style::print(&report(&demand, &requirements))?;
        Ok(requirements.iter().all(|requirement| requirement.level != Level::Stops))
    }
}

/// Formats a line for each requirement, columns aligned, with the commands that fix it below.
fn report(demand: &Demand, requirements: &[Requirement]) -> String {
    let width = |text: fn(&Requirement) -> &str| {
        requirements.iter().map(|f| text(f).len()).max().unwrap_or(0)
    };
    let (name, has) = (width(|f| f.name), width(|f| &f.has));
    let workers = demand.workers;
    let mut out = format!(
        "{}{}, {workers} worker{}\n\n",
        paint(BOLD, format_args!("{} connections", grouped(demand.connections))),
        if demand.both_ends { ", clients on this machine too" } else { "" },
        if workers == 1 { "" } else { "s" },
    );
    for requirement in requirements {
        let (style, mark) = match requirement.level {
            Level::Fits => (GOOD, "ok   "),
            Level::Hurts => (WARN, "hurts"),
            Level::Stops => (BAD, "STOPS"),
        };
        let _ = writeln!(
            out,
            "  {} {:name$}  {:has$}  {}",
            paint(style, mark),
            requirement.name,
            requirement.has,
            paint(DIM, &requirement.needs)
        );
        for fix in &requirement.fixes {
            // The remark is a shell comment, so that the whole line can be copied.
            let remark =
                if fix.why.is_empty() { String::new() } else { format!("  # {}", fix.why) };
            let _ = writeln!(out, "        {}{}", paint(LINK, &fix.command), paint(DIM, remark));
        }
    }
    let count =
        |level| requirements.iter().filter(|requirement| requirement.level == level).count();
    let summary = match (count(Level::Stops), count(Level::Hurts)) {
        (0, 0) => "Every limit is high enough.".to_owned(),
        (0, hurts) => {
            format!("This machine can hold them; {hurts} of the above will slow them down.")
        }
        (stops, _) => {
            format!("{stops} of the above stop{} them.", if stops == 1 { "s" } else { "" })
        }
    };
    let _ = writeln!(out, "\n{summary}");
    if requirements.iter().flat_map(|f| &f.fixes).any(|fix| fix.command.starts_with("sysctl")) {
        let remark =
            "What sysctl sets lasts until the next boot; a file in /etc/sysctl.d keeps it.";
        let _ = writeln!(out, "{}", paint(DIM, remark));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_aligned_and_names_the_mending_command() {
        let machine = Machine { nofile_hard: 20_000, ..requirement::tests::roomy() };
        let demand = Demand::new(1_000_000, Some(2), false, &Config::development(), 2);
        let requirements = requirements(&machine, &demand);
        let plain = anstream::adapter::strip_str(&report(&demand, &requirements)).to_string();
        assert!(plain.starts_with("1,000,000 connections, 2 workers\n\n"), "{plain}");
        assert!(plain.contains("STOPS descriptors"), "{plain}");
        assert!(plain.contains("ulimit -n "), "{plain}");
        assert!(plain.ends_with("\n1 of the above stops them.\n"), "{plain}");
    }
}
