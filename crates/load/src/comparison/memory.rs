//! The generator's own memory at full rate: what it holds does not grow with what it has sent.

use serde_json::json;

use super::Comparison;
use super::program::{SERVER, run_http, serve};
use crate::http::HttpReport;
use crate::{Error, ExitStatus};

/// Between the least and the most: buffers that a burst of closes needs, pages of histograms touched for the first time.
const SPREAD_BYTES_MAX: u64 = 4 << 20;
/// From the second tenth of the run to the last: what grows, shows here. The timeline, a line a second, is in it.
const DRIFT_BYTES_MAX: u64 = 512 << 10;
/// Points of the curve that are kept.
const POINTS: usize = 120;

pub(super) fn run(options: &Comparison) -> Result<ExitStatus, Error> {
    let _server = serve(options, "")?;
    let (connections, seconds) = (options.connections, options.time.as_secs_f64());
    let run: HttpReport =
        run_http(&format!("http://{SERVER}/hello -c {connections} -p 100 -d {seconds}s"))?;
    let memory = run.memory;
    let samples: Vec<(f64, u64)> = run
        .timeline
        .iter()
        .filter(|moment| moment.resident_bytes > 0)
        .map(|moment| (moment.at_s, moment.resident_bytes))
        .collect();
    let all = samples.iter().map(|sample| sample.1).chain([memory.first_bytes, memory.last_bytes]);
    let (least_bytes, most_bytes) = all
        .fold((u64::MAX, memory.most_bytes), |(least, most), bytes| {
            (least.min(bytes), most.max(bytes))
        });
    let drift_bytes = drift(&samples);
    let flat = most_bytes - least_bytes <= SPREAD_BYTES_MAX
        && drift_bytes <= DRIFT_BYTES_MAX as i64
        && !samples.is_empty();
    options.output.report(
        "http-memory",
        &json!({
            "seconds": run.seconds,
            "answered": run.ends.answered,
            // When the first answers were in.
            "first_bytes": memory.first_bytes,
            "least_bytes": least_bytes,
            "most_bytes": most_bytes,
            "last_bytes": memory.last_bytes,
            // Mean of the last tenth less that of the second; the first tenth is for what is touched once.
            "drift_bytes": drift_bytes,
            "flat": flat,
            // Seconds from the beginning, and resident bytes then.
            "curve": thin(&samples),
        }),
    )?;
    Ok(if flat && run.is_clean() { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// How much more the last tenth holds than the second.
fn drift(samples: &[(f64, u64)]) -> i64 {
    let tenth = samples.len().div_ceil(10);
    let mean = |part: &[(f64, u64)]| {
        part.iter().map(|sample| sample.1 as f64).sum::<f64>() / part.len().max(1) as f64
    };
    let second = &samples[tenth.min(samples.len())..(2 * tenth).min(samples.len())];
    if second.is_empty() {
        return 0;
    }
    (mean(&samples[samples.len() - tenth..]) - mean(second)) as i64
}

/// Every so many of the samples, and the last.
fn thin(samples: &[(f64, u64)]) -> Vec<(f64, u64)> {
    let every = samples.len().div_ceil(POINTS).max(1);
    let mut curve: Vec<_> = samples.iter().copied().step_by(every).collect();
    if let Some(last) = samples.last().filter(|last| curve.last() != Some(last)) {
        curve.push(*last);
    }
    curve
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_shows_and_a_first_touch_does_not() {
        let samples = |of: fn(u64) -> u64| -> Vec<(f64, u64)> {
            (0..600).map(|second| (second as f64, of(second))).collect()
        };
        assert_eq!(drift(&samples(|second| if second < 60 { second } else { 60 })), 0);
        // A kilobyte a second: from second 90 to second 570, in the middle of both tenths.
        assert_eq!(drift(&samples(|second| second * 1_000)), 480_000);
        assert_eq!((drift(&[]), drift(&[(0.0, 5)])), (0, 0));
    }

    #[test]
    fn a_curve_is_short_and_keeps_its_end() {
        let samples: Vec<_> = (0..600).map(|second| (f64::from(second), 1)).collect();
        let curve = thin(&samples);
        assert!(curve.len() <= POINTS + 1 && curve.last() == samples.last(), "{}", curve.len());
        assert!(thin(&[]).is_empty());
    }
}
