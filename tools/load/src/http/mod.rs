//! `dunlin bench http`: load for HTTP servers, and its results.
//!
//! A request is a number, from which its bytes are derived (see `template`). [`dunlin_pipeline::Connection`] matches
//! answers to requests, and each request ends exactly once. Threads share nothing while they run: each passes its
//! counts of a time span to the observer, which sums, displays and writes them.

use crate::{Error, ExitStatus, say};

mod address;
mod compare;
mod connection;
mod files;
mod h2;
mod interrupt;
mod ledger;
mod options;
mod page;
mod plan;
mod reader;
mod report;
mod request;
mod resolve;
mod run;
mod schedule;
mod source;
mod summary;
mod tally;
mod template;
pub mod tls;
mod view;
mod worker;

pub use ledger::LedgerCheck;
pub use options::Http;

pub use summary::time;

/// Compares the ledger of a run with the log of its server.
///
/// # Errors
/// When one of them cannot be read.
pub fn check_ledger(options: &LedgerCheck) -> Result<ExitStatus, Error> {
    ledger::run(options).map(|(status, _)| status)
}

/// Runs the generator and prints its report.
///
/// # Errors
/// When the server could not be loaded at all.
pub fn run(options: &Http) -> Result<ExitStatus, Error> {
    options.check()?;
    // Fail before the run, not after it, if a file is unreadable.
    let earlier = page::read_earlier(&options.with)?;
    if options.compare {
        return compare::run(options, earlier);
    }
    let report = run::run(options)?;
    say("");
    options.output.show(&summary::of(&report))?;
    if let Some(path) = &options.csv {
        files::write_csv(path, &report)?;
    }
    if let Some(path) = &options.report {
        let mut runs = earlier;
        runs.push(report.clone());
        page::write(path, &runs)?;
        say(format!("  report       {}", path.display()));
    }
    options.output.line(&report)?;
    Ok(if report.is_clean() { ExitStatus::Passed } else { ExitStatus::Failed })
}
