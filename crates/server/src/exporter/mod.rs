//! The thread that sends spans and metrics to the collector.
//!
//! It sleeps while there is no collector. A collector that is slow, down or hangs delays this thread alone: the queue fills, and
//! what does not fit is counted.

mod exposition;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use dunlin_config::Otlp;
use dunlin_metrics::Registry;
use dunlin_net::{Tls, Url};
use dunlin_pipeline::{ClientConfig, HostConfig, HostId, Request, ThreadedClient};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as ProtoKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as ProtoSpan, Status};
use prost::Message;

use self::exposition::Period;
use crate::state::ServerState;
use crate::telemetry::{AttributeValue, Span, SpanKind, unix_ns};

/// Spans are gathered for so long.
const PERIOD: Duration = Duration::from_millis(250);
/// Most spans of a request.
const BATCH_MAX: usize = 2_048;
/// Attempts of a request, with a pause after each that doubles.
const ATTEMPTS_MAX: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);
/// Most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A handle of the thread.
pub(crate) struct TelemetryThread {
    thread: thread::JoinHandle<()>,
    is_stopping: Arc<AtomicBool>,
}

impl TelemetryThread {
    /// Starts the thread. `registry`: the metrics that are exported.
    pub(crate) fn start(
        state: &Arc<ServerState>,
        registry: Registry,
    ) -> io::Result<TelemetryThread> {
        let is_stopping = Arc::<AtomicBool>::default();
        let (state, stops) = (Arc::clone(state), Arc::clone(&is_stopping));
        let thread = thread::Builder::new().name("dunlin-otlp".into()).spawn(move || {
            let telemetry = &state.telemetry;
            let spans = telemetry.spans.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(spans) = spans else { return };
            *telemetry.thread.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(thread::current());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            match runtime {
                Ok(runtime) => {
                    Exporter { state: &state, registry, spans, runtime, stops, collector: None }
                        .run();
                }
                Err(error) => tracing::error!(%error, "traces and metrics are not sent"),
            }
        })?;
        Ok(TelemetryThread { thread, is_stopping })
    }

    /// Sends what waits, and waits for the thread to end, within a bound.
    pub(crate) fn stop(self, bound: Duration) {
        self.is_stopping.store(true, Ordering::Release);
        self.thread.thread().unpark();
        let deadline = Instant::now() + bound;
        while !self.thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

struct Exporter<'s> {
    state: &'s ServerState,
    registry: Registry,
    spans: Receiver<Span>,
    runtime: tokio::runtime::Runtime,
    stops: Arc<AtomicBool>,
    /// Where it sends, with the settings that this was made of; `Err`: it cannot.
    collector: Option<(Otlp, Result<Collector, String>)>,
}

struct Collector {
    client: ThreadedClient,
    host: HostId,
    /// The path before `/v1/`.
    base: String,
    is_failing: bool,
}

/// What became of a request.
enum Sent {
    Done,
    /// It may be taken another time.
    Later(String),
    Refused(String),
}

impl Exporter<'_> {
    fn run(mut self) {
        let started_ns = unix_ns() - self.state.uptime_ms() * 1_000_000;
        let mut metrics_due = Instant::now();
        loop {
            let is_stopping = self.stops.load(Ordering::Acquire);
            let settings = self.state.settings.load_full();
            let otlp = &settings.config.otlp;
            if otlp.endpoint.is_empty() {
                self.collector = None;
                // What was begun before.
                while self.spans.try_recv().is_ok() {}
                match is_stopping {
                    true => return,
                    false => thread::park(),
                }
                continue;
            }
            self.connect(otlp);
            let resource = resource(settings.node_name(), &self.state.uid);
            while let Some(batch) = self.batch() {
                let count = batch.len() as u64;
                let request = traces(&resource, batch).encode_to_vec();
                let telemetry = &self.state.telemetry;
                match self.send(otlp, "/v1/traces", &request) {
                    true => telemetry.sent.fetch_add(count, Ordering::Relaxed),
                    false => telemetry.failed.fetch_add(count, Ordering::Relaxed),
                };
            }
            let interval = Duration::from_millis(otlp.metrics_interval_ms);
            if !interval.is_zero() && (metrics_due <= Instant::now() || is_stopping) {
                metrics_due = Instant::now() + interval;
                let period = Period { began_ns: started_ns, now_ns: unix_ns() };
                let metrics = exposition::metrics(&self.registry, period);
                let scope_metrics =
                    vec![ScopeMetrics { scope: Some(scope()), metrics, ..ScopeMetrics::default() }];
                let resource_metrics = vec![ResourceMetrics {
                    resource: Some(resource),
                    scope_metrics,
                    ..ResourceMetrics::default()
                }];
                let request = ExportMetricsServiceRequest { resource_metrics }.encode_to_vec();
                self.send(otlp, "/v1/metrics", &request);
            }
            if is_stopping {
                return;
            }
            thread::park_timeout(PERIOD);
        }
    }

    fn batch(&self) -> Option<Vec<Span>> {
        let batch: Vec<Span> = self.spans.try_iter().take(BATCH_MAX).collect();
        (!batch.is_empty()).then_some(batch)
    }

    /// Makes the client anew, if the settings have changed.
    fn connect(&mut self, otlp: &Otlp) {
        if self.collector.as_ref().is_some_and(|(of, _)| of == otlp) {
            return;
        }
        let collector = collector(otlp);
        if let Err(error) = &collector {
            tracing::error!(error, "traces and metrics cannot be sent; correct `otlp`");
        }
        self.collector = Some((otlp.clone(), collector));
    }

    /// Sends a request, several times if it must be. Returns whether it was taken.
    fn send(&mut self, otlp: &Otlp, path: &str, body: &[u8]) -> bool {
        let Some((_, Ok(collector))) = &mut self.collector else { return false };
        let mut pause = PAUSE;
        for attempt in 1..=ATTEMPTS_MAX {
            let sent = self.runtime.block_on(collector.post(otlp, path, body));
            let (error, is_final) = match sent {
                Sent::Done => {
                    if std::mem::take(&mut collector.is_failing) {
                        tracing::info!("the collector of traces and metrics takes them again");
                    }
                    return true;
                }
                Sent::Later(error) => (error, attempt == ATTEMPTS_MAX),
                Sent::Refused(error) => (error, true),
            };
            self.state.telemetry.requests_failed.fetch_add(1, Ordering::Relaxed);
            if !std::mem::replace(&mut collector.is_failing, true) {
                let endpoint = &*otlp.endpoint;
                tracing::warn!(
                    endpoint,
                    path,
                    error,
                    "the collector does not take traces or metrics"
                );
            }
            if is_final || self.stops.load(Ordering::Acquire) {
                return false;
            }
            thread::park_timeout(pause);
            pause *= 2;
        }
        false
    }
}

fn collector(otlp: &Otlp) -> Result<Collector, String> {
    let url: Url = otlp.endpoint.parse().map_err(|error| format!("{error}"))?;
    let tls = match &otlp.ca {
        Some(ca) => Some(Tls::with_roots(ca.as_bytes()).map_err(|error| error.to_string())?),
        None => None,
    };
    let one_at_a_time = HostConfig::one_at_a_time(otlp.timeout_ms, ANSWER_BYTES_MAX);
    let config = HostConfig { tls, ..one_at_a_time };
    let client =
        ThreadedClient::start(ClientConfig::default(), 1).map_err(|error| error.to_string())?;
    let host = client.host(&otlp.endpoint, config).map_err(|error| error.to_string())?;
    let base = url.target.trim_end_matches('/').to_owned();
    Ok(Collector { client, host, base, is_failing: false })
}

impl Collector {
    async fn post(&self, otlp: &Otlp, path: &str, body: &[u8]) -> Sent {
        let mut headers = vec![("Content-Type", "application/x-protobuf")];
        headers.extend(otlp.headers.iter().map(|(name, value)| (name, value.reveal())));
        let target = format!("{}{path}", self.base);
        let request = Request { headers: &headers, ..Request::post(&target, body) };
        let bound = Duration::from_millis(otlp.timeout_ms);
        match tokio::time::timeout(bound, self.client.call(self.host, &request)).await {
            Err(_) => Sent::Later(format!("no answer within {} ms", otlp.timeout_ms)),
            Ok(Err(error)) => Sent::Later(error.to_string()),
            Ok(Ok(answer)) => match answer.status {
                200..=299 => Sent::Done,
                // OTLP, "Retryable response codes".
                status @ (429 | 502 | 503 | 504) => Sent::Later(format!("it answers {status}")),
                status => Sent::Refused(format!("it answers {status}")),
            },
        }
    }
}

fn resource(node: &str, uid: &str) -> Resource {
    let attributes = [
        ("service.name", "dunlin"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", uid),
        ("host.name", node),
    ];
    let attributes = attributes.map(|(name, value)| attribute(name, value.into()));
    Resource { attributes: attributes.into(), ..Resource::default() }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "dunlin".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    }
}

fn attribute(key: &str, value: AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(text) => Value::StringValue(text.into()),
        AttributeValue::Number(number) => Value::IntValue(number),
    };
    KeyValue {
        key: key.into(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn traces(resource: &Resource, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let spans = spans.into_iter().map(|span| {
        let Span { begun, ended_ns, kind, name, is_error, attributes } = span;
        let parent = begun.parent.to_be_bytes();
        let code = if is_error { StatusCode::Error } else { StatusCode::Unset };
        ProtoSpan {
            trace_id: begun.context.trace.to_be_bytes().into(),
            span_id: begun.context.span.to_be_bytes().into(),
            parent_span_id: if begun.parent == 0 { Vec::new() } else { parent.into() },
            name: name.into(),
            kind: match kind {
                SpanKind::Server => ProtoKind::Server,
                SpanKind::Client => ProtoKind::Client,
                SpanKind::Consumer => ProtoKind::Consumer,
            } as i32,
            start_time_unix_nano: begun.began_ns,
            end_time_unix_nano: ended_ns.max(begun.began_ns),
            attributes: attributes.into_iter().map(|(key, value)| attribute(key, value)).collect(),
            status: Some(Status { code: code as i32, ..Status::default() }),
            ..ProtoSpan::default()
        }
    });
    let scope_spans =
        vec![ScopeSpans { scope: Some(scope()), spans: spans.collect(), ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans {
        resource: Some(resource.clone()),
        scope_spans,
        ..ResourceSpans::default()
    }];
    ExportTraceServiceRequest { resource_spans }
}
