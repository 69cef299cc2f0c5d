//! A client for many hosts on one event loop.

mod config;
mod core;
mod dial;
mod fill;
mod forward;
mod host;
mod host_connection;
mod outcome;
mod request;
mod sink;
mod threaded;

use std::io;
use std::time::Instant;

use dunlin_net::{CloseReason, ConnId, Context, Handler, Tcp, TimerId};

pub use dunlin_net::UrlError;

pub use config::{ClientConfig, Depth, HostConfig};
pub use core::Requests;
pub use host::HostId;
pub use outcome::{Effect, ErrorKind, Outcome, RequestError, ResponseView};
pub use request::{BodyMode, Prepared, Request, RequestId, SendError};
pub use threaded::{Call, HostError, Response, Result, ThreadedClient};

use self::core::{Core, Entry, WATCH_MS};
use crate::{Head, Progress, ProtocolError, ReplayDecision};
use dial::put;
use host_connection::HostConnection;
use sink::LinkSink;

/// Receives the outcomes of requests. The loop calls one method at a time, never during a call of [`Requests`].
#[expect(unused_variables, reason = "the names of the arguments are documentation")]
pub trait Caller: Sized {
    /// The data that the loop stores for each connection: that of the enclosing handler, or `()`.
    type Data: Default;

    /// Receives the outcome of a request. Called once for each accepted request. It may respond to a request of another
    /// connection of `cx`.
    fn on_outcome(
        &mut self,
        cx: &mut Context<Self::Data>,
        requests: &mut Requests<'_>,
        id: RequestId,
        tag: u64,
        outcome: &Outcome<'_>,
    );

    /// Receives the head of a streamed answer. Its body follows, then its outcome.
    fn on_head(
        &mut self,
        cx: &mut Context<Self::Data>,
        requests: &mut Requests<'_>,
        id: RequestId,
        tag: u64,
        head: &Head<'_>,
    ) {
    }

    /// Receives a piece of the body of a streamed answer.
    fn on_body(
        &mut self,
        cx: &mut Context<Self::Data>,
        requests: &mut Requests<'_>,
        id: RequestId,
        tag: u64,
        bytes: &[u8],
    ) {
    }

    /// Reports that the queue of a host was full and is now half empty.
    fn on_room(&mut self, cx: &mut Context<Self::Data>, requests: &mut Requests<'_>, host: HostId) {
    }

    /// Reports that all accepted requests have ended, the last of them in this turn.
    fn on_idle(&mut self, cx: &mut Context<Self::Data>, requests: &mut Requests<'_>) {}
}

/// A pipelining HTTP client for many hosts. It is the [`Handler`] of an event loop and reports to a [`Caller`].
///
/// Each host has a queue. After a connection has read answers, it sends as many queued requests as may be in flight,
/// in one write. When a connection ends, [`Connection`](crate::Connection) decides about its requests. Those that the
/// server has not processed, and those that may be repeated, are sent again on another connection, before all queued
/// ones.
///
/// An answer with status 101 is reported like any other, and its connection is closed. To use the upgraded protocol,
/// use [`Connection`](crate::Connection) directly.
///
/// ```no_run
/// use dunlin_net::{Context, EventLoop, LoopConfig};
/// use dunlin_pipeline::{Caller, Client, ClientConfig, HostConfig, Outcome, Request, RequestId, Requests};
///
/// struct Printer;
/// impl Caller for Printer {
///     type Data = ();
///
///     fn on_outcome(&mut self, _: &mut Context<()>, _: &mut Requests<'_>, _: RequestId, tag: u64, outcome: &Outcome<'_>) {
///         match outcome {
///             Outcome::Answered(answer) => println!("{tag}: {}", answer.status),
///             Outcome::NotSent(error) | Outcome::Failed(error) | Outcome::Uncertain(error) => println!("{error}"),
///         }
///     }
///
///     fn on_idle(&mut self, cx: &mut Context<()>, _: &mut Requests<'_>) {
///         cx.stop();
///     }
/// }
///
/// let mut event_loop = EventLoop::new(LoopConfig::default())?;
/// let mut client = Client::new(ClientConfig::default(), Printer);
/// let mut requests = client.requests();
/// let host = requests.host("http://127.0.0.1:8000", HostConfig::default()).expect("a URL");
/// let get = requests.prepare(host, &Request::get("/"));
/// for tag in 0..100 {
///     requests.send(host, &get, tag).expect("the queue has room");
/// }
/// event_loop.run(&mut client)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Client<C> {
    caller: C,
    core: Core,
    began: Instant,
    /// Whether something ended since `on_idle` was last called.
    busy: bool,
}

impl<C: Caller> Client<C> {
    /// Creates a client without hosts.
    pub fn new(config: ClientConfig, caller: C) -> Client<C> {
        Client { caller, core: Core::new(config), began: Instant::now(), busy: false }
    }

    /// Adds hosts and sends requests outside of the caller's methods: before the loop runs, or on the loop through
    /// its [`Remote`](dunlin_net::Remote).
    pub fn requests(&mut self) -> Requests<'_> {
        self.tick_clock();
        Requests { core: &mut self.core }
    }

    /// Returns whether this is an open connection of the client. A connection that is being opened is not known by its
    /// id yet: forward its `on_connect` and `on_connect_failed` although this returns `false`.
    pub fn owns(&self, conn: ConnId) -> bool {
        self.core.owns(conn)
    }

    /// Returns the caller.
    pub fn caller(&mut self) -> &mut C {
        &mut self.caller
    }

    /// Accepts no more requests and ends all others at once: queued ones as not sent, those in flight as failed or
    /// uncertain. Closes the connections.
    pub fn shutdown(&mut self, cx: &mut Context<C::Data>) {
        self.core.closing = true;
        for index in 0..self.core.entries.len() {
            if let Entry::Open(link) = &self.core.entries[index] {
                let conn = link.id;
                if let Some(mut link) = self.core.take_link(conn) {
                    link.connection.handle_reset();
                    self.forget(&link);
                    self.settle(link, &ErrorKind::Shutdown);
                    cx.abort(conn);
                }
            }
        }
        for host in 0..self.core.hosts.len() as u32 {
            self.core.end_queue(HostId(host), &ErrorKind::Shutdown);
        }
        self.report_ended(cx);
    }

    fn tick_clock(&mut self) {
        self.core.now_ns = self.began.elapsed().as_nanos() as u64;
    }

    /// Reads answers of a link, then sends requests if there is room.
    fn hear(&mut self, cx: &mut Context<C::Data>, conn: ConnId, bytes: &[u8]) {
        let Some(mut link) = self.core.take_link(conn) else { return };
        self.tick_clock();
        let before = link.connection.answered();
        let oldest_sent_ns = link.connection.oldest().map_or(0, |request| request.sent_ns);
        let mut sink = LinkSink {
            cx,
            caller: &mut self.caller,
            core: &mut self.core,
            host: link.host,
            gathered: &mut link.gathered,
            last_sent_ns: oldest_sent_ns,
        };
        let progress = link.connection.handle_input(bytes, &mut sink);
        let last_sent_ns = sink.last_sent_ns;
        let answered = link.connection.answered() - before;
        if answered > 0 {
            self.busy = true;
            link.oldest_since_ms = cx.now_ms();
            if let Some(window) = &mut link.window {
                let now_ns = self.core.now_ns;
                let count = u32::try_from(answered).unwrap_or(u32::MAX);
                window.handle_answers(count, last_sent_ns, now_ns, link.connection.in_flight());
            }
            link.exclusive &= link.connection.in_flight() > 0;
            if self.core.hosts[link.host.0 as usize].removed {
                self.core.mark(link.host);
            }
        }
        match progress {
            // The rest of the answer is not read.
            Ok(Progress::Open) if link.gathered.too_long => {
                link.connection.handle_reset();
                self.forget(&link);
                self.settle(link, &ErrorKind::BodyTooLong);
                cx.abort(conn);
            }
            Ok(Progress::Open) => {
                self.core.fill(cx, &mut link);
                self.core.watch(cx, &mut link);
                self.core.entries[conn.index() as usize] = Entry::Open(link);
            }
            Ok(Progress::LastAnswer | Progress::Upgraded { .. }) => {
                // The close of an idle connection says nothing about the budget.
                let in_use = answered > 0 || link.connection.in_flight() > 0;
                let host = &mut self.core.hosts[link.host.0 as usize];
                host.budget.handle_close(link.connection.answered(), in_use);
                self.forget(&link);
                self.settle(link, &ErrorKind::Closed(io::ErrorKind::ConnectionAborted));
                cx.close(conn);
            }
            Err(violation) => {
                self.forget(&link);
                self.settle(link, &ErrorKind::Protocol(violation));
                cx.abort(conn);
            }
        }
    }

    /// Removes a link from its host.
    fn forget(&mut self, link: &HostConnection) {
        let host = &mut self.core.hosts[link.host.0 as usize];
        host.links.retain(|&other| other != link.id);
        if let Some(window) = &link.window {
            host.window = *window;
        }
        self.core.mark(link.host);
    }

    /// Decides what to do with each request that a link leaves unanswered.
    fn settle(&mut self, mut link: Box<HostConnection>, why: &ErrorKind) {
        let (core, host) = (&mut self.core, link.host);
        let replays_max = core.hosts[host.0 as usize].config.replays_max;
        let mut again = Vec::new();
        while let Some((request, decision)) = link.connection.poll_unanswered() {
            let place = request.tag as u32;
            let Some(record) = core.records.get_mut(place) else { continue };
            let replay = |record: &mut request::Record| {
                let allowed = record.replays < replays_max && !core.closing;
                record.replays += u8::from(allowed);
                allowed
            };
            match decision {
                ReplayDecision::NotProcessed if core.closing => {
                    core.end(host, place, Effect::None, ErrorKind::Shutdown);
                }
                ReplayDecision::NotProcessed => again.push(place),
                ReplayDecision::Replay => match replay(record) {
                    true => again.push(place),
                    false => core.end(host, place, Effect::Possible, why.clone()),
                },
                ReplayDecision::Uncertain => core.end(host, place, Effect::Unknown, why.clone()),
                ReplayDecision::Cut { status, idempotent } => {
                    match idempotent && !record.begun && replay(record) {
                        true => again.push(place),
                        false => {
                            let why = match why {
                                ErrorKind::BodyTooLong => why.clone(),
                                _ => ErrorKind::Truncated { status },
                            };
                            core.end(host, place, Effect::Possible, why);
                        }
                    }
                }
                ReplayDecision::TimedOut { idempotent } => {
                    let effect = if idempotent { Effect::Possible } else { Effect::Unknown };
                    core.end(host, place, effect, ErrorKind::AnswerTimeout);
                }
                ReplayDecision::ProtocolError(violation) => {
                    core.end(host, place, Effect::Possible, ErrorKind::Protocol(violation));
                }
            }
        }
        core.requeue(host, &again);
    }

    /// Reports requests that have ended without an answer.
    fn report_ended(&mut self, cx: &mut Context<C::Data>) {
        while !self.core.ended.is_empty() {
            self.busy = true;
            for (place, error) in std::mem::take(&mut self.core.ended) {
                let Some(record) = self.core.records.remove(place) else { continue };
                let outcome = error.into();
                let mut requests = Requests { core: &mut self.core };
                self.caller.on_outcome(cx, &mut requests, record.id, record.tag, &outcome);
            }
        }
    }

    /// Handles a connection that the server closed or that broke.
    fn lost(&mut self, cx: &mut Context<C::Data>, conn: ConnId, why: io::ErrorKind, eof: bool) {
        let Some(mut link) = self.core.take_link(conn) else { return };
        self.tick_clock();
        let mut sink = LinkSink {
            cx,
            caller: &mut self.caller,
            core: &mut self.core,
            host: link.host,
            gathered: &mut link.gathered,
            last_sent_ns: 0,
        };
        let in_use = link.connection.in_flight() > 0 || link.spent;
        let close = match eof {
            true => link.connection.handle_eof(&mut sink),
            false => link.connection.handle_reset(),
        };
        self.busy = true;
        if !close.cut {
            let host = &mut self.core.hosts[link.host.0 as usize];
            host.budget.handle_close(link.connection.answered(), in_use);
        }
        self.forget(&link);
        self.settle(link, &ErrorKind::Closed(why));
    }
}

impl<C: Caller> Handler for Client<C> {
    type Data = C::Data;
    type Protocols = Tcp;

    fn on_connect(&mut self, cx: &mut Context<C::Data>, conn: ConnId) {
        let Some(&Entry::Dialing(host_id)) = self.core.entries.get(conn.index() as usize) else {
            return;
        };
        self.tick_clock();
        let host = &mut self.core.hosts[host_id.0 as usize];
        host.dials -= 1;
        host.failures = 0;
        host.links.push(conn);
        let mut link = Box::new(HostConnection::new(conn, host_id, host));
        self.core.fill(cx, &mut link);
        self.core.watch(cx, &mut link);
        put(&mut self.core.entries, conn, Entry::Open(link));
        if self.core.hosts[host_id.0 as usize].removed {
            self.core.mark(host_id);
        }
    }

    fn on_connect_failed(
        &mut self,
        cx: &mut Context<C::Data>,
        conn: ConnId,
        _: C::Data,
        error: &io::Error,
    ) {
        if let Some(&Entry::Dialing(host)) = self.core.entries.get(conn.index() as usize) {
            put(&mut self.core.entries, conn, Entry::Free);
            self.core.dial_failed(cx, host, error);
        }
    }

    fn on_data(&mut self, cx: &mut Context<C::Data>, conn: ConnId, bytes: &[u8]) {
        self.hear(cx, conn, bytes);
    }

    fn on_eof(&mut self, cx: &mut Context<C::Data>, conn: ConnId) {
        if self.owns(conn) {
            self.lost(cx, conn, io::ErrorKind::UnexpectedEof, true);
            cx.close(conn);
        }
    }

    fn on_close(
        &mut self,
        cx: &mut Context<C::Data>,
        conn: ConnId,
        _: C::Data,
        reason: CloseReason,
    ) {
        let why = match reason {
            CloseReason::Io(kind) => kind,
            CloseReason::Peer => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::ConnectionAborted,
        };
        self.lost(cx, conn, why, false);
    }

    fn on_writable(&mut self, cx: &mut Context<C::Data>, conn: ConnId) {
        let Some(mut link) = self.core.take_link(conn) else { return };
        link.blocked = false;
        self.tick_clock();
        self.core.fill(cx, &mut link);
        self.core.watch(cx, &mut link);
        put(&mut self.core.entries, conn, Entry::Open(link));
    }

    fn on_deadline(&mut self, cx: &mut Context<C::Data>, conn: ConnId) {
        let Some(mut link) = self.core.take_link(conn) else { return };
        self.tick_clock();
        if link.connection.in_flight() > 0 {
            link.connection.handle_timeout();
            self.forget(&link);
            self.settle(link, &ErrorKind::Closed(io::ErrorKind::TimedOut));
            return cx.abort(conn);
        }
        if std::mem::take(&mut link.spent) {
            // The server has given as many answers as its supposed limit, and the connection is still open.
            link.connection.set_budget(None);
            if link.connection.is_open() {
                let answered = link.connection.answered();
                self.core.hosts[link.host.0 as usize].budget.handle_outlived(answered);
                self.core.fill(cx, &mut link);
                self.core.watch(cx, &mut link);
                return put(&mut self.core.entries, conn, Entry::Open(link));
            }
        }
        self.forget(&link);
        cx.close(conn);
    }

    fn on_timer(&mut self, _: &mut Context<C::Data>, timer: TimerId, _: u64) {
        if self.core.watch_timer != Some(timer) {
            return;
        }
        self.tick_clock();
        self.core.expire_queues();
        for host in 0..self.core.hosts.len() as u32 {
            if !self.core.hosts[host as usize].queue.is_empty() {
                self.core.mark(HostId(host));
            }
        }
    }

    fn on_tick(&mut self, cx: &mut Context<C::Data>) {
        self.tick_clock();
        self.report_ended(cx);
        for host_id in std::mem::take(&mut self.core.dirty) {
            self.core.hosts[host_id.0 as usize].dirty = false;
            self.core.fill_host(cx, host_id);
            let host = &mut self.core.hosts[host_id.0 as usize];
            let half = host.queue.len() <= host.config.queue_max / 2
                && host.queue_bytes <= host.config.queue_bytes_max / 2;
            if host.refused && half {
                host.refused = false;
                self.caller.on_room(cx, &mut Requests { core: &mut self.core }, host_id);
            }
        }
        self.report_ended(cx);
        // Sends the requests of the caller in this turn, not at the next event.
        for host_id in std::mem::take(&mut self.core.dirty) {
            self.core.hosts[host_id.0 as usize].dirty = false;
            self.core.fill_host(cx, host_id);
        }
        let waiting = self.core.hosts.iter().any(|host| !host.queue.is_empty());
        match self.core.watch_timer {
            None if waiting => {
                self.core.watch_timer = Some(cx.run_every(WATCH_MS, 0));
            }
            Some(timer) if !waiting => {
                cx.cancel(timer);
                self.core.watch_timer = None;
            }
            _ => {}
        }
        if std::mem::take(&mut self.busy) && self.core.records.len() == 0 {
            self.caller.on_idle(cx, &mut Requests { core: &mut self.core });
        }
    }
}

impl From<ProtocolError> for ErrorKind {
    fn from(violation: ProtocolError) -> ErrorKind {
        ErrorKind::Protocol(violation)
    }
}
