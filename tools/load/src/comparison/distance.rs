//! Measures the gain by pipelining when the server is far away, behind a delay proxy.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::Comparison;
use super::program::{SERVER, own_program, run_http, serve};
use crate::http::HttpReport;
use crate::{Error, ExitStatus, Process, say};

const ROUND_TRIPS_MS: [u64; 3] = [10, 50, 250];
const IN_FLIGHT: u32 = 100;
const PROXY: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8396);
/// Time limit of each mode: 10,000 requests one at a time with a round trip of 250 ms would take most of an hour.
const MODE_TIME: Duration = Duration::from_secs(10);

/// The fields of `bench http --compare --json` that this experiment needs.
#[derive(Debug, Deserialize)]
struct ModesReport {
    pipelined_to_one_at_a_time: f64,
    pipelined_to_one_connection: f64,
    modes: Vec<HttpReport>,
}

pub(super) fn run(options: &Comparison) -> Result<ExitStatus, Error> {
    let requests = options.requests.unwrap_or(10_000);
    let _server = serve(options, "")?;
    let program = own_program()?;
    let (mut distances, mut clean) = (Vec::new(), true);
    for rtt_ms in ROUND_TRIPS_MS {
        let command =
            format!("{} delay --listen {PROXY} --to {SERVER} --rtt {rtt_ms}ms", program.display());
        let _proxy = Process::start(&command, &[options.server_core], PROXY, None)?;
        say(format!("{rtt_ms} ms there and back"));
        let (connections, seconds) = (options.connections, MODE_TIME.as_secs());
        let comparison: ModesReport = run_http(&format!(
            "http://{PROXY}/hello --compare -c {connections} -p {IN_FLIGHT} -n {requests} -d {seconds}s"
        ))?;
        clean &= comparison.modes.iter().all(HttpReport::is_clean);
        let modes = comparison.modes.iter().map(|mode| {
            json!({"name": mode.name, "answered": mode.ends.answered, "seconds": mode.seconds,
                "requests_per_second": mode.requests_per_second, "clean": mode.is_clean()})
        });
        distances.push(json!({
            "rtt_ms": rtt_ms,
            "modes": modes.collect::<Vec<_>>(),
            // Requests a second of the pipelined mode, divided by those of the other two modes.
            "pipelined_to_one_at_a_time": comparison.pipelined_to_one_at_a_time,
            "pipelined_to_one_connection": comparison.pipelined_to_one_connection,
        }));
    }
    options.output.report(
        "http-distance",
        &json!({"requests": requests, "connections": options.connections, "in_flight": IN_FLIGHT,
            "distances": distances}),
    )?;
    Ok(if clean { ExitStatus::Passed } else { ExitStatus::Failed })
}
