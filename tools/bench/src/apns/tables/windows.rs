//! Measures one connection with each kind of flow-control window, beside peers.

use std::time::Duration;

use dunlin_simulate::apns::{Behaviour, WindowReturn};

use super::{Bench, Row, STREAMS, Show, WINDOW, WINDOW_LARGE, World, load, other, row};
use crate::apns::load::{Measured, Target, run};
use crate::apns::peers::{Ask, IN_FLIGHT};
use crate::error::CliError;

const RTTS_MS: [u64; 2] = [50, 250];
const PAYLOADS: [usize; 4] = [128, 437, 1_024, 4_096];
/// Time after the start by which the window must be filled.
const WITHIN: Duration = Duration::from_secs(2);
/// Peers are measured for a shorter time.
const PEER: Duration = Duration::from_secs(5);

pub(super) fn windows(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, CliError> {
    let kinds = [
        ("64 KiB, at once", WINDOW as u32, WindowReturn::Eager),
        ("64 KiB, by halves", WINDOW as u32, WindowReturn::Half),
        ("16 MiB", WINDOW_LARGE, WindowReturn::Eager),
    ];
    let mut rows = Vec::new();
    for (name, connection_window, window_return) in kinds {
        for rtt_ms in RTTS_MS {
            let behaviour =
                Behaviour { rtt_ms, connection_window, window_return, ..Behaviour::default() };
            let world = World::new(behaviour, 0)?;
            let rtt = Duration::from_millis(rtt_ms);
            for payload in PAYLOADS {
                let what = format!("{name}, {rtt_ms} ms, {payload} B");
                if bench.omits(&what) {
                    continue;
                }
                let per_rtt = match window_return {
                    // Half of the window may be withheld at any time; only the other half is guaranteed.
                    WindowReturn::Half => WINDOW / 2.0,
                    _ => f64::from(connection_window),
                };
                let streams = STREAMS / rtt.as_secs_f64();
                let allowed = (per_rtt / (payload as f64 * rtt.as_secs_f64())).min(streams);
                let measured = run(load(&world.target, payload, bench.duration()))?;
                let mut row = row(what.clone(), &measured, rtt, WITHIN);
                row.allowed = Some(allowed);
                row.reached_s = reached(&measured, allowed, rtt);
                row.holds = row.rate >= 0.95 * allowed
                    && row.reached_s.is_some_and(|at| at <= WITHIN.as_secs_f64())
                    && row.answer_p50_s.is_some_and(|p50| p50 <= 1.2 * row.rtt_s);
                show(&row)?;
                rows.push(row);
                for mut row in peers(bench, &what, &world.target, payload, rtt) {
                    row.allowed = Some(allowed);
                    show(&row)?;
                    rows.push(row);
                }
            }
        }
    }
    Ok(rows)
}

/// Measures another server. Its window is given with `--window`; its stream limit is in its SETTINGS.
pub(super) fn other_windows(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, CliError> {
    let target = other(bench)?;
    let address = target.address.parse().map_err(|_| "--server: write ADDRESS:PORT, in numbers")?;
    let mut rows = Vec::new();
    for rtt_ms in RTTS_MS {
        let rtt = Duration::from_millis(rtt_ms);
        let line = dunlin_load::delay::delay_line(address, rtt)?;
        let target = Target { address: line.to_string(), ..target.clone() };
        for payload in PAYLOADS {
            let what = format!("{rtt_ms} ms, {payload} B");
            let measured = run(load(&target, payload, bench.duration()))?;
            let mut row = row(what.clone(), &measured, rtt, WITHIN);
            let streams = measured.metrics.connections.first().map(|link| link.streams_max);
            row.allowed = bench.window.zip(streams).map(|(window, streams)| {
                (f64::from(window) / payload as f64).min(f64::from(streams)) / row.rtt_s
            });
            let wanted = row.allowed.unwrap_or(row.rate);
            row.reached_s = reached(&measured, wanted, rtt);
            row.holds = row.rate >= 0.95 * wanted
                && row.reached_s.is_some_and(|at| at <= WITHIN.as_secs_f64())
                && row.answer_p50_s.is_some_and(|p50| p50 <= 1.2 * row.rtt_s);
            show(&row)?;
            rows.push(row);
            // Peers are measured with one payload only.
            if payload == 437 {
                for row in peers(bench, &what, &target, payload, rtt) {
                    show(&row)?;
                    rows.push(row);
                }
            }
        }
    }
    Ok(rows)
}

fn reached(measured: &Measured, wanted: f64, rtt: Duration) -> Option<f64> {
    measured.timeline.reached(0.95 * wanted, rtt).map(|at| at.as_secs_f64())
}

fn peers(bench: &Bench, what: &str, target: &Target, payload: usize, rtt: Duration) -> Vec<Row> {
    let ask = Ask {
        target,
        payload_bytes: payload,
        duration: PEER,
        warm_up: WITHIN,
        pushes_max: u64::MAX,
        rtt,
        in_flight: IN_FLIGHT,
    };
    bench.peers.iter().map(|peer| peer.measure(what, &ask)).collect()
}
