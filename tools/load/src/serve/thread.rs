//! A thread of the test server: one listener, one epoll instance, one receive buffer and one send buffer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use rustls::{ServerConfig, ServerConnection};

use super::answer::AfterStep;
use super::connection::{Connection, Outcome, Shared};
use crate::reactor::{ENDS, EVENTS_MAX, Events, Flags, LISTENER, NONBLOCKING, Reactor, STREAM};
use crate::transport::Transport;
use crate::{Clock, Context, Error};

/// Receive buffer, many times the size of a hundred pipelined requests.
const READ_BYTES: usize = 256 << 10;
/// Bytes that may stay unsent to a client that does not read, before its connection is reset.
const UNSENT_BYTES_MAX: usize = 256 << 20;

pub(super) struct Thread {
    reactor: Reactor,
    listener: OwnedFd,
    tls: Option<Arc<ServerConfig>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    timers: BinaryHeap<Reverse<(u64, usize, u32)>>,
    shared: Shared,
    clock: Clock,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// A slot for a connection. Its generation distinguishes timers of the previous connection from those of this one.
#[derive(Default)]
struct Slot {
    generation: u32,
    peer: Option<Peer>,
}

struct Peer {
    transport: Transport,
    connection: Connection,
    /// What to do after the unsent bytes.
    then: AfterStep,
    timer_ns: u64,
}

impl Thread {
    pub(super) fn new(
        listener: OwnedFd,
        tls: Option<Arc<ServerConfig>>,
        shared: Shared,
    ) -> Result<Self, Error> {
        let reactor = Reactor::new()?;
        reactor.watch(&listener, LISTENER, Flags::IN).context("cannot watch the listener")?;
        Ok(Self {
            reactor,
            listener,
            tls,
            slots: Vec::new(),
            free: Vec::new(),
            timers: BinaryHeap::new(),
            shared,
            clock: Clock::new(),
            input: vec![0; READ_BYTES],
            output: Vec::with_capacity(READ_BYTES),
        })
    }

    pub(super) fn run(mut self) -> Result<(), Error> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            let due_ns = self.timers.peek().map(|Reverse((due_ns, ..))| *due_ns);
            let timeout_ns = due_ns.map(|due_ns| due_ns.saturating_sub(self.clock.now_ns()));
            self.reactor.wait(timeout_ns, &mut events)?;
            for event in events.iter() {
                match event {
                    (LISTENER, _) => self.accept(),
                    (index, flags) => self.serve(index as usize, flags)?,
                }
            }
            self.expire()?;
        }
    }

    fn accept(&mut self) {
        // An error of one connection must not keep others from being accepted.
        while let Ok(socket) = rustix::net::accept_with(&self.listener, NONBLOCKING) {
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let tls = match &self.tls {
                None => None,
                Some(config) => match ServerConnection::new(Arc::clone(config)) {
                    Ok(tls) => Some(tls.into()),
                    Err(_) => continue,
                },
            };
            let index = self.free.pop().unwrap_or(self.slots.len());
            if index == self.slots.len() {
                self.slots.push(Slot::default());
            }
            if self.reactor.watch(&socket, index as u64, STREAM).is_err() {
                self.free.push(index);
                continue;
            }
            self.slots[index].peer = Some(Peer {
                transport: Transport::new(socket, tls),
                connection: Connection::default(),
                then: AfterStep::Go,
                timer_ns: 0,
            });
        }
    }

    fn serve(&mut self, index: usize, flags: Flags) -> Result<(), Error> {
        if flags.contains(Flags::OUT)
            && self.slots[index].peer.as_ref().is_some_and(|peer| peer.transport.has_unsent())
        {
            self.send(index, AfterStep::Go);
        }
        if !flags.intersects(Flags::IN | Flags::HUP | Flags::ERR) {
            return Ok(());
        }
        loop {
            let Some(peer) = &mut self.slots[index].peer else { return Ok(()) };
            // The incomplete part is put before the new input, so that a request is contiguous.
            let cut = peer.connection.cut.len();
            if self.input.len() < cut + READ_BYTES {
                self.input.resize(cut + READ_BYTES, 0);
            }
            self.input[..cut].copy_from_slice(&peer.connection.cut);
            let (length, more) = match peer.transport.read(&mut self.input[cut..]) {
                Ok(Some(read)) => read,
                Ok(None) => {
                    self.send(index, AfterStep::Go);
                    return Ok(());
                }
                Err(_) => {
                    self.close(index);
                    return Ok(());
                }
            };
            self.take(index, cut + length)?;
            if !more && !flags.intersects(ENDS) {
                return Ok(());
            }
        }
    }

    /// Passes `length` bytes of the input to their connection, and sends the resulting answers.
    fn take(&mut self, index: usize, length: usize) -> Result<(), Error> {
        let mut length = length;
        loop {
            let Some(peer) = &mut self.slots[index].peer else { return Ok(()) };
            let now_ns = self.clock.now_ns();
            let input = &self.input[..length];
            let outcome =
                peer.connection.handle_input(input, &mut self.shared, now_ns, &mut self.output);
            if let Some(log) = &mut self.shared.log {
                log.flush()?;
            }
            let Outcome::Stall(ns) = outcome else { break };
            std::thread::sleep(Duration::from_nanos(ns));
            length = peer.connection.cut.len();
            self.input[..length].copy_from_slice(&peer.connection.cut);
        }
        self.advance(index);
        Ok(())
    }

    /// Sends what is due, and sets the timer for the rest.
    fn advance(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let Some(peer) = &mut slot.peer else { return };
        let (then, due) = if peer.connection.script.is_empty() {
            (AfterStep::Go, None)
        } else {
            peer.connection.poll_script(self.clock.now_ns(), &mut self.output)
        };
        if let Some(due_ns) = due
            && peer.timer_ns != due_ns
        {
            peer.timer_ns = due_ns;
            self.timers.push(Reverse((due_ns, index, slot.generation)));
        }
        self.send(index, then);
    }

    fn expire(&mut self) -> Result<(), Error> {
        let now_ns = self.clock.now_ns();
        while let Some(&Reverse((due_ns, index, generation))) = self.timers.peek() {
            if due_ns > now_ns {
                break;
            }
            self.timers.pop();
            if self.slots[index].generation == generation {
                self.advance(index);
            }
        }
        Ok(())
    }

    /// Sends the output after the unsent bytes, and then ends the connection if `then` requires it.
    fn send(&mut self, index: usize, then: AfterStep) {
        let Some(peer) = &mut self.slots[index].peer else { return };
        if then != AfterStep::Go {
            peer.then = then;
        }
        let sent = match peer.transport.has_unsent() {
            true => peer.transport.flush(),
            false => Ok(()),
        };
        let sent = sent.and_then(|()| match self.output.is_empty() {
            true => Ok(()),
            false => peer.transport.write(&self.output),
        });
        if sent.is_err() || peer.transport.unsent_bytes() > UNSENT_BYTES_MAX {
            return self.close(index);
        }
        self.output.clear();
        if peer.then == AfterStep::Reset {
            // The reset discards what the socket has not accepted of earlier answers. Setting the option fails only on
            // a dead socket.
            let _ = sockopt::set_socket_linger(&peer.transport.socket, Some(Duration::ZERO));
            return self.close(index);
        }
        if !peer.transport.has_unsent() && peer.then == AfterStep::Finish {
            peer.then = AfterStep::Silence;
            // Sends FIN after the answer, then waits for the client's: closing with unread requests would send a
            // reset, which may overtake the answer (RFC 9112 §9.6).
            peer.transport.finish();
        }
    }

    fn close(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.peer.take().is_some() {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
        }
        self.output.clear();
    }
}
