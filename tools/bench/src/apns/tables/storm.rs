//! Combines all faults, then compares both ledgers push by push.

use std::collections::HashMap;
use std::time::Duration;

use dunlin_load::figures::group;
use dunlin_push::{Connections, Outcome};
use dunlin_simulate::apns::{Behaviour, FlipStreams, GoAway, Unavailable};

use super::{Bench, Load, Row, Show, WINDOW_LARGE, World, load, row, run};
use crate::error::CliError;

pub(super) fn storm(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, CliError> {
    let behaviour = Behaviour {
        rtt_ms: 10,
        connection_window: WINDOW_LARGE,
        goaway: GoAway { every: 10_000, unprocessed: 20, close: false },
        reset_every: 5_003,
        reset_code: 2,
        lose_answer_every: 20_011,
        unavailable: Unavailable { every: 25_000, burst: 200 },
        flip_streams: FlipStreams { every: 20_000, low: 1 },
        ..Behaviour::default()
    };
    let mut rows = Vec::new();
    for resend_uncertain in [false, true] {
        let world = World::new(behaviour.clone(), 3 * bench.storm as usize)?;
        let measured = run(Load {
            connections: Connections::Auto { max: 8 },
            pushes_max: bench.storm,
            keep_outcomes: true,
            resend_uncertain,
            ..load(&world.target, 128, Duration::from_secs(900))
        })?;
        let mut accepted: HashMap<u64, u32> = HashMap::new();
        for entry in world.simulator.ledger() {
            if entry.status == 200 {
                let number =
                    u128::from_str_radix(&entry.device_token, 16).unwrap_or(0) - (1 << 100);
                *accepted.entry(number as u64).or_default() += 1;
            }
        }
        let (mut wrong, mut uncertain, mut twice) = (0u64, 0u64, 0u64);
        for number in 0..bench.storm {
            let times = accepted.get(&number).copied().unwrap_or(0);
            let right = match measured.outcomes.get(number as usize).and_then(Option::as_ref) {
                Some(Outcome::Accepted(how)) if how.possible_duplicate => {
                    twice += u64::from(times > 1);
                    times >= 1
                }
                Some(Outcome::Accepted(_)) => times == 1,
                Some(Outcome::Uncertain(_)) => {
                    uncertain += 1;
                    times <= 1
                }
                Some(Outcome::Rejected(_) | Outcome::NotSent(_)) => times == 0,
                None => false,
            };
            wrong += u64::from(!right);
        }
        let mut row = row(
            format!(
                "storm, uncertain {}",
                if resend_uncertain { "sent again" } else { "reported" }
            ),
            &measured,
            Duration::from_millis(10),
            Duration::ZERO,
        );
        row.rate = measured.ended as f64 / measured.seconds;
        row.note = Some(format!(
            "{} of {} ended, {} disagree, {} uncertain, {} twice and marked, {} refused and sent again, {} retried",
            group(measured.ended as f64),
            group(bench.storm as f64),
            group(wrong as f64),
            group(uncertain as f64),
            group(twice as f64),
            group(measured.metrics.refused as f64),
            group(measured.metrics.retried as f64)
        ));
        row.holds = wrong == 0 && measured.ended == bench.storm;
        show(&row)?;
        rows.push(row);
        drop(world.roots);
    }
    Ok(rows)
}
