//! Measures what a slow answer costs the requests behind it: one request in sixteen stalls.
//!
//! The server stalls before the head of the answer, or between head and body. Both delay all later answers of the
//! connection; only the first delays the first byte of the stalled answer itself.

use serde_json::json;

use super::Comparison;
use super::program::{SERVER, run_http, serve};
use crate::http::HttpReport;
use crate::{Error, ExitStatus, Scratch};

/// One request in this many is slow.
const ONE_IN: usize = 16;
const SLOW_MS: u64 = 100;
const DEPTHS: [u32; 3] = [1, 4, 16];
/// Largest difference allowed between the measured and the computed share of waiting requests: a run does not end after
/// a whole number of cycles of [`ONE_IN`] requests.
const SHARE_DIFFERENCE_MAX: f64 = 0.02;
/// What the server delays, and the path segment that asks for it.
const STALLS: [(&str, &str); 2] = [("head", "delay"), ("body", "body-after")];

pub(super) fn run(options: &Comparison) -> Result<ExitStatus, Error> {
    let _server = serve(options, "")?;
    let scratch = Scratch::temporary("stalled")?;
    let seconds = options.time.as_secs_f64();
    let (mut rows, mut clean, mut agrees) = (Vec::new(), true, true);
    for (stalled, segment) in STALLS {
        let mut lines = format!("{{\"path\":\"/{segment}/{SLOW_MS}ms\"}}\n");
        lines += &"{\"path\":\"/hello\"}\n".repeat(ONE_IN - 1);
        let file = scratch.file("requests.jsonl", &lines)?;
        for depth in DEPTHS {
            // With one connection, requests stall in the order of the file, so the shares can be computed.
            let run: HttpReport = run_http(&format!(
                "http://{SERVER}/ --from {} -c 1 -p {depth} -d {seconds}s",
                file.display()
            ))?;
            let computed = waiting(stalled, depth);
            let measured = slower(&run.first_byte_histogram, SLOW_MS as f64 * 500.0);
            clean &= run.is_clean();
            agrees &= (measured - computed).abs() <= SHARE_DIFFERENCE_MAX;
            rows.push(json!({
                // The delayed part of the answer: its head or its body.
                "stalled": stalled,
                "depth": depth,
                "requests_per_second": run.requests_per_second,
                "first_byte_us": run.first_byte_us,
                // Latency without the wait behind other requests.
                "service_us": run.service_us,
                // Shares of requests whose first byte waits for a stalled answer: computed from the depth, and
                // measured.
                "waiting_computed": computed,
                "waiting_measured": measured,
            }));
        }
    }
    options.output.report(
        "http-stalled",
        &json!({"slow_ms": SLOW_MS, "one_in": ONE_IN, "rows": rows, "agrees": agrees}),
    )?;
    Ok(if clean && agrees { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// Returns the computed share of requests whose first byte waits for a stalled answer. Of each [`ONE_IN`] requests,
/// these are the `depth - 1` in the window behind the stalled one; and the stalled one itself if its head is delayed,
/// or if the window also holds the next stalled one.
fn waiting(stalled: &str, depth: u32) -> f64 {
    let behind = (depth - 1) + u32::from(stalled == "head" || depth as usize > ONE_IN);
    f64::from(behind).min(ONE_IN as f64) / ONE_IN as f64
}

/// Returns the share of a distribution above `us` microseconds.
fn slower(steps: &[(f64, u64)], us: f64) -> f64 {
    let all: u64 = steps.iter().map(|(_, count)| count).sum();
    let slow: u64 = steps.iter().filter(|(upper, _)| *upper > us).map(|(_, count)| count).sum();
    slow as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_stands_behind_each_stalled_answer() {
        assert_eq!([1, 4, 16].map(|depth| waiting("head", depth) * 16.0), [1.0, 4.0, 16.0]);
        assert_eq!([1, 4, 16].map(|depth| waiting("body", depth) * 16.0), [0.0, 3.0, 15.0]);
        assert_eq!(slower(&[(10.0, 15), (100_000.0, 1)], 50_000.0), 1.0 / 16.0);
        assert_eq!(slower(&[], 1.0), 0.0);
    }
}
