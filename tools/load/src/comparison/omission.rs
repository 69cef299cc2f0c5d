//! Checks that the reported latencies show a server that stalls for a second (coordinated omission).
//!
//! On a schedule, every request due during the stall waits for the rest of it, so those latencies are spread evenly
//! between zero and the whole second. The measured percentiles are compared with this computed distribution. A
//! closed-loop client, which waits for each answer before it sends the next request, shows only one long request per
//! connection (Tene, "How not to measure latency"); it is run as well, for contrast.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Comparison;
use super::program::{SERVER, run_http, serve};
use crate::http::HttpReport;
use crate::{Context, Error, ExitStatus};

const RATE: f64 = 2_000.0;
const RUN: Duration = Duration::from_secs(5);
const BEFORE_STALL: Duration = Duration::from_millis(2_000);
/// Largest difference allowed between measured and computed percentiles, as a share of the stall.
const DIFFERENCE_MAX: f64 = 0.03;

pub(super) fn run(options: &Comparison) -> Result<ExitStatus, Error> {
    let _server = serve(options, "")?;
    let url = format!("http://{SERVER}/hello");
    let seconds = RUN.as_secs();
    let (open, stall) = with_stall(&format!("{url} -c 50 -p 100 --rate {RATE} -d {seconds}s"))?;
    let (closed, _) = with_stall(&format!("{url} -c 50 -d {seconds}s"))?;

    let stall_us = stall.as_secs_f64() * 1e6;
    let ordinary_us = open.latency_us.p50;
    let count = RATE * RUN.as_secs_f64();
    let computed = |quantile: f64| {
        // So many requests are slower. Latencies during the stall are spread evenly, one request every `1 / RATE`
        // seconds.
        let slower = (1.0 - quantile) * count;
        let us = stall_us - slower / RATE * 1e6;
        us.max(ordinary_us)
    };
    let of = open.latency_us;
    let rows = [
        ("p50", 0.5, of.p50),
        ("p90", 0.9, of.p90),
        ("p99", 0.99, of.p99),
        ("p99.9", 0.999, of.p999),
        ("longest", 1.0, of.max),
    ];
    // The largest difference, as a share of the stall.
    let difference = rows
        .iter()
        .map(|(_, quantile, measured_us)| (measured_us - computed(*quantile)).abs() / stall_us)
        .fold(0.0, f64::max);
    let agrees = difference <= DIFFERENCE_MAX && open.is_clean();
    let rows = rows.map(|(name, quantile, measured_us)| {
        json!({"name": name, "computed_us": computed(quantile), "measured_us": measured_us})
    });
    options.output.report(
        "http-omission",
        &json!({
            "rate": RATE,
            "seconds": RUN.as_secs_f64(),
            "stall_seconds": stall.as_secs_f64(),
            "rows": rows,
            "difference": difference,
            "agrees": agrees,
            // Latencies of the closed-loop client.
            "closed_us": closed.latency_us,
        }),
    )?;
    Ok(if agrees { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// Runs the generator and stalls the server meanwhile. Returns how long the server stalled.
fn with_stall(arguments: &str) -> Result<(HttpReport, Duration), Error> {
    let (run, stall) = std::thread::scope(|scope| {
        let stall = scope.spawn(|| {
            std::thread::sleep(BEFORE_STALL);
            stall()
        });
        (run_http(arguments), stall.join())
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
