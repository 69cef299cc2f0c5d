//! Tests of the limit in virtual time: a path, a bottleneck, and a service with varying response times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::*;

/// Returns the service's time for a push from the seconds since the start and a source of random numbers from 0 to 1.
pub(super) type Draw = fn(f64, &mut dyn FnMut() -> f64) -> f64;

/// A model of the path and the service behind a connection.
#[derive(Clone, Copy)]
struct Model {
    /// Round-trip time of the path.
    path_s: f64,
    /// Pushes per second through the bottleneck, which is a FIFO queue.
    capacity: fn(f64) -> f64,
    answer: Draw,
    streams: fn(f64) -> u32,
    /// Pushes that fit the peer's window, which is returned after a round trip.
    window: u32,
    /// Pushes offered per second.
    asked: f64,
    /// The machine alternates between running and standing still, each for this long on average.
    idle_s: f64,
    seconds: f64,
}

const STEADY: Model = Model {
    path_s: 0.0,
    capacity: |_| 15_000.0,
    answer: |_, _| 0.0,
    streams: |_| 300,
    window: u32::MAX,
    asked: 1e9,
    idle_s: 0.0,
    seconds: 8.0,
};

/// Results of the last part of a run: pushes per second, median response time, and mean number in flight.
#[derive(Clone, Copy, Debug)]
struct Played {
    rate: f64,
    median_s: f64,
    /// Shown when an assertion fails.
    #[allow(dead_code, reason = "shown when an assertion fails")]
    in_flight: f64,
}

/// Runs with the adaptive limit, or with a fixed number in flight.
fn play(model: &Model, fixed: Option<u32>, seed: u64, last_s: f64) -> Played {
    let begin = Instant::now();
    let at = |time_s: f64| begin + Duration::from_secs_f64(time_s);
    let mut limit = ConcurrencyLimit::new(begin);
    let mut uniform = random(seed);
    let (mut now, mut in_flight, mut free_at, mut number) = (0.0, 0u32, 0.0f64, 0u64);
    // Times in nanoseconds, so that they can be ordered. Events: responses, the return of window, and clock ticks.
    let mut events: BinaryHeap<Reverse<(u64, Option<u64>)>> = BinaryHeap::new();
    let mut requests: HashMap<u64, (SentRequest, f64)> = HashMap::new();
    let mut returns: VecDeque<f64> = VecDeque::new();
    let (mut times, mut weight, mut tick_at, mut still_from) = (Vec::new(), 0.0, 0.0, 0.0);
    while now < model.seconds {
        let streams = (model.streams)(now);
        while returns.front().is_some_and(|at| *at <= now) {
            returns.pop_front();
        }
        while in_flight < streams && (number as f64) < (now + 1e-3) * model.asked {
            if returns.len() >= model.window as usize {
                break;
            }
            if in_flight >= fixed.unwrap_or(limit.limit()) {
                limit.handle_bound();
                break;
            }
            let request = limit.handle_sent(in_flight, at(now));
            in_flight += 1;
            free_at = free_at.max(now + model.path_s / 2.0) + 1.0 / (model.capacity)(now);
            let answered = free_at + (model.answer)(now, &mut uniform) + model.path_s / 2.0;
            requests.insert(number, (request, now));
            events.push(Reverse(((answered * 1e9) as u64, Some(number))));
            if model.window < u32::MAX {
                let returned = free_at + model.path_s / 2.0;
                returns.push_back(returned);
                events.push(Reverse(((returned * 1e9) as u64 + 1, None)));
            }
            number += 1;
        }
        if model.asked < 1e9 && tick_at <= now {
            tick_at = now + 0.002;
            events.push(Reverse(((tick_at * 1e9) as u64, None)));
        }
        let Some(Reverse((nanos, answered))) = events.pop() else { break };
        let before = now;
        now = now.max(nanos as f64 / 1e9);
        while model.idle_s > 0.0 && now > still_from {
            now = now.max(still_from + exponential(model.idle_s, &mut uniform));
            still_from = now + exponential(model.idle_s, &mut uniform);
        }
        let Some(answered) = answered else { continue };
        let (request, sent) = requests.remove(&answered).expect("it was sent");
        if now > model.seconds - last_s {
            times.push(now - sent);
            weight += f64::from(in_flight) * (now - before);
        }
        in_flight -= 1;
        limit.handle_answer(&request, at(now));
    }
    times.sort_by(f64::total_cmp);
    Played {
        rate: times.len() as f64 / last_s,
        median_s: times.get(times.len() / 2).copied().unwrap_or(f64::MAX),
        in_flight: weight / last_s,
    }
}

/// Returns a source of random numbers from 0 to 1.
pub(super) fn random(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }
}

pub(super) fn exponential(mean_s: f64, uniform: &mut dyn FnMut() -> f64) -> f64 {
    -mean_s * (1.0 - uniform()).ln()
}

pub(super) fn lognormal(median_s: f64, sigma: f64, uniform: &mut dyn FnMut() -> f64) -> f64 {
    let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
    median_s * (sigma * radius * (std::f64::consts::TAU * uniform()).cos()).exp()
}

/// Compares the limit with the best fixed number in flight, and the median with the service time without load.
fn holds(what: &str, model: &Model, share: f64, longer: f64) {
    let fixed = [50, 100, 200, 300].map(|in_flight| play(model, Some(in_flight), 7, 4.0));
    let best = fixed.iter().map(|played| played.rate).fold(0.0, f64::max);
    let alone = play(model, Some(4), 7, 4.0).median_s;
    for seed in 1..=2 {
        let ours = play(model, None, seed, 4.0);
        let said = format!("{what}, seed {seed}: {ours:?}, best {best:.0}/s, alone {alone:.4} s");
        assert!(ours.rate >= share * best, "{said}");
        let allowed = longer * alone + 0.0025;
        assert!(ours.median_s <= allowed, "{said}");
    }
}

#[test]
fn answers_that_vary_are_no_queue() {
    let bimodal: Draw = |_, uniform| if uniform() < 0.05 { 0.001 } else { 0.030 };
    let rare: Draw = |_, uniform| if uniform() < 0.0005 { 0.001 } else { 0.030 };
    let even: Draw = |_, uniform| if uniform() < 0.15 { 0.001 } else { 0.030 };
    let exponential: Draw = |_, uniform| 0.005 + exponential(0.025, uniform);
    let lognormal: Draw = |_, uniform| 0.002 + lognormal(0.008, 0.8, uniform);
    let pareto: Draw = |_, uniform| 0.005 * (1.0 - uniform()).powf(-1.0 / 1.5);
    let shard: Draw = |_, uniform| if uniform() < 0.125 { 2.0 } else { 0.010 };
    let stalls: Draw = |_, uniform| if uniform() < 0.001 { 28.0 } else { 0.030 };
    let far: Draw = |_, uniform| if uniform() < 0.05 { 0.001 } else { 0.150 };
    for (what, path_s, answer) in [
        ("5 % at 1 ms, rest 30 ms", 0.0, bimodal),
        ("1 in 2,000 at 1 ms, rest 30 ms", 0.0, rare),
        ("15 % at 1 ms, rest 30 ms", 0.0, even),
        ("5 ms + exponential 25 ms", 0.0, exponential),
        ("2 ms + lognormal 8 ms", 0.0, lognormal),
        ("Pareto 5 ms", 0.0, pareto),
        ("one in eight + 2 s", 0.0, shard),
        ("one in a thousand stalls 28 s", 0.0, stalls),
        ("50 ms away, 5 % at 1 ms, rest 150 ms", 0.05, far),
        ("250 ms away, exponential", 0.25, exponential),
        ("250 ms away, lognormal", 0.25, lognormal),
    ] {
        holds(what, &Model { path_s, answer, ..STEADY }, 0.9, 1.2);
    }
}

#[test]
fn a_queue_is_one_however_much_answers_vary() {
    let exponential: Draw = |_, uniform| 0.005 + exponential(0.025, uniform);
    let lognormal: Draw = |_, uniform| 0.002 + lognormal(0.008, 0.8, uniform);
    let bimodal: Draw = |_, uniform| if uniform() < 0.05 { 0.001 } else { 0.030 };
    for answer in [exponential, lognormal, bimodal] {
        for capacity in [(|_| 5_000.0) as fn(f64) -> f64, |_| 2_000.0] {
            for path_s in [0.0, 0.05, 0.25] {
                let what = format!("{}/s, {path_s} s away", capacity(0.0));
                // With a dozen in flight the bottleneck is idle at times, or there is a queue.
                holds(
                    &what,
                    &Model { path_s, answer, capacity, seconds: 15.0, ..STEADY },
                    0.85,
                    1.3,
                );
            }
        }
    }
}

#[test]
fn a_service_that_becomes_slower_and_quicker_is_followed() {
    // From 10 to 50 ms and back every 20 s.
    let drifting: Draw = |at_s, uniform| {
        let swing = (1.0 - (std::f64::consts::TAU * at_s / 20.0).cos()) / 2.0;
        (0.005 + exponential(0.005, uniform)) * (1.0 + 4.0 * swing)
    };
    for path_s in [0.0, 0.05] {
        let model = Model { path_s, answer: drifting, seconds: 41.0, ..STEADY };
        let best = play(&model, Some(300), 7, 20.0);
        let ours = play(&model, None, 1, 20.0);
        assert!(ours.rate >= 0.9 * best.rate, "{ours:?} of {best:?}");
    }
}

#[test]
fn capacity_that_comes_back_is_used_again() {
    let capacity = |at_s: f64| if (10.0..20.0).contains(&at_s) { 500.0 } else { 3_000.0 };
    let model =
        Model { path_s: 0.05, answer: |_, uniform| exponential(0.02, uniform), capacity, ..STEADY };
    let narrow = play(&Model { seconds: 20.0, ..model }, None, 1, 4.0);
    assert!(narrow.rate >= 0.95 * 500.0 && narrow.median_s <= 0.09, "{narrow:?}");
    let wide = play(&Model { seconds: 30.0, ..model }, None, 1, 3.0);
    assert!(wide.rate >= 0.95 * 3_000.0 && wide.median_s <= 0.09, "{wide:?}");
}

#[test]
fn a_slow_peer_is_kept_busy_without_a_queue() {
    for capacity in [(|_| 40.0) as fn(f64) -> f64, |_| 400.0, |_| 2_000.0] {
        let streams = |_| u32::MAX;
        let model = Model { path_s: 0.25, capacity, streams, seconds: 30.0, ..STEADY };
        let played = play(&model, None, 1, 1.0);
        let rate = capacity(0.0);
        assert!(played.rate >= 0.95 * rate, "{played:?} of {rate}");
        assert!(played.median_s <= 1.2 * (0.25 + 1.0 / rate), "{played:?} at {rate}");
    }
}

#[test]
fn the_stream_limit_is_used_wholly_within_two_seconds() {
    let streams = |_| 1_000;
    let model = Model { path_s: 0.25, capacity: |_| 1e6, streams, seconds: 2.5, ..STEADY };
    let played = play(&model, None, 1, 1.0);
    assert!(played.rate >= 0.95 * 4_000.0, "{played:?}");
    assert!(played.median_s <= 0.25 * 1.05, "{played:?}");
}

#[test]
fn a_limit_of_one_that_rises_is_followed_and_remembered() {
    let model = Model { path_s: 0.25, capacity: |_| 1e6, ..STEADY };
    let rises = |second| if second < 5.0 { 1 } else { 1_000 };
    let played = play(&Model { streams: rises, seconds: 8.0, ..model }, None, 1, 1.0);
    assert!(played.rate >= 0.95 * 4_000.0, "{played:?}");
    let falls = |second| if (4.0..60.0).contains(&second) { 1 } else { 1_000 };
    let played = play(&Model { streams: falls, seconds: 61.6, ..model }, None, 1, 1.0);
    assert!(played.rate >= 0.9 * 4_000.0, "{played:?}");
}

#[test]
fn a_short_path_is_not_left_without_work() {
    let model = Model {
        path_s: 1e-4,
        capacity: |_| 100_000.0,
        streams: |_| u32::MAX,
        seconds: 2.0,
        ..STEADY
    };
    let played = play(&model, None, 1, 1.0);
    assert!(played.rate >= 95_000.0, "{played:?}");
    assert!(played.median_s <= 0.004, "{played:?}");
}

#[test]
fn a_connection_does_not_pay_for_what_it_remembers() {
    assert!(size_of::<SentRequest>() <= 24, "{}", size_of::<SentRequest>());
    assert!(size_of::<ConcurrencyLimit>() <= 512, "{}", size_of::<ConcurrencyLimit>());
}

/// The phases of a service, 15 s each.
const CHANGES: [Draw; 9] = [
    |_, uniform| if uniform() < 0.05 { 0.001 } else { 0.030 },
    |_, uniform| if uniform() < 0.0005 { 0.001 } else { 0.030 },
    |_, uniform| 0.005 + exponential(0.025, uniform),
    |_, uniform| 0.002 + lognormal(0.008, 0.8, uniform),
    |_, uniform| if uniform() < 0.05 { 0.001 } else { 0.150 },
    |_, uniform| 0.005 * (1.0 - uniform()).powf(-1.0 / 1.5),
    |at_s, uniform| {
        let swing = (1.0 - (std::f64::consts::TAU * at_s / 6.0).cos()) / 2.0;
        (0.005 + exponential(0.015, uniform)) * (1.0 + 3.0 * swing)
    },
    |_, uniform| if uniform() < 0.125 { 2.0 } else { 0.010 },
    |_, uniform| if uniform() < 0.001 { 28.0 } else { 0.005 + exponential(0.025, uniform) },
];

#[test]
fn ten_seconds_after_each_change_what_is_asked_is_sent() {
    let answer: Draw =
        |at_s, uniform| CHANGES[(at_s / 15.0) as usize % CHANGES.len()](at_s, uniform);
    for idle_s in [0.0, 0.02] {
        for changes in 1..=CHANGES.len() {
            let model = Model {
                path_s: 0.05,
                capacity: |_| 1e5,
                answer,
                streams: |_| 1_000,
                window: 150,
                asked: 2_000.0,
                idle_s,
                seconds: 15.0 * changes as f64,
            };
            let played = play(&model, None, 1, 5.0);
            assert!(played.rate >= 0.97 * model.asked, "{changes}, {idle_s} s: {played:?}");
        }
    }
}

#[test]
fn a_machine_that_stands_still_now_and_again_is_no_queue() {
    for (at, answer) in CHANGES.into_iter().enumerate().step_by(2) {
        let model = Model {
            path_s: 0.05,
            capacity: |_| 1e5,
            answer,
            streams: |_| 1_000,
            idle_s: 0.05,
            seconds: 20.0,
            ..STEADY
        };
        let best = play(&model, Some(1_000), 7, 10.0).rate;
        let rates = (1..=3).map(|seed| play(&model, None, seed, 10.0).rate);
        let ours = rates.sum::<f64>() / 3.0;
        assert!(ours >= 0.65 * best, "{at}: {ours:.0}/s of {best:.0}/s");
    }
}
