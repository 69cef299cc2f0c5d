//! Counters and durations of proxy calls, by worker and proxy.

use std::sync::Arc;

use dunlin_metrics::{Collector, DescriptorEncoder, Histogram, LiveSeries, Snapshot, metrics};

metrics! {
    /// A metric of each proxy of `proxies`.
    ProxyMetric,
    /// The metrics of one proxy, written by one worker.
    ProxyCounters;
    Waiting, Gauge, "proxy_calls_waiting", "Calls of a proxy that wait for a connection to its backend, as of the last second.";
    Calls, Counter, "proxy_calls_total", "Calls of a proxy, those that were not sent included.";
    Retried, Counter, "proxy_calls_retried_total", "Times that a call was sent to another member of the upstream.";
    Unreachable, Counter, "proxy_calls_unreachable_total", "Calls that failed: no connection to the backend, or it broke.";
    TimedOut, Counter, "proxy_calls_timed_out_total", "Calls that failed: no answer in time.";
    Overflow, Counter, "proxy_calls_overflow_total", "Calls that were not sent: the proxy's queue_max was reached, or one user's share of it.";
    BreakerOpen, Counter, "proxy_calls_breaker_open_total", "Calls that were not sent: the backend has not answered those before.";
    Status, Counter, "proxy_calls_bad_status_total", "Calls that failed: the backend answered with another status than 200.";
    Malformed, Counter, "proxy_calls_malformed_total", "Calls that failed: the backend's answer was malformed or too long.";
}

/// The stats of one proxy on one worker.
#[derive(Debug, Default)]
pub struct ProxyStats {
    /// Its counters.
    pub counters: ProxyCounters,
    /// Durations from request to response, including the wait for a connection.
    pub durations: Histogram,
}

/// The stats of all workers, by worker and proxy.
#[derive(Debug, Default)]
pub struct ProxiesStats(LiveSeries<ByWorker, ProxyStats>);

/// A worker, and the name of a proxy.
type ByWorker = (usize, Arc<str>);

impl ProxiesStats {
    /// Begins the stats of a proxy on a worker, which holds them.
    pub fn begin(&self, worker: usize, name: &Arc<str>) -> Arc<ProxyStats> {
        self.0.begin((worker, Arc::clone(name)))
    }

    /// Returns the stats of the proxies that there are, by worker and name.
    pub fn live(&self) -> Vec<(ByWorker, Arc<ProxyStats>)> {
        self.0.live()
    }
}

impl Collector for ProxiesStats {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let all = self.0.live();
        if all.is_empty() {
            return Ok(());
        }
        fn labels((worker, name): &(usize, Arc<str>)) -> [(&'static str, String); 2] {
            [("worker", worker.to_string()), ("proxy", name.to_string())]
        }
        ProxyCounters::encode(
            &mut encoder,
            all.iter().map(|(of, stats)| (labels(of), &stats.counters)),
        )?;
        Snapshot::encode(
            &mut encoder,
            ("proxy_call_duration_seconds", "From a call of a proxy to its answer."),
            10..36,
            all.iter().map(|(of, stats)| (labels(of), stats.durations.snapshot())),
        )
    }
}
