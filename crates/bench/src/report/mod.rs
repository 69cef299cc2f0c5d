//! docs/BENCHMARKS.md with its plots, out of the results of many runs.

mod apns;
mod bus;
mod config;
mod fanout;
mod grid;
mod growth;
mod http;
mod instructions;
mod latency;
mod page;
mod plot;
mod promise;
mod results;
mod sections;
mod webhooks;

use std::fs;
use std::path::PathBuf;

use dunlin_load::ExitStatus;
use dunlin_load::progress::say;
use dunlin_load::{Context, Error};
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
    for plot in sections::plots(&results) {
        let path = options.results.join(&plot.file);
        fs::write(&path, plot.draw()?).context(format!("cannot write {}", path.display()))?;
    }
    let directory = options.results.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let page = sections::write(&results, &directory);
    fs::write(&options.out, page).context(format!("cannot write {}", options.out.display()))?;
    say(format!("wrote {}", options.out.display()));
    Ok(ExitStatus::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(page.contains("| hop to an awake worker | 120.0 |"), "{page}");
        assert!(page.contains("commit abc.\n\n```sh\ndunlin bench bus --json\n"), "{page}");

        fs::write(options.results.join("bus.json"), "{}").unwrap();
        let error = run(&options).unwrap_err().to_string();
        assert!(error.contains("bus.json"), "{error}");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_page_of_this_repository_can_be_written_from_its_results() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks");
        let results = Results::read(&root).unwrap();
        let page = sections::write(&results, "benchmarks");
        assert!(page.contains("## Pushes to Apple"), "{page}");
        for plot in sections::plots(&results) {
            assert!(page.contains(&plot.file), "{} is drawn and shown nowhere", plot.file);
            assert!(plot.draw().unwrap().starts_with("<svg"), "{}", plot.file);
        }
    }
}
