//! Formats the result of a run for people.

use super::report::HttpReport;

/// Formats the summary and the distribution.
pub(super) fn of(report: &HttpReport) -> String {
    let ends = &report.ends;
    let mut out = match ends.answered {
        0 => "No answers".to_owned(),
        answered => format!("{} answers in {:.2} s", count(answered as f64), report.seconds),
    };
    let depth = match report.depth_most {
        Some(depth) => format!("{} ({depth} at most)", report.pipeline),
        None => report.pipeline.clone(),
    };
    out += &format!(
        " over {} connection{}, {depth} in flight on each, {}{}\n",
        count(f64::from(report.connections)),
        if report.connections == 1 { "" } else { "s" },
        report.protocol,
        if report.interrupted { ", ended by Ctrl-C" } else { "" },
    );
    if ends.answered > 0 {
        answers(report, &mut out);
    }
    connections(report, &mut out);
    out
}

/// Appends a line with a label.
fn row(out: &mut String, name: &str, text: &str) {
    let line = format!("  {name:<12} {text}");
    out.push_str(line.trim_end());
    out.push('\n');
}

/// Appends rates, times and statuses.
fn answers(report: &HttpReport, out: &mut String) {
    let mut row = |name: &str, text: &str| row(out, name, text);
    let per = |bytes: u64| size(bytes as f64 / report.seconds.max(1e-9));
    let cpu_s = report.generator_cpu_seconds;
    let per_cpu_s = count(report.requests_per_cpu_second);
    row("", "");
    row("requests/s", &count(report.requests_per_second));
    row("per CPU s", &format!("{per_cpu_s}   ({cpu_s:.2} s of CPU in the generator)"));
    if let Some(server) = report.server {
        row("server", &format!("{:.0} % of one core idle", server.idle_share * 100.0));
    }
    let written = per(report.written_bytes);
    row("read/s", &format!("{}   written/s {written}", per(report.read_bytes)));
    row("", "");
    let nine = |cells: [String; 6]| cells.map(|cell| format!("{cell:>9}")).join(" ");
    let heads = ["p50", "p90", "p99", "p99.9", "max", "mean"].map(str::to_owned);
    row("", &nine(heads));
    for (name, of) in [
        ("latency", Some(&report.latency_us)),
        ("first byte", Some(&report.first_byte_us)),
        ("as oldest", Some(&report.service_us)),
        ("left late", report.late_us.as_ref()),
    ] {
        let Some(of) = of else { continue };
        row(name, &nine([of.p50, of.p90, of.p99, of.p999, of.max, of.mean].map(time)));
    }
    row("", "");
    for (upper, bar) in bars(&report.histogram) {
        row(&upper, &bar);
    }
    let statuses = report.statuses.iter();
    let statuses = statuses.map(|(status, n)| format!("{status}: {}", count(*n as f64)));
    row("status", &statuses.collect::<Vec<_>>().join(", "));
}

/// Appends connection events and errors.
fn connections(report: &HttpReport, out: &mut String) {
    let ends = &report.ends;
    let mut row = |name: &str, text: &str| row(out, name, text);
    let events = &report.connection_events;
    let closes = listed([
        ("opened", events.opened),
        ("connects failed", events.connect_failed),
        ("closed with notice", events.closed_with_notice),
        ("closed at their budget", events.closed_at_budget),
        ("closed in flight", events.closed_in_flight),
        ("closed idle", events.closed_idle),
        ("reset", events.reset),
        ("timed out", events.timed_out),
        ("bad answers", events.violated),
    ]);
    row("connections", if closes.is_empty() { "none opened, none closed" } else { &closes });
    if ends.resent > 0 {
        row("sent again", &count(ends.resent as f64));
    }
    let bad = listed([
        ("wrong", ends.wrong),
        ("failed", ends.failed),
        ("uncertain", ends.uncertain),
        ("never answered", ends.unanswered),
    ]);
    let errors = match (bad.is_empty(), ends.answered) {
        _ if report.errors.is_empty() => "none",
        (false, _) => &bad,
        (true, 0) => "no request could be sent",
        (true, _) => "of connections alone",
    };
    row("errors", errors);
    for (kind, number) in &report.errors {
        row(&format!("{:>11}", count(*number as f64)), &format!("× {kind}"));
    }
    for sample in &report.error_samples {
        row("  e.g.", sample);
    }
}

/// Lists the numbers other than 0, each with its name.
fn listed<const N: usize>(all: [(&str, u64); N]) -> String {
    let shown = all.into_iter().filter(|(_, number)| *number > 0);
    let shown = shown.map(|(what, number)| format!("{} {what}", count(number as f64)));
    shown.collect::<Vec<_>>().join(", ")
}

/// Returns the distribution as at most a dozen bars, each with its upper bound.
fn bars(steps: &[(f64, u64)]) -> Vec<(String, String)> {
    const ROWS: usize = 12;
    const WIDTH: f64 = 44.0;
    let sum = |steps: &[(f64, u64)]| steps.iter().map(|step| step.1).sum::<u64>() as f64;
    let rows: Vec<(f64, f64)> = steps
        .chunks(steps.len().div_ceil(ROWS).max(1))
        .map(|chunk| (chunk.last().map_or(0.0, |step| step.0), sum(chunk)))
        .collect();
    let most = rows.iter().map(|row| row.1).fold(1.0, f64::max);
    let bar = |(upper, count): (f64, f64)| {
        let eighths = (count / most * WIDTH * 8.0).round() as usize;
        let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
        let share = count / sum(steps) * 100.0;
        let bar = format!("{share:>6.2} %  {}{rest}", "█".repeat(eighths / 8));
        (format!("≤ {:>8}", time(upper)), bar)
    };
    rows.into_iter().map(bar).collect()
}

/// Formats microseconds with three digits, in the unit that fits.
pub fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 999.5 => (us, "µs"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let decimals = match unit {
        "µs" => 0,
        _ => 2 - usize::from(value >= 9.995) - usize::from(value >= 99.95),
    };
    format!("{value:.decimals$} {unit}")
}

/// Formats bytes in the unit that fits.
fn size(bytes: f64) -> String {
    match bytes {
        bytes if bytes < 1e3 => format!("{bytes:.0} B"),
        bytes if bytes < 1e6 => format!("{:.1} kB", bytes / 1e3),
        bytes if bytes < 1e9 => format!("{:.1} MB", bytes / 1e6),
        bytes => format!("{:.2} GB", bytes / 1e9),
    }
}

pub(crate) use crate::figures::group as count;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit() {
        assert_eq!(
            [time(3.2), time(999.7), time(1_234.0), time(12_345.0), time(2_000_000.0)],
            ["3 µs", "1.00 ms", "1.23 ms", "12.3 ms", "2.00 s"]
        );
        assert_eq!([size(12.0), size(1_500.0), size(2e9)], ["12 B", "1.5 kB", "2.00 GB"]);
    }

    #[test]
    fn bars_are_few_and_sum_to_everything() {
        let steps: Vec<_> = (1..100).map(|step| (f64::from(step), 10)).collect();
        let bars = bars(&steps);
        assert!(bars.len() <= 12 && bars[0].1.contains('█'), "{bars:?}");
        assert!(super::bars(&[]).is_empty());
    }
}
