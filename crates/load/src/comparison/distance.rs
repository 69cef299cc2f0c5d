//! The reference's experiment: what not waiting for answers is worth when the server is far away.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Comparison;
use super::program::{SERVER, own_words, run_own, serve};
use crate::figures::group;
use crate::{Error, ExitStatus, Process, say};

const ROUND_TRIPS_MS: [u64; 3] = [10, 50, 250];
const IN_FLIGHT: u32 = 100;
const PROXY: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8396);
/// One request after the other would take most of an hour at a quarter of a second each.
const MODE_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize)]
struct DistanceReport {
    requests: u64,
    connections: u32,
    in_flight: u32,
    distances: Vec<Distance>,
}

/// The three modes over one round trip.
#[derive(Debug, Serialize)]
struct Distance {
    rtt_ms: u64,
    modes: Vec<Mode>,
    /// Requests a second, pipelined beside the same connections one at a time.
    pipelined_to_one_at_a_time: f64,
    pipelined_to_one_connection: f64,
}

#[derive(Debug, Serialize)]
struct Mode {
    name: String,
    answered: u64,
    seconds: f64,
    requests_per_second: f64,
    clean: bool,
}

/// What `bench http --compare --json` prints, as far as it is needed here.
#[derive(Debug, Deserialize)]
struct ModesReport {
    pipelined_to_one_at_a_time: f64,
    pipelined_to_one_connection: f64,
    modes: Vec<crate::http::HttpReport>,
}

pub(super) fn run(options: &Comparison) -> Result<ExitStatus, Error> {
    let requests = options.requests.unwrap_or(10_000);
    let _server = serve(options, "")?;
    let words = own_words()?.join(" ");
    let mut distances = Vec::new();
    for rtt_ms in ROUND_TRIPS_MS {
        let command = format!("{words} delay --listen {PROXY} --to {SERVER} --rtt {rtt_ms}ms");
        let _proxy = Process::start(&command, &[options.server_core], PROXY, None)?;
        say(format!("{rtt_ms} ms there and back"));
        let comparison: ModesReport = run_own(&[
            "http",
            &format!("http://{PROXY}/hello"),
            "--compare",
            "-c",
            &options.connections.to_string(),
            "-p",
            &IN_FLIGHT.to_string(),
            "-n",
            &requests.to_string(),
            "-d",
            &format!("{}s", MODE_TIME.as_secs()),
        ])?;
        let modes = comparison.modes.iter().map(|mode| Mode {
            name: mode.name.clone(),
            answered: mode.ends.answered,
            seconds: mode.seconds,
            requests_per_second: mode.requests_per_second,
            clean: mode.is_clean(),
        });
        distances.push(Distance {
            rtt_ms,
            modes: modes.collect(),
            pipelined_to_one_at_a_time: comparison.pipelined_to_one_at_a_time,
            pipelined_to_one_connection: comparison.pipelined_to_one_connection,
        });
    }
    for distance in &distances {
        for mode in &distance.modes {
            say(format!(
                "{:>4} ms  {:<34} {:>8} answers in {:>7.2} s  {:>9} /s",
                distance.rtt_ms,
                mode.name,
                group(mode.answered as f64),
                mode.seconds,
                group(mode.requests_per_second)
            ));
        }
        say(format!(
            "         pipelined {:.0} × one at a time",
            distance.pipelined_to_one_at_a_time
        ));
    }
    let clean = distances.iter().flat_map(|distance| &distance.modes).all(|mode| mode.clean);
    options.output.report(
        "http-distance",
        &DistanceReport {
            requests,
            connections: options.connections,
            in_flight: IN_FLIGHT,
            distances,
        },
    )?;
    Ok(if clean { ExitStatus::Passed } else { ExitStatus::Failed })
}
