//! A push as a span, from queueing to its end, with an event for each step.
//!
//! Target `dunlin_push::trace`, level `TRACE`. Without a subscriber a push costs one relaxed load and a comparison
//! (`tracing`'s own filter) and a null pointer in its record. `otel.kind`, `otel.status_code` and the server's
//! address have the names of OpenTelemetry.

use tokio::time::Instant;
use tracing::{Level, Span, field};

use crate::outcome::Outcome;
use crate::request::Request;
use crate::service::Service;

const TARGET: &str = "dunlin_push::trace";

/// The span of a push that is traced.
#[derive(Debug)]
pub(crate) struct Trace {
    span: Span,
    queued_at: Instant,
    /// When it was last sent.
    sent_at: Option<Instant>,
    /// Attempts to send it.
    attempts: u32,
}

impl Trace {
    /// Creates the span of a request that is being queued, if there is a subscriber. Its parent is the current span
    /// of the caller.
    #[inline]
    pub(crate) fn begin(
        service: &impl Service,
        name: &str,
        request: &Request,
    ) -> Option<Box<Trace>> {
        tracing::enabled!(target: TARGET, Level::TRACE).then(|| Trace::open(service, name, request))
    }

    #[cold]
    fn open(service: &impl Service, name: &str, request: &Request) -> Box<Trace> {
        let span = tracing::trace_span!(
            target: TARGET,
            "push",
            otel.kind = "client",
            otel.status_code = field::Empty,
            credential = if name.is_empty() { service.authority() } else { name },
            platform = service.platform(),
            server.address = service.authority(),
            token = %Shortened(service.recipient(request), request.subject),
            id = field::Empty,
            attempts = field::Empty,
            connection = field::Empty,
            queued_us = field::Empty,
            outcome = field::Empty,
            status = field::Empty,
            reason = field::Empty,
        );
        if let Some(own) = request.headers.iter().find(|header| header.name == "apns-id") {
            span.record("id", &*own.value);
        }
        Box::new(Trace { span, queued_at: Instant::now(), sent_at: None, attempts: 0 })
    }

    /// Records that the request was sent.
    pub(crate) fn sent(&mut self, connection: u64, stream: u32, now: Instant) {
        if self.attempts == 0 {
            self.span.record("queued_us", micros(self.queued_at, now));
        }
        self.attempts += 1;
        self.sent_at = Some(now);
        self.span.record("connection", connection);
        let attempt = self.attempts;
        tracing::trace!(target: TARGET, parent: &self.span, attempt, connection, stream, "sent");
    }

    /// Records a response, which is not necessarily the end.
    pub(crate) fn answered(&self, status: u16, now: Instant) {
        let took_us = self.sent_at.map_or(0, |at| micros(at, now));
        tracing::trace!(target: TARGET, parent: &self.span, status, took_us, "answered");
    }

    /// Records the return to the queue: `why` is `retry`, `refused`, `reauthorize`, or how it was lost.
    pub(crate) fn returned(&self, why: &'static str) {
        tracing::trace!(target: TARGET, parent: &self.span, why, "returned to the queue");
    }

    /// Records the outcome and closes the span.
    pub(crate) fn end(self, outcome: &Outcome) {
        let span = &self.span;
        if self.attempts == 0 {
            span.record("queued_us", micros(self.queued_at, Instant::now()));
        }
        span.record("attempts", self.attempts);
        span.record("outcome", outcome.kind().as_str());
        if let Outcome::Accepted(accepted) = outcome {
            span.record("id", &*accepted.id);
        } else if let Outcome::Rejected(rejected) = outcome {
            span.record("status", rejected.status);
            if !rejected.id.is_empty() {
                span.record("id", &*rejected.id);
            }
        }
        let is_accepted = matches!(outcome, Outcome::Accepted(_));
        span.record("otel.status_code", if is_accepted { "OK" } else { "ERROR" });
        if !is_accepted {
            let ended = outcome.to_json();
            let sentence = match outcome {
                Outcome::Rejected(_) => None,
                _ => ended.detail.as_deref(),
            };
            span.record("reason", sentence.unwrap_or(ended.reason));
        }
        tracing::trace!(target: TARGET, parent: span, "ended");
    }
}

fn micros(from: Instant, to: Instant) -> u64 {
    to.saturating_duration_since(from).as_micros() as u64
}

/// Enough of a device token to find it in a database, and too little to send to it; for other recipients a hash.
struct Shortened<'a>(&'a str, u64);

/// Digits of a token, which has at least 64.
const SHOWN: usize = 8;

impl std::fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.get(..SHOWN) {
            Some(begin) if self.0.len() >= 8 * SHOWN => write!(f, "{begin}…"),
            _ => write!(f, "#{:016x}", self.1),
        }
    }
}
