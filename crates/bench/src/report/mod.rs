//! Reports: one JSON object a run, and docs/BENCHMARKS.md with its plots out of many.

mod apns;
mod config;
mod http;
mod page;
mod plot;
mod results;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;

use crate::ExitStatus;
use crate::error::{Context, Error};
use crate::progress::say;
pub(crate) use page::group;
use results::Results;

/// Options of `dunlin bench report`.
#[derive(Debug, clap::Args)]
pub struct Report {
    /// Directory of the results, one JSON file a run; the plots are written there too
    #[arg(long, default_value = "docs/benchmarks")]
    results: PathBuf,
    /// The page to write; it must lie beside the directory of the results
    #[arg(long, default_value = "docs/BENCHMARKS.md")]
    out: PathBuf,
}

pub(crate) fn run(options: &Report) -> Result<ExitStatus, Error> {
    let results = Results::read(&options.results)?;
    for (name, drawing) in plot::draw(&results)? {
        let path = options.results.join(name);
        fs::write(&path, drawing).context(format!("cannot write {}", path.display()))?;
    }
    let directory = options.results.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let page = page::write(&results, &directory);
    fs::write(&options.out, page).context(format!("cannot write {}", options.out.display()))?;
    say(format!("wrote {}", options.out.display()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_page_is_written_from_whatever_results_there_are() {
        let directory = std::env::temp_dir().join(format!("dunlin-report-{}", std::process::id()));
        fs::create_dir_all(directory.join("benchmarks")).unwrap();
        let options =
            Report { results: directory.join("benchmarks"), out: directory.join("BENCHMARKS.md") };
        run(&options).unwrap();
        let empty = fs::read_to_string(&options.out).unwrap();
        assert!(empty.contains("not measured yet"), "{empty}");

        let bus = r#"{"benchmark":"bus","host":{"cpu":"C","cores":2,"memory_gib":24,"kernel":"Linux 6","day":"2026-01-02",
            "command":"dunlin bench bus --json","commit":"abc"},"endpoints":64,"batches":15,
            "cache_line_ns":{"median":100.0,"best":90.0},"awake_hop_ns":{"median":120.0,"best":110.0},
            "request_reply_ns":{"median":400.0,"best":350.0},"eventfd_hop_ns":{"median":25000.0,"best":24000.0},
            "sleeping_hop_ns":{"median":25500.0,"best":24500.0},"sleeping_hop_over_eventfd_ns":480.0,
            "stream_message_ns":{"median":8.0,"best":7.0},"stream_messages_per_s":125000000.0}"#;
        fs::write(options.results.join("bus.json"), bus).unwrap();
        run(&options).unwrap();
        let page = fs::read_to_string(&options.out).unwrap();
        assert!(page.contains("| hop to an awake worker | 120 |"), "{page}");
        assert!(page.contains("dunlin bench bus --json"), "{page}");

        fs::write(options.results.join("bus.json"), "{}").unwrap();
        let error = run(&options).unwrap_err().to_string();
        assert!(error.contains("bus.json"), "{error}");
        fs::remove_dir_all(directory).unwrap();
    }
}
