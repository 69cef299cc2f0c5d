//! The end of a run, for a person to read.

use std::fmt::Write as _;

use super::report::HttpReport;
use crate::clock::Percentiles;

/// The summary and the distribution.
pub(super) fn of(report: &HttpReport) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let mut line = |text: std::fmt::Arguments<'_>| {
        let _ = writeln!(out, "{text}");
    };
    let ends = &report.ends;
    let per = |bytes: u64| size(bytes as f64 / report.seconds.max(1e-9));
    let answers = match ends.answered {
        0 => "No answers".to_owned(),
        answered => format!("{} answers in {:.2} s", count(answered as f64), report.seconds),
    };
    line(format_args!(
        "{answers} over {} connection{}, {} in flight on each, {}{}",
        count(f64::from(report.connections)),
        if report.connections == 1 { "" } else { "s" },
        match report.depth_most {
            Some(depth) => format!("{} ({depth} at most)", report.pipeline),
            None => report.pipeline.clone(),
        },
        report.protocol,
        if report.interrupted { ", ended by Ctrl-C" } else { "" },
    ));
    if ends.answered > 0 {
        line(format_args!(""));
        line(format_args!("  requests/s   {}", count(report.requests_per_second)));
        line(format_args!(
            "  per CPU s    {}   ({:.2} s of CPU in the generator)",
            count(report.requests_per_cpu_second),
            report.generator_cpu_seconds
        ));
        if let Some(server) = report.server {
            line(format_args!(
                "  server       {:.0} % of one core idle",
                server.idle_share * 100.0
            ));
        }
        line(format_args!(
            "  read/s       {}   written/s {}",
            per(report.read_bytes),
            per(report.written_bytes)
        ));
        line(format_args!(""));
        line(format_args!(
            "  {:<12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "", "p50", "p90", "p99", "p99.9", "max", "mean"
        ));
        let mut row = |name: &str, of: &Percentiles| {
            line(format_args!(
                "  {name:<12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
                time(of.p50),
                time(of.p90),
                time(of.p99),
                time(of.p999),
                time(of.max),
                time(of.mean)
            ));
        };
        row("latency", &report.latency_us);
        row("first byte", &report.first_byte_us);
        row("as oldest", &report.service_us);
        if let Some(late) = &report.late_us {
            row("left late", late);
        }
        line(format_args!(""));
        for bar in bars(&report.histogram) {
            line(format_args!("  {bar}"));
        }
        let statuses: Vec<_> = report
            .statuses
            .iter()
            .map(|(status, n)| format!("{status}: {}", count(*n as f64)))
            .collect();
        line(format_args!("  status       {}", statuses.join(", ")));
    }
    let events = &report.connection_events;
    let closes: Vec<_> = [
        ("opened", events.opened),
        ("connects failed", events.connect_failed),
        ("closed with notice", events.closed_with_notice),
        ("closed at their budget", events.closed_at_budget),
        ("closed in flight", events.closed_in_flight),
        ("closed idle", events.closed_idle),
        ("reset", events.reset),
        ("timed out", events.timed_out),
        ("bad answers", events.violated),
    ]
    .into_iter()
    .filter(|(_, number)| *number > 0)
    .map(|(what, number)| format!("{} {what}", count(number as f64)))
    .collect();
    let closes = match closes.is_empty() {
        true => "none opened, none closed".to_owned(),
        false => closes.join(", "),
    };
    line(format_args!("  connections  {closes}"));
    if ends.resent > 0 {
        line(format_args!("  sent again   {}", count(ends.resent as f64)));
    }
    if report.errors.is_empty() {
        line(format_args!("  errors       none"));
    } else {
        let sums: Vec<_> = [
            ("wrong", ends.wrong),
            ("failed", ends.failed),
            ("uncertain", ends.uncertain),
            ("never answered", ends.unanswered),
        ]
        .into_iter()
        .filter(|(_, number)| *number > 0)
        .map(|(what, number)| format!("{what} {}", count(number as f64)))
        .collect();
        let sums = match (sums.is_empty(), ends.answered) {
            (false, _) => sums.join(", "),
            (true, 0) => "no request could be sent".to_owned(),
            (true, _) => "of connections alone".to_owned(),
        };
        line(format_args!("  errors       {sums}"));
        for (kind, number) in &report.errors {
            line(format_args!("    {:>9} × {kind}", count(*number as f64)));
        }
        for sample in &report.error_samples {
            line(format_args!("    e.g. {sample}"));
        }
    }
    out
}

/// The distribution as bars, joined to at most a dozen.
fn bars(steps: &[(f64, u64)]) -> Vec<String> {
    const ROWS: usize = 12;
    const WIDTH: f64 = 44.0;
    let total: u64 = steps.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return Vec::new();
    }
    let group = steps.len().div_ceil(ROWS).max(1);
    let rows: Vec<(f64, u64)> = steps
        .chunks(group)
        .map(|chunk| {
            (
                chunk.last().map_or(0.0, |(upper, _)| *upper),
                chunk.iter().map(|(_, count)| count).sum(),
            )
        })
        .collect();
    let most = rows.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1) as f64;
    rows.into_iter()
        .map(|(upper, count)| {
            let eighths = (count as f64 / most * WIDTH * 8.0).round() as usize;
            let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
            let bar = format!("{}{rest}", "█".repeat(eighths / 8));
            let share = count as f64 / total as f64 * 100.0;
            format!("≤ {:>8}  {:>6.2} %  {bar}", time(upper), share)
        })
        .map(|line| line.trim_end().to_owned())
        .collect()
}

/// A time in microseconds, in the unit that fits, three digits.
pub fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 999.5 => (us, "µs"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    let decimals = if unit == "µs" { 0 } else { decimals };
    format!("{value:.decimals$} {unit}")
}

/// Bytes in the unit that fits.
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
        assert!(bars.len() <= 12 && bars[0].contains('█'), "{bars:?}");
        assert!(super::bars(&[]).is_empty());
    }
}
