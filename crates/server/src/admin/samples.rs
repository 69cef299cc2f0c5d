//! What the server did in the last hour and the last day, for those who run no Prometheus: `GET /status/series`.
//!
//! The admin thread reads the workers' counters every five seconds, which costs a worker nothing, and keeps two rings of
//! fixed size. They are lost at a restart.

use std::collections::VecDeque;

use dunlin_metrics::Snapshot;
use dunlin_net::http::query;
use serde::Serialize;

use super::problem::{self, ProblemDetails};
use super::unix_ms;
use crate::metrics::Metric;
use crate::metrics::process::{cpu_ns, memory_bytes};
use crate::state::ServerState;

/// Seconds between two samples.
pub(super) const STEP_S: u64 = 5;
/// Samples in each ring.
const KEPT: usize = 720;
/// Samples that become one of the day.
const DAY_EVERY: usize = 24;

macro_rules! series {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $joined:ident;)+) => {
        /// A series of samples.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Series { $($(#[$doc])* $variant,)+ }

        /// The number of series.
        const SERIES: usize = [$($name),+].len();
        /// The name of each series.
        pub(super) const NAMES: [&str; SERIES] = [$($name),+];
        /// How samples of each series become one of the day.
        const JOINED: [Joined; SERIES] = [$(Joined::$joined),+];
    };
}

/// How several samples become one.
#[derive(Clone, Copy)]
enum Joined {
    Mean,
    Largest,
}

series! {
    /// Open client connections.
    Connections = "connections", Mean;
    /// Sessions.
    Sessions = "sessions", Mean;
    /// Subscriptions.
    Subscriptions = "subscriptions", Mean;
    /// Channels.
    Channels = "channels", Mean;
    /// Publications received a second.
    In = "messages_in_per_s", Mean;
    /// Messages put into outboxes a second.
    Out = "messages_out_per_s", Mean;
    /// Bytes written to sessions a second.
    BytesOut = "bytes_out_per_s", Mean;
    /// Commands of clients a second.
    Commands = "commands_per_s", Mean;
    /// Commands of the server API a second.
    ApiCommands = "api_commands_per_s", Mean;
    /// Connections accepted a second.
    Accepted = "accepted_per_s", Mean;
    /// Connections and requests refused a second, for any reason.
    Refused = "refused_per_s", Mean;
    /// Clients disconnected by the server a second.
    Disconnects = "disconnects_per_s", Mean;
    /// Messages dropped a second, because a client was slow.
    Dropped = "dropped_per_s", Mean;
    /// Median latency from one worker to another, in microseconds.
    HopMedian = "hop_us_p50", Mean;
    /// 99th percentile of that.
    HopTail = "hop_us_p99", Largest;
    /// 99th percentile of the length of a turn of a worker's loop, in microseconds.
    TurnTail = "turn_us_p99", Largest;
    /// Share of its time that the busiest worker worked.
    Busy = "busy_max", Largest;
    /// Cores that the process used.
    Cpu = "cpu_cores", Mean;
    /// Resident memory of the process in bytes.
    Resident = "resident_bytes", Mean;
    /// Bytes of histories.
    History = "history_bytes", Mean;
    /// Bytes in outboxes.
    Outbox = "outbox_bytes", Mean;
    /// Bytes in buffers of connections.
    Buffered = "buffered_bytes", Mean;
}

/// Refusals by reason: the counter, and what to call it.
pub(super) const REFUSALS: &[(Metric, &str)] = &[
    (Metric::RefusedTotal, "connections: limits.connections_max"),
    (Metric::RefusedAddress, "connections: limits.connections_per_address_max"),
    (Metric::RefusedUser, "connections: limits.connections_per_user_max"),
    (Metric::RefusedUnauthenticated, "connections: limits.unauthenticated_per_address_max"),
    (Metric::Displaced, "unauthenticated connections displaced: limits.unauthenticated_max"),
    (Metric::HandshakesRefused, "TLS handshakes: limits.handshakes_per_address_per_s_max"),
    (Metric::HandshakesFailed, "TLS handshakes that failed"),
    (Metric::ProxyFailed, "PROXY protocol headers malformed"),
    (Metric::ForwardedMalformed, "X-Forwarded-For malformed"),
    (Metric::BuffersEvicted, "connections closed for their buffers: limits.buffered_bytes_max"),
    (Metric::HttpErrors, "HTTP requests answered with 4xx or 5xx"),
    (Metric::CommandErrors, "client commands answered with an error"),
    (Metric::ApiErrors, "server API commands answered with an error"),
    (Metric::ProtocolErrors, "malformed input of clients"),
    (Metric::DeadlinesMissed, "connections that timed out"),
    (Metric::SlowDisconnects, "slow clients disconnected"),
];

type Sample = [f32; SERIES];

/// A ring of samples that are `step_s` seconds apart.
struct Ring {
    step_s: u64,
    samples: VecDeque<Sample>,
    /// The number of samples ever taken.
    taken: u64,
    newest_unix_ms: u64,
}

impl Ring {
    fn new(step_s: u64) -> Self {
        Self { step_s, samples: VecDeque::with_capacity(KEPT), taken: 0, newest_unix_ms: 0 }
    }

    fn push(&mut self, sample: Sample, now_unix_ms: u64) {
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.taken += 1;
        self.newest_unix_ms = now_unix_ms;
    }
}

/// Counters as they were at the last sample.
#[derive(Default)]
struct Before {
    at_ns: u64,
    cpu_ns: u64,
    counts: [u64; COUNTED.len()],
    busy_ns: Vec<u64>,
    hops: Snapshot,
    turns: Vec<Snapshot>,
}

/// Counters whose increase a second is a series.
const COUNTED: [(Series, Metric); 8] = [
    (Series::In, Metric::MessagesIn),
    (Series::Out, Metric::MessagesOut),
    (Series::BytesOut, Metric::BytesOut),
    (Series::Commands, Metric::Commands),
    (Series::ApiCommands, Metric::ApiCommands),
    (Series::Accepted, Metric::Accepted),
    (Series::Disconnects, Metric::Disconnects),
    (Series::Dropped, Metric::MessagesDropped),
];

const GAUGES: [(Series, Metric); 7] = [
    (Series::Connections, Metric::Connections),
    (Series::Sessions, Metric::Sessions),
    (Series::Subscriptions, Metric::Subscriptions),
    (Series::Channels, Metric::Channels),
    (Series::History, Metric::HistoryBytes),
    (Series::Outbox, Metric::OutboxBytes),
    (Series::Buffered, Metric::BufferedBytes),
];

/// What a worker did since the last sample.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerSample {
    /// Share of its time that it worked.
    pub(super) busy: f32,
    /// Percentiles of its turns in microseconds.
    pub(super) turn_us: [u64; 2],
}

/// The samples of the last hour and day.
pub(super) struct Samples {
    hour: Ring,
    day: Ring,
    /// Samples that become the next one of the day.
    joined: Vec<Sample>,
    before: Before,
    refused: u64,
    pub(super) workers: Vec<WorkerSample>,
}

impl Samples {
    pub(super) fn new() -> Self {
        Self {
            hour: Ring::new(STEP_S),
            day: Ring::new(STEP_S * DAY_EVERY as u64),
            joined: Vec::with_capacity(DAY_EVERY),
            before: Before::default(),
            refused: 0,
            workers: Vec::new(),
        }
    }

    /// Takes a sample. `at_ns` is monotonic.
    pub(super) fn take(&mut self, state: &ServerState, at_ns: u64) {
        let first = self.before.at_ns == 0;
        let took_s = at_ns.saturating_sub(self.before.at_ns).max(1) as f64 / 1e9;
        let mut sample = [0.0; SERIES];
        let mut set = |series: Series, value: f64| sample[series as usize] = value as f32;
        for (series, metric) in GAUGES {
            set(series, state.total(metric) as f64);
        }
        let counts = COUNTED.map(|(_, metric)| state.total(metric));
        for ((series, _), (now, before)) in
            COUNTED.iter().zip(counts.iter().zip(self.before.counts))
        {
            set(*series, now.saturating_sub(before) as f64 / took_s);
        }
        let refused = REFUSALS.iter().map(|(metric, _)| state.total(*metric)).sum::<u64>();
        set(Series::Refused, refused.saturating_sub(self.refused) as f64 / took_s);

        let mut hops = Snapshot::default();
        state.loop_stats.iter().for_each(|stats| hops.merge(&stats.hop_times.snapshot()));
        let recent = hops.since(&self.before.hops);
        let us = |recent: &Snapshot, share| recent.quantile_ns(share).unwrap_or(0) as f64 / 1e3;
        set(Series::HopMedian, us(&recent, 0.5));
        set(Series::HopTail, us(&recent, 0.99));

        let turns: Vec<Snapshot> =
            state.loop_stats.iter().map(|stats| stats.turn_times.snapshot()).collect();
        self.before.turns.resize(turns.len(), Snapshot::default());
        self.before.busy_ns.resize(turns.len(), 0);
        let of_workers = turns.iter().zip(&self.before.turns).zip(&self.before.busy_ns);
        self.workers = of_workers
            .map(|((turns, before), busy_ns)| {
                let recent = turns.since(before);
                let worked_ns = turns.sum_ns().saturating_sub(*busy_ns) as f64;
                WorkerSample {
                    busy: (worked_ns / (took_s * 1e9)).min(1.0) as f32,
                    turn_us: [0.5, 0.99].map(|share| us(&recent, share).ceil() as u64),
                }
            })
            .collect();
        let largest =
            |of: fn(&WorkerSample) -> f64| self.workers.iter().map(of).fold(0.0, f64::max);
        set(Series::TurnTail, largest(|worker| worker.turn_us[1] as f64));
        set(Series::Busy, largest(|worker| f64::from(worker.busy)));
        let cpu_ns = cpu_ns();
        set(Series::Cpu, cpu_ns.saturating_sub(self.before.cpu_ns) as f64 / (took_s * 1e9));
        set(Series::Resident, memory_bytes()[1] as f64);

        let busy_ns = turns.iter().map(Snapshot::sum_ns).collect();
        self.before = Before { at_ns, cpu_ns, counts, busy_ns, hops, turns };
        self.refused = refused;
        // Rates need a sample before them.
        if !first {
            self.push(sample, unix_ms());
        }
    }

    fn push(&mut self, sample: Sample, now_unix_ms: u64) {
        self.hour.push(sample, now_unix_ms);
        self.joined.push(sample);
        if self.joined.len() == DAY_EVERY {
            let joined = std::array::from_fn(|series| {
                let values = self.joined.iter().map(|sample| sample[series]);
                match JOINED[series] {
                    Joined::Mean => values.sum::<f32>() / DAY_EVERY as f32,
                    Joined::Largest => values.fold(0.0, f32::max),
                }
            });
            self.day.push(joined, now_unix_ms);
            self.joined.clear();
        }
    }

    /// Returns the newest value of each series; `None` before the first sample.
    pub(super) fn newest(&self) -> Option<(u64, &Sample)> {
        Some((self.hour.newest_unix_ms, self.hour.samples.back()?))
    }

    /// Returns the newest value of a series.
    pub(super) fn value(&self, series: Series) -> f64 {
        self.newest().map_or(0.0, |(_, sample)| f64::from(sample[series as usize]))
    }

    /// Answers `GET /status/series`.
    ///
    /// # Errors
    /// The query is malformed.
    pub(super) fn answer(&self, text: Option<&str>) -> Result<Vec<u8>, ProblemDetails> {
        let bad = |detail: String| ProblemDetails::new(&problem::BAD_REQUEST, detail);
        let (mut ring, mut after) = (&self.hour, 0);
        for (name, value) in query::pairs(text.unwrap_or("")) {
            match (&*name, &*value) {
                ("span", "hour") => ring = &self.hour,
                ("span", "day") => ring = &self.day,
                ("span", _) => return Err(bad("`span` is hour or day".to_owned())),
                ("after", value) => {
                    after = value
                        .parse()
                        .map_err(|_| bad("`after` is `newest` of an earlier answer".to_owned()))?;
                }
                (name, _) => {
                    return Err(bad(format!(
                        "there is no parameter `{name}`; there are span, after"
                    )));
                }
            }
        }
        let oldest = ring.taken - ring.samples.len() as u64;
        // A number that is not of this process: all of it.
        let skipped = if after > ring.taken { 0 } else { after.saturating_sub(oldest) as usize };
        let series = NAMES.iter().enumerate().map(|(at, name)| {
            let values = ring.samples.iter().skip(skipped).map(|sample| sample[at]);
            (*name, values.collect::<Vec<f32>>())
        });
        let page = Page {
            step_s: ring.step_s,
            kept: KEPT,
            newest: ring.taken,
            newest_unix_ms: ring.newest_unix_ms,
            series: series.collect(),
        };
        Ok(serde_json::to_vec(&page).unwrap_or_default())
    }
}

/// The answer to `GET /status/series`.
#[derive(Serialize)]
struct Page {
    step_s: u64,
    kept: usize,
    newest: u64,
    newest_unix_ms: u64,
    series: std::collections::BTreeMap<&'static str, Vec<f32>>,
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read(samples: &Samples, query: &str) -> Value {
        serde_json::from_slice(&samples.answer(Some(query)).unwrap()).unwrap()
    }

    fn filled(count: usize) -> Samples {
        let mut samples = Samples::new();
        for at in 0..count {
            samples.push([at as f32; SERIES], at as u64 * 1_000 * STEP_S);
        }
        samples
    }

    #[test]
    fn rings_keep_an_hour_and_a_day_and_no_more() {
        let samples = filled(KEPT * DAY_EVERY + 24 * 10);
        let hour = read(&samples, "span=hour");
        let values = hour["series"]["connections"].as_array().unwrap();
        assert_eq!((values.len(), hour["step_s"].as_u64()), (KEPT, Some(STEP_S)));
        let day = read(&samples, "span=day");
        let values = day["series"]["connections"].as_array().unwrap();
        assert_eq!((values.len(), day["step_s"].as_u64()), (KEPT, Some(120)));
        // The mean of 24 samples, and the largest.
        assert_eq!(values[0], 240.0 + 11.5);
        assert_eq!(day["series"]["turn_us_p99"][0], 240.0 + 23.0);
        assert_eq!(samples.hour.samples.capacity(), KEPT);
    }

    #[test]
    fn a_reader_gets_what_it_does_not_have_and_after_a_restart_everything() {
        let samples = filled(10);
        let since =
            |after: u64| read(&samples, &format!("after={after}"))["series"]["sessions"].clone();
        assert_eq!(since(8), serde_json::json!([8.0, 9.0]));
        assert_eq!(since(10), serde_json::json!([]));
        assert_eq!(since(99).as_array().unwrap().len(), 10);
        for bad in ["span=week", "after=-1", "until=1"] {
            assert!(samples.answer(Some(bad)).is_err(), "{bad}");
        }
    }
}
