//! The webhooks thread: sends the requests of the [`Dispatcher`] through the pipelining client of `pipeline`, and checks
//! the members of upstreams.
//!
//! It is separate from the admin thread: a change of the configuration should complete within forty microseconds, so it
//! must not wait for the events of a million connecting clients or for a TLS handshake with a backend. The thread is an
//! endpoint of the bus like a worker, so that an event costs a worker one store. Without hooks the thread sleeps.

use std::io;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_config as config;
use dunlin_hub::Now;
use dunlin_net::{
    CloseReason, ConnId, Context, EventLoop, Handler, Interest, LoopConfig, Sleep, Tcp, TimerId,
    Tls,
};
use dunlin_pipeline::{
    BodyMode, Caller, Client, ClientConfig, Depth, ErrorKind, HostConfig, HostId, Outcome, Request,
    RequestError, RequestId, Requests,
};
use dunlin_webhooks::{
    Attempt, DeliveryResult, Dispatcher, EventEncoder, HealthChecker, HookEvent,
};
use dunlin_wire::http1::retry_after;
use hashbrown::HashMap;

use super::checks::{CHECK, Checks};
use crate::clock::unix_ms;
use crate::message::bus::Endpoint;
use crate::message::webhooks::WebhooksMessage;
use crate::state::ServerState;
use crate::telemetry::{BegunSpan, SpanKind};

/// How long the last events may take to reach their backends when the process ends.
pub(crate) const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages taken from the bus before requests are sent.
const MESSAGES_PER_TURN: usize = 4_096;
/// Rounds per turn in which results immediately lead to new requests, before the loop continues.
const ROUNDS_A_TURN: usize = 16;
/// The doorbell among the loop's foreign descriptors.
const DOORBELL: u64 = 0;
/// Most runs of the thread: it starts again after a panic.
const INCARNATIONS_MAX: u32 = 50;
/// Most connections to backends.
const CONNECTIONS_MAX: usize = 65_536;

/// A handle of the webhooks thread, which ends after [`WebhooksMessage::Stop`] once its queued events are sent.
pub(crate) struct WebhooksThread {
    thread: std::thread::JoinHandle<()>,
}

impl WebhooksThread {
    pub(crate) fn start(
        state: Arc<ServerState>,
        mut endpoint: Endpoint<WebhooksMessage>,
    ) -> io::Result<WebhooksThread> {
        let builder = std::thread::Builder::new().name("dunlin-webhooks".into());
        let thread = builder.spawn(move || {
            for incarnation in 0..INCARNATIONS_MAX {
                // Unwind safe: an incarnation leaves only the endpoint behind, which the next one can continue to use.
                let outcome = catch_unwind(AssertUnwindSafe(|| run(&state, &mut endpoint)));
                match outcome {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => {
                        return tracing::error!(%error, "webhooks are not sent any more");
                    }
                    Err(_) => {
                        tracing::error!(
                            incarnation,
                            "the webhooks thread panicked; the queued events are lost"
                        );
                        state.webhooks.stats.restart();
                    }
                }
            }
            tracing::error!(
                "the webhooks thread panicked too often; webhooks are not sent any more"
            );
        })?;
        Ok(WebhooksThread { thread })
    }

    /// Waits for the thread to end, within a bound.
    pub(crate) fn join(self, bound: Duration) {
        let deadline = Instant::now() + bound;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn run(state: &Arc<ServerState>, endpoint: &mut Endpoint<WebhooksMessage>) -> io::Result<()> {
    let config = LoopConfig { connections_max: CONNECTIONS_MAX, ..LoopConfig::default() };
    let mut event_loop = EventLoop::new(config)?;
    let cx = event_loop.context();
    cx.register_fd(endpoint.doorbell(), DOORBELL, Interest::READABLE)?;
    let settings = state.settings.load_full();
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
    // The first 12 digits of the process's random UUID.
    let run: String = state.uid.chars().filter(|c| *c != '-').take(12).collect();
    let encoder = EventEncoder::new(&run, settings.node_name());
    let stats = Arc::clone(&state.webhooks.stats);
    let mut sender = WebhookSender {
        dispatcher: Dispatcher::new(stats, encoder, u64::from_ne_bytes(seed)),
        state: Arc::clone(state),
        endpoint,
        client: Client::new(ClientConfig::default(), Results::default()),
        checks: Checks::new(HealthChecker::new(
            Arc::clone(&state.upstreams.stats),
            u64::from_ne_bytes(seed),
        )),
        hosts: HashMap::new(),
        spans: HashMap::new(),
        generation: 0,
        timer: None,
        busy: false,
        stopping: false,
    };
    sender.endpoint.wake();
    let now = Now { ms: event_loop.context().now_ms(), unix_ms: unix_ms() };
    sender.state.upstreams.publish(sender.checks.unhealthy());
    sender.adopt_newest(now);
    event_loop.run(&mut sender)
}

struct WebhookSender<'e> {
    state: Arc<ServerState>,
    endpoint: &'e mut Endpoint<WebhooksMessage>,
    dispatcher: Dispatcher,
    client: Client<Results>,
    checks: Checks,
    /// By pool of the dispatcher; an error is the reason why the pool cannot be used.
    hosts: HashMap<u64, Result<HostId, Arc<str>>>,
    /// The spans of requests in flight, by tag, each with the path of its hook and the attempt.
    spans: HashMap<u64, (BegunSpan, Box<str>, u32)>,
    /// The generation of the settings in use.
    generation: u64,
    /// The time of the next due event or check, and the loop's timer for it.
    timer: Option<(u64, TimerId)>,
    /// Work remains, so the loop must not sleep.
    busy: bool,
    /// The thread ends as soon as no event is queued.
    stopping: bool,
}

/// The purpose of one of the thread's own timers. The loop carries its number; the numbers of the client's timers have
/// higher bits set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Timer {
    /// An event, or a check, is due.
    Due = 1,
    /// The time to send queued events during shutdown is over.
    Finish,
}

impl Timer {
    fn from_u64(number: u64) -> Option<Timer> {
        [Timer::Due, Timer::Finish].into_iter().find(|timer| *timer as u64 == number)
    }
}

/// Results of requests, until the end of the turn.
#[derive(Default)]
struct Results {
    ended: Vec<(u64, DeliveryResult)>,
    /// Results of checks by tag: the status, or the error.
    checked: Vec<(u64, Result<u16, Arc<str>>)>,
    now_s: u64,
}

impl Caller for Results {
    type Data = ();

    fn on_outcome(
        &mut self,
        _: &mut Context<()>,
        _: &mut Requests<'_>,
        _: RequestId,
        tag: u64,
        outcome: &Outcome<'_>,
    ) {
        if tag & CHECK != 0 {
            let found = match outcome {
                Outcome::Answered(answer) => Ok(answer.status),
                Outcome::NotSent(error) | Outcome::Failed(error) | Outcome::Uncertain(error) => {
                    Err(error.kind.to_string().into())
                }
            };
            return self.checked.push((tag & !CHECK, found));
        }
        self.ended.push((tag, delivery_result(outcome, self.now_s)));
    }
}

impl WebhookSender<'_> {
    /// Switches to the newest settings, if it does not run them.
    fn adopt_newest(&mut self, now: Now) {
        let generation = self.state.generation();
        if generation != self.generation {
            self.generation = generation;
            let settings = self.state.settings.load();
            self.endpoint.set_ring_slots(settings.config.limits.bus_slots as usize);
            let config = &settings.config;
            self.dispatcher.handle_settings(&config.webhooks, &config.pusher.apps);
            self.checks.handle_settings(now, &config.webhooks.upstreams);
            self.dispatcher.handle_health(self.checks.unhealthy());
        }
    }

    fn take_messages(&mut self, cx: &mut Context<()>, now: Now) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some((from, message)) = self.endpoint.recv() else { return };
            // A worker that sends an event for a new hook runs settings with it, which were published before.
            self.adopt_newest(now);
            match message {
                WebhooksMessage::Event(event) => self.handle_event(now, from, &event),
                WebhooksMessage::Stop => {
                    self.stopping = true;
                    cx.run_after(FINISH_TIMEOUT.as_millis() as u64, Timer::Finish as u64);
                }
                // It has woken the thread.
                WebhooksMessage::AdoptSettings => {}
            }
        }
        self.busy = true;
    }

    fn handle_event(&mut self, now: Now, from: usize, event: &HookEvent) {
        if let Some(in_transit) = self.state.webhooks.in_transit(from) {
            in_transit.received(event.body.flow(), event.body.cost_bytes());
        }
        self.dispatcher.handle_event(now, event);
    }

    /// Sends due requests, and further ones that immediate results lead to.
    fn send(&mut self, cx: &mut Context<()>, now: Now) {
        for _ in 0..ROUNDS_A_TURN {
            self.client.on_tick(cx);
            let ended = std::mem::take(&mut self.client.caller().ended);
            for (tag, result) in &ended {
                self.end_span(*tag, result);
                self.dispatcher.handle_result(now, *tag, result);
            }
            let mut sent = 0;
            let checked = std::mem::take(&mut self.client.caller().checked);
            // Counted as sent, so that another round removes the hosts of ended checks.
            sent += checked.len();
            if self.checks.handle_results(now, checked, &mut self.client.requests()) {
                self.dispatcher.handle_health(self.checks.unhealthy());
                self.state.upstreams.publish(self.checks.unhealthy());
            }
            sent += self.checks.send(now, &mut self.client);
            while let Some(attempt) = self.dispatcher.poll_attempt(now) {
                self.send_attempt(&attempt);
                sent += 1;
            }
            while let Some(pool) = self.dispatcher.poll_unused_pool() {
                if let Some(Ok(host)) = self.hosts.remove(&pool) {
                    self.client.requests().remove(host);
                    sent += 1;
                }
            }
            let results = self.client.caller();
            if sent == 0 && results.ended.is_empty() && results.checked.is_empty() {
                return;
            }
        }
        self.busy = true;
    }

    fn send_attempt(&mut self, attempt: &Attempt) {
        let client = &mut self.client;
        let host = self.hosts.entry(attempt.pool).or_insert_with(|| {
            let config = host_config(&attempt.upstream)?;
            let scheme = if attempt.upstream.tls { "https" } else { "http" };
            let url = format!("{scheme}://{}", attempt.member.address);
            client.requests().host(&url, config).map_err(|error| error.to_string().into())
        });
        let span = self.state.telemetry.begin_below(attempt.trace);
        let trace = span.map(|span| span.header());
        if let Some(span) = span {
            let about = (span, (*attempt.hook.path).into(), attempt.number);
            self.spans.insert(attempt.tag, about);
        }
        let not_sent = match host {
            Ok(host) => {
                let mut requests = client.requests();
                let prepared = attempt.with_headers(|headers| {
                    let mut headers = headers.to_vec();
                    headers.extend(trace.as_deref().map(|trace| ("traceparent", trace)));
                    let request = Request {
                        headers: &headers,
                        // The response body is not used.
                        answer: BodyMode::Count,
                        ..Request::post(&attempt.hook.path, &attempt.body)
                    };
                    requests.prepare(*host, &request)
                });
                requests.send(*host, &prepared, attempt.tag).err().map(|why| why.to_string().into())
            }
            Err(why) => Some(Arc::clone(why)),
        };
        if let Some(why) = not_sent {
            client.caller().ended.push((attempt.tag, DeliveryResult::Unreachable(why)));
        }
    }

    /// Ends the span of a request, if it is traced.
    fn end_span(&mut self, tag: u64, result: &DeliveryResult) {
        if self.spans.is_empty() {
            return;
        }
        let Some((span, path, attempt)) = self.spans.remove(&tag) else { return };
        let is_error = !matches!(result, DeliveryResult::Delivered | DeliveryResult::Cancelled);
        let mut attributes =
            vec![("url.path", (&*path).into()), ("dunlin.attempt", u64::from(attempt).into())];
        if is_error {
            attributes.push(("error.type", (&*result.to_string()).into()));
        }
        let what = (SpanKind::Client, "webhook");
        self.state.telemetry.end(span, what, is_error, attributes);
    }

    /// Sets the loop's timer to the next due event or check.
    fn arm_timer(&mut self, cx: &mut Context<()>) {
        let due = [self.dispatcher.poll_timeout(), self.checks.poll_timeout()];
        let due_ms = due.into_iter().flatten().min();
        if due_ms == self.timer.map(|(at_ms, _)| at_ms) {
            return;
        }
        if let Some((_, timer)) = self.timer.take() {
            cx.cancel(timer);
        }
        self.timer = due_ms.map(|at_ms| {
            (at_ms, cx.run_after(at_ms.saturating_sub(cx.now_ms()).max(1), Timer::Due as u64))
        });
    }

    /// Ends the thread, and logs how many events were not delivered.
    fn finish(&self, cx: &mut Context<()>) {
        let lost = self.dispatcher.pending_events();
        if lost > 0 {
            tracing::warn!(
                lost,
                "the process ends with webhook events that no backend has taken within {} s",
                FINISH_TIMEOUT.as_secs()
            );
        }
        cx.stop();
    }
}

/// Converts an outcome for the dispatcher. `now_s` is the time in seconds since 1970, for dates in `Retry-After`.
fn delivery_result(outcome: &Outcome<'_>, now_s: u64) -> DeliveryResult {
    let sentence = |error: &RequestError| error.kind.to_string().into();
    match outcome {
        Outcome::Answered(answer) => {
            let value = answer.head.header("retry-after");
            let value = value.and_then(|value| std::str::from_utf8(value).ok());
            let after = value.and_then(|value| retry_after::parse(value, now_s));
            DeliveryResult::from_status(answer.status, after)
        }
        Outcome::NotSent(error) | Outcome::Failed(error) | Outcome::Uncertain(error)
            if matches!(error.kind, ErrorKind::Removed | ErrorKind::Shutdown) =>
        {
            DeliveryResult::Cancelled
        }
        Outcome::NotSent(error) => DeliveryResult::Unreachable(sentence(error)),
        Outcome::Failed(error) | Outcome::Uncertain(error) => match error.kind {
            ErrorKind::AnswerTimeout => DeliveryResult::TimedOut,
            _ => DeliveryResult::Broken(sentence(error)),
        },
    }
}

/// Returns the client's settings for the members of an upstream, or why there can be none.
fn host_config(upstream: &config::Upstream) -> Result<HostConfig, Arc<str>> {
    let tls = match &upstream.ca {
        Some(ca) if upstream.tls => match Tls::with_roots(ca.as_bytes()) {
            Ok(tls) => Some(tls),
            Err(error) => return Err(format!("`ca` cannot be read: {error}").into()),
        },
        _ => None,
    };
    Ok(HostConfig {
        connections: upstream.connections_per_member_max,
        // Proxies and slow backends handle one request at a time best, and a request carries many events.
        depth: Depth::Fixed(1),
        answer_timeout_ms: NonZeroU64::new(upstream.timeout_ms),
        // Each queue has one request in flight, and queues are few.
        queue_timeout_ms: None,
        queue_max: usize::MAX,
        queue_bytes_max: usize::MAX,
        connect_timeout_ms: NonZeroU64::new(upstream.connect_timeout_ms),
        // The dispatcher tries another member.
        connect_attempts: 1,
        // The closing of an idle connection is not a failure.
        replays_max: 1,
        tls,
        ..HostConfig::default()
    })
}

impl Handler for WebhookSender<'_> {
    type Data = ();
    type Protocols = Tcp;

    fn on_connect(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.client.on_connect(cx, conn);
    }

    fn on_connect_failed(&mut self, cx: &mut Context<()>, conn: ConnId, (): (), error: &io::Error) {
        self.client.on_connect_failed(cx, conn, (), error);
    }

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        self.client.on_data(cx, conn, bytes);
    }

    fn on_eof(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.client.on_eof(cx, conn);
    }

    fn on_close(&mut self, cx: &mut Context<()>, conn: ConnId, (): (), reason: CloseReason) {
        self.client.on_close(cx, conn, (), reason);
    }

    fn on_writable(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.client.on_writable(cx, conn);
    }

    fn on_deadline(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.client.on_deadline(cx, conn);
    }

    fn on_timer(&mut self, cx: &mut Context<()>, timer: TimerId, data: u64) {
        match Timer::from_u64(data) {
            Some(Timer::Due) => self.timer = None,
            Some(Timer::Finish) => self.finish(cx),
            None => self.client.on_timer(cx, timer, data),
        }
    }

    fn on_tick(&mut self, cx: &mut Context<()>) {
        self.busy = false;
        let unix_ms = unix_ms();
        let now = Now { ms: cx.now_ms(), unix_ms };
        self.adopt_newest(now);
        self.client.caller().now_s = unix_ms / 1000;
        self.take_messages(cx, now);
        self.dispatcher.handle_timeout(now);
        self.send(cx, now);
        self.arm_timer(cx);
        if self.stopping && self.dispatcher.pending_events() == 0 && !self.busy {
            self.finish(cx);
        }
        self.endpoint.flush();
    }

    fn on_sleep(&mut self, _: &mut Context<()>) -> Sleep {
        if self.busy || !self.endpoint.prepare_sleep() { Sleep::Poll } else { Sleep::Block }
    }

    fn on_wake(&mut self, _: &mut Context<()>) {
        self.endpoint.wake();
    }
}
