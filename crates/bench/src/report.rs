//! Reports: one JSON object a run, and docs/BENCHMARKS.md out of many.

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;

use crate::ExitStatus;
use crate::error::{Context, Error};

/// Options of `dunlin bench report`.
#[derive(Debug, clap::Args)]
pub struct Report {
    /// Directory of the results, one JSON file a run
    #[arg(long, default_value = "docs/benchmarks")]
    results: PathBuf,
    /// The page to write
    #[arg(long, default_value = "docs/BENCHMARKS.md")]
    out: PathBuf,
}

pub(crate) fn run(options: &Report) -> Result<ExitStatus, Error> {
    let _ = options;
    Ok(ExitStatus::Passed)
}

/// Prints the findings of a run as the last line of standard output, if asked to.
pub(crate) fn emit(json: bool, findings: &impl Serialize) -> Result<(), Error> {
    if json {
        let line = serde_json::to_string(findings)
            .map_err(|error| Error::new(format!("cannot write JSON: {error}")))?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").context("cannot write to standard output")?;
        out.flush().context("cannot write to standard output")?;
    }
    Ok(())
}

/// The middle of `values`, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}
