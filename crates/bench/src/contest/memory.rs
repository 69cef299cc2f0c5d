//! The generator's own memory at full rate: what it holds does not grow with what it has sent.

use serde::{Deserialize, Serialize};

use super::Contest;
use super::program::{SERVER, run_own, serve};
use crate::ExitStatus;
use crate::error::Error;
use crate::host::Host;
use crate::progress::say;
use crate::report::{emit, group};

/// Growth that is no growth: pages of histograms that are touched for the first time.
const GROWTH_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Findings {
    pub(crate) benchmark: String,
    pub(crate) host: Host,
    pub(crate) seconds: f64,
    pub(crate) answered: u64,
    pub(crate) first_bytes: u64,
    pub(crate) last_bytes: u64,
    pub(crate) most_bytes: u64,
    pub(crate) flat: bool,
}

pub(super) fn run(options: &Contest) -> Result<ExitStatus, Error> {
    let _server = serve(options, "")?;
    let run: crate::http::Findings = run_own(&[
        "http",
        &format!("http://{SERVER}/hello"),
        "-c",
        &options.connections.to_string(),
        "-p",
        "100",
        "-d",
        &format!("{}s", options.time.as_secs_f64()),
    ])?;
    let memory = run.memory;
    let flat = memory.most_bytes.saturating_sub(memory.first_bytes) <= GROWTH_BYTES_MAX;
    say(format!(
        "{} answers in {:.0} s: {} B at first, {} B at the end, {} B at most",
        group(run.ends.answered as f64),
        run.seconds,
        group(memory.first_bytes as f64),
        group(memory.last_bytes as f64),
        group(memory.most_bytes as f64)
    ));
    emit(
        options.json,
        &Findings {
            benchmark: "http-memory".into(),
            host: Host::now(),
            seconds: run.seconds,
            answered: run.ends.answered,
            first_bytes: memory.first_bytes,
            last_bytes: memory.last_bytes,
            most_bytes: memory.most_bytes,
            flat,
        },
    )?;
    Ok(if flat && run.is_clean() { ExitStatus::Passed } else { ExitStatus::Failed })
}
