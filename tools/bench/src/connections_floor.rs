//! The floor of many connections on this kernel: only the system calls that accept, ping and send to them.
//!
//! A thread accepts, answers any GET with 101 and the first frame of a client with prebuilt replies to a connect and a
//! subscribe. It sends each client a ping at an interval and reads the answer without looking at it. `POST` to any path sends
//! one prebuilt message to every client, one `send()` each. There is no parsing, no session, no queue and no timer per
//! connection. Clients are those of `dunlin bench connections`, so that its figures stand beside those of a server.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::protocol::WEBSOCKET_ACCEPT;
use crate::swarm::{SEQUENCE_DIGITS, SEQUENCE_MARK};
use dunlin_load::reactor::{EVENTS_MAX, Events, Flags, LISTENER, NONBLOCKING, Reactor, listen};
use dunlin_load::url::duration;
use dunlin_load::{Context, Error, ExitStatus};

/// Pings that leave together, as many as a worker of Dunlin sends in a group.
const PING_GROUP: usize = 64;
/// The token of a thread's doorbell.
const DOORBELL: u64 = LISTENER - 1;
/// A ping of the Centrifugal protocol, in a WebSocket frame.
const PING: &[u8] = b"\x81\x02{}";
const PUBLISHED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"result\":{}}";

/// Options of `dunlin bench connections-floor`.
#[derive(Debug, clap::Args)]
pub struct ConnectionsFloor {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8300")]
    pub listen: SocketAddr,
    /// Threads, each with a listener and a descriptor table of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Interval at which each client is pinged
    #[arg(long, value_name = "INTERVAL", default_value = "25s", value_parser = duration)]
    pub ping: Duration,
    /// Read the answers of clients only at multiples of this time, as `server.coalesce_ms` does
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub coalesce: Option<Duration>,
    /// Payload of a message, bytes
    #[arg(long, default_value_t = 109, value_parser = clap::value_parser!(u16).range(60..=125))]
    pub message_bytes: u16,
}

pub(crate) fn run(options: &ConnectionsFloor) -> Result<ExitStatus, Error> {
    dunlin_load::system::descriptors_per_thread();
    let doorbell = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
    let doorbells: Result<Vec<OwnedFd>, Errno> = (0..options.threads).map(|_| doorbell()).collect();
    let publishes = Arc::new(Publishes {
        number: AtomicU32::new(0),
        doorbells: doorbells.context("cannot open an eventfd for each thread")?,
    });
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..usize::from(options.threads))
            .map(|index| {
                let publishes = publishes.clone();
                scope.spawn(move || FloorThread::new(options, &publishes, index)?.run())
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| Error::new("a thread of the floor has panicked"))??;
        }
        Ok(ExitStatus::Passed)
    })
}

/// The number of messages published so far, and how each thread is woken for another.
struct Publishes {
    number: AtomicU32,
    doorbells: Vec<OwnedFd>,
}

impl Publishes {
    fn publish(&self) {
        self.number.fetch_add(1, Ordering::Relaxed);
        for doorbell in &self.doorbells {
            // Fails only if the thread has already been woken.
            let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
        }
    }
}

struct Connection {
    socket: OwnedFd,
    /// Connect and subscribe have been answered.
    greeted: bool,
}

struct FloorThread<'a> {
    publishes: &'a Publishes,
    index: usize,
    ping_interval: Duration,
    coalesce: Option<Duration>,
    message_bytes: usize,
    reactor: Reactor,
    listener: OwnedFd,
    connections: Vec<Option<Connection>>,
    /// Messages sent to all clients of this thread.
    sent: u32,
    /// The connection to ping next, and when the last group was due.
    ping_next: usize,
    pinged_at: Instant,
}

impl<'a> FloorThread<'a> {
    fn new(
        options: &ConnectionsFloor,
        publishes: &'a Publishes,
        index: usize,
    ) -> Result<Self, Error> {
        dunlin_load::system::copied_descriptor_table()
            .context("cannot give a thread its own descriptors")?;
        let listener = listen(options.listen, true)?;
        let reactor = Reactor::new()?;
        let unwatched = "cannot watch a socket";
        reactor.watch(&listener, LISTENER, Flags::IN).context(unwatched)?;
        reactor.watch(&publishes.doorbells[index], DOORBELL, Flags::IN).context(unwatched)?;
        Ok(Self {
            publishes,
            index,
            ping_interval: options.ping,
            coalesce: options.coalesce,
            message_bytes: options.message_bytes.into(),
            reactor,
            listener,
            connections: Vec::new(),
            sent: 0,
            ping_next: 0,
            pinged_at: Instant::now(),
        })
    }

    fn run(mut self) -> Result<(), Error> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let timeout = self.until_ping();
            let ready =
                self.reactor.wait(timeout.map(|time| time.as_nanos() as u64), &mut events)?;
            let mut opening = false;
            for (token, _) in events.iter() {
                match token {
                    LISTENER => {
                        self.accept()?;
                        opening = true;
                    }
                    DOORBELL => {
                        let _ =
                            rustix::io::read(&self.publishes.doorbells[self.index], &mut [0; 8]);
                    }
                    _ => opening |= self.read(token as usize, &mut buffer),
                }
            }
            self.send_messages();
            self.send_pings();
            if let Some(coalesce) = self.coalesce.filter(|_| ready > 0 && !opening) {
                std::thread::sleep(self.until_ping().map_or(coalesce, |time| time.min(coalesce)));
            }
        }
    }

    fn accept(&mut self) -> Result<(), Error> {
        while let Ok(socket) = rustix::net::accept_with(&self.listener, NONBLOCKING) {
            let token = self.connections.len() as u64;
            self.reactor.watch(&socket, token, Flags::IN).context("cannot watch a socket")?;
            self.connections.push(Some(Connection { socket, greeted: false }));
        }
        Ok(())
    }

    /// Answers what a connection has sent. Returns whether it was part of the opening.
    fn read(&mut self, place: usize, buffer: &mut [u8]) -> bool {
        let Some(entry) = self.connections.get_mut(place) else { return false };
        let Some(connection) = entry else { return false };
        match rustix::io::read(&connection.socket, &mut *buffer) {
            Ok(length @ 1..) if buffer[..length].starts_with(b"GET ") => {
                let upgrade = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                     Sec-WebSocket-Accept: {WEBSOCKET_ACCEPT}\r\n\r\n"
                );
                send(&connection.socket, upgrade.as_bytes());
                true
            }
            Ok(length @ 1..) if buffer[..length].starts_with(b"POST ") => {
                send(&connection.socket, PUBLISHED);
                self.publishes.publish();
                true
            }
            // The answer to a ping.
            Ok(1..) if connection.greeted => false,
            Ok(1..) => {
                connection.greeted = true;
                send(&connection.socket, &replies(self.ping_interval));
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            Ok(0) | Err(_) => {
                *entry = None;
                true
            }
        }
    }

    fn send_messages(&mut self) {
        let number = self.publishes.number.load(Ordering::Relaxed);
        while self.sent < number {
            self.sent += 1;
            let message = message(self.sent, self.message_bytes);
            for connection in self.connections.iter().flatten().filter(|one| one.greeted) {
                send(&connection.socket, &message);
            }
        }
    }

    /// Returns the time between two groups of pings; `None` without connections.
    fn ping_span(&self) -> Option<Duration> {
        let groups = self.connections.len().div_ceil(PING_GROUP) as u32;
        self.ping_interval.checked_div(groups)
    }

    /// Returns the time until the next group of pings, which are spread over the interval; `None` without connections.
    fn until_ping(&self) -> Option<Duration> {
        Some(self.ping_span()?.saturating_sub(self.pinged_at.elapsed()))
    }

    fn send_pings(&mut self) {
        if self.until_ping().is_none_or(|time| !time.is_zero()) {
            return;
        }
        // Counted from when the group was due: lateness must not add up to a longer interval.
        let (now, span) = (Instant::now(), self.ping_span().unwrap_or_default());
        self.pinged_at = (self.pinged_at + span).max(now.checked_sub(span).unwrap_or(now));
        for _ in 0..PING_GROUP.min(self.connections.len()) {
            if self.ping_next >= self.connections.len() {
                self.ping_next = 0;
            }
            if let Some(connection) = &self.connections[self.ping_next]
                && connection.greeted
            {
                send(&connection.socket, PING);
            }
            self.ping_next += 1;
        }
    }
}

/// Ignores errors and short writes: the generator counts, and reports what is missing.
fn send(socket: impl AsFd, bytes: &[u8]) {
    let _ = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL);
}

/// Returns the replies to a connect and a subscribe, in one frame.
fn replies(ping: Duration) -> Vec<u8> {
    let replies = format!(
        "{{\"id\":1,\"connect\":{{\"client\":\"1\",\"ping\":{},\"pong\":true}}}}\n{{\"id\":2,\"subscribe\":{{}}}}",
        ping.as_secs()
    );
    frame(replies.as_bytes())
}

/// Returns a publication with this number, padded to `bytes`.
fn message(number: u32, bytes: usize) -> Vec<u8> {
    let mut text = format!(
        "{{\"push\":{{\"pub\":{{\"data\":{{{SEQUENCE_MARK}{number:0SEQUENCE_DIGITS$}\",\"pad\":\""
    );
    const END: &str = "\"}}}}";
    let pad = bytes.saturating_sub(text.len() + END.len());
    text.extend(std::iter::repeat_n('y', pad));
    text.push_str(END);
    frame(text.as_bytes())
}

/// Returns a text frame of at most 125 bytes (RFC 6455 §5.2).
fn frame(payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() <= 125, "a longer payload has another header");
    let mut frame = vec![0x81, payload.len() as u8];
    frame.extend_from_slice(payload);
    frame
}

#[cfg(test)]
mod tests {
    use dunlin_load::Clock;

    use super::*;
    use crate::protocol::{Protocol, ProtocolName};
    use crate::swarm::{Ping, Plan, Swarm};

    #[test]
    fn a_message_has_the_length_that_is_asked_for() {
        let frame = message(7, 109);
        assert_eq!(frame.len(), 111);
        assert!(String::from_utf8_lossy(&frame[2..]).contains("\"seq\":\"0000000007\""));
        assert_eq!(message(7, 60).len(), message(8_000_000, 60).len());
        assert!(replies(Duration::from_secs(100)).len() <= 127);
    }

    #[test]
    fn clients_of_the_bench_are_connected_pinged_and_sent_a_message() {
        let probe = listen(SocketAddr::from(([127, 0, 0, 1], 0)), false).unwrap();
        let name = rustix::net::getsockname(&probe).unwrap();
        let address = SocketAddr::try_from(name).unwrap();
        drop(probe);
        let options = ConnectionsFloor {
            listen: address,
            threads: 2,
            ping: Duration::from_millis(200),
            coalesce: Some(Duration::from_millis(1)),
            message_bytes: 109,
        };
        // Ends with the process.
        std::thread::spawn(move || run(&options));
        let plan = Plan {
            server: address,
            protocol: Protocol {
                name: ProtocolName::Centrifuge,
                host: address.to_string(),
                path: "/connection/websocket".into(),
                channel: Some("c".into()),
                hello: None,
                tokens: Arc::default(),
                delta: false,
                join_leave: false,
            },
            connections: 20,
            tls: None,
            threads: 1,
            cores: Vec::new(),
            connects_per_second: None,
            opening_max: 16,
            sources: None,
            ping: Ping::ExpectEvery(Duration::from_secs(60)),
            departures: None,
            clock: Clock::new(),
        };
        let swarm = Swarm::start(&plan).unwrap();
        let counts = swarm.wait_ready(Duration::from_secs(30), |_| {}).unwrap();
        assert_eq!(counts.ready, 20);
        while swarm.counts().pings < 40 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut stream, b"POST /api/publish HTTP/1.1\r\n\r\n").unwrap();
        let counts = swarm.wait_publications(20, Duration::from_secs(30), |_| {});
        assert_eq!(counts.publications, 20);
        assert_eq!(swarm.finish(1).unwrap().complete, 20);
    }
}
