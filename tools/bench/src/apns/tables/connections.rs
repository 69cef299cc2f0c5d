//! Measures the sender's own choice of connections, and fixed numbers of them.

use std::time::Duration;

use dunlin_push::Connections;
use dunlin_simulate::apns::{Behaviour, WindowReturn};

use super::{Load, Row, STREAMS, Show, WINDOW, WINDOW_LARGE, World, load, row, run};
use crate::error::CliError;

pub(super) fn connections(show: Show<'_>) -> Result<Vec<Row>, CliError> {
    let rtt = Duration::from_millis(250);
    let kinds = [
        ("64 KiB, at once", WINDOW as u32, WindowReturn::Eager, WINDOW),
        ("64 KiB, by halves", WINDOW as u32, WindowReturn::Half, WINDOW / 2.0),
        ("16 MiB", WINDOW_LARGE, WindowReturn::Eager, f64::from(WINDOW_LARGE)),
    ];
    let mut rows = Vec::new();
    for (name, connection_window, window_return, per_rtt) in kinds {
        let behaviour =
            Behaviour { rtt_ms: 250, connection_window, window_return, ..Behaviour::default() };
        let world = World::new(behaviour, 0)?;
        let asked = 10_000.0;
        let one = (per_rtt / (437.0 * 0.25)).min(STREAMS / 0.25);
        let needed = (asked / one).ceil() as usize;
        // Pushes that queue up while connections are opened are drained by additional connections, which are closed
        // afterwards.
        let seconds = 60;
        let measured = run(Load {
            connections: Connections::Auto { max: 64 },
            rate: Some(asked),
            queue_bytes_max: 512 << 20,
            ..load(&world.target, 437, Duration::from_secs(seconds))
        })?;
        let mut row = row(
            format!("auto, {name}, 10,000/s asked"),
            &measured,
            rtt,
            Duration::from_secs(seconds - 5),
        );
        row.allowed = Some(asked);
        row.holds = row.rate >= 0.95 * asked && row.connections <= needed + 2;
        row.reached_s = measured.timeline.reached(0.95 * asked, rtt).map(|at| at.as_secs_f64());
        row.note = Some(format!("the limit needs {needed}"));
        show(&row)?;
        rows.push(row);
    }
    let world = World::new(Behaviour { rtt_ms: 250, ..Behaviour::default() }, 0)?;
    for count in [1, 2, 4, 8, 16, 32] {
        // Connections are opened one after the other, and all must be open before the last four seconds.
        let seconds = 8 + count as u64 / 2;
        let measured = run(Load {
            connections: Connections::Fixed(count),
            ..load(&world.target, 437, Duration::from_secs(seconds))
        })?;
        let mut row = row(
            format!("{count} connections, 64 KiB, at once"),
            &measured,
            rtt,
            Duration::from_secs(seconds - 4),
        );
        let allowed = count as f64 * WINDOW / (437.0 * 0.25);
        row.allowed = Some(allowed);
        row.holds = row.rate >= 0.9 * allowed;
        show(&row)?;
        rows.push(row);
    }
    Ok(rows)
}
