//! `--compare`: the gain by pipelining, measured in three modes.

use serde::Serialize;

use super::options::{Depth, Http};
use super::page;
use super::report::HttpReport;
use super::summary::{count, time};
use crate::{Error, ExitStatus, say};

/// The three modes and their ratios, as `--json` prints them.
#[derive(Debug, Serialize)]
struct Comparison {
    benchmark: &'static str,
    requests_per_second: f64,
    /// Rate of the pipelined mode divided by that of the same connections, one request at a time.
    pipelined_to_one_at_a_time: f64,
    pipelined_to_one_connection: f64,
    modes: Vec<HttpReport>,
}

pub(super) fn run(options: &Http, earlier: Vec<HttpReport>) -> Result<ExitStatus, Error> {
    let modes = [
        ("one request at a time", 1, 1, Depth::Fixed(1)),
        ("one at a time on each connection", options.connections, options.threads, Depth::Fixed(1)),
        ("pipelined", options.connections, options.threads, options.pipeline),
    ];
    let mut results = Vec::new();
    for (name, connections, threads, pipeline) in modes {
        let mut mode =
            Http { connections, threads, pipeline, name: Some(name.to_owned()), ..options.clone() };
        // Sending all requests one at a time may take an hour; a time limit gives the rate as well.
        mode.duration = options.duration.or(Some(std::time::Duration::from_secs(10)));
        results.push(super::run::run(&mode)?);
        if super::interrupt::is_asked() {
            return Err(Error::new("ended by Ctrl-C before all three modes were measured"));
        }
    }
    let rate = |index: usize| results[index].requests_per_second;
    let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let comparison = Comparison {
        benchmark: "http-compare",
        requests_per_second: rate(2),
        pipelined_to_one_at_a_time: ratio(rate(2), rate(1)),
        pipelined_to_one_connection: ratio(rate(2), rate(0)),
        modes: results.clone(),
    };
    let mut table = format!(
        "{:<34} {:>6} {:>6} {:>10} {:>9} {:>12} {:>9} {:>9}\n",
        "", "conns", "depth", "answers", "time", "requests/s", "p50", "ratio"
    );
    for mode in &results {
        table += &format!(
            "{:<34} {:>6} {:>6} {:>10} {:>9} {:>12} {:>9} {:>8.1}×\n",
            mode.name,
            mode.connections,
            mode.pipeline,
            count(mode.ends.answered as f64),
            time(mode.seconds * 1e6),
            count(mode.requests_per_second),
            time(mode.latency_us.p50),
            ratio(mode.requests_per_second, rate(0)),
        );
    }
    table += &format!(
        "\nPipelined: {:.1} times the same connections one at a time, {:.1} times one connection.",
        comparison.pipelined_to_one_at_a_time, comparison.pipelined_to_one_connection
    );
    say("");
    options.output.show(&table)?;
    // Requests cut off by the time limit are not errors.
    let clean = results.iter().all(HttpReport::is_clean);
    if let Some(path) = &options.report {
        let mut runs = earlier;
        runs.extend(results);
        page::write(path, &runs)?;
        say(format!("report: {}", path.display()));
    }
    options.output.line(&comparison)?;
    Ok(if clean { ExitStatus::Passed } else { ExitStatus::Failed })
}
