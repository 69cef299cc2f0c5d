//! The loop: waits for the kernel, calls the handler, sends the handler's output.

use std::io;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest};
use std::os::fd::AsRawFd;

use super::coalesce::Coalesced;
use super::config::LoopConfig;
use super::connection::{ConnId, Flags, Phase};
use super::context::Context;
use super::driver::Driver;
use super::error::CloseReason;
use super::foreign::Ready;
use super::handler::{Handler, Sleep};
use super::remote::{Inbox, Remote, remote_pair};
use super::timer::Action;
use super::token::Token;

/// An event loop: it owns its connections, listeners, timers and buffers, and calls a [`Handler`].
///
/// ```no_run
/// use dunlin_net::{ConnId, Context, EventLoop, Handler, ListenConfig, LoopConfig, Tcp};
///
/// struct Echo;
///
/// impl Handler for Echo {
///     type Data = ();
///     type Protocols = Tcp;
///
///     fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
///         if cx.write(conn, bytes).is_err() {
///             cx.abort(conn); // it sends without reading
///         }
///     }
/// }
///
/// let mut event_loop = EventLoop::new(LoopConfig::default())?;
/// event_loop.context().listen("127.0.0.1:7000".parse().unwrap(), &ListenConfig::tcp())?;
/// event_loop.run(&mut Echo)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct EventLoop<H: Handler> {
    context: Context<H::Data>,
    inbox: Inbox<H>,
    events: Events,
    /// `on_close` was called after the last `on_tick`: its consequences must not wait for an event.
    restless: bool,
}

impl<H: Handler> EventLoop<H> {
    /// Creates a loop with its own inbox.
    ///
    /// # Errors
    ///
    /// Those of `epoll_create1` and `eventfd`: no descriptors left.
    pub fn new(config: LoopConfig) -> io::Result<EventLoop<H>> {
        EventLoop::with_inbox(config, remote_pair()?.1)
    }

    /// Creates a loop with an inbox made by [`remote_pair`], for a loop that is created in the thread that runs it
    /// while other threads already have its [`Remote`].
    ///
    /// # Errors
    ///
    /// Those of `epoll_create1`: no descriptors left.
    pub fn with_inbox(config: LoopConfig, inbox: Inbox<H>) -> io::Result<EventLoop<H>> {
        let events = Events::with_capacity(config.events_max.max(1));
        let context = Context::new(config, H::Protocols::PLUGGED)?;
        let raw = inbox.doorbell().as_raw_fd();
        let event = Token::Inbox.into();
        context.poll.registry().register(&mut SourceFd(&raw), event, Interest::READABLE)?;
        Ok(EventLoop { context, inbox, events, restless: true })
    }

    /// Returns the context, to set up the loop. Its clock is that of now.
    pub fn context(&mut self) -> &mut Context<H::Data> {
        self.context.update_clock();
        &mut self.context
    }

    /// Returns a handle to run closures in the loop from any thread.
    pub fn remote(&self) -> Remote<H> {
        self.inbox.remote()
    }

    /// Runs the loop until [`Context::stop`].
    ///
    /// # Errors
    ///
    /// Those of `epoll_wait` except interruption; none is expected.
    pub fn run(&mut self, handler: &mut H) -> io::Result<()> {
        while !self.context.is_stopping() {
            self.turn(handler, None)?;
        }
        Ok(())
    }

    /// Runs one turn: waits for events, at most for `timeout` (`None`: without limit), and handles them.
    ///
    /// # Errors
    ///
    /// Those of [`EventLoop::run`].
    pub fn turn(&mut self, handler: &mut H, timeout: Option<Duration>) -> io::Result<()> {
        let cx = &mut self.context;
        cx.update_clock();
        let busy = self.restless || cx.has_work();
        let mut timeout = if busy { Some(Duration::ZERO) } else { cx.time_to_deadline(timeout) };
        let mut sleeping = timeout != Some(Duration::ZERO);
        if sleeping && handler.on_sleep(cx) == Sleep::Poll {
            (timeout, sleeping) = (Some(Duration::ZERO), false);
        }
        if sleeping {
            cx.stats.sleeps += 1;
        }
        let polled = cx.poll.poll(&mut self.events, timeout);
        cx.update_clock();
        if sleeping {
            handler.on_wake(cx);
        }
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        cx.stats.turns += 1;
        cx.unauthenticated.begin_turn();

        // Connections left over from the last turn; one that exceeds its budget in this turn waits for the next.
        let unread = std::mem::take(&mut cx.unread);
        let interrupted = polled.is_err();
        for event in self.events.iter().filter(|_| !interrupted) {
            cx.stats.events += 1;
            match Token::from(event.token()) {
                Token::Conn(conn) => cx.conn_event(handler, conn, event),
                Token::Listener(place) => cx.accept(handler, place),
                Token::Foreign(place) => {
                    if let Some(token) = cx.foreign.token(place) {
                        let failed = event.is_error() || event.is_read_closed();
                        let readable = event.is_readable() || failed;
                        let writable = event.is_writable();
                        handler.on_fd(cx, token, Ready { readable, writable });
                    }
                }
                Token::Attempt { dial, attempt } => cx.attempt_event(handler, dial, attempt),
                Token::Resolver => cx.take_resolved(),
                Token::Signals => {
                    while let Some(signal) = cx.signals.as_ref().and_then(|signals| signals.next())
                    {
                        handler.on_signal(cx, signal);
                    }
                }
                Token::Coalesced => {
                    let at_ms = cx.now_ms + cx.config.coalesce_ms;
                    if let Some(coalesced) = &mut cx.coalesced {
                        coalesced.handle_first(at_ms);
                    }
                }
                Token::Inbox => {
                    for call in self.inbox.take() {
                        call(handler, cx);
                    }
                }
            }
        }
        cx.coalesced_due(handler)?;
        cx.leftovers(handler, unread);
        cx.timers_due(handler);
        cx.reap_closed(handler);
        handler.on_tick(cx);
        cx.uncork();
        self.restless = !cx.ended.is_empty();
        cx.reap_closed(handler);
        cx.uncork();
        self.restless |= !cx.ended.is_empty();
        Ok(())
    }
}

impl<D: Default> Context<D> {
    /// Returns true when the next turn must not block.
    fn has_work(&self) -> bool {
        !(self.unread.is_empty()
            && !self.unauthenticated.is_waiting()
            && self.resumed.is_empty()
            && self.corked.is_empty()
            && self.ended.is_empty()
            && self.listeners.ready.is_empty())
            || self.has_room_again()
            || self.is_stopping()
    }

    /// Returns the time until the next deadline, at most `limit`.
    fn time_to_deadline(&self, limit: Option<Duration>) -> Option<Duration> {
        let deadline_ms = self.wheel.next_tick().map(|tick| tick * self.config.deadline_tick_ms);
        let coalesced_ms = self.coalesced.as_ref().and_then(Coalesced::due_ms);
        [deadline_ms, self.timers.next_ms(), self.listeners.retry_at_ms, coalesced_ms]
            .into_iter()
            .flatten()
            .min()
            .map(|at_ms| Duration::from_millis(at_ms.saturating_sub(self.now_ms())))
            .into_iter()
            .chain(limit)
            .min()
    }

    pub(crate) fn conn_event<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        event: &mio::event::Event,
    ) {
        let Some(record) = self.slab.get_mut(conn) else { return };
        match record.phase {
            Phase::Announcing => return self.proxy_header(handler, conn),
            Phase::Securing | Phase::Accepting | Phase::Upgrading => {
                return self.tls_handshake(handler, conn);
            }
            _ => {}
        }
        if record.phase == Phase::Connecting {
            if !event.is_writable() && !event.is_error() && !event.is_read_closed() {
                return;
            }
            self.connected(handler, conn);
        } else if event.is_writable() {
            self.writable(handler, conn);
        }
        let readable = event.is_readable() || event.is_read_closed() || event.is_error();
        if readable && !self.waits_to_be_read(conn) {
            self.read(handler, conn, event.is_read_closed());
        }
        // These connections are not read, so the error would not be found.
        if event.is_error()
            && let Some(record) = self.slab.get(conn)
            && (record.phase == Phase::Draining || record.flags.has(Flags::READ_PAUSED))
        {
            let error = rustix::net::sockopt::socket_error(record.fd());
            let kind = match error {
                Ok(Err(errno)) | Err(errno) => io::Error::from(errno).kind(),
                Ok(Ok(())) => io::ErrorKind::ConnectionReset,
            };
            self.finish(conn, CloseReason::Io(kind));
        }
    }

    /// Does the work that no event reports: what the last turn left over, and what came up in this one.
    fn leftovers<H: Handler<Data = D>>(&mut self, handler: &mut H, unread: Vec<ConnId>) {
        if self.listeners.retry_at_ms.is_some_and(|at| at <= self.now_ms()) {
            self.listeners.retry();
        }
        for place in std::mem::take(&mut self.listeners.ready) {
            self.accept(handler, place);
        }
        for conn in unread {
            if let Some(record) = self.slab.get_mut(conn)
                && record.flags.take(Flags::READ_QUEUED)
            {
                match record.phase {
                    Phase::Upgrading => self.tls_handshake(handler, conn),
                    // The remaining input may include FIN: read until the socket is empty.
                    _ => self.read(handler, conn, true),
                }
            }
        }
        self.read_waiting(handler);
        // Responses of this turn release the requests that wait for them.
        for conn in std::mem::take(&mut self.resumed) {
            self.resume(handler, conn);
        }
        self.report_room(handler);
    }

    fn timers_due<H: Handler<Data = D>>(&mut self, handler: &mut H) {
        let now_ms = self.now_ms();
        while let Some((timer, action)) = self.timers.pop(now_ms) {
            match action {
                Action::Notify(data) => handler.on_timer(self, timer, data),
                Action::Call(None) => {}
                Action::Call(Some(mut call)) => {
                    call(self);
                    self.timers.put_back(timer, call);
                }
                Action::Dial(place) => self.attempt(place),
            }
        }
        let tick = now_ms / self.config.deadline_tick_ms;
        while let Some(index) = self.wheel.pop(&mut self.slab, tick) {
            let conn = ConnId::new(index, self.slab.at(index).generation);
            self.expire(handler, conn);
        }
    }
}
