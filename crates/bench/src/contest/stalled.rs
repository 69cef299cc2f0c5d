//! One request in sixteen takes the server a while: what those behind it wait, and for what.

use serde::{Deserialize, Serialize};

use super::Contest;
use super::program::{SERVER, run_own, serve};
use crate::ExitStatus;
use crate::error::{Context, Error};
use crate::host::Host;
use crate::http::time;
use crate::latency::Percentiles;
use crate::progress::say;
use crate::report::emit;

/// One in so many is slow.
const ONE_IN: usize = 16;
const SLOW_MS: u64 = 100;
const DEPTHS: [u32; 3] = [1, 4, 16];

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Findings {
    pub(crate) benchmark: String,
    pub(crate) host: Host,
    pub(crate) slow_ms: u64,
    pub(crate) one_in: usize,
    pub(crate) rows: Vec<Row>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) depth: u32,
    pub(crate) requests_per_second: f64,
    pub(crate) first_byte_us: Percentiles,
    /// Without the wait behind others.
    pub(crate) service_us: Percentiles,
}

pub(super) fn run(options: &Contest) -> Result<ExitStatus, Error> {
    let _server = serve(options, "")?;
    let file = std::env::temp_dir().join(format!("dunlin-stalled-{}.jsonl", std::process::id()));
    let mut lines = format!("{{\"path\":\"/delay/{SLOW_MS}ms\"}}\n");
    lines += &"{\"path\":\"/hello\"}\n".repeat(ONE_IN - 1);
    std::fs::write(&file, lines).context(format!("cannot write {}", file.display()))?;
    let mut rows = Vec::new();
    let mut clean = true;
    for depth in DEPTHS {
        let run: Result<crate::http::Findings, Error> = run_own(&[
            "http",
            &format!("http://{SERVER}/"),
            "--from",
            &file.display().to_string(),
            "-c",
            "10",
            "-p",
            &depth.to_string(),
            "-d",
            &format!("{}s", options.time.as_secs_f64()),
        ]);
        let run = run?;
        clean &= run.is_clean();
        rows.push(Row {
            depth,
            requests_per_second: run.requests_per_second,
            first_byte_us: run.first_byte_us,
            service_us: run.service_us,
        });
    }
    std::fs::remove_file(&file).context(format!("cannot remove {}", file.display()))?;
    for row in &rows {
        say(format!(
            "depth {:>3}: {:>8.0} /s, first byte p50 {}, p99 {}; as the oldest p50 {}, p99 {}",
            row.depth,
            row.requests_per_second,
            time(row.first_byte_us.p50),
            time(row.first_byte_us.p99),
            time(row.service_us.p50),
            time(row.service_us.p99)
        ));
    }
    emit(
        options.json,
        &Findings {
            benchmark: "http-stalled".into(),
            host: Host::now(),
            slow_ms: SLOW_MS,
            one_in: ONE_IN,
            rows,
        },
    )?;
    Ok(if clean { ExitStatus::Passed } else { ExitStatus::Failed })
}
