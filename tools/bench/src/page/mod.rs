//! Writes docs/BENCHMARKS.md and its plots: the template of the page, filled in with the results of earlier runs.

mod layout;
mod plot;
mod render;
mod results;

use std::fs;
use std::path::PathBuf;

use dunlin_load::{Context, Error, ExitStatus, say};

const TEMPLATE: &str = include_str!("../../page.md");
/// The figures of the README, between these two lines.
const FIGURES: &str = include_str!("../../readme.md");
const BEGIN: &str = "<!-- figures -->\n";
const END: &str = "<!-- end of figures -->\n";

/// Returns a README with the figures of the results.
///
/// # Errors
/// It has no place for them.
fn with_figures(readme: &str, results: &serde_json::Value) -> Result<String, Error> {
    let figures = render::render(FIGURES, results)?;
    let place =
        readme.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let (head, tail) = place.ok_or_else(|| {
        Error::new(format!("the README has no lines {} and {}", BEGIN.trim(), END.trim()))
    })?;
    Ok(format!("{head}{BEGIN}{}\n{END}{tail}", figures.trim()))
}

/// Options of `dunlin bench page`.
#[derive(Debug, clap::Args)]
pub struct Page {
    /// Directory of the results, one JSON file a run; the plots are written there too
    #[arg(long, default_value = "docs/benchmarks")]
    results: PathBuf,
    /// The page to write; it must lie beside the directory of the results
    #[arg(long, default_value = "docs/BENCHMARKS.md")]
    out: PathBuf,
    /// The README whose table of figures is written; without one none is
    #[arg(long)]
    readme: Option<PathBuf>,
}

pub(crate) fn run(options: &Page) -> Result<ExitStatus, Error> {
    let results = results::read(&options.results)?;
    let directory = options.results.file_name().unwrap_or_default().to_string_lossy();
    let page = layout::lay_out(&render::render(TEMPLATE, &results)?, &directory);
    let write = |path: PathBuf, text: &str| {
        fs::write(&path, text).context(format!("cannot write {}", path.display()))
    };
    for plot in &page.plots {
        write(options.results.join(&plot.file), &plot.draw()?)?;
    }
    write(options.out.clone(), &page.text)?;
    if let Some(readme) = &options.readme {
        let text =
            fs::read_to_string(readme).context(format!("cannot read {}", readme.display()))?;
        write(readme.clone(), &with_figures(&text, &results)?)?;
    }
    say(format!("wrote {}", options.out.display()));
    Ok(ExitStatus::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_written_from_whatever_results_there_are() {
        let directory = std::env::temp_dir().join(format!("dunlin-page-{}", std::process::id()));
        fs::create_dir_all(directory.join("benchmarks")).unwrap();
        let options = Page {
            results: directory.join("benchmarks"),
            out: directory.join("BENCHMARKS.md"),
            readme: None,
        };
        run(&options).unwrap();
        let empty = fs::read_to_string(&options.out).unwrap();
        assert!(empty.contains("not measured yet"), "{empty}");

        let bus = r#"{"benchmark":"bus","host":{"cpu":"C","cores":2,"memory_gib":24,"kernel":"Linux 6","day":"2026-01-02",
            "command":"dunlin bench bus --json","commit":"abc"},"endpoints":64,"batches":15,
            "cache_line_ns":{"median":100.0,"best":90.0},"awake_hop_ns":{"median":120.0,"best":110.0},
            "request_reply_ns":{"median":400.0,"best":350.0},"eventfd_hop_ns":{"median":25000.0,"best":24000.0},
            "sleeping_hop_ns":{"median":25500.0,"best":24500.0},"sleeping_hop_over_eventfd_ns":1480.0,
            "stream_message_ns":{"median":8.0,"best":7.0},"stream_messages_per_s":125000000.0}"#;
        fs::write(options.results.join("bus.json"), bus).unwrap();
        run(&options).unwrap();
        let page = fs::read_to_string(&options.out).unwrap();
        assert!(page.contains("| hop to an awake worker | 120.0 |"), "{page}");
        assert!(page.contains("commit abc.\n\n```sh\ndunlin bench bus --json\n"), "{page}");
        assert!(page.contains("2 of 3 are met."), "{page}");
        assert!(
            page.contains("| [The bus between workers](#the-bus-between-workers) | hop to an"),
            "{page}"
        );
        assert!(page.contains("| ≤ 1,000 ns | 1,480 ns | **missed** |"), "{page}");

        fs::write(options.results.join("bus.json"), "{}").unwrap();
        let error = run(&options).unwrap_err().to_string();
        assert!(error.contains("bus.json"), "{error}");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_peer_of_the_same_run_stands_beside_dunlin_and_is_what_is_asked() {
        let host = serde_json::json!({"cpu": "C", "cores": 2, "memory_gib": 24, "kernel": "Linux 6", "day": "2026-01-02",
            "command": "dunlin bench cluster --json", "commit": "abc"});
        let of = |per_s: f64| {
            serde_json::json!({"publish": {"per_s": per_s, "node_us": 5.0, "redis_us": 1.0, "lost": 0},
                "publish_history": {"redis_us": 4.0}, "burst": {"redis_us": 0.5}})
        };
        let mut cluster =
            serde_json::json!({"host": host, "channels": 100, "rounds": 3, "rows": of(90_000.0)});
        let page = |cluster: &serde_json::Value| {
            let results = serde_json::json!({ "cluster": cluster });
            layout::lay_out(&render::render(TEMPLATE, &results).unwrap(), "benchmarks").text
        };
        let alone = page(&cluster);
        assert!(alone.contains("| ≥ 50,400/s | 90,000/s | met |"), "{alone}");
        assert!(alone.contains("No peer took part in this run"), "{alone}");

        cluster["peer"] = serde_json::json!({"name": "centrifuge", "version": "1.2.3", "rows": of(45_000.0),
            "ratios": {"publish": {"per_s": 2.0}}});
        let beside = page(&cluster);
        assert!(
            beside.contains("beside centrifuge 1.2.3 | ≥ 3 × | 2.0 × | **missed** |"),
            "{beside}"
        );
        assert!(beside.contains("a second | 90,000 | 45,000 | 2.0 × | 16,800 |"), "{beside}");
        assert!(!beside.contains("50,400"), "{beside}");
    }

    #[test]
    fn the_page_of_this_repository_is_what_its_results_say() {
        let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let results = results::read(&docs.join("benchmarks")).unwrap();
        let page = layout::lay_out(&render::render(TEMPLATE, &results).unwrap(), "benchmarks");
        assert!(
            page.text == fs::read_to_string(docs.join("BENCHMARKS.md")).unwrap(),
            "run scripts/bench/run page"
        );
        let readme = fs::read_to_string(docs.join("../README.md")).unwrap();
        assert!(with_figures(&readme, &results).unwrap() == readme, "run scripts/bench/run page");
        assert!(with_figures("# Dunlin", &results).is_err());
        for plot in page.plots {
            let drawn = fs::read_to_string(docs.join("benchmarks").join(&plot.file)).unwrap();
            assert!(drawn == plot.draw().unwrap(), "{}: run scripts/bench/run page", plot.file);
        }
    }
}
