//! What was asked of the sender of pushes, and what was measured.

use super::super::grid::NOTHING;
use super::super::promise::Promise;
use super::super::results::{Results, SIMULATOR};
use super::{ANSWER_RTT_MAX, ours, rate, round_trips, share};
use crate::pushes::{PushRow, PushTable};
use dunlin_load::figures::{group, percent};

const ALLOWED_MIN: f64 = 0.95;
const REACHED_S_MAX: f64 = 2.0;
const ASKED_PER_S: f64 = 10_000.0;
const LINEAR_MIN: f64 = 0.9;
const CLEAN_MIN: f64 = 0.8;
const CPU_S_PER_10K_MAX: f64 = 0.10;
const PER_CORE_MIN: f64 = 100_000.0;

pub(in crate::report) fn promises(results: &Results) -> Vec<Promise> {
    let mut promises = Vec::new();
    let mut servers: Vec<&str> = Vec::new();
    for findings in &results.apns {
        if !servers.contains(&findings.server.as_str()) {
            servers.push(&findings.server);
        }
    }
    for server in &servers {
        promises.extend(windows_promises(results, server));
    }
    promises.extend(connections_promises(results));
    let bad: Vec<_> = ours(results, PushTable::Bad);
    let bad: Vec<_> = bad
        .into_iter()
        .filter(|(_, row)| {
            row.allowed.is_some() && row.what.contains("apart") && !row.what.contains("not told")
        })
        .filter_map(|(_, row)| share(row))
        .collect();
    if let Some(worst) = least(bad.iter().copied()) {
        let measured: Vec<_> = bad.iter().copied().map(percent).collect();
        promises.push(Promise::new(
            "1 % and 5 % bad tokens, streams lowered after each 4xx: pushes a second beside the rate without bad tokens",
            format!("≥ {}", percent(CLEAN_MIN)),
            measured.join(" and "),
            worst >= CLEAN_MIN,
        ));
    }
    promises.extend(reference_promise(results));
    promises.extend(cpu_promises(results, &servers));
    let held = |table: PushTable| {
        let rows = ours(results, table);
        let notes: Vec<_> = rows.iter().filter_map(|(_, row)| row.note.as_deref()).collect();
        let holds = rows.iter().all(|(_, row)| row.holds);
        (!rows.is_empty())
            .then(|| (notes.into_iter().map(str::to_owned).collect::<Vec<_>>(), holds))
    };
    if let Some((notes, holds)) = held(PushTable::Queue) {
        promises.push(Promise::new(
            "memory with 1,000,000 pushes: all of them waiting; handed over through a queue of 64 MiB",
            "bounded, and flat behind the bound",
            notes.join("; "),
            holds,
        ));
    }
    if let Some((notes, holds)) = held(PushTable::Storm) {
        let ends = notes.iter().map(|note| note.split(", ").take(2).collect::<Vec<_>>().join(", "));
        promises.push(Promise::new(
            "1,000,000 pushes through GOAWAYs, resets, lost answers, 503s and changes of the stream limit: both ledgers, \
             uncertain ones told, and sent again",
            "none lost, none twice that is not marked",
            ends.collect::<Vec<_>>().join("; "),
            holds,
        ));
    }
    promises
}

/// One connection against one server.
fn windows_promises(results: &Results, server: &str) -> Vec<Promise> {
    let all = ours(results, PushTable::Windows);
    let rows: Vec<&PushRow> =
        all.into_iter().filter(|(of, _)| *of == server).map(|(_, row)| row).collect();
    let what = match server {
        SIMULATOR => format!(
            "one connection to the {server}: three windows, 50 and 250 ms, 128 to 4,096 B, {} rows",
            rows.len()
        ),
        _ => format!("one connection to {server}, {} rows", rows.len()),
    };
    let mut promises = Vec::new();
    if let Some(worst) = least(rows.iter().filter_map(|row| share(row))) {
        promises.push(Promise::new(
            format!("{what}; pushes a second beside what the limit that binds allows, the worst"),
            format!("≥ {}", percent(ALLOWED_MIN)),
            percent(worst),
            worst >= ALLOWED_MIN,
        ));
    }
    if let Some(longest) = most(rows.iter().filter_map(|row| row.reached_s)) {
        promises.push(Promise::new(
            format!("{what}; from the start to 95 % of the rate, the longest"),
            format!("≤ {REACHED_S_MAX:.0} s"),
            format!("{longest:.1} s"),
            longest <= REACHED_S_MAX && rows.iter().all(|row| row.reached_s.is_some()),
        ));
    }
    let late =
        rows.iter().filter_map(|row| round_trips(row)).filter(|trips| *trips > ANSWER_RTT_MAX);
    let late = late.count();
    if let Some(longest) = most(rows.iter().filter_map(|row| round_trips(row))) {
        let which =
            if late > 0 { format!(", {late} of {} rows above", rows.len()) } else { String::new() };
        promises.push(Promise::new(
            format!("{what}; median answer, the longest"),
            format!("≤ {ANSWER_RTT_MAX} round trips"),
            format!("{longest:.2}{which}"),
            late == 0,
        ));
    }
    promises
}

fn connections_promises(results: &Results) -> Vec<Promise> {
    let rows = ours(results, PushTable::Connections);
    let (auto, fixed): (Vec<&PushRow>, Vec<&PushRow>) =
        rows.into_iter().map(|(_, row)| row).partition(|row| row.what.starts_with("auto"));
    let mut promises = Vec::new();
    if !auto.is_empty() {
        let each = auto.iter().map(|row| {
            let note = row.note.as_deref().unwrap_or(NOTHING);
            format!("{}/s on {} ({note})", group(row.rate), row.connections)
        });
        promises.push(Promise::new(
            format!(
                "{} a second asked for at 437 B and 250 ms: window of 64 KiB returned at once, by halves, 16 MiB",
                group(ASKED_PER_S)
            ),
            "reached, with at most two connections more than the limit needs",
            each.collect::<Vec<_>>().join("; "),
            auto.iter().all(|row| row.holds),
        ));
    }
    if let Some(worst) = least(fixed.iter().filter_map(|row| share(row))) {
        promises.push(Promise::new(
            format!(
                "1 to {} connections: of as many times what one allows, the least",
                fixed.last().map_or(1, |row| row.connections)
            ),
            format!("linear: ≥ {}", percent(LINEAR_MIN)),
            percent(worst),
            worst >= LINEAR_MIN,
        ));
    }
    promises
}

fn reference_promise(results: &Results) -> Option<Promise> {
    let rows = ours(results, PushTable::Reference);
    let find = |kind: &str, returned: &str| {
        let mut rows = rows.iter().map(|(_, row)| *row);
        rows.find(|row| row.what.starts_with(kind) && row.what.ends_with(returned))
            .map(|row| row.rate)
    };
    let kinds = ["serial", "150 in flight", "batches", "adaptive"];
    let rates = |returned: &str| -> Option<[f64; 4]> {
        let rates = kinds.map(|kind| find(kind, returned));
        Some([rates[0]?, rates[1]?, rates[2]?, rates[3]?])
    };
    let all = [rates("at once")?, rates("never")?];
    let said = all.map(|rates| rates.map(rate).join(", "));
    Some(Promise::new(
        "serial, 150 in flight, batches of 150 on short connections, adaptive, at 250 ms: pushes a second",
        "the adaptive one ahead, and why short connections won",
        format!("{}; where the window never comes back {}", said[0], said[1]),
        all.iter()
            .all(|[serial, by_hand, short, adaptive]| adaptive > &serial.max(*by_hand).max(*short)),
    ))
}

fn cpu_promises(results: &Results, servers: &[&str]) -> Vec<Promise> {
    let rows = ours(results, PushTable::Cpu);
    let of = |server: &str, pick: fn(&PushRow) -> Option<f64>| {
        let rows = rows.iter().filter(|(of, _)| *of == server).map(|(_, row)| *row);
        most(rows.filter_map(pick))
    };
    // CPU is a thread's alone, so what a core of its own could do follows from it.
    let cpu: Vec<(&str, f64)> = servers
        .iter()
        .filter_map(|server| Some((*server, of(server, |row| row.cpu_s_per_10k)?)))
        .collect();
    let Some(worst) = most(cpu.iter().map(|(_, seconds)| *seconds)) else { return Vec::new() };
    let each = |text: &dyn Fn(f64) -> String| {
        cpu.iter()
            .map(|(server, seconds)| format!("{} ({server})", text(*seconds)))
            .collect::<Vec<_>>()
            .join(", ")
    };
    vec![
        Promise::new(
            "CPU for 10,000 pushes next door, 128 and 437 B, the more of the two",
            format!("≤ {CPU_S_PER_10K_MAX:.2} s"),
            each(&|seconds| format!("{seconds:.3} s")),
            worst <= CPU_S_PER_10K_MAX,
        ),
        Promise::new(
            "pushes a second for each core that the sender has",
            format!("≥ {}", group(PER_CORE_MIN)),
            each(&|seconds| group(1e4 / seconds)),
            1e4 / worst >= PER_CORE_MIN,
        ),
    ]
}

fn least(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::min)
}

fn most(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::max)
}
