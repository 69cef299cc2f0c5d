//! Checks that the generator's own memory stays flat at full rate.

use serde_json::json;

use super::Comparison;
use super::program::{SERVER, run_http, serve};
use crate::http::HttpReport;
use crate::{Error, ExitStatus};

/// Largest allowed difference between the least and the most resident memory: covers buffers needed by a burst of
/// closes, and histogram pages touched for the first time.
const SPREAD_BYTES_MAX: u64 = 4 << 20;
/// Largest allowed growth from the second tenth of the run to the last. Includes the timeline, which grows by a line a
/// second.
const DRIFT_BYTES_MAX: u64 = 512 << 10;
/// Most points of the reported curve.
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
            // Resident memory when the first answers had arrived.
            "first_bytes": memory.first_bytes,
            "least_bytes": least_bytes,
            "most_bytes": most_bytes,
            "last_bytes": memory.last_bytes,
            // Mean of the last tenth minus mean of the second; the first tenth is skipped because pages are first
            // touched in it.
            "drift_bytes": drift_bytes,
            "flat": flat,
            // Pairs of seconds from the beginning and resident bytes.
            "curve": thin(&samples),
        }),
    )?;
    Ok(if flat && run.is_clean() { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// Returns the mean of the last tenth of the samples minus the mean of the second tenth.
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

/// Thins the samples to about [`POINTS`], keeping the last.
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
        // Grows by 1,000 bytes a second; the middles of the two tenths, seconds 90 and 570, are 480 seconds apart.
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
