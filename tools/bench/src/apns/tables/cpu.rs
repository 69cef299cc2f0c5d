//! Measures the CPU cost of a push without network latency, and the memory of a full queue.

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use dunlin_load::figures::group;
use dunlin_simulate::apns::Behaviour;

use super::{Bench, Load, Row, Show, WINDOW_LARGE, World, load, other, row, run};
use crate::apns::load::Target;
use crate::apns::peers::{Ask, IN_FLIGHT, h2load};
use crate::error::CliError;

pub(super) fn cpu(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, CliError> {
    let world;
    let target = if bench.server.is_some() {
        other(bench)?
    } else {
        let behaviour = Behaviour { connection_window: WINDOW_LARGE, ..Behaviour::default() };
        world = World::new(behaviour, 0)?;
        world.target
    };
    let mut rows = Vec::new();
    let pushes_max = bench.pushes.min(500_000);
    for payload in [128, 437] {
        let what = format!("next door, {payload} B");
        let measured = run(Load {
            pushes_max,
            warm_up: Duration::ZERO,
            ..load(&target, payload, Duration::from_secs(60))
        })?;
        let mut row = row(what.clone(), &measured, Duration::ZERO, Duration::ZERO);
        row.rate = measured.ended as f64 / measured.seconds;
        let per_core = measured.ended as f64 / measured.cpu_s;
        row.note = Some(format!("{}/s for a core of the sender's own", group(per_core)));
        // Another server need not answer all of them within the time.
        let whole = bench.server.is_some() || measured.ended >= pushes_max;
        row.holds = whole && measured.cpu_s_per_10k() <= 0.10 && per_core >= 1e5;
        show(&row)?;
        rows.push(row);
        if payload == 437 {
            let ask = Ask {
                target: &target,
                payload_bytes: payload,
                duration: Duration::from_secs(60),
                warm_up: Duration::ZERO,
                // Enough to compare senders that take ten times as long.
                pushes_max: pushes_max / 2,
                rtt: Duration::ZERO,
                in_flight: IN_FLIGHT,
            };
            let generator = bench.h2load.iter().map(|program| h2load(program, &what, &ask));
            let peers = bench.peers.iter().map(|peer| peer.measure(&what, &ask));
            for row in generator.chain(peers) {
                show(&row)?;
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// Returns the peak resident memory since the last call of [`forget_peak`].
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn forget_peak() -> std::io::Result<()> {
    // proc_pid_clear_refs(5): resets the peak to the current resident memory.
    fs::write("/proc/self/clear_refs", "5")
}

pub(super) fn queue(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, CliError> {
    let rtt = Duration::from_millis(50);
    let behaviour =
        Behaviour { connection_window: WINDOW_LARGE, rtt_ms: 50, ..Behaviour::default() };
    let world = World::new(behaviour, 0)?;
    let mut rows = Vec::new();

    // Runs first, before other tables leave memory allocated. Without a listener, no push leaves the queue.
    let nobody = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    forget_peak()?;
    let before = peak_bytes();
    let measured = run(Load {
        target: Target { address: nobody.to_string(), ..world.target.clone() },
        pushes_max: bench.pushes,
        queue_bytes_max: 4 << 30,
        ..load(&world.target, 437, Duration::from_secs(10))
    })?;
    let grown = peak_bytes().saturating_sub(before);
    let mut held = row(
        format!("{} waiting at once", group(bench.pushes as f64)),
        &measured,
        rtt,
        Duration::ZERO,
    );
    let queued = measured.metrics.queued as u64;
    held.note = Some(format!(
        "{} waited, {} B each",
        group(queued as f64),
        group((grown / queued.max(1)) as f64)
    ));
    held.cpu_s_per_10k = Some(measured.cpu_s * 1e4 / queued.max(1) as f64);
    held.holds = queued == bench.pushes;
    show(&held)?;
    rows.push(held);

    forget_peak()?;
    let before = peak_bytes();
    let measured = run(Load {
        pushes_max: bench.pushes,
        queue_bytes_max: 64 << 20,
        ..load(&world.target, 437, Duration::from_secs(120))
    })?;
    let grown = peak_bytes().saturating_sub(before);
    let what = format!("{} handed over, queue of 64 MiB", group(bench.pushes as f64));
    let mut bounded = row(what, &measured, rtt, Duration::ZERO);
    bounded.rate = measured.ended as f64 / measured.seconds;
    bounded.note = Some(format!("{} MiB more at most, simulator included", grown >> 20));
    bounded.holds = grown < 400 << 20 && measured.accepted == bench.pushes;
    show(&bounded)?;
    rows.push(bounded);
    Ok(rows)
}
