//! Traces, and the export of traces and metrics to a collector.
//!
//! Whoever begins something that may be traced asks [`Telemetry::begin`], one load while nothing is sent anywhere. Spans that
//! have ended go into a bounded queue ([`Telemetry::end`]); a thread of its own sends them (`exporter`). What finds no room
//! is counted. The ids of a span travel with what it causes: as [`TraceContext`] with publications, over workers, engines
//! and nodes; as `traceparent` (W3C Trace Context) to backends.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::{SystemTime, UNIX_EPOCH};

use dunlin_config::Otlp;
use dunlin_hub::TraceContext;
use dunlin_metrics::{Collector, DescriptorEncoder, Family, Kind};
use dunlin_push_service::TraceParent;

/// Spans that wait for the collector; some 200 bytes each.
const SPANS_MAX: usize = 32_768;

/// What part a span has in the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanKind {
    /// Answers a request.
    Server,
    /// Asks somebody else.
    Client,
    /// Takes what a channel had.
    Consumer,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AttributeValue {
    Text(Box<str>),
    Number(i64),
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        AttributeValue::Text(text[..text.floor_char_boundary(256)].into())
    }
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> Self {
        AttributeValue::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

pub(crate) type Attributes = Vec<(&'static str, AttributeValue)>;

/// A span that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BegunSpan {
    /// Its own ids, for what it causes.
    pub(crate) context: TraceContext,
    /// The span that has caused it; 0: none.
    pub(crate) parent: u64,
    pub(crate) began_ns: u64,
}

impl BegunSpan {
    /// Returns the header for requests that it causes.
    pub(crate) fn header(&self) -> String {
        header(self.context)
    }
}

/// Returns the header `traceparent` of a span that is recorded.
pub(crate) fn header(of: TraceContext) -> String {
    format!("00-{:032x}-{:016x}-01", of.trace, of.span)
}

/// A span that has ended.
#[derive(Debug)]
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "nothing sends it"))]
pub(crate) struct Span {
    pub(crate) begun: BegunSpan,
    pub(crate) ended_ns: u64,
    pub(crate) kind: SpanKind,
    pub(crate) name: &'static str,
    pub(crate) is_error: bool,
    pub(crate) attributes: Attributes,
}

/// Whether and where traces and metrics are sent, and what waits for that.
pub(crate) struct Telemetry {
    is_on: AtomicBool,
    sampled_per_million: AtomicU32,
    seed: foldhash::quality::RandomState,
    ids: AtomicU64,
    queue: SyncSender<Span>,
    /// Taken by the thread that sends.
    #[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "nothing is sent"))]
    pub(crate) spans: Mutex<Option<Receiver<Span>>>,
    /// That thread, which is woken when the settings change.
    pub(crate) thread: Mutex<Option<Thread>>,
    pub(crate) sent: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) requests_failed: AtomicU64,
}

impl Telemetry {
    pub(crate) fn new(settings: &Otlp) -> Telemetry {
        let (queue, spans) = sync_channel(SPANS_MAX);
        let telemetry = Telemetry {
            is_on: AtomicBool::new(false),
            sampled_per_million: AtomicU32::new(0),
            seed: foldhash::quality::RandomState::default(),
            ids: AtomicU64::new(1),
            queue,
            spans: Mutex::new(Some(spans)),
            thread: Mutex::new(None),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            requests_failed: AtomicU64::new(0),
        };
        telemetry.follow(settings);
        telemetry
    }

    /// Follows the settings.
    pub(crate) fn follow(&self, settings: &Otlp) {
        let is_on = cfg!(feature = "otlp") && !settings.endpoint.is_empty();
        self.sampled_per_million.store(settings.sampled_per_million, Relaxed);
        self.is_on.store(is_on, Relaxed);
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }

    /// Whether spans are sent anywhere.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Begins a span of a request that may have come with the header `traceparent`. `None`: it is not traced.
    pub(crate) fn begin_request(&self, traceparent: Option<&str>) -> Option<BegunSpan> {
        if !self.is_on() {
            return None;
        }
        match traceparent.and_then(TraceParent::read) {
            Some(parent) if parent.is_sampled => Some(self.begun(parent.trace, parent.span)),
            Some(_) => None,
            None => self.begin(),
        }
    }

    /// Begins a trace, if it is among those that are sampled.
    pub(crate) fn begin(&self) -> Option<BegunSpan> {
        thread_local!(static RANDOM: Cell<u64> = const { Cell::new(0) });
        if !self.is_on() {
            return None;
        }
        let share = self.sampled_per_million.load(Relaxed);
        let is_sampled = RANDOM.with(|random| {
            // Xorshift: no other thread takes part.
            let mut next = random.get();
            if next == 0 {
                next = self.id() | 1;
            }
            next ^= next << 13;
            next ^= next >> 7;
            next ^= next << 17;
            random.set(next);
            ((next >> 32) * 1_000_000) >> 32 < u64::from(share)
        });
        is_sampled.then(|| self.begun(u128::from(self.id()) << 64 | u128::from(self.id()), 0))
    }

    /// Begins a span that another one has caused.
    pub(crate) fn begin_below(&self, cause: Option<TraceContext>) -> Option<BegunSpan> {
        let cause = cause.filter(|_| self.is_on())?;
        Some(self.begun(cause.trace, cause.span))
    }

    /// Begins a span that another one has caused, or a trace.
    pub(crate) fn begin_within(&self, cause: Option<TraceContext>) -> Option<BegunSpan> {
        match cause {
            Some(_) => self.begin_below(cause),
            None => self.begin(),
        }
    }

    fn begun(&self, trace: u128, parent: u64) -> BegunSpan {
        let context = TraceContext { trace, span: self.id() };
        BegunSpan { context, parent, began_ns: unix_ns() }
    }

    /// An id that is never 0 and that nobody guesses.
    fn id(&self) -> u64 {
        self.seed.hash_one(self.ids.fetch_add(1, Relaxed)).max(1)
    }

    /// Ends a span, which is sent if there is room.
    pub(crate) fn end(
        &self,
        begun: BegunSpan,
        (kind, name): (SpanKind, &'static str),
        is_error: bool,
        attributes: Attributes,
    ) {
        let span = Span { begun, ended_ns: unix_ns(), kind, name, is_error, attributes };
        if self.queue.try_send(span).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Ends a span that has begun at another time, on this or another node.
    pub(crate) fn end_since(
        &self,
        begun: BegunSpan,
        began_ms: u64,
        what: (SpanKind, &'static str),
        attributes: Attributes,
    ) {
        let began_ns = begun.began_ns.min(began_ms.saturating_mul(1_000_000));
        self.end(BegunSpan { began_ns, ..begun }, what, false, attributes);
    }
}

pub(crate) fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

impl Collector for Telemetry {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let families = [
            ("otlp_spans_sent_total", "Spans that the collector has taken.", &self.sent),
            (
                "otlp_spans_dropped_total",
                "Spans dropped: too many waited for the collector.",
                &self.dropped,
            ),
            (
                "otlp_spans_failed_total",
                "Spans that the collector has refused, or has not taken in several attempts.",
                &self.failed,
            ),
            (
                "otlp_requests_failed_total",
                "Requests to the collector that failed.",
                &self.requests_failed,
            ),
        ];
        families.into_iter().try_for_each(|(name, help, count)| {
            let family = Family { name, help, kind: Kind::Counter };
            family.encode_one(&mut encoder, count.load(Relaxed))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn telemetry(endpoint: &str, sampled_per_million: u32) -> Telemetry {
        let endpoint = endpoint.into();
        Telemetry::new(&Otlp { endpoint, sampled_per_million, ..Otlp::default() })
    }

    const TRACED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn nothing_is_traced_while_nothing_is_sent() {
        let off = telemetry("", 1_000_000);
        assert!(off.begin_request(Some(TRACED)).is_none() && off.begin().is_none());
    }

    #[test]
    #[cfg(feature = "otlp")]
    fn request_follows_the_flag_of_its_caller_and_others_are_sampled() {
        let none = telemetry("http://127.0.0.1:1", 0);
        let begun = none.begin_request(Some(TRACED)).unwrap();
        assert_eq!(begun.context.trace, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!(begun.parent, 0xb7ad_6b71_6920_3331);
        assert_ne!(begun.context.span, begun.parent);
        assert_eq!(TraceParent::read(&begun.header()).unwrap().span, begun.context.span);
        let untraced = TRACED.replace("-01", "-00");
        let all = telemetry("http://127.0.0.1:1", 1_000_000);
        assert!(all.begin_request(Some(&untraced)).is_none());
        assert!(
            all.begin_request(Some("nonsense")).is_some() && none.begin_request(None).is_none()
        );
        let some = telemetry("http://127.0.0.1:1", 100_000);
        let begun = (0..10_000).filter(|_| some.begin().is_some()).count();
        assert!((700..1_300).contains(&begun), "{begun} of 10,000, not a tenth");
    }

    #[test]
    #[cfg(feature = "otlp")]
    fn spans_beyond_the_queue_are_dropped_and_counted() {
        let all = telemetry("http://127.0.0.1:1", 1_000_000);
        for _ in 0..SPANS_MAX + 7 {
            all.end(all.begin().unwrap(), (SpanKind::Server, "call"), false, Vec::new());
        }
        assert_eq!(all.dropped.load(Relaxed), 7);
    }
}
