//! Compares the sender with a hand-tuned caller: serial, 150 in flight, batches on short connections, adaptive.

use std::time::{Duration, Instant};

use dunlin_push::{Connections, results};
use dunlin_simulate::apns::{Behaviour, WindowReturn};

use super::{Bench, Load, Row, Show, World, load, row, run};
use crate::apns::load::{payload, push, sender};
use crate::error::CliError;

/// Pushes that the hand-tuned caller keeps in flight.
const BY_HAND: usize = 150;
/// `BY_HAND` payloads must fit into a window together. With 437 bytes each they would be 15 bytes too long, and the
/// last push of a batch would wait for window that is never returned.
const PAYLOAD: usize = 436;

pub(super) fn reference(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, CliError> {
    let rtt = Duration::from_millis(250);
    let mut rows = Vec::new();
    for (name, window_return) in [("at once", WindowReturn::Eager), ("never", WindowReturn::Never)]
    {
        let behaviour = Behaviour { rtt_ms: 250, window_return, ..Behaviour::default() };
        let world = World::new(behaviour, 0)?;
        let short = Duration::from_secs(bench.seconds);
        for (kind, in_flight_max) in
            [("serial", Some(1)), ("150 in flight", Some(BY_HAND)), ("adaptive", None)]
        {
            let connections = match in_flight_max {
                Some(_) => Connections::Fixed(1),
                None => Connections::Auto { max: 16 },
            };
            let measured =
                run(Load { in_flight_max, connections, ..load(&world.target, PAYLOAD, short) })?;
            let mut row =
                row(format!("{kind}, window returned {name}"), &measured, rtt, Duration::ZERO);
            row.rate = measured.ended as f64 / measured.seconds;
            show(&row)?;
            rows.push(row);
        }
        let row = batches(&world, short, name)?;
        show(&row)?;
        rows.push(row);
    }
    Ok(rows)
}

/// Measures batches of `BY_HAND` pushes, each batch on its own connection.
fn batches(world: &World, duration: Duration, name: &str) -> Result<Row, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let load = load(&world.target, PAYLOAD, duration);
    let text = payload(load.payload_bytes);
    let begin = Instant::now();
    let (ended, connections) = runtime.block_on(async {
        let (mut ended, mut connections) = (0u64, 0);
        while begin.elapsed() < duration {
            let apns = sender(&load)?;
            connections += 1;
            let (sender, mut ends) = results();
            for number in 0..BY_HAND as u64 {
                apns.submit(&push(&load, number, &text)?, number, &sender)
                    .await
                    .map_err(|why| why.to_string())?;
            }
            for _ in 0..BY_HAND {
                ends.recv().await;
                ended += 1;
            }
            apns.close();
        }
        Ok::<_, CliError>((ended, connections))
    })?;
    Ok(Row {
        who: "dunlin".to_owned(),
        what: format!("batches of 150 on short connections, {name}"),
        rate: ended as f64 / begin.elapsed().as_secs_f64(),
        rtt_s: 0.25,
        binding: "connecting".to_owned(),
        connections,
        holds: true,
        ..Row::default()
    })
}
