//! A thread of the test server: one listener, one epoll instance, one buffer to read into and one to send from.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};
use rustls::{ServerConfig, ServerConnection};

use super::answer::Then;
use super::connection::{Connection, Outcome, Shared};
use crate::reactor::{ENDS, Flags, LISTENER, NONBLOCKING, Reactor, STREAM};
use crate::{Clock, Context, Error};

/// Read at once: what a hundred pipelined requests of a hundred connections leave in one socket, many times over.
const READ_BYTES: usize = 256 << 10;
/// What a client that does not read may leave unsent before its connection is reset.
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

/// A place for a connection. Its generation distinguishes timers of the connection before from those of this.
#[derive(Default)]
struct Slot {
    generation: u32,
    peer: Option<Peer>,
}

struct Peer {
    socket: OwnedFd,
    tls: Option<Box<ServerConnection>>,
    connection: Connection,
    unsent: Vec<u8>,
    /// What follows the bytes in `unsent`.
    then: Then,
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
        loop {
            let due_ns = self.timers.peek().map(|Reverse((due_ns, ..))| *due_ns);
            let timeout_ns = due_ns.map(|due_ns| due_ns.saturating_sub(self.clock.now_ns()));
            for event in 0..self.reactor.wait(timeout_ns)? {
                match self.reactor.event(event) {
                    (LISTENER, _) => self.accept(),
                    (index, flags) => self.serve(index as usize, flags)?,
                }
            }
            self.expire()?;
        }
    }

    fn accept(&mut self) {
        // Whatever is wrong with one connection is no reason to refuse the next.
        while let Ok(socket) = rustix::net::accept_with(&self.listener, NONBLOCKING) {
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let tls = match &self.tls {
                None => None,
                Some(config) => match ServerConnection::new(Arc::clone(config)) {
                    Ok(tls) => Some(Box::new(tls)),
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
                socket,
                tls,
                connection: Connection::default(),
                unsent: Vec::new(),
                then: Then::Go,
                timer_ns: 0,
            });
        }
    }

    fn serve(&mut self, index: usize, flags: Flags) -> Result<(), Error> {
        if flags.contains(Flags::OUT)
            && self.slots[index].peer.as_ref().is_some_and(|peer| !peer.unsent.is_empty())
        {
            self.send(index, Then::Go);
        }
        if !flags.intersects(Flags::IN | Flags::HUP | Flags::ERR) {
            return Ok(());
        }
        loop {
            let Some(peer) = &mut self.slots[index].peer else { return Ok(()) };
            // What was cut stands in front of what is read now, so that a request is one piece.
            let cut = peer.connection.cut.len();
            if self.input.len() < cut + READ_BYTES {
                self.input.resize(cut + READ_BYTES, 0);
            }
            self.input[..cut].copy_from_slice(&peer.connection.cut);
            let room = self.input.len();
            let read = match &mut peer.tls {
                None => match rustix::net::recv(
                    &peer.socket,
                    &mut self.input[cut..],
                    RecvFlags::empty(),
                ) {
                    Ok((_, length)) => Ok(length),
                    Err(error) => Err(error),
                },
                Some(tls) => read_tls(tls, &peer.socket, &mut self.input[cut..]),
            };
            let length = match read {
                Ok(0) | Err(Errno::CONNRESET | Errno::PIPE | Errno::PROTO) => {
                    self.close(index);
                    return Ok(());
                }
                Ok(length) => length,
                Err(Errno::AGAIN) => {
                    self.send(index, Then::Go);
                    return Ok(());
                }
                Err(Errno::INTR) => continue,
                Err(_) => {
                    self.close(index);
                    return Ok(());
                }
            };
            // TLS hands out one record at a time, so that only a plain read can be known to be the last.
            let last = peer.tls.is_none() && cut + length < room && !flags.intersects(ENDS);
            self.take(index, cut + length)?;
            if last {
                return Ok(());
            }
        }
    }

    /// Gives `length` bytes of the input to their connection, and sends what that makes of them.
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

    /// Sends what may leave by now, and sets the timer for the rest.
    fn advance(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let Some(peer) = &mut slot.peer else { return };
        let (then, due) = if peer.connection.script.is_empty() {
            (Then::Go, None)
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

    /// Sends the output behind what is unsent, and then ends the connection if `then` says so.
    fn send(&mut self, index: usize, then: Then) {
        let Some(peer) = &mut self.slots[index].peer else { return };
        if then != Then::Go {
            peer.then = then;
        }
        if let Some(tls) = &mut peer.tls {
            // Bounded by UNSENT_BYTES_MAX below: rustls keeps what it is given.
            tls.set_buffer_limit(None);
            if !self.output.is_empty() && tls.writer().write_all(&self.output).is_err() {
                return self.close(index);
            }
            self.output.clear();
            while tls.wants_write() {
                if tls.write_tls(&mut self.output).is_err() {
                    return self.close(index);
                }
            }
        }
        let mut sent = 0;
        if peer.unsent.is_empty() {
            sent = send_some(&peer.socket, &self.output);
        } else {
            let before = send_some(&peer.socket, &peer.unsent);
            peer.unsent.drain(..before);
        }
        peer.unsent.extend_from_slice(&self.output[sent..]);
        self.output.clear();
        if peer.unsent.len() > UNSENT_BYTES_MAX {
            return self.close(index);
        }
        if peer.then == Then::Reset {
            // Answers before it have been sent as far as the socket took them; a reset takes the rest along.
            // Refused only by a socket that is gone already.
            let _ = sockopt::set_socket_linger(&peer.socket, Some(Duration::ZERO));
            return self.close(index);
        }
        if peer.unsent.is_empty() && peer.then == Then::Finish {
            peer.then = Then::Silence;
            // FIN behind the answer, then wait for the client's: to close with requests unread would be a reset, and
            // a reset may overtake the answer (RFC 9112 §9.6).
            if let Some(tls) = &mut peer.tls {
                tls.send_close_notify();
                let mut notify = Vec::new();
                while tls.wants_write() && tls.write_tls(&mut notify).is_ok() {}
                send_some(&peer.socket, &notify);
            }
            let _ = rustix::net::shutdown(&peer.socket, Shutdown::Write);
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

/// How much of `bytes` the socket took. An error shows itself at the next read.
fn send_some(socket: &OwnedFd, bytes: &[u8]) -> usize {
    let mut sent = 0;
    while sent < bytes.len() {
        match rustix::net::send(socket, &bytes[sent..], SendFlags::NOSIGNAL) {
            Ok(length) => sent += length,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(_) => return bytes.len(),
        }
    }
    sent
}

/// Reads plain text: what is there already, else what one read of the socket brings.
fn read_tls(tls: &mut ServerConnection, socket: &OwnedFd, into: &mut [u8]) -> Result<usize, Errno> {
    struct Socket<'a>(&'a OwnedFd);
    impl Read for Socket<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            Ok(rustix::net::recv(self.0, into, RecvFlags::empty())?.1)
        }
    }
    loop {
        match tls.reader().read(into) {
            Ok(length) => return Ok(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Ok(0),
        }
        match tls.read_tls(&mut Socket(socket)) {
            Ok(0) => return Ok(0),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(Errno::AGAIN),
            Err(_) => return Err(Errno::CONNRESET),
        }
        if tls.process_new_packets().is_err() {
            // The alert that says why goes out with the next write; a test server may be brief.
            let mut alert = Vec::new();
            while tls.wants_write() && tls.write_tls(&mut alert).is_ok() {}
            send_some(socket, &alert);
            return Err(Errno::PROTO);
        }
    }
}
