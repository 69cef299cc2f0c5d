//! Coalescing of input: the loop wakes once for what many connections send, as a network card coalesces interrupts.
//!
//! The connections are in a separate epoll, which the loop's epoll watches for one event (`EPOLLONESHOT`). The first
//! input after a period of silence wakes the loop. It ignores further input for
//! [`coalesce_ms`](crate::LoopConfig::coalesce_ms), then handles all of it at once, and rearms the event. Everything
//! else that wakes the loop (its inbox, timers, other connections) is not delayed, and neither is output.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll};
use rustix::event::epoll;

use super::connection::{ConnId, Phase};
use super::context::Context;
use super::foreign::descriptor;
use super::handler::Handler;
use super::token::Token;

/// The connections of a loop whose input may be delayed.
#[derive(Debug)]
pub(crate) struct Coalesced {
    poll: Poll,
    events: Events,
    /// When the input is to be handled; `None` while there is none.
    due_ms: Option<u64>,
}

impl Coalesced {
    fn new(outer: &Poll, events_max: usize) -> io::Result<Coalesced> {
        let poll = Poll::new()?;
        let coalesced =
            Coalesced { poll, events: Events::with_capacity(events_max.max(1)), due_ms: None };
        let (data, flags) = Coalesced::one_event();
        epoll::add(descriptor(outer), descriptor(&coalesced.poll), data, flags)?;
        Ok(coalesced)
    }

    fn one_event() -> (epoll::EventData, epoll::EventFlags) {
        let token: mio::Token = Token::Coalesced.into();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        (epoll::EventData::new_u64(token.0 as u64), flags)
    }

    pub(crate) fn due_ms(&self) -> Option<u64> {
        self.due_ms
    }

    /// Schedules the handling of input, of which the first has arrived.
    pub(crate) fn handle_first(&mut self, at_ms: u64) {
        self.due_ms = Some(at_ms);
    }
}

impl<D: Default> Context<D> {
    /// Allows the loop to report input of this connection, and room in its socket, up to
    /// [`coalesce_ms`](crate::LoopConfig::coalesce_ms) late. For connections that send little, such as subscribers. Has
    /// no effect while `coalesce_ms` is 0.
    pub fn coalesce_input(&mut self, conn: ConnId) {
        if self.config.coalesce_ms > 0 {
            // If no descriptor is left for another epoll, the connection is not coalesced.
            let _ = self.move_to_coalesced(conn);
        }
    }

    fn move_to_coalesced(&mut self, conn: ConnId) -> io::Result<()> {
        let Some(record) = self.slab.get(conn).filter(|record| record.phase == Phase::Open) else {
            return Ok(());
        };
        let raw = record.fd().as_raw_fd();
        let coalesced = match &mut self.coalesced {
            Some(coalesced) => coalesced,
            empty => empty.insert(Coalesced::new(&self.poll, self.config.events_max)?),
        };
        let both = Interest::READABLE | Interest::WRITABLE;
        // `AlreadyExists` means that the connection is already coalesced.
        match coalesced.poll.registry().register(
            &mut SourceFd(&raw),
            Token::Conn(conn).into(),
            both,
        ) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            registered => {
                registered?;
                self.poll.registry().deregister(&mut SourceFd(&raw))
            }
        }
    }

    /// Sets the maximum delay for input of [coalesced](Context::coalesce_input) connections, in milliseconds. With 0,
    /// input is reported at once, and no further connections are coalesced.
    pub fn set_coalesce_ms(&mut self, ms: u64) {
        self.config.coalesce_ms = ms;
    }

    /// Handles the input, if it is due.
    pub(crate) fn coalesced_due<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
    ) -> io::Result<()> {
        let now_ms = self.now_ms();
        let Some(coalesced) = &mut self.coalesced else { return Ok(()) };
        if coalesced.due_ms.is_none_or(|at_ms| at_ms > now_ms) {
            return Ok(());
        }
        // Taken out during the loop, because handlers may coalesce further connections.
        let mut events = std::mem::replace(&mut coalesced.events, Events::with_capacity(0));
        let polled = coalesced.poll.poll(&mut events, Some(Duration::ZERO));
        let mut taken = 0;
        for event in events.iter().filter(|_| polled.is_ok()) {
            taken += 1;
            self.stats.events += 1;
            if let Token::Conn(conn) = Token::from(event.token()) {
                self.conn_event(handler, conn, event);
            }
        }
        let Some(coalesced) = &mut self.coalesced else { return Ok(()) };
        coalesced.events = events;
        // If the events have filled the buffer, there may be more; they follow in the next turn.
        if taken < self.config.events_max.max(1) {
            coalesced.due_ms = None;
            let (data, flags) = Coalesced::one_event();
            epoll::modify(descriptor(&self.poll), descriptor(&coalesced.poll), data, flags)?;
        }
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}
