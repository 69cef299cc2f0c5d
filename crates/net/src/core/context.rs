//! The operations of a loop that its handler can use.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Poll};

use super::coalesce::Coalesced;
use super::config::{Limits, LoopConfig};
use super::connection::{ConnId, Flags, Phase};
use super::dial::Dials;
use super::driver::Plugged;
use super::error::CloseReason;
use super::foreign::Foreign;
use super::listener::Listeners;
use super::random::Random;
use super::signal::Signals;
use super::slab::{INDEX_MAX, Slab};
use super::spill::Pool;
use super::stats::Stats;
use super::timer::{Action, Timers};
use super::token::Token;
use super::unauthenticated::Unauthenticated;
use super::upper::{Upper, UpperLayer};
use super::wheel::{NEVER, Wheel};
use crate::timeout::TimeoutMs;

/// Identifies a listener of one loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub(crate) u32);

/// Identifies a timer of one loop. The id of an ended timer is recognised as stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The loop as its handler sees it: connections, listeners, timers, and the clock. `D` is the handler's
/// [`Data`](crate::Handler::Data).
///
/// No method calls the handler: events caused by a call follow later, in the same turn or another one. Methods that
/// take a [`ConnId`] recognise a stale one.
#[derive(Debug)]
pub struct Context<D> {
    pub(crate) config: LoopConfig,
    /// The protocols of the handler.
    pub(crate) plugged: Plugged,
    pub(crate) poll: Poll,
    pub(crate) slab: Slab<D>,
    pub(crate) wheel: Wheel,
    pub(crate) pool: Pool,
    pub(crate) listeners: Listeners,
    pub(crate) timers: Timers<D>,
    pub(crate) unauthenticated: Unauthenticated,
    pub(crate) coalesced: Option<Coalesced>,
    pub(crate) dials: Dials,
    pub(crate) signals: Option<Signals>,
    pub(crate) foreign: Foreign,
    /// The distinct limits and timeouts of connections, few and shared.
    pub(crate) profiles: Vec<Profile>,
    /// The receive buffer of all connections.
    pub(crate) receive: Vec<u8>,
    /// Connections whose output is sent at the end of the turn.
    pub(crate) corked: Vec<ConnId>,
    /// Connections with unread input in the socket that no event will report.
    pub(crate) unread: Vec<ConnId>,
    /// Connections whose buffered input can be processed now.
    pub(crate) resumed: Vec<ConnId>,
    /// Connections with a write rejected by the loop's memory limit, and the bytes buffered at that time.
    pub(crate) memory_blocked: Vec<ConnId>,
    pub(crate) memory_blocked_bytes: usize,
    /// Connections whose `on_close` or `on_connect_failed` is due.
    pub(crate) ended: VecDeque<(ConnId, Ending)>,
    /// Data that the connections share above the core.
    pub(crate) upper: <Upper as UpperLayer>::Shared,
    pub(crate) random: Random,
    /// The output buffer for decryption of TLS records.
    pub(crate) decrypted: Vec<u8>,
    pub(crate) stats: Stats,
    start: Instant,
    /// The time set by a test, instead of the time since the start.
    set_ms: Option<u64>,
    pub(crate) now_ms: u64,
    stopping: bool,
}

/// Settings that many connections share; each record has their index in 16 bits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Profile {
    pub(crate) limits: Limits,
    pub(crate) agreed: <Upper as UpperLayer>::Agreed,
}

impl Profile {
    pub(crate) fn with_idle_timeout(&self, idle_timeout_ms: TimeoutMs) -> Profile {
        Profile { limits: Limits { idle_timeout_ms, ..self.limits.clone() }, ..self.clone() }
    }
}

impl From<&Limits> for Profile {
    fn from(limits: &Limits) -> Profile {
        Profile { limits: limits.clone(), ..Profile::default() }
    }
}

/// How a connection in [`Context::ended`] ended.
#[derive(Debug)]
pub(crate) enum Ending {
    Closed(CloseReason),
    ConnectFailed(io::Error),
    /// A proxy's connection ended before its header: the handler never knew it.
    ProxyFailed,
    /// An accepted connection ended before it was open, for example in its TLS handshake.
    OpenFailed(io::Error),
    /// TLS failed on a connection that the handler knew to be open.
    TlsFailed(io::Error),
}

impl<D: Default> Context<D> {
    pub(crate) fn new(mut config: LoopConfig, plugged: Plugged) -> io::Result<Context<D>> {
        config.connections_max = config.connections_max.min(INDEX_MAX as usize);
        Ok(Context {
            plugged,
            poll: Poll::new()?,
            slab: Slab::new(),
            wheel: Wheel::new(),
            pool: Pool::new(config.spare_buffers_max),
            listeners: Listeners::default(),
            timers: Timers::new(),
            unauthenticated: Unauthenticated::default(),
            coalesced: None,
            dials: Dials::default(),
            signals: None,
            foreign: Foreign::default(),
            profiles: Vec::new(),
            receive: Vec::new(),
            corked: Vec::new(),
            unread: Vec::new(),
            resumed: Vec::new(),
            memory_blocked: Vec::new(),
            memory_blocked_bytes: 0,
            ended: VecDeque::new(),
            upper: (&config).into(),
            random: Random::default(),
            decrypted: Vec::new(),
            stats: Stats::default(),
            start: Instant::now(),
            set_ms: None,
            now_ms: 0,
            stopping: false,
            config,
        })
    }

    /// Closes a connection in order. Buffered output is sent first, then FIN; input is dropped until the peer's FIN,
    /// for at most [`linger_ms`](LoopConfig::linger_ms). `on_close` follows as soon as the kernel has the last byte.
    /// Further writes fail and no input is delivered. A connect in progress is aborted: `on_connect_failed` follows,
    /// with `ErrorKind::ConnectionAborted`.
    pub fn close(&mut self, conn: ConnId) {
        self.begin_drain(conn);
    }

    /// Aborts the connection: drops buffered output and sends RST. `on_close` follows.
    pub fn abort(&mut self, conn: ConnId) {
        let Some(record) = self.slab.get(conn) else { return };
        let closing = matches!(record.phase, Phase::Open | Phase::Draining);
        if !closing && !record.phase.is_opening() {
            return;
        }
        if record.fd.is_none() {
            return self.finish(conn, CloseReason::Aborted);
        }
        self.reset(conn, CloseReason::Aborted);
    }

    /// Ends a connection that has a descriptor with RST.
    pub(crate) fn reset(&mut self, conn: ConnId, reason: CloseReason) {
        let Some(record) = self.slab.get(conn) else { return };
        let now = Some(std::time::Duration::ZERO);
        // If the option fails, the socket is closed normally.
        let _ = rustix::net::sockopt::set_socket_linger(record.fd(), now);
        self.finish(conn, reason);
    }

    /// Sends FIN after the buffered output. The peer may continue to send; further writes fail. For raw TCP.
    pub fn shutdown_write(&mut self, conn: ConnId) {
        if let Some(record) = self.slab.get_mut(conn)
            && (record.phase == Phase::Open || record.phase.is_opening())
        {
            record.flags.set(Flags::SHUTDOWN_WRITE);
            self.tls_goodbye(conn);
            self.cork(conn);
        }
    }

    /// Stops reading from a connection; once the kernel's buffers are full, the peer cannot send more. A WebSocket
    /// message that was already received is also held back. The loop notices that the peer has gone only when the
    /// connection is written to or resumed.
    pub fn pause_read(&mut self, conn: ConnId) {
        if let Some(record) = self.slab.get_mut(conn) {
            record.flags.set(Flags::READ_PAUSED);
        }
    }

    /// Requests `on_writable` for when all buffered output of a connection has been sent. Returns false if none is
    /// buffered; then no `on_writable` follows. For a handler that forwards bytes to a slow reader: it pauses reading
    /// until then.
    pub fn want_writable(&mut self, conn: ConnId) -> bool {
        if self.output_bytes(conn) > 0 {
            self.flush(conn);
        }
        let Some(record) = self.slab.get_mut(conn) else { return false };
        let full = (record.phase == Phase::Open || record.phase.is_opening())
            && record.flags.has(Flags::SOCKET_FULL);
        record.flags.put(Flags::WANT_WRITE, full);
        full
    }

    /// Resumes reading after [`Context::pause_read`].
    pub fn resume_read(&mut self, conn: ConnId) {
        if let Some(record) = self.slab.get_mut(conn)
            && record.flags.take(Flags::READ_PAUSED)
        {
            self.queue_resume(conn);
        }
    }
}

impl<D> Context<D> {
    /// Returns the handler's data of a connection; `None` when the id is stale or the connection is ending.
    pub fn data(&mut self, conn: ConnId) -> Option<&mut D> {
        let record = self.slab.get_mut(conn)?;
        match record.phase {
            Phase::Connecting
            | Phase::Securing
            | Phase::Upgrading
            | Phase::Open
            | Phase::Draining => Some(&mut record.data),
            Phase::Announcing
            | Phase::Accepting
            | Phase::Free
            | Phase::Closed
            | Phase::Lingering => None,
        }
    }

    /// Returns true while the connection is connecting or open and is not being closed.
    pub fn is_open(&self, conn: ConnId) -> bool {
        self.slab
            .get(conn)
            .is_some_and(|record| record.phase == Phase::Open || record.phase.is_opening())
    }

    /// Returns the peer's address, read from the kernel. Behind a proxy it is the proxy's; `on_accept` received the
    /// client's. `None` when the id is stale, or the kernel no longer has an address, as after a reset.
    pub fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        rustix::net::getpeername(self.slab.get(conn)?.fd.as_ref()?).ok()??.try_into().ok()
    }

    /// Returns the local address, read from the kernel.
    pub fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        rustix::net::getsockname(self.slab.get(conn)?.fd.as_ref()?).ok()?.try_into().ok()
    }

    /// Returns the socket of a connection, for options that this library does not support. It must stay non-blocking,
    /// and only the loop may read from it or write to it.
    pub fn descriptor(&self, conn: ConnId) -> Option<BorrowedFd<'_>> {
        self.slab.get(conn)?.fd.as_ref().map(AsFd::as_fd)
    }

    /// Returns the number of bytes buffered for sending on this connection; 0 for a stale id.
    pub fn output_bytes(&self, conn: ConnId) -> usize {
        self.slab.get(conn).map_or(0, |record| record.output_bytes())
    }

    /// Returns the number of bytes buffered for a connection, in and out; 0 for a stale id.
    pub fn buffered_bytes(&self, conn: ConnId) -> usize {
        let spill = self.slab.get(conn).and_then(|record| record.spill.as_ref());
        spill.map_or(0, |spill| spill.bytes())
    }

    /// Returns the number of bytes buffered for all connections together.
    pub fn buffered_bytes_in_all(&self) -> usize {
        self.stats.buffered_bytes
    }

    /// Sets the limit on the bytes buffered for all connections together; see
    /// [`buffered_bytes_max`](crate::LoopConfig::buffered_bytes_max).
    pub fn set_buffered_bytes_max(&mut self, bytes: usize) {
        self.config.buffered_bytes_max = bytes;
    }

    /// Iterates over the ids of all connections, in no particular order.
    pub fn connections(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.slab.ids().filter(|&id| self.slab.at(id.index()).phase.is_known())
    }

    /// Sends bytes to every open connection whose data `wanted` accepts. Returns the number of connections that took
    /// them. One whose buffer is full is skipped, and its `on_writable` follows.
    ///
    /// ```
    /// # fn example(cx: &mut dunlin_net::Context<bool>) {
    /// cx.broadcast(b"the server stops at noon\n", |is_subscribed| *is_subscribed);
    /// # }
    /// ```
    pub fn broadcast(&mut self, bytes: &[u8], mut wanted: impl FnMut(&D) -> bool) -> usize
    where
        D: Default,
    {
        let mut taken = 0;
        self.for_each_connection(|cx, conn| {
            let is_wanted = cx.is_open(conn) && cx.data(conn).is_some_and(|data| wanted(data));
            taken += usize::from(is_wanted && cx.write(conn, bytes).is_ok());
        });
        taken
    }

    /// Calls `visit` for every connection. It may write to connections and close them.
    pub fn for_each_connection(&mut self, mut visit: impl FnMut(&mut Context<D>, ConnId)) {
        let mut index = 0;
        while let Some(conn) = self.slab.next_from(index) {
            index = conn.index() + 1;
            if self.slab.at(conn.index()).phase.is_known() {
                visit(self, conn);
            }
        }
    }

    /// Sets or clears the deadline of a connection, in milliseconds of [`Context::now_ms`]. `on_deadline` is called
    /// when it has passed, at most [`deadline_tick_ms`](LoopConfig::deadline_tick_ms) late. Moving it further away
    /// costs one store. It replaces the loop's own timeout; the end of an HTTP response, [`Context::close`] and
    /// [`Context::ws_close`] set the loop's own timeout again. It has no effect during a connect, which keeps its
    /// timeout.
    pub fn set_deadline(&mut self, conn: ConnId, deadline_ms: Option<u64>) {
        if let Some(record) = self.slab.get_mut(conn)
            && record.phase == Phase::Open
        {
            record.flags.clear(Flags::OWN_DEADLINE);
            record.flags.clear(Flags::IDLE_DEADLINE);
            self.schedule(conn, deadline_ms);
        }
    }

    /// Returns the deadline set by [`Context::set_deadline`], rounded up to the tick of the wheel.
    pub fn deadline(&self, conn: ConnId) -> Option<u64> {
        let record = self.slab.get(conn)?;
        let tick = record.link.deadline();
        (tick < NEVER && !record.flags.has(Flags::OWN_DEADLINE))
            .then(|| tick * self.config.deadline_tick_ms)
    }

    /// Calls `on_timer` with `data` once, after `delay_ms` milliseconds and at most one more.
    pub fn run_after(&mut self, delay_ms: u64, data: u64) -> TimerId {
        self.timers.arm(self.clock_ms().saturating_add(delay_ms), None, Action::Notify(data))
    }

    /// Calls `on_timer` with `data` every `period_ms` (at least 1) milliseconds, first after one period, until
    /// cancelled. A loop that falls behind skips the missed calls.
    pub fn run_every(&mut self, period_ms: u64, data: u64) -> TimerId {
        let period_ms = period_ms.max(1);
        let at_ms = self.clock_ms().saturating_add(period_ms);
        self.timers.arm(at_ms, Some(period_ms), Action::Notify(data))
    }

    /// Calls a closure once, after `delay_ms` milliseconds and at most one more. The closure has access to the loop but
    /// not to its handler; use [`Context::run_after`] and `on_timer` for what needs the handler's state. It is `Send`
    /// because a loop may be created in one thread and run in another.
    ///
    /// ```
    /// # fn example(cx: &mut dunlin_net::Context<()>, conn: dunlin_net::ConnId) {
    /// cx.call_after(1000, move |cx| _ = cx.write(conn, b"a second has passed\n"));
    /// # }
    /// ```
    pub fn call_after(
        &mut self,
        delay_ms: u64,
        call: impl FnOnce(&mut Context<D>) + Send + 'static,
    ) -> TimerId {
        let mut call = Some(call);
        let once = move |cx: &mut Context<D>| {
            if let Some(call) = call.take() {
                call(cx);
            }
        };
        let at_ms = self.clock_ms().saturating_add(delay_ms);
        self.timers.arm(at_ms, None, Action::Call(Some(Box::new(once))))
    }

    /// Calls a closure every `period_ms` (at least 1) milliseconds, with the schedule of [`Context::run_every`] and the
    /// restrictions of [`Context::call_after`].
    pub fn call_every(
        &mut self,
        period_ms: u64,
        call: impl FnMut(&mut Context<D>) + Send + 'static,
    ) -> TimerId {
        let period_ms = period_ms.max(1);
        let at_ms = self.clock_ms().saturating_add(period_ms);
        self.timers.arm(at_ms, Some(period_ms), Action::Call(Some(Box::new(call))))
    }

    /// Cancels a timer. Returns false when it had already ended.
    pub fn cancel(&mut self, timer: TimerId) -> bool {
        self.timers.disarm(timer)
    }

    /// Returns the milliseconds since the loop was created, monotonic, updated once per turn.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Sets the loop's clock, which then stays unchanged until it is set again. For tests in virtual time.
    pub fn set_clock(&mut self, now_ms: u64) {
        self.set_ms = Some(now_ms);
        self.now_ms = now_ms;
    }

    pub(crate) fn update_clock(&mut self) {
        self.now_ms = self.clock_ms();
    }

    /// Reads the clock. [`Context::now_ms`] is behind it by what the turn has taken so far, and between turns by more.
    pub(crate) fn clock_ms(&self) -> u64 {
        self.set_ms.unwrap_or_else(|| self.start.elapsed().as_millis() as u64)
    }

    /// Delivers these signals as events: `on_signal` is called instead of their default action. They are blocked in the
    /// calling thread and in every thread that it starts afterwards. Call this before starting threads: a signal
    /// reaches the loop only if every thread of the process blocks it. Workers of
    /// [`spawn_workers`](crate::spawn_workers) block all signals already.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an invalid number or a signal that cannot be caught, and those of `signalfd`.
    pub fn register_signals(&mut self, signals: &[i32]) -> io::Result<()> {
        match &mut self.signals {
            Some(registered) => registered.add(signals),
            None => {
                let registered = Signals::open(signals)?;
                let event = Token::Signals.into();
                let raw = registered.as_raw_fd();
                self.poll.registry().register(&mut SourceFd(&raw), event, Interest::READABLE)?;
                self.signals = Some(registered);
                Ok(())
            }
        }
    }

    /// Returns a random number from the kernel, suitable for jitter and for secrets.
    pub fn random_u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.random.take())
    }

    /// Returns the counters of the loop.
    pub fn stats(&self) -> Stats {
        let unauthenticated = self.unauthenticated.len();
        Stats { connections: self.slab.len(), unauthenticated, ..self.stats }
    }

    /// Returns the number of connections that use buffers: for part of a message, unsent output, or a request that
    /// waits for its response. All others use only their record.
    pub fn buffers_lent(&self) -> usize {
        self.slab.ids().filter(|id| self.slab.at(id.index()).spill.is_some()).count()
    }

    /// Returns the configuration of the loop.
    pub fn config(&self) -> &LoopConfig {
        &self.config
    }

    /// Ends [`run`](crate::EventLoop::run) at the end of this turn. Connections stay open.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Returns true once [`Context::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Returns the limits of a connection by their index.
    pub(crate) fn limits(&self, profile: u16) -> &Limits {
        &self.profiles[profile as usize].limits
    }

    pub(crate) fn profile_at(&self, profile: u16) -> &Profile {
        &self.profiles[profile as usize]
    }

    /// Returns the index under which limits are shared. Equal limits have the same index, so that a million connects
    /// with the same limits add only one.
    pub(crate) fn profile(&mut self, profile: &Profile) -> io::Result<u16> {
        if let Some(known) = self.profiles.iter().rposition(|known| known == profile) {
            return Ok(known as u16);
        }
        let place = u16::try_from(self.profiles.len()).map_err(|_| {
            io::Error::new(io::ErrorKind::QuotaExceeded, "65,536 different limits on one loop")
        })?;
        self.profiles.push(profile.clone());
        Ok(place)
    }

    /// Sets the deadline of a connection, the handler's or the loop's.
    pub(crate) fn schedule(&mut self, conn: ConnId, deadline_ms: Option<u64>) {
        let tick = deadline_ms.map_or(NEVER, |ms| ms.div_ceil(self.config.deadline_tick_ms));
        self.wheel.schedule(&mut self.slab, conn.index(), tick);
    }

    /// Closes the connection when nothing arrives for this long; each read restarts the timeout.
    pub(crate) fn schedule_idle(&mut self, conn: ConnId, timeout_ms: TimeoutMs) {
        if timeout_ms.is_some() {
            self.slab.at_mut(conn.index()).flags.set(Flags::IDLE_DEADLINE);
            self.schedule_own(conn, timeout_ms);
        }
    }

    /// Sets the loop's own deadline, after which the connection is closed.
    pub(crate) fn schedule_own(&mut self, conn: ConnId, timeout_ms: TimeoutMs) {
        if let Some(record) = self.slab.get_mut(conn) {
            record.flags.set(Flags::OWN_DEADLINE);
            let deadline =
                timeout_ms.map(|timeout_ms| self.now_ms.saturating_add(timeout_ms.get()));
            self.schedule(conn, deadline);
        }
    }
}
