//! The task of one connection: takes requests from the queue and ends each of them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dunlin_wire::backoff::Backoff;
use dunlin_wire::http2::client::{Config, Connection, Event, SendProgress};
use dunlin_wire::http2::hpack::Indexing;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tracing::debug;

use super::concurrency::{ConcurrencyLimit, SentRequest};
use super::job::Job;
use super::metrics::{Binding, ConnectionState, ConnectionStats};
use super::pool::Shared;
use super::queue::IdleConnection;
use super::refused_row::RefusedRow;
use crate::connect::{ConnectError, Io};
use crate::outcome::{NotSent, Outcome, Uncertain};
use crate::request::ConnectionGroup;
use crate::service::{Attempt, CredentialError, ResponseAction, Service};

/// Bytes not yet accepted by the socket above which no more requests are sent. Requests that cannot leave are better
/// off in the queue, where they keep priority and deadline.
const UNWRITTEN_BYTES_MAX: usize = 64 << 10;
/// Maximum number of jobs taken from the queue at once.
const BATCH: usize = 64;
/// Maximum number of streams that are sent only in part because the window ran out: one batch.
const UNSENT_STREAMS_MAX: usize = BATCH;
const READ_BYTES: usize = 64 << 10;
/// Interval of PINGs on an idle connection; Apple drops silent connections without notice.
const PING_IDLE: Duration = Duration::from_secs(60);
/// Minimum time without window, while no response is outstanding, until the connection counts as dry. Covers at least a
/// round trip.
const DRY_MIN: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
/// Delay before a refused stream is sent again, doubled each time. The first time there is no delay.
const REFUSED_BACKOFF: Backoff = Backoff { min_ms: 20, max_ms: 5_000 };
const REFUSES_EVERY_STREAM: &str = "the peer refuses every stream";
/// Maximum number of new authorizations for one request, regardless of other retries.
const SPENT_MAX: u32 = 2;
/// A request sent shortly before its deadline may be answered within this time after it was sent: `GRACE_ANSWERS`
/// median response times, at least `GRACE_MIN`.
const GRACE_MIN: Duration = Duration::from_millis(100);
const GRACE_ANSWERS: u32 = 4;

/// A connection and its requests.
pub(super) struct PushConnection<S> {
    shared: Arc<Shared<S>>,
    stats: Arc<ConnectionStats>,
    group: ConnectionGroup,
    io: Io,
    connection: Connection<Bytes>,
    limit: ConcurrencyLimit,
    in_flight: HashMap<u32, InFlight, foldhash::fast::FixedState>,
    /// A lower bound of the deadlines in `in_flight`.
    earliest: Option<Instant>,
    binding: Binding,
    bound_since: Instant,
    heard_at: Instant,
    pinged_at: Option<Instant>,
    /// Since when the socket has accepted no output.
    stuck_since: Option<Instant>,
    /// Since when there is no window and no outstanding response that could return some.
    dry_since: Option<Instant>,
    second_at: Instant,
    timer: Pin<Box<Sleep>>,
    buffer: Box<[u8]>,
    batch: Vec<Box<Job>>,
    idle: Arc<IdleConnection>,
    /// Written bytes may still be buffered in the TLS session.
    unflushed: bool,
    draining: bool,
    refused: RefusedRow,
    /// Why it is left although the peer has not closed it.
    left: Option<&'static str>,
}

struct InFlight {
    job: Box<Job>,
    sent: SentRequest,
    /// When it is given up.
    until: Instant,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// We no longer needed it, or the peer closed it in an orderly way.
    Done,
    /// Its window is used up and is not returned.
    Dry,
    /// It failed.
    Lost(String),
    /// The peer refused it in the handshake, and has processed nothing.
    Refused(ConnectError),
    /// It could not be opened.
    Unopened(ConnectError),
}

impl<S: Service> PushConnection<S> {
    pub(super) fn new(
        shared: Arc<Shared<S>>,
        stats: Arc<ConnectionStats>,
        group: ConnectionGroup,
        io: Io,
    ) -> PushConnection<S> {
        let now = Instant::now();
        let config = Config {
            streams_before_settings: shared.service.streams_before_settings(),
            ..Config::default()
        };
        PushConnection {
            shared,
            stats,
            group,
            io,
            connection: Connection::new(config),
            limit: ConcurrencyLimit::new(now),
            in_flight: HashMap::default(),
            earliest: None,
            binding: Binding::Demand,
            bound_since: now,
            heard_at: now,
            pinged_at: None,
            stuck_since: None,
            dry_since: None,
            second_at: now + SECOND,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            batch: Vec::with_capacity(BATCH),
            idle: Arc::default(),
            unflushed: true,
            draining: false,
            refused: RefusedRow::default(),
            left: None,
        }
    }

    /// Runs until the connection ends. Every request has then ended or is back in the queue.
    pub(super) async fn run(mut self) -> ConnectionEnd {
        let end = poll_fn(|cx| self.poll(cx)).await;
        self.account(&end);
        self.shared.queue().forget(self.group, &self.idle);
        self.stats.set_state(ConnectionState::Closed);
        end
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        // Bounded, so that other tasks can run.
        for _ in 0..32 {
            let mut worked = match self.read(cx) {
                Ok(worked) => worked,
                Err(end) => return Poll::Ready(end),
            };
            let now = Instant::now();
            self.handle_time(now);
            if self.pinged_at.is_some_and(|at| now >= at + self.silence()) {
                return Poll::Ready(ConnectionEnd::Lost(
                    "the peer does not answer a PING".to_owned(),
                ));
            }
            if self.stuck_since.is_some_and(|since| now >= since + self.silence() * 2) {
                return Poll::Ready(ConnectionEnd::Lost("the peer does not read".to_owned()));
            }
            worked |= self.pull(cx, now);
            if self.is_dry(now) {
                return Poll::Ready(ConnectionEnd::Dry);
            }
            match self.write(cx, now) {
                Ok(wrote) => worked |= wrote,
                Err(end) => {
                    // An earlier GOAWAY, or an alert, says which requests were not processed.
                    let last = loop {
                        match self.read(cx) {
                            Ok(true) => {}
                            Ok(false) => break None,
                            Err(end) => break Some(end),
                        }
                    };
                    let refused = last.filter(|end| matches!(end, ConnectionEnd::Refused(_)));
                    return Poll::Ready(refused.unwrap_or(end));
                }
            }
            if self.draining && self.in_flight.is_empty() && self.connection.transmit().is_empty() {
                return Poll::Ready(self.done());
            }
            if !worked {
                self.show(now);
                return self.sleep(cx, now);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads until no input is left, and handles it.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionEnd> {
        let mut worked = false;
        loop {
            let mut buffer = ReadBuf::new(&mut self.buffer);
            match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
                Poll::Pending => return Ok(worked),
                Poll::Ready(Err(error)) => return Err(self.failed(&error)),
                Poll::Ready(Ok(())) => {}
            }
            let read = buffer.filled().len();
            if read == 0 {
                let end = match self.connection.is_closing() {
                    true if self.in_flight.is_empty() => self.done(),
                    _ => ConnectionEnd::Lost("the peer closed the connection".to_owned()),
                };
                return Err(end);
            }
            worked = true;
            let now = Instant::now();
            self.heard_at = now;
            self.pinged_at = None;
            let result = self.connection.handle_bytes(&self.buffer[..read]);
            while let Some(event) = self.connection.poll_event() {
                self.handle_event(event, now);
            }
            if let Err(error) = result {
                // Best effort: send as much of the GOAWAY as the socket accepts.
                let _ = self.write(cx, now);
                return Err(ConnectionEnd::Lost(format!("the peer broke HTTP/2: {error}")));
            }
            if read < READ_BYTES / 4 {
                // Probably all input was read: use the freed capacity first.
                return Ok(true);
            }
        }
    }

    /// Returns how it ends once nothing is in flight.
    fn done(&self) -> ConnectionEnd {
        self.left.map_or(ConnectionEnd::Done, |why| ConnectionEnd::Lost(why.to_owned()))
    }

    /// Returns how it ends after a failure of the stream. An alert about the handshake comes after the first requests, if the
    /// peer asks for a certificate: it has read none of them then.
    fn failed(&self, error: &io::Error) -> ConnectionEnd {
        let answered = self.stats.answered.load(Relaxed) > 0;
        match !answered && crate::dial::is_handshake_alert(error) {
            true => {
                let authority = self.shared.service.authority();
                ConnectionEnd::Refused(crate::dial::tls_error(authority, error))
            }
            false => ConnectionEnd::Lost(broken(error)),
        }
    }

    fn handle_event(&mut self, event: Event, now: Instant) {
        match event {
            Event::Response { stream, response } => {
                let Some(pending) = self.in_flight.remove(&stream) else { return };
                self.limit.handle_answer(&pending.sent, now);
                self.stats.answered.fetch_add(1, Relaxed);
                self.refused = RefusedRow::default();
                self.shared.stats.record_answer(now - pending.sent.sent_at());
                let mut job = pending.job;
                job.handle_answer(pending.sent.sent_at(), now);
                if let Some(trace) = &job.trace {
                    trace.answered(response.status, now);
                }
                let attempt = Attempt { retries: job.attempt, generation: job.generation };
                let action = self.shared.service.classify(&job.request, &response, attempt);
                job.in_flight = false;
                job.attempt += 1;
                match action {
                    ResponseAction::Finish(outcome) => self.shared.finish(job, outcome),
                    ResponseAction::Retry { after, otherwise } => {
                        self.shared.stats.retried.fetch_add(1, Relaxed);
                        job.note_return("retry");
                        self.shared.queue().delay(job, now + after, otherwise);
                        self.shared.wake();
                    }
                    ResponseAction::Pause { after, otherwise } => {
                        self.shared.stats.retried.fetch_add(1, Relaxed);
                        job.note_return("quota");
                        let mut queue = self.shared.queue();
                        queue.pause(now + after);
                        queue.delay(job, now + after, otherwise);
                        drop(queue);
                        self.shared.wake();
                    }
                    ResponseAction::Reauthorize { otherwise } => {
                        job.spent += 1;
                        if job.spent > SPENT_MAX || !self.renew(job.generation) {
                            return self.shared.finish(job, otherwise);
                        }
                        // Remaining requests use a new connection, which has only seen the new token.
                        self.drain();
                        job.note_return("reauthorize");
                        self.shared.queue().push_front(job);
                        self.shared.wake();
                    }
                }
            }
            Event::Refused { stream } => {
                let Some(mut pending) = self.in_flight.remove(&stream) else { return };
                self.shared.stats.refused.fetch_add(1, Relaxed);
                // An older stream that is not refused is being worked on.
                if self.refused.add(now)
                    && !self.draining
                    && self.in_flight.keys().all(|older| *older > stream)
                {
                    self.left = Some(REFUSES_EVERY_STREAM);
                    self.drain();
                    self.shared.wake();
                }
                let job = &mut pending.job;
                job.refusals += 1;
                job.note_return("refused");
                // After GOAWAY the next connection takes the request. A single refusal may be due to a stream limit
                // just lowered.
                if self.connection.is_closing() || job.refusals == 1 {
                    self.shared.queue().push_front(pending.job);
                } else {
                    let until = now + self.refused_backoff(stream, job.refusals);
                    let why = NotSent::Connect(REFUSES_EVERY_STREAM.to_owned());
                    let otherwise = job.not_sent(why);
                    self.shared.queue().delay(pending.job, until, otherwise);
                    self.shared.wake();
                }
            }
            Event::Reset { stream, code, sent } => {
                let Some(pending) = self.in_flight.remove(&stream) else { return };
                debug!(%code, "a stream was reset");
                self.lose(pending.job, sent, Uncertain::Reset);
            }
            Event::GoAway { code, debug: text } => {
                debug!(%code, text = %String::from_utf8_lossy(&text), "the peer said goodbye");
                self.stats.handle_go_away(&code, &text);
                self.draining = true;
                self.stats.set_state(ConnectionState::Draining);
                self.shared.wake();
            }
            Event::Settings => {
                if self.stats.state() == ConnectionState::Connecting {
                    self.stats.set_state(ConnectionState::Open);
                    self.shared.wake();
                }
            }
            Event::Pong(_) => {}
        }
    }

    /// Asks the service to replace an expired authorization. Returns false if it has no newer one.
    fn renew(&self, generation: u64) -> bool {
        self.shared.service.handle_spent(generation);
        match self.shared.service.authorization(SystemTime::now()) {
            Ok(Some(authorization)) => authorization.generation != generation,
            Ok(None) | Err(CredentialError::Invalid(_)) => false,
            Err(CredentialError::Stale) => true,
        }
    }

    /// Returns the delay from the second refusal on, with jitter so that a batch does not return at once.
    fn refused_backoff(&self, stream: u32, refusals: u32) -> Duration {
        let doubled = Duration::from_millis(REFUSED_BACKOFF.delay_ms(refusals - 1));
        let random = foldhash::fast::FixedState::default().hash_one((self.stats.id, stream));
        let spread = 0.5 + (random >> 11) as f64 / (1u64 << 53) as f64;
        doubled.mul_f64(spread)
    }

    /// Handles a request that gets no response.
    fn lose(&self, mut job: Box<Job>, sent: SendProgress, why: Uncertain) {
        if sent == SendProgress::Partly {
            // The peer cannot have processed it, because END_STREAM was not sent.
            self.shared.stats.refused.fetch_add(1, Relaxed);
            job.note_return("sent in part");
            self.shared.queue().push_front(job);
            return;
        }
        if job.request.resend_uncertain && why != Uncertain::Deadline {
            job.possible_duplicate = true;
            self.shared.stats.resent.fetch_add(1, Relaxed);
            job.note_return("uncertain");
            self.shared.queue().push_front(job);
            return;
        }
        self.shared.finish(job, Outcome::Uncertain(why));
    }

    /// Stops sending requests on this connection.
    fn drain(&mut self) {
        self.draining = true;
        self.connection.close();
        self.stats.set_state(ConnectionState::Draining);
    }

    /// Takes as many requests from the queue as the connection can carry.
    fn pull(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        self.stats.set_waker(cx.waker());
        if self.stats.is_retired() && !self.draining {
            self.drain();
        }
        let mut worked = false;
        let binding = loop {
            if self.draining || self.connection.is_closing() {
                if !self.draining {
                    self.drain();
                    self.shared.wake();
                }
                break Binding::Demand;
            }
            let room = self.connection.capacity();
            let in_flight = self.in_flight.len() as u32;
            let carried = self.limit.limit().saturating_sub(in_flight);
            let limit = if room.streams == 0 {
                Binding::Streams
            } else if room.window_bytes == 0 {
                Binding::Window
            } else if carried == 0 {
                Binding::Path
            } else if self.connection.transmit().len() > UNWRITTEN_BYTES_MAX {
                Binding::Socket
            } else {
                let count = BATCH.min(room.streams as usize).min(carried as usize);
                let count = count.min(self.shared.service.batch_max());
                self.take(count, room.window_bytes as usize, now);
                if self.batch.is_empty() {
                    break Binding::Demand;
                }
                if !self.send(now) {
                    break Binding::Demand;
                }
                worked = true;
                continue;
            };
            if self.shared.queue().waiting(self.group) == 0 {
                break Binding::Demand;
            }
            if limit == Binding::Path {
                self.limit.handle_bound();
            }
            break limit;
        };
        if binding == Binding::Demand && !self.draining {
            let mut queue = self.shared.queue();
            // Checked under the lock, so that no request is missed.
            if queue.waiting(self.group) == 0 || !worked {
                queue.handle_idle(self.group, &self.idle, cx.waker());
            } else {
                worked = true;
            }
        } else {
            // If a request woke this connection, pass the wakeup on.
            self.shared.queue().wake_next(self.group);
        }
        if binding != self.binding {
            self.stats.add_bound(self.binding, now - self.bound_since);
            self.binding = binding;
            self.bound_since = now;
        }
        worked
    }

    /// Returns whether the window has been used up for good. Requests that were only partly sent continue on another
    /// connection.
    fn is_dry(&mut self, now: Instant) -> bool {
        let dry = self.connection.window_bytes() == 0
            && self.connection.transmit().is_empty()
            && (self.connection.unsent_bytes() > 0 || self.binding == Binding::Window)
            && self.in_flight.len() <= UNSENT_STREAMS_MAX
            && self.connection.open_streams().all(|(_, sent)| sent == SendProgress::Partly);
        if !dry {
            self.dry_since = None;
            return false;
        }
        let since = *self.dry_since.get_or_insert(now);
        now >= since + self.dry_after()
    }

    fn dry_after(&self) -> Duration {
        self.limit.median().map_or(self.silence(), |median| DRY_MIN.max(median * 2))
    }

    fn take(&mut self, count: usize, window_bytes: usize, now: Instant) {
        let batch = &mut self.batch;
        self.shared.queue().pop(self.group, count, window_bytes, now, batch);
    }

    /// Sends the batch. Returns false if there is no authorization yet.
    fn send(&mut self, now: Instant) -> bool {
        let authorization = match self.shared.service.authorization(SystemTime::now()) {
            Ok(authorization) => authorization,
            Err(CredentialError::Stale) => {
                let mut queue = self.shared.queue();
                while let Some(job) = self.batch.pop() {
                    queue.push_front(job);
                }
                drop(queue);
                self.shared.ask_to_prepare();
                return false;
            }
            Err(CredentialError::Invalid(why)) => {
                for job in self.batch.drain(..) {
                    self.shared.finish_not_sent(job, NotSent::Credential(why.clone()));
                }
                return true;
            }
        };
        let authority = self.shared.service.authority();
        let grace =
            self.limit.median().map_or(SECOND, |median| GRACE_MIN.max(median * GRACE_ANSWERS));
        for mut job in self.batch.drain(..) {
            let request = &job.request;
            let opened = self.connection.open(request.body.clone(), |field| {
                field(b":method", b"POST", Indexing::Table);
                field(b":scheme", b"https", Indexing::Table);
                field(b":path", request.path.as_bytes(), Indexing::None);
                field(b":authority", authority.as_bytes(), Indexing::Table);
                if let Some(authorization) = &authorization {
                    field(b"authorization", authorization.value.as_bytes(), Indexing::Table);
                }
                for header in &request.headers {
                    field(header.name.as_bytes(), header.value.as_bytes(), header.indexing);
                }
            });
            let Ok(stream) = opened else {
                // Cannot happen: there was capacity, and only this task uses it.
                self.shared.queue().push_front(job);
                continue;
            };
            let until = job.request.deadline.max(now + grace);
            let until = until.min(now + self.shared.config.answer_within);
            self.earliest = Some(self.earliest.map_or(until, |earliest| earliest.min(until)));
            job.in_flight = true;
            job.generation = authorization.as_ref().map_or(0, |known| known.generation);
            if let Some(trace) = &mut job.trace {
                trace.sent(self.stats.id, stream, now);
            }
            let sent = self.limit.handle_sent(self.in_flight.len() as u32, now);
            self.in_flight.insert(stream, InFlight { job, sent, until });
        }
        true
    }

    fn write(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<bool, ConnectionEnd> {
        let mut worked = false;
        loop {
            let bytes = self.connection.transmit();
            if bytes.is_empty() {
                self.stuck_since = None;
                break;
            }
            match Pin::new(&mut self.io).poll_write(cx, bytes) {
                Poll::Pending => {
                    self.stuck_since.get_or_insert(now);
                    return Ok(worked);
                }
                Poll::Ready(Ok(0)) => {
                    return Err(ConnectionEnd::Lost("the socket takes no more".to_owned()));
                }
                Poll::Ready(Ok(written)) => {
                    self.connection.handle_transmitted(written);
                    self.unflushed = true;
                    self.stuck_since = None;
                    worked = true;
                }
                Poll::Ready(Err(error)) => return Err(ConnectionEnd::Lost(broken(&error))),
            }
        }
        if self.unflushed {
            match Pin::new(&mut self.io).poll_flush(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(error)) => return Err(ConnectionEnd::Lost(broken(&error))),
            }
        }
        Ok(worked)
    }

    /// Ends requests that are late, and sends a PING to a silent peer.
    fn handle_time(&mut self, now: Instant) {
        if now >= self.second_at {
            self.second_at = now + SECOND;
            self.connection.handle_second();
        }
        if self.earliest.is_some_and(|earliest| earliest <= now) {
            let late = |pending: &InFlight| pending.until <= now;
            let streams: Vec<u32> = self
                .in_flight
                .iter()
                .filter(|(_, pending)| late(pending))
                .map(|(&stream, _)| stream)
                .collect();
            for stream in streams {
                let sent = self.connection.cancel(stream).unwrap_or(SendProgress::Wholly);
                if let Some(pending) = self.in_flight.remove(&stream) {
                    match sent {
                        SendProgress::Wholly => self.lose(pending.job, sent, Uncertain::Deadline),
                        SendProgress::Partly => {
                            self.shared.finish_not_sent(pending.job, NotSent::Deadline);
                        }
                    }
                }
            }
            self.earliest = self.in_flight.values().map(|pending| pending.until).min();
        }
        if self.pinged_at.is_none() && now >= self.ping_at() {
            self.pinged_at = Some(now);
            self.connection.ping(*b"dunlin\0\0");
        }
    }

    fn silence(&self) -> Duration {
        self.shared.config.silence
    }

    /// Returns when a silent peer is sent a PING.
    fn ping_at(&self) -> Instant {
        self.heard_at + if self.in_flight.is_empty() { PING_IDLE } else { self.silence() }
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<ConnectionEnd> {
        let ping = self.pinged_at.map_or(self.ping_at(), |at| at + self.silence());
        let stuck = self.stuck_since.map(|since| since + self.silence() * 2);
        let second = if self.in_flight.is_empty() { None } else { Some(self.second_at) };
        let dry = self.dry_since.map(|since| since + self.dry_after());
        let wake_at = [Some(ping), self.earliest, second, dry, stuck].into_iter().flatten().min();
        let wake_at = wake_at.unwrap_or(ping).max(now + Duration::from_millis(1));
        // A timer that fires early is cheaper than one that is reset for each response.
        let set = self.timer.deadline();
        if self.timer.is_elapsed() || set > wake_at || set + SECOND < wake_at {
            self.timer.as_mut().reset(wake_at);
        }
        if self.timer.as_mut().poll(cx).is_ready() {
            self.timer.as_mut().reset(wake_at);
            if self.timer.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    fn show(&mut self, now: Instant) {
        self.stats.add_bound(self.binding, now - self.bound_since);
        self.bound_since = now;
        self.stats.show(&self.connection, &self.limit, self.binding, self.in_flight.len());
    }

    /// Puts requests that were only partly sent back into the queue. The others are uncertain, or sent again if that is
    /// allowed.
    fn account(&mut self, end: &ConnectionEnd) {
        let open: HashMap<u32, SendProgress> = self.connection.open_streams().collect();
        let mut in_flight: Vec<(u32, InFlight)> = self.in_flight.drain().collect();
        // `push_front` in descending order restores their order.
        in_flight.sort_unstable_by_key(|(stream, _)| std::cmp::Reverse(*stream));
        if !in_flight.is_empty() {
            debug!(?end, in_flight = in_flight.len(), "a connection was lost");
        }
        for (stream, pending) in in_flight {
            if matches!(end, ConnectionEnd::Refused(_)) {
                self.shared.stats.refused.fetch_add(1, Relaxed);
                pending.job.note_return("refused");
                self.shared.queue().push_front(pending.job);
                continue;
            }
            let sent = open.get(&stream).copied().unwrap_or(SendProgress::Wholly);
            self.lose(pending.job, sent, Uncertain::ConnectionLost);
        }
    }
}

/// Describes an I/O error without the wording of the TLS library.
fn broken(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            "the peer ended the connection without a goodbye".to_owned()
        }
        io::ErrorKind::ConnectionReset => "the peer reset the connection".to_owned(),
        io::ErrorKind::BrokenPipe => "the peer has ended the connection".to_owned(),
        io::ErrorKind::TimedOut => "the network has lost the peer".to_owned(),
        _ => error.to_string(),
    }
}
