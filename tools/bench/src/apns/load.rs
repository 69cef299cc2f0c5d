//! Runs a load: a sender on its own thread, so that its CPU time can be measured.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dunlin_push::apns::{Apns, Credential, DeviceToken, ProviderKey, ProviderToken, Push};
use dunlin_push::{Connections, Origin, Outcome, Results, SenderConfig, SenderMetrics, results};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::timeline::Timeline;
use crate::error::CliError;

/// The server that a run sends to.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) host: String,
    pub(super) address: String,
    pub(super) roots_pem: std::path::PathBuf,
    /// Number of devices, which pushes go to in turn.
    pub(super) devices: NonZeroU64,
}

impl Target {
    /// Returns the device token of push `number`. Peers use the same tokens.
    pub(super) fn device(&self, number: u64) -> String {
        format!("{:064x}", (1u128 << 100) + u128::from(number % self.devices))
    }
}

/// Parameters of a run.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) target: Target,
    pub(super) connections: Connections,
    pub(super) payload_bytes: usize,
    /// Pushes submitted per second; `None`: as many as the sender accepts.
    pub(super) rate: Option<f64>,
    /// Limit of pushes in flight, as in a caller with a hand-tuned window.
    pub(super) in_flight_max: Option<usize>,
    pub(super) duration: Duration,
    /// CPU and answer times count from this time on, to exclude connecting and filling the queue.
    pub(super) warm_up: Duration,
    /// Most pushes.
    pub(super) pushes_max: u64,
    pub(super) queue_bytes_max: usize,
    /// A push without an answer after this time is uncertain.
    pub(super) answer_within: Duration,
    /// Returns the device of a push by its number, and whether it is a suspect.
    pub(super) device: Arc<dyn Fn(u64) -> (String, bool) + Send + Sync>,
    pub(super) resend_uncertain: bool,
    /// Whether to record the outcome of every push, by its number.
    pub(super) keep_outcomes: bool,
}

/// The result.
pub(super) struct Measured {
    pub(super) timeline: Timeline,
    pub(super) ended: u64,
    pub(super) accepted: u64,
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
    /// CPU seconds and ended pushes after the warm-up.
    pub(super) warm: (f64, u64),
    /// Percentiles of the answer times after the warm-up.
    pub(super) answer_p50_s: Option<f64>,
    pub(super) answer_p99_s: Option<f64>,
    pub(super) metrics: SenderMetrics,
    pub(super) outcomes: Vec<Option<Outcome>>,
}

impl Measured {
    /// Returns the answers per second from `from` to the end.
    pub(super) fn rate(&self, from: Duration, rtt: Duration) -> f64 {
        self.timeline.rate(from, Duration::from_secs_f64(self.seconds), rtt)
    }

    /// Returns the CPU seconds per 10,000 pushes after the warm-up, or over the whole run if it ended before.
    pub(super) fn cpu_s_per_10k(&self) -> f64 {
        let (cpu_s, ended) = if self.warm.1 > 0 { self.warm } else { (self.cpu_s, self.ended) };
        cpu_s * 1e4 / ended.max(1) as f64
    }
}

fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs a load to its end.
pub(super) fn run(load: Load) -> Result<Measured, CliError> {
    let (sender, receiver) = mpsc::channel();
    let running = thread::Builder::new().name("apns-bench".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let measured = match runtime {
            Ok(runtime) => runtime.block_on(play(load)).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        // `run` waits for the result.
        let _ = sender.send(measured);
    })?;
    let measured = receiver.recv().map_err(|_| "the load's thread ended without a result")?;
    running.join().map_err(|_| "the load's thread panicked")?;
    measured.map_err(Into::into)
}

/// Creates the sender for a load.
pub(super) fn sender(load: &Load) -> Result<Apns, CliError> {
    let mut origin = Origin::new(&load.target.host, 443);
    origin.address = Some(load.target.address.clone());
    origin.add_roots(&load.target.roots_pem)?;
    origin.roots_only = true;
    let key = ProviderKey::from_scalar(&[7; 32], "BENCHKEY01", "BENCHTEAM1")?;
    let config = SenderConfig {
        connections: load.connections,
        queue_bytes_max: load.queue_bytes_max,
        answer_within: load.answer_within,
        drain: Duration::from_secs(2),
        ..SenderConfig::default()
    };
    Ok(Apns::start(origin, Credential::Token(ProviderToken::new(key)), config)?)
}

/// Creates push `number`.
pub(super) fn push(load: &Load, number: u64, payload: &str) -> Result<Push, CliError> {
    let (device, suspect) = (load.device)(number);
    let mut push = Push::new(DeviceToken::new(&device)?, "com.example.dunlin", payload.to_owned());
    push.suspect = suspect;
    push.resend_uncertain = load.resend_uncertain;
    push.timeout = Duration::from_secs(600);
    Ok(push)
}

/// Returns a payload of this many bytes, but at least as long as an empty alert.
pub(super) fn payload(bytes: usize) -> String {
    let frame = r#"{"aps":{"alert":""}}"#;
    let filler = "x".repeat(bytes.saturating_sub(frame.len()));
    format!(r#"{{"aps":{{"alert":"{filler}"}}}}"#)
}

/// Submits pushes at the load's rate until its end. Returns their number.
async fn submit(
    apns: &Apns,
    load: &Load,
    window: &Semaphore,
    results: &Results,
    begin: Instant,
) -> u64 {
    let (text, end) = (payload(load.payload_bytes), begin + load.duration);
    let mut number = 0;
    let mut clock = interval(Duration::from_millis(2));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while number < load.pushes_max && Instant::now() < end {
        let due = match load.rate {
            None => u64::MAX,
            Some(rate) => {
                clock.tick().await;
                (begin.elapsed().as_secs_f64() * rate) as u64
            }
        };
        while number < due.min(load.pushes_max) {
            if load.in_flight_max.is_some() {
                // The permit is returned with the outcome.
                let Ok(permit) = window.acquire().await else { return number };
                permit.forget();
            }
            let Ok(push) = push(load, number, &text) else { return number };
            if apns.submit(&push, number, results).await.is_err() {
                return number;
            }
            number += 1;
            if number.is_multiple_of(64) && Instant::now() >= end {
                break;
            }
            if number.is_multiple_of(256) {
                tokio::task::yield_now().await;
            }
        }
    }
    number
}

async fn play(load: Load) -> Result<Measured, CliError> {
    let apns = sender(&load)?;
    let load = Arc::new(load);
    let (results_in, mut results_out) = results();
    let window = Arc::new(Semaphore::new(load.in_flight_max.unwrap_or(Semaphore::MAX_PERMITS)));
    let begin = Instant::now();
    let cpu_begin = thread_cpu_s();
    let end = begin + load.duration;

    let submitting = {
        let (apns, load, window) = (apns.clone(), load.clone(), window.clone());
        tokio::spawn(async move { submit(&apns, &load, &window, &results_in, begin).await })
    };

    let (mut timeline, mut ended, mut accepted) = (Timeline::default(), 0, 0);
    let (mut warm_begin, mut answers_before) = (None, apns.metrics().response_times);
    let mut outcomes = Vec::new();
    let mut done = Box::pin(sleep_until(end));
    loop {
        tokio::select! {
            biased;
            ended_one = results_out.recv() => {
                let Some((tag, outcome)) = ended_one else { break };
                let at = begin.elapsed();
                timeline.record(at, 1);
                if warm_begin.is_none() && at >= load.warm_up && !load.warm_up.is_zero() {
                    warm_begin = Some((thread_cpu_s(), ended));
                    answers_before = apns.metrics().response_times;
                }
                ended += 1;
                accepted += u64::from(matches!(outcome, Outcome::Accepted(_)));
                if load.keep_outcomes {
                    let index = tag as usize;
                    if outcomes.len() <= index {
                        outcomes.resize(index + 1, None);
                    }
                    outcomes[index] = Some(outcome);
                }
                if load.in_flight_max.is_some() {
                    window.add_permits(1);
                }
            }
            () = &mut done => break,
        }
        if ended >= load.pushes_max {
            break;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let cpu_end = thread_cpu_s();
    let cpu_s = cpu_end - cpu_begin;
    let warm = warm_begin.map_or((0.0, 0), |(cpu, before)| (cpu_end - cpu, ended - before));
    let metrics = apns.metrics();
    let answers = metrics.response_times.since(&answers_before);
    let answer_s = |share| answers.quantile_ns(share).map(|ns| ns as f64 / 1e9);
    apns.close();
    submitting.abort();
    Ok(Measured {
        timeline,
        ended,
        accepted,
        seconds,
        cpu_s,
        warm,
        answer_p50_s: answer_s(0.5),
        answer_p99_s: answer_s(0.99),
        metrics,
        outcomes,
    })
}
