//! Starts the programs of a comparison: this one, as server and as generator, and other generators.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::de::DeserializeOwned;

use super::Comparison;
use crate::{Context, Error, Process};

pub(super) const SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8395);

/// The path of this program, `dunlin-bench`.
pub(super) fn own_program() -> Result<PathBuf, Error> {
    std::env::current_exe().context("cannot find the path of this program")
}

/// Starts `bench serve` on the server's core, with `more` appended to its options.
pub(super) fn serve(options: &Comparison, more: &str) -> Result<Process, Error> {
    let command = format!("{} serve --listen {SERVER} {more}", own_program()?.display());
    Process::start(&command, &[options.server_core], SERVER, None)
}

/// A program's output and the time it took.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) output: String,
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
}

/// Runs a generator on this thread's core.
pub(super) fn run(program: &Path, arguments: &[String]) -> Result<Run, Error> {
    let shown = program.display();
    let (start, cpu_before) = (Instant::now(), children_cpu_seconds());
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .context(format!("cannot start {shown}"))?;
    let run = Run {
        output: String::from_utf8_lossy(&output.stdout).into_owned(),
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: children_cpu_seconds() - cpu_before,
    };
    if !output.status.success() && run.output.trim().is_empty() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().last().unwrap_or_default();
        return Err(Error::new(format!("{shown} ended with {}: {said}", output.status)));
    }
    Ok(run)
}

/// Runs `bench http` of this program, and reads the JSON of its last line.
pub(super) fn run_http<T: DeserializeOwned>(arguments: &str) -> Result<T, Error> {
    let line = format!("http {arguments} --json");
    let all: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let run = run(&own_program()?, &all)?;
    let line = run.output.lines().last().unwrap_or_default();
    serde_json::from_str(line)
        .map_err(|error| Error::new(format!("{} printed no result: {error}", all.join(" "))))
}

fn children_cpu_seconds() -> f64 {
    // Fields 13 and 14 after the name (cutime, cstime): user and system time of waited-for children, in ticks.
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rfind(')').map_or("", |at| &text[at + 1..]);
    let ticks: u64 = fields
        .split_whitespace()
        .skip(13)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}
