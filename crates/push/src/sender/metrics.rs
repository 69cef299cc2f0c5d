//! Metrics of a sender and its connections.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use dunlin_metrics::{Histogram, Snapshot};
use dunlin_wire::http2::ErrorCode;
use dunlin_wire::http2::client::Connection;
use serde::Serialize;

use super::concurrency::ConcurrencyLimit;
use crate::connect::{ConnectError, Stage};

/// What limits the rate of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Binding {
    /// Nothing: all requests are sent.
    #[default]
    Demand,
    /// The peer's MAX_CONCURRENT_STREAMS.
    Streams,
    /// The connection's flow-control window.
    Window,
    /// More requests in flight would only wait, on the network or in the service.
    Path,
    /// The socket accepts no more output.
    Socket,
}

const BINDINGS: [Binding; 5] =
    [Binding::Demand, Binding::Streams, Binding::Window, Binding::Path, Binding::Socket];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ConnectionState {
    /// Until the peer's SETTINGS arrive.
    Connecting,
    Open,
    /// Accepts no more requests; those in flight end.
    Draining,
    Closed,
}

/// The figures of a connection, written by its task and read by others.
#[derive(Debug)]
pub(super) struct ConnectionStats {
    pub(super) id: u64,
    /// The stage of opening it.
    pub(super) stage: Stage,
    state: AtomicU8,
    retired: AtomicBool,
    pub(super) answered: AtomicU64,
    in_flight: AtomicU32,
    in_flight_max: AtomicU32,
    streams_max: AtomicU32,
    window_bytes: AtomicU32,
    rtt_min_us: AtomicU64,
    median_us: AtomicU64,
    rate_milli: AtomicU64,
    binding: AtomicU8,
    bound_us: [AtomicU64; 5],
    go_away: Mutex<Option<String>>,
    waker: Mutex<Option<std::task::Waker>>,
}

impl ConnectionStats {
    pub(super) fn new(id: u64) -> ConnectionStats {
        ConnectionStats {
            id,
            stage: Stage::default(),
            state: AtomicU8::new(ConnectionState::Connecting as u8),
            retired: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            in_flight_max: AtomicU32::new(0),
            streams_max: AtomicU32::new(0),
            window_bytes: AtomicU32::new(0),
            rtt_min_us: AtomicU64::new(0),
            median_us: AtomicU64::new(0),
            rate_milli: AtomicU64::new(0),
            binding: AtomicU8::new(0),
            bound_us: Default::default(),
            go_away: Mutex::new(None),
            waker: Mutex::new(None),
        }
    }

    pub(super) fn state(&self) -> ConnectionState {
        match self.state.load(Relaxed) {
            0 => ConnectionState::Connecting,
            1 => ConnectionState::Open,
            2 => ConnectionState::Draining,
            _ => ConnectionState::Closed,
        }
    }

    pub(super) fn set_state(&self, state: ConnectionState) {
        self.state.store(state as u8, Relaxed);
    }

    /// Asks the connection to accept no more requests and to end when it is empty.
    pub(super) fn retire(&self) {
        self.retired.store(true, Relaxed);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Relaxed)
    }

    /// Sets the task to wake by [`retire`](ConnectionStats::retire).
    pub(super) fn set_waker(&self, waker: &std::task::Waker) {
        let mut known = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    pub(super) fn add_bound(&self, binding: Binding, time: Duration) {
        self.bound_us[binding as usize].fetch_add(time.as_micros() as u64, Relaxed);
    }

    /// Returns the current limit.
    pub(super) fn binding(&self) -> Binding {
        BINDINGS[usize::from(self.binding.load(Relaxed)) % BINDINGS.len()]
    }

    pub(super) fn rtt_min(&self) -> Option<Duration> {
        let us = self.rtt_min_us.load(Relaxed);
        (us > 0).then(|| Duration::from_micros(us))
    }

    /// Returns the recent median response time.
    pub(super) fn median(&self) -> Option<Duration> {
        let us = self.median_us.load(Relaxed);
        (us > 0).then(|| Duration::from_micros(us))
    }

    pub(super) fn handle_go_away(&self, code: &ErrorCode, debug: &[u8]) {
        let text = format!("{code} {}", String::from_utf8_lossy(debug));
        *self.go_away.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    /// Returns the peer's GOAWAY.
    pub(super) fn go_away(&self) -> Option<String> {
        self.go_away.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn show(
        &self,
        connection: &Connection<Bytes>,
        limit: &ConcurrencyLimit,
        binding: Binding,
        in_flight: usize,
    ) {
        self.in_flight.store(in_flight as u32, Relaxed);
        self.in_flight_max.store(limit.limit(), Relaxed);
        self.streams_max.store(connection.streams_max(), Relaxed);
        self.window_bytes.store(connection.window_bytes(), Relaxed);
        let us = |time: Option<Duration>| time.map_or(0, |time| time.as_micros() as u64);
        self.rtt_min_us.store(us(limit.shortest()), Relaxed);
        self.median_us.store(us(limit.median()), Relaxed);
        self.rate_milli.store((limit.rate().unwrap_or(0.0) * 1e3) as u64, Relaxed);
        self.binding.store(binding as u8, Relaxed);
    }

    pub(super) fn metrics(&self) -> ConnectionMetrics {
        let bound = |binding: Binding| {
            Duration::from_micros(self.bound_us[binding as usize].load(Relaxed)).as_secs_f64()
        };
        ConnectionMetrics {
            id: self.id,
            draining: self.state() != ConnectionState::Open,
            answered: self.answered.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            in_flight_max: self.in_flight_max.load(Relaxed),
            streams_max: self.streams_max.load(Relaxed),
            window_bytes: self.window_bytes.load(Relaxed),
            rtt_min_s: self.rtt_min().map(|rtt| rtt.as_secs_f64()),
            rate: self.rate_milli.load(Relaxed) as f64 / 1e3,
            binding: self.binding(),
            bound_s: BINDINGS.map(|binding| (binding, bound(binding))).to_vec(),
            go_away: self.go_away(),
        }
    }
}

/// The current state of a connection.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionMetrics {
    /// A serial number within the sender.
    pub id: u64,
    /// It accepts no more requests, or none yet.
    pub draining: bool,
    /// Responses on this connection.
    pub answered: u64,
    /// Requests in flight.
    pub in_flight: u32,
    /// The estimated number of requests that can be in flight without queueing.
    pub in_flight_max: u32,
    /// Streams that the peer permits; 4,294,967,295 is no limit.
    pub streams_max: u32,
    /// Bytes left of the connection's window.
    pub window_bytes: u32,
    /// The shortest recent response time.
    pub rtt_min_s: Option<f64>,
    /// Recent rate of responses per second.
    pub rate: f64,
    /// The current limit.
    pub binding: Binding,
    /// Seconds for which each limit was the current one.
    pub bound_s: Vec<(Binding, f64)>,
    /// The peer's GOAWAY.
    pub go_away: Option<String>,
}

/// The current state of a sender.
#[derive(Clone, Debug, Serialize)]
pub struct SenderMetrics {
    /// Queued requests, including delayed ones.
    pub queued: usize,
    /// Bytes of requests in the queue and in flight.
    pub queued_bytes: usize,
    /// Requests submitted.
    pub submitted: u64,
    /// Requests that ended accepted.
    pub accepted: u64,
    /// Rejected.
    pub rejected: u64,
    /// Not sent.
    pub not_sent: u64,
    /// Uncertain.
    pub uncertain: u64,
    /// Responses that asked to try again later.
    pub retried: u64,
    /// Requests that the peer did not process and that were sent again.
    pub refused: u64,
    /// Requests that were sent again although they may have been accepted.
    pub resent: u64,
    /// Responses of any kind.
    pub answered: u64,
    /// The median response time, within 1 %.
    pub answer_p50_s: Option<f64>,
    /// The 99th percentile of response times.
    pub answer_p99_s: Option<f64>,
    /// The histogram of response times.
    #[serde(skip)]
    pub response_times: Snapshot,
    /// Connections opened.
    pub opened: u64,
    /// Failed attempts to open a connection.
    pub failed: u64,
    /// Connections that broke after their first response.
    pub lost: u64,
    /// The reason of the last of these.
    pub lost_error: Option<String>,
    /// Why there is no connection: the error of the last attempt, until one succeeds, or what it has been waiting for
    /// longer than a second.
    pub connect_error: Option<ConnectError>,
    /// The open connections.
    pub connections: Vec<ConnectionMetrics>,
}

/// A sender's counters.
#[derive(Debug, Default)]
pub(super) struct SenderStats {
    pub(super) submitted: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) not_sent: AtomicU64,
    pub(super) uncertain: AtomicU64,
    pub(super) retried: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) resent: AtomicU64,
    pub(super) opened: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) answered: AtomicU64,
    /// With a precision of 1 %.
    pub(super) response_times: Histogram<4_096>,
}

impl SenderStats {
    pub(super) fn record_answer(&self, time: Duration) {
        self.answered.fetch_add(1, Relaxed);
        self.response_times.record_shared(time.as_nanos() as u64);
    }
}
