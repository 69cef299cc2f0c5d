//! The section about pushes to Apple.

mod promises;
mod words;

pub(super) use self::promises::promises;
use self::words::{INTRODUCTION, remark, title};
use super::grid::{Grid, NOTHING, cell};
use super::page::Page;
use super::plot::{Axis, Curve, Curves, Plot, Shape};
use super::results::{Results, SIMULATOR};
use crate::pushes::{PushFindings, PushRow, PushTable};
use dunlin_load::figures::{group, percent};
use dunlin_load::output::Measured;

pub(super) const TITLE: &str = "Pushes to Apple";

/// What a median answer may take at most.
const ANSWER_RTT_MAX: f64 = 1.2;

const OURS: &str = "dunlin";

const RATE_PLOT: &str = "apns-rate.svg";
const ANSWER_PLOT: &str = "apns-answer.svg";

/// Rows of a table, with the server they were measured against.
fn rows(results: &Results, wanted: PushTable) -> impl Iterator<Item = (&str, &PushRow)> {
    results.apns.iter().flat_map(move |findings| {
        let tables = findings.tables.iter().filter(move |table| table.table == wanted);
        tables.flat_map(|table| &table.rows).map(|row| (findings.server.as_str(), row))
    })
}

/// The same, of our own sender.
fn ours(results: &Results, wanted: PushTable) -> Vec<(&str, &PushRow)> {
    rows(results, wanted).filter(|(_, row)| row.who == OURS).collect()
}

fn share(row: &PushRow) -> Option<f64> {
    Some(row.rate / row.allowed?)
}

/// The median answer in round trips.
fn round_trips(row: &PushRow) -> Option<f64> {
    (row.rtt_s > 0.0).then_some(row.answer_p50_s? / row.rtt_s)
}

pub(super) fn section(page: &mut Page<'_>, results: &Results) {
    page.head(TITLE);
    if results.apns.is_empty() {
        return page.missing("apns");
    }
    page.paragraph(INTRODUCTION);
    page.plot(RATE_PLOT, "What one connection reaches of what binds it");
    page.plot(ANSWER_PLOT, "How long a push takes until it is answered");
    for findings in &results.apns {
        tables(page, findings);
    }
}

fn tables(page: &mut Page<'_>, findings: &Measured<PushFindings>) {
    for table in &findings.tables {
        page.paragraph(format!("### {} ({})", title(table.table), findings.server));
        page.paragraph(remark(table.table, &findings.server));
        match table.table {
            PushTable::Windows => page.grid(&side_by_side(&table.rows)),
            _ => page.grid(&one_by_one(&table.rows)),
        }
    }
    page.source("apns", [&findings.host]);
}

/// A rate: with a digit more where there is little of it.
fn rate(rate: f64) -> String {
    if rate < 20.0 { format!("{rate:.1}") } else { group(rate) }
}

fn ms(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

fn note(row: &PushRow) -> String {
    let note = row.note.as_deref().unwrap_or_default();
    if row.holds {
        note.to_owned()
    } else {
        format!("**misses what was asked** {note}").trim().to_owned()
    }
}

/// All senders of a case in one row.
fn side_by_side(rows: &[PushRow]) -> Grid {
    let mut senders: Vec<&str> = Vec::new();
    let mut cases: Vec<&str> = Vec::new();
    for row in rows {
        if !senders.contains(&row.who.as_str()) {
            senders.push(&row.who);
        }
        if !cases.contains(&row.what.as_str()) {
            cases.push(&row.what);
        }
    }
    let of_each = |what: &'static str| {
        senders.iter().enumerate().map(move |(index, who)| {
            if index == 0 { format!(">{what}: {who}") } else { format!(">{who}") }
        })
    };
    let heads = std::iter::once("one connection".to_owned())
        .chain([">allowed/s".to_owned()])
        .chain(of_each("pushes/s"))
        .chain([">reached".to_owned(), ">after".to_owned(), "binds".to_owned()])
        .chain(of_each("answer in round trips"))
        .chain([">shortest".to_owned()])
        .chain(of_each("CPU s / 10,000"))
        .chain([String::new()]);
    let mut grid = Grid::new(heads);
    for case in cases {
        let of = |who: &str| rows.iter().find(|row| row.what == case && row.who == who);
        let Some(ours) = of(senders[0]) else { continue };
        let each = |text: fn(&PushRow) -> String| {
            senders.iter().map(move |who| cell(of(who), text)).collect::<Vec<_>>()
        };
        let mut cells = vec![case.to_owned(), cell(ours.allowed, group)];
        cells.extend(each(|row| rate(row.rate)));
        cells.push(cell(share(ours), percent));
        cells.push(cell(ours.reached_s, |after| format!("{after:.1} s")));
        cells.push(ours.binding.clone());
        cells.extend(each(|row| cell(round_trips(row), |trips| format!("{trips:.2}"))));
        cells.push(cell(ours.answer_min_s, ms));
        cells.extend(each(cpu));
        let notes = senders.iter().filter_map(|who| {
            let note = note(of(who)?);
            (!note.is_empty()).then(|| format!("{who}: {}", short(&note)))
        });
        cells.push(notes.collect::<Vec<_>>().join("; "));
        grid.row(cells);
    }
    grid
}

/// A note as far as its first colon: behind it stands what a library says of its errors.
fn short(note: &str) -> &str {
    note.split(':').next().unwrap_or(note)
}

fn cpu(row: &PushRow) -> String {
    cell(row.cpu_s_per_10k.filter(|seconds| *seconds > 0.0), |seconds| format!("{seconds:.3}"))
}

fn one_by_one(rows: &[PushRow]) -> Grid {
    let mut grid = Grid::new([
        "",
        "sender",
        ">pushes/s",
        ">allowed/s",
        ">reached",
        ">after",
        ">median answer",
        ">in round trips",
        ">shortest",
        "binds",
        ">connections",
        ">CPU s / 10,000",
        "",
    ]);
    for row in rows {
        // A limit that is the sender's own program is none.
        let binds = if row.binding == "nothing" { NOTHING } else { &row.binding };
        grid.row([
            row.what.clone(),
            row.who.clone(),
            if row.rate > 0.0 { rate(row.rate) } else { NOTHING.to_owned() },
            cell(row.allowed, group),
            cell(share(row), percent),
            cell(row.reached_s, |after| format!("{after:.1} s")),
            cell(row.answer_p50_s, ms),
            cell(round_trips(row), |trips| format!("{trips:.2}")),
            cell(row.answer_min_s, ms),
            binds.to_owned(),
            row.connections.to_string(),
            cpu(row),
            note(row),
        ]);
    }
    grid
}

/// One connection to the simulator: how much of what binds, and how long a push takes.
pub(super) fn plots(results: &Results) -> Vec<Plot> {
    let simulated = || {
        rows(results, PushTable::Windows)
            .filter(|(server, _)| *server == SIMULATOR)
            .map(|(_, row)| row)
    };
    let mut senders: Vec<&str> = Vec::new();
    for row in simulated() {
        if !senders.contains(&row.who.as_str()) {
            senders.push(&row.who);
        }
    }
    if senders.is_empty() {
        return Vec::new();
    }
    let plot = |file: &str, title: &str, y: Axis, level: f64, of: fn(&PushRow) -> Option<f64>| {
        let curves = senders.iter().map(|who| {
            let rows = simulated().filter(|row| row.who == *who);
            let points = rows.filter_map(|row| Some((row.allowed?, of(row)?)));
            Curve { name: (*who).to_owned(), points: points.collect(), joined: false }
        });
        let curves = curves.collect();
        let x = Axis { name: "allowed, pushes a second", logarithmic: true };
        let shape = Shape::Curves(Curves { x, y, curves, level: Some(level) });
        Plot { file: file.to_owned(), title: title.to_owned(), shape }
    };
    vec![
        plot(
            RATE_PLOT,
            "one connection: share reached of what binds",
            Axis { name: "%", logarithmic: false },
            100.0,
            |row| Some(share(row)? * 100.0),
        ),
        plot(
            ANSWER_PLOT,
            "one connection: median answer, less is better, 1 is the path",
            Axis { name: "round trips", logarithmic: true },
            ANSWER_RTT_MAX,
            round_trips,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(who: &str, holds: bool) -> PushRow {
        PushRow {
            what: "64 KiB".to_owned(),
            who: who.to_owned(),
            rate: 590.0,
            allowed: Some(600.0),
            reached_s: Some(1.4),
            answer_p50_s: Some(0.251),
            rtt_s: 0.25,
            binding: "window".to_owned(),
            connections: 1,
            cpu_s_per_10k: Some(0.1),
            holds,
            ..PushRow::default()
        }
    }

    #[test]
    fn senders_stand_side_by_side_and_a_row_that_misses_says_so() {
        let text = side_by_side(&[row(OURS, true), row("a2", true)]).text();
        assert!(text.contains("| 64 KiB | 600 | 590 | 590 | 98.3 % | 1.4 s | window | 1.00 | 1.00 | 0.100 | 0.100 |"), "{text}");
        let text = one_by_one(&[row(OURS, false)]).text();
        assert!(text.contains("misses what was asked"), "{text}");
    }
}
