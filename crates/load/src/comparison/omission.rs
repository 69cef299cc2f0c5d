//! The server stands still for a second: do the latencies say so?
//!
//! By a schedule every request of that second waits for the rest of it, so their latencies are spread evenly from the
//! whole second down to nothing. That is computed, and the measured percentiles are held against it. A client that waits
//! for each answer before it asks again would show one long request for each connection (Tene, "How not to measure
//! latency"); it is run too, to show what it hides.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Comparison;
use super::program::{SERVER, run_own, serve};
use crate::clock::Percentiles;
use crate::{Context, Error, ExitStatus, say};

const RATE: f64 = 2_000.0;
const RUN: Duration = Duration::from_secs(5);
const BEFORE_STALL: Duration = Duration::from_millis(2_000);
/// The measured percentiles lie this near to the computed ones, as a share of the stall.
const DIFFERENCE_MAX: f64 = 0.03;

#[derive(Debug, Serialize)]
struct OmissionReport {
    rate: f64,
    seconds: f64,
    stall_seconds: f64,
    /// Percentile, computed and measured, microseconds.
    rows: Vec<Row>,
    /// The largest difference, as a share of the stall.
    difference: f64,
    agrees: bool,
    /// What a client sees that waits for each answer before it asks again.
    closed_us: Percentiles,
}

#[derive(Debug, Clone, Serialize)]
struct Row {
    name: String,
    computed_us: f64,
    measured_us: f64,
}

pub(super) fn run(options: &Comparison) -> Result<ExitStatus, Error> {
    let _server = serve(options, "")?;
    let url = format!("http://{SERVER}/hello");
    let time = format!("{}s", RUN.as_secs());
    let rate = RATE.to_string();
    let open: &[&str] = &["http", &url, "-c", "50", "-p", "100", "--rate", &rate, "-d", &time];
    let (open, stall) = with_stall(open)?;
    let closed: &[&str] = &["http", &url, "-c", "50", "-d", &time];
    let (closed, _) = with_stall(closed)?;

    let stall_us = stall.as_secs_f64() * 1e6;
    let ordinary_us = open.latency_us.p50;
    let count = RATE * RUN.as_secs_f64();
    let computed = |quantile: f64| {
        // So many are slower; those of the stall are spread evenly, the longest first.
        let slower = (1.0 - quantile) * count;
        let us = stall_us - slower / RATE * 1e6;
        us.max(ordinary_us)
    };
    let of = open.latency_us;
    let rows: Vec<Row> = [
        ("p50", 0.5, of.p50),
        ("p90", 0.9, of.p90),
        ("p99", 0.99, of.p99),
        ("p99.9", 0.999, of.p999),
        ("longest", 1.0, of.max),
    ]
    .into_iter()
    .map(|(name, quantile, measured_us)| Row {
        name: name.to_owned(),
        computed_us: computed(quantile),
        measured_us,
    })
    .collect();
    let difference = rows
        .iter()
        .map(|row| (row.measured_us - row.computed_us).abs() / stall_us)
        .fold(0.0, f64::max);
    let agrees = difference <= DIFFERENCE_MAX && open.is_clean();
    say(format!("{:<10} {:>14} {:>14} {:>20}", "", "computed ms", "measured ms", "closed loop ms"));
    let closed_us = closed.latency_us;
    let closed_row = [closed_us.p50, closed_us.p90, closed_us.p99, closed_us.p999, closed_us.max];
    for (row, closed) in rows.iter().zip(closed_row) {
        say(format!(
            "{:<10} {:>14.2} {:>14.2} {:>20.2}",
            row.name,
            row.computed_us / 1e3,
            row.measured_us / 1e3,
            closed / 1e3
        ));
    }
    options.output.report(
        "http-omission",
        &OmissionReport {
            rate: RATE,
            seconds: RUN.as_secs_f64(),
            stall_seconds: stall.as_secs_f64(),
            rows,
            difference,
            agrees,
            closed_us,
        },
    )?;
    Ok(if agrees { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// Runs the generator, and makes the server stand still in the middle. Returns for how long it did.
fn with_stall(arguments: &[&str]) -> Result<(crate::http::HttpReport, Duration), Error> {
    let (run, stall) = std::thread::scope(|scope| {
        let stall = scope.spawn(|| {
            std::thread::sleep(BEFORE_STALL);
            stall()
        });
        (run_own(arguments), stall.join())
    });
    let stall = stall.map_err(|_| Error::new("the thread that stops the server panicked"))??;
    Ok((run?, stall))
}

fn stall() -> Result<Duration, Error> {
    let mut socket = TcpStream::connect(SERVER).context("cannot reach the server")?;
    let began = Instant::now();
    let request = format!("GET /stall/1s HTTP/1.1\r\nHost: {SERVER}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).context("cannot reach the server")?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).context("cannot read the server's answer")?;
    Ok(began.elapsed())
}
