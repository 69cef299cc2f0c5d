//! `dunlin bench delay`: a proxy that simulates network latency. Bytes are forwarded half a round trip after they
//! arrive, in order.
//!
//! It only delays: it adds no loss and no jitter, and limits throughput only by the bytes it may hold. All bytes have
//! the same delay, so one queue in order of arrival needs a single timer. The proxy accepts connections at once, so
//! opening one costs the client no round trip.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};

use crate::reactor::{
    EVENTS_MAX, Events, Flags, LISTENER, NONBLOCKING, Reactor, TIMER, address_of, listen,
    sleep_exactly, socket,
};
use crate::url::duration;
use crate::{Clock, Context, Error, ExitStatus, say};

/// Size of the receive buffer.
const READ_BYTES: usize = 256 << 10;
/// Limit of bytes in flight in one direction of one connection.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Options of `dunlin bench delay`.
#[derive(Debug, clap::Args)]
pub struct Delay {
    /// Where clients connect
    #[arg(long, default_value = "127.0.0.1:8600")]
    listen: SocketAddr,
    /// The server behind it
    #[arg(long, value_name = "ADDRESS")]
    to: SocketAddr,
    /// Time there and back
    #[arg(long, value_name = "TIME", value_parser = duration)]
    rtt: Duration,
    /// Bytes buffered per direction of a connection; beyond that it stops reading from the sender
    #[arg(long, value_name = "BYTES", default_value_t = HELD_BYTES_MAX)]
    held_bytes_max: usize,
    /// Cores it may run on, e.g. 0 or 0,1
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    core: Vec<usize>,
}

/// Runs the proxy until the process is ended.
///
/// # Errors
/// When it cannot listen.
pub fn run(options: &Delay) -> Result<ExitStatus, Error> {
    crate::system::descriptors_per_thread();
    crate::system::pin(&options.core)
        .map_err(|error| Error::io(format!("cannot run on cores {:?}", options.core), error))?;
    let mut proxy = Proxy::open(options.listen, options.to, options.rtt, options.held_bytes_max)?;
    say(format!("{} leads to {}, {:?} there and back", options.listen, options.to, options.rtt));
    proxy.run()
}

/// Starts a delay proxy to `to` on its own thread, which runs until the process ends. Returns its address.
///
/// # Errors
/// When no port, thread or descriptor is left.
pub fn delay_line(to: SocketAddr, rtt: Duration) -> Result<SocketAddr, Error> {
    let (sender, receiver) = mpsc::channel();
    let running = move || {
        let opened = Proxy::open(([127, 0, 0, 1], 0).into(), to, rtt, HELD_BYTES_MAX);
        let opened = opened.and_then(|proxy| address_of(&proxy.listener).map(|at| (proxy, at)));
        match opened {
            Ok((mut proxy, at)) => {
                let _ = sender.send(Ok(at));
                if let Err(error) = proxy.run() {
                    say(format!("the road to {to} ended: {error}"));
                }
            }
            Err(error) => drop(sender.send(Err(error))),
        }
    };
    let thread = thread::Builder::new().name("delay-line".to_owned());
    thread.spawn(running).context("cannot start a thread")?;
    receiver.recv().map_err(|_| Error::new("the thread of a delay line ended"))?
}

struct Proxy {
    reactor: Reactor,
    listener: OwnedFd,
    to: SocketAddr,
    delay_ns: u64,
    held_bytes_max: usize,
    clock: Clock,
    lines: Vec<Option<Line>>,
    free: Vec<usize>,
    /// Lines that ended in this turn: their slots are reused only once no event of the turn can refer to them.
    closed: Vec<usize>,
    /// Chunks in flight on all lines, in order of arrival and therefore of departure.
    chunks: VecDeque<DelayedChunk>,
    buffer: Vec<u8>,
    spare: Vec<Vec<u8>>,
}

/// A client's connection and the matching one to the server.
struct Line {
    ends: [Side; 2],
    /// Chunks of this line still in flight; its slot is not reused before they are delivered.
    chunks: usize,
    gone: bool,
}

struct Side {
    socket: OwnedFd,
    /// Bytes that arrived for this end and that its socket has not accepted yet.
    unsent: VecDeque<u8>,
    /// Bytes in flight to this end, unsent ones included.
    held: usize,
    /// Whether reading from this end is paused because the other end has reached its limit of held bytes.
    held_back: bool,
    finish: bool,
    /// Whether FIN was read from this end.
    ended: bool,
}

struct DelayedChunk {
    due_ns: u64,
    line: usize,
    /// Index of the receiving end.
    to: usize,
    load: Load,
}

enum Load {
    Bytes(Vec<u8>),
    Fin,
    Reset,
}

impl Proxy {
    fn open(
        address: SocketAddr,
        to: SocketAddr,
        rtt: Duration,
        held_bytes_max: usize,
    ) -> Result<Self, Error> {
        let listener = listen(address, false)?;
        let reactor = Reactor::new()?;
        reactor.watch(&listener, LISTENER, Flags::IN).context("cannot watch the listener")?;
        sleep_exactly()?;
        Ok(Self {
            reactor,
            listener,
            to,
            delay_ns: rtt.as_nanos() as u64 / 2,
            held_bytes_max,
            clock: Clock::new(),
            lines: Vec::new(),
            free: Vec::new(),
            closed: Vec::new(),
            chunks: VecDeque::new(),
            buffer: vec![0; READ_BYTES],
            spare: Vec::new(),
        })
    }

    fn run(&mut self) -> Result<ExitStatus, Error> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            let mut timeout_ns = None;
            if let Some(chunk) = self.chunks.front() {
                let now_ns = self.clock.now_ns();
                if chunk.due_ns > now_ns {
                    self.reactor.wake_at(chunk.due_ns, now_ns)?;
                } else {
                    timeout_ns = Some(0);
                }
            }
            self.reactor.wait(timeout_ns, &mut events)?;
            for event in events.iter() {
                match event {
                    (LISTENER, _) => self.accept(),
                    (TIMER, _) => {}
                    (token, flags) => {
                        let (line, end) = ((token / 2) as usize, (token % 2) as usize);
                        if flags.contains(Flags::OUT) {
                            self.send(line, end);
                        }
                        self.read(line, end);
                    }
                }
            }
            self.deliver();
            for line in std::mem::take(&mut self.closed) {
                self.lines[line] = None;
                self.free.push(line);
            }
        }
    }

    fn accept(&mut self) {
        while let Ok(client) = rustix::net::accept_with(&self.listener, NONBLOCKING) {
            // If the server cannot be reached, the client's connection closes without an answer.
            let Ok(server) = socket(self.to) else { continue };
            let _ = sockopt::set_tcp_nodelay(&client, true);
            let _ = sockopt::set_tcp_nodelay(&server, true);
            match rustix::net::connect(&server, &self.to) {
                Ok(()) | Err(Errno::INPROGRESS) => {}
                Err(_) => continue,
            }
            let line = self.free.pop().unwrap_or(self.lines.len());
            if line == self.lines.len() {
                self.lines.push(None);
            }
            let interest = Flags::IN | Flags::OUT | Flags::ET;
            let watched = [&client, &server].into_iter().zip(0..).all(|(socket, end)| {
                self.reactor.watch(socket, line as u64 * 2 + end, interest).is_ok()
            });
            if !watched {
                self.free.push(line);
                continue;
            }
            let end = |socket| Side {
                socket,
                unsent: VecDeque::new(),
                held: 0,
                held_back: false,
                finish: false,
                ended: false,
            };
            self.lines[line] =
                Some(Line { ends: [end(client), end(server)], chunks: 0, gone: false });
        }
    }

    /// Reads from one end until it has no more, or the other end has reached its limit of held bytes.
    fn read(&mut self, index: usize, from: usize) {
        let to = 1 - from;
        loop {
            let Some(Some(line)) = self.lines.get_mut(index) else { return };
            if line.gone || line.ends[from].ended {
                return;
            }
            if line.ends[to].held >= self.held_bytes_max {
                line.ends[from].held_back = true;
                return;
            }
            let load = match rustix::net::recv(
                &line.ends[from].socket,
                &mut *self.buffer,
                RecvFlags::empty(),
            ) {
                Ok((_, 0)) => {
                    line.ends[from].ended = true;
                    Load::Fin
                }
                Ok((_, length)) => {
                    line.ends[to].held += length;
                    let mut bytes = self.spare.pop().unwrap_or_default();
                    bytes.extend_from_slice(&self.buffer[..length]);
                    Load::Bytes(bytes)
                }
                Err(Errno::AGAIN | Errno::NOTCONN) => return,
                Err(Errno::INTR) => continue,
                Err(_) => {
                    line.ends[from].ended = true;
                    Load::Reset
                }
            };
            line.chunks += 1;
            let due_ns = self.clock.now_ns() + self.delay_ns;
            self.chunks.push_back(DelayedChunk { due_ns, line: index, to, load });
        }
    }

    /// Delivers the chunks that are due.
    fn deliver(&mut self) {
        let now_ns = self.clock.now_ns();
        while self.chunks.front().is_some_and(|chunk| chunk.due_ns <= now_ns) {
            let Some(DelayedChunk { line: index, to, load, .. }) = self.chunks.pop_front() else {
                return;
            };
            let Some(line) = &mut self.lines[index] else { continue };
            line.chunks -= 1;
            if line.gone {
                if line.chunks == 0 {
                    self.closed.push(index);
                }
                continue;
            }
            match load {
                Load::Bytes(mut bytes) => {
                    line.ends[to].unsent.extend(&bytes);
                    bytes.clear();
                    if self.spare.len() < 1024 {
                        self.spare.push(bytes);
                    }
                }
                Load::Fin => line.ends[to].finish = true,
                Load::Reset => {
                    // Fails only on a dead socket.
                    let _ = sockopt::set_socket_linger(&line.ends[to].socket, Some(Duration::ZERO));
                    self.end(index);
                    continue;
                }
            }
            self.send(index, to);
        }
    }

    fn send(&mut self, index: usize, to: usize) {
        let Some(Some(line)) = self.lines.get_mut(index) else { return };
        let end = &mut line.ends[to];
        while !end.unsent.is_empty() {
            match rustix::net::send(&end.socket, end.unsent.as_slices().0, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    end.unsent.drain(..sent);
                    end.held -= sent;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOTCONN) => return,
                // The other end is ended when a read of this one reports the reset.
                Err(_) => {
                    end.held -= end.unsent.len();
                    end.unsent.clear();
                }
            }
        }
        if end.finish {
            end.finish = false;
            let _ = rustix::net::shutdown(&end.socket, Shutdown::Write);
            // Both directions have ended, and all bytes were delivered.
            if line.ends.iter().all(|end| end.ended && !end.finish && end.unsent.is_empty())
                && line.chunks == 0
            {
                return self.end(index);
            }
        }
        let from = 1 - to;
        if let Some(Some(line)) = self.lines.get_mut(index)
            && line.ends[from].held_back
            && line.ends[to].held < self.held_bytes_max
        {
            line.ends[from].held_back = false;
            self.read(index, from);
        }
    }

    fn end(&mut self, index: usize) {
        let Some(Some(line)) = self.lines.get_mut(index) else { return };
        if line.gone {
            return;
        }
        line.gone = true;
        for end in &mut line.ends {
            end.unsent = VecDeque::new();
            // Both close with the line, whose slot stays until its chunks are delivered.
            self.reactor.forget(&end.socket);
        }
        if line.chunks == 0 {
            self.closed.push(index);
        }
    }
}
