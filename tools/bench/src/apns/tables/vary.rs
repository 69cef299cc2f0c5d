//! Measures varying answer times beside peers, and an hour in which answer times change.

use std::thread;
use std::time::{Duration, Instant};

use dunlin_push::Connections;
use dunlin_simulate::apns::{AnswerTime, Behaviour, Drift, GoAway, PeriodicDelay};

use super::{Bench, Load, Row, Show, WINDOW_LARGE, World, load, row, run};
use crate::apns::peers::{Ask, h2load_for};
use crate::error::CliError;

/// Least share of the best peer's rate.
const SHARE_MIN: f64 = 0.9;
/// Largest median answer time, relative to the service's own median plus a round trip.
const ANSWER_MAX: f64 = 1.2;
const WARM_UP: Duration = Duration::from_secs(2);
/// Hand-tuned windows of callers without an adaptive one.
const IN_FLIGHT: [usize; 2] = [1_000, 300];
/// Time for the sender to adapt to a change.
const SETTLED: Duration = Duration::from_secs(10);
const ASKED_PER_S: f64 = 10_000.0;

/// Returns the service's answer times, each with the round trip.
fn cases() -> Result<Vec<(u64, AnswerTime)>, CliError> {
    let drawn = |text: &str| text.parse::<AnswerTime>();
    Ok(vec![
        (0, drawn("bimodal:0.05,1,30")?),
        (0, drawn("bimodal:0.0005,1,30")?),
        (0, drawn("5+exponential:25")?),
        (0, drawn("2+lognormal:8,0.8")?),
        (50, drawn("bimodal:0.05,1,150")?),
        (50, drawn("pareto:5,1.5")?),
        (250, drawn("2+lognormal:8,0.8")?),
        (
            50,
            AnswerTime {
                drift: Drift { period_s: 3.0, factor: 4.0 },
                ..drawn("5+exponential:15")?
            },
        ),
        (50, AnswerTime { slow_shard: PeriodicDelay { every: 8, ms: 2_000.0 }, ..drawn("10")? }),
        (
            50,
            AnswerTime {
                stall: PeriodicDelay { every: 1_000, ms: 28_000.0 },
                ..drawn("5+exponential:25")?
            },
        ),
    ])
}

pub(super) fn vary(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, CliError> {
    let mut rows: Vec<Row> = Vec::new();
    for (rtt_ms, answer_time) in cases()? {
        let what = match rtt_ms {
            0 => answer_time.to_string(),
            _ => format!("{rtt_ms} ms away, {answer_time}"),
        };
        if bench.omits(&what) {
            continue;
        }
        let behaviour = Behaviour {
            rtt_ms,
            answer_time,
            connection_window: WINDOW_LARGE,
            ..Behaviour::default()
        };
        let rtt = Duration::from_millis(rtt_ms);
        let duration = WARM_UP + bench.duration();
        let mut others = Vec::new();
        for in_flight in IN_FLIGHT {
            let what = format!("{what}; {in_flight} in flight");
            // Each measurement gets a new simulator, so that drift begins anew.
            let asked = |measure: &dyn Fn(&Ask<'_>) -> Row| {
                let world = World::new(behaviour.clone(), 0)?;
                Ok::<_, CliError>(measure(&Ask {
                    target: &world.target,
                    payload_bytes: 437,
                    duration,
                    warm_up: WARM_UP,
                    pushes_max: u64::MAX,
                    rtt,
                    in_flight,
                }))
            };
            if let Some(program) = &bench.h2load {
                others.push(asked(&|ask| h2load_for(program, &what, ask))?);
            }
            if in_flight == IN_FLIGHT[0] {
                for peer in &bench.peers {
                    others.push(asked(&|ask| peer.measure(&what, ask))?);
                }
            }
        }
        let best = others.iter().map(|row| row.rate).reduce(f64::max);
        for (kind, connections) in
            [("one connection", Connections::Fixed(1)), ("auto", Connections::Auto { max: 8 })]
        {
            let world = World::new(behaviour.clone(), 0)?;
            let measured = run(Load {
                connections,
                queue_bytes_max: 32 << 20,
                ..load(&world.target, 437, duration)
            })?;
            let alone = world.simulator.answer_time_median();
            let mut row = row(format!("{what}; {kind}"), &measured, rtt, WARM_UP);
            row.allowed = best;
            let late = alone.mul_f64(ANSWER_MAX) + rtt;
            row.note = Some(format!(
                "the service's own median {:.1} ms, {:.1} ms allowed",
                alone.as_secs_f64() * 1e3,
                late.as_secs_f64() * 1e3
            ));
            row.holds = best.is_none_or(|best| row.rate >= SHARE_MIN * best)
                && row.answer_p50_s.is_some_and(|p50| p50 <= late.as_secs_f64());
            show(&row)?;
            rows.push(row);
        }
        for row in others {
            show(&row)?;
            rows.push(row);
        }
    }
    Ok(rows)
}

pub(super) fn drift(bench: &Bench, show: Show<'_>) -> Result<Vec<Row>, CliError> {
    let rtt = Duration::from_millis(50);
    let calm = Behaviour {
        rtt_ms: 50,
        goaway: GoAway { every: 50_000, unprocessed: 20, close: false },
        ..Behaviour::default()
    };
    let steps: Vec<Behaviour> = cases()?
        .into_iter()
        .map(|(_, answer_time)| Behaviour { answer_time, ..calm.clone() })
        .collect();
    let whole = Duration::from_secs(bench.drift_seconds);
    // One cycle through all steps takes ten minutes, or less in a shorter run.
    let step = (whole / steps.len() as u32).min(Duration::from_secs(60));
    if step < SETTLED + Duration::from_secs(5) {
        return Err("--drift-seconds: 150 at least".into());
    }
    let world = World::new(calm, 0)?;
    let wanted = Load {
        connections: Connections::Auto { max: 32 },
        rate: Some(ASKED_PER_S),
        queue_bytes_max: 512 << 20,
        // Longer than the simulator's longest answer time of a minute.
        answer_within: Duration::from_secs(90),
        ..load(&world.target, 437, whole)
    };
    let simulator = &world.simulator;
    let (measured, changes) = thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let begin = Instant::now();
            let mut changes = Vec::new();
            // Rounded, so that the last step is complete too.
            let count = ((bench.drift_seconds as f64) / step.as_secs_f64()).round() as usize;
            for behaviour in steps.iter().cycle().take(count) {
                let at = begin.elapsed();
                if simulator.set_behaviour(behaviour.clone()).is_err() {
                    break;
                }
                changes.push((at, behaviour.answer_time));
                thread::sleep(step);
            }
            changes
        });
        let measured = run(wanted);
        (measured, changing.join().unwrap_or_default())
    });
    let measured = measured?;
    let mut rows: Vec<Row> = Vec::new();
    for (index, Behaviour { answer_time, .. }) in steps.iter().enumerate() {
        if steps[..index].iter().any(|before| before.answer_time == *answer_time) {
            continue;
        }
        let alike = changes.iter().filter(|(_, changed)| changed == answer_time);
        let rates: Vec<f64> = alike
            .map(|(at, _)| {
                let end = (*at + step).min(Duration::from_secs_f64(measured.seconds));
                measured.timeline.rate(*at + SETTLED, end, rtt)
            })
            .collect();
        let Some(least) = rates.iter().copied().reduce(f64::min) else { continue };
        let what = format!("{answer_time}, {} times", rates.len());
        let mut row = row(what, &measured, rtt, Duration::ZERO);
        row.rate = least;
        row.allowed = Some(ASKED_PER_S);
        row.holds = row.rate >= 0.98 * ASKED_PER_S;
        (row.answer_p50_s, row.answer_p99_s, row.cpu_s_per_10k) = (None, None, None);
        show(&row)?;
        rows.push(row);
    }
    let metrics = &measured.metrics;
    let mut all = row(format!("all {} s", whole.as_secs()), &measured, rtt, SETTLED);
    all.note = Some(format!(
        "{} accepted, {} uncertain, {} not sent; {} connections opened",
        measured.accepted, metrics.uncertain, metrics.not_sent, metrics.opened
    ));
    all.allowed = Some(ASKED_PER_S);
    all.holds = metrics.not_sent == 0 && metrics.uncertain == 0 && metrics.rejected == 0;
    show(&all)?;
    rows.push(all);
    Ok(rows)
}
