//! The loop of one thread of the swarm.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::client::{Client, State};
use super::counters::Counts;
use super::order::{Faults, OrderChecker};
use super::scan::{Scan, Scanner};
use super::{Departures, Ping, Plan, Shared, Tally, new_histogram};
use crate::protocol::{ProtocolName, WEBSOCKET_ACCEPT, websocket_frame};
use dunlin_load::reactor::{ENDS, EVENTS_MAX, Events, Flags, Reactor, STREAM, socket};
use dunlin_load::{Context, Error};

/// Receive buffer shared by all clients of the thread. Data that does not fit stays in the socket for the next `read`.
const RECEIVE_BYTES: usize = 64 << 10;
/// A client that is not ready after this long is closed and retried.
const OPENING_TIMEOUT_S: u32 = 30;
const ATTEMPTS_MAX: u8 = 5;
const RETRY_AFTER_NS: u64 = 1_000_000_000;
const SWEEP_EVERY_NS: u64 = 2_000_000_000;
/// An HTTP response head longer than this is an error.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// With more connections than this, they are reset at the end, because the kernel keeps no more of them in TIME_WAIT.
const GENTLE_CLOSES_MAX: usize = 50_000;

pub(crate) fn run(
    plan: &Plan,
    shared: &Arc<Shared>,
    index: usize,
    threads: usize,
    numbers: Range<usize>,
) -> Result<Outcome, Error> {
    dunlin_load::system::own_descriptor_table()
        .context("cannot give a thread its own descriptor table")?;
    dunlin_load::system::pin(&plan.cores)
        .context(format!("cannot run on cores {:?}", plan.cores))?;
    let mut thread = Thread {
        reactor: Reactor::new()?,
        scanner: Some(Box::new(Scanner::new(plan.protocol.framing()))),
        threads,
        clients: std::iter::repeat_with(|| Client::WAITING).take(numbers.len()).collect(),
        numbers: numbers.clone(),
        next: 0,
        retries: VecDeque::new(),
        opening: 0,
        carries: Vec::new(),
        carries_free: Vec::new(),
        scratch: Vec::new(),
        sessions: std::iter::repeat_with(|| None)
            .take(if plan.tls.is_some() { numbers.len() } else { 0 })
            .collect(),
        plain: Vec::new(),
        records: Vec::new(),
        needed: plan.protocol.needed(),
        start_ns: plan.clock.now_ns(),
        now_ns: plan.clock.now_ns(),
        swept_ns: 0,
        ping_cursor: 0,
        counts: Counts::default(),
        ledger: OrderChecker::default(),
        reasons: BTreeMap::new(),
        departures: plan.departures.clone(),
        latencies: plan.departures.is_some().then(new_histogram),
        plan,
    };
    let counters = &shared.counters[index];
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut events = Events::with_capacity(EVENTS_MAX);
    loop {
        thread.dial()?;
        let awake = shared.awake.load(Ordering::Acquire);
        let coalesce_ns = shared.coalesce_ns.load(Ordering::Acquire);
        let timeout_ns = match awake {
            false if coalesce_ns > 0 => {
                sleep_to_multiple(plan.clock.now_ns(), coalesce_ns);
                0
            }
            false => thread.timeout_ns(),
            true => 0,
        };
        let ready = thread.reactor.wait(Some(timeout_ns), &mut events)?;
        if awake && ready == 0 {
            // The publisher may be waiting for this core.
            std::thread::yield_now();
        }
        thread.now_ns = plan.clock.now_ns();
        for (token, flags) in events.iter() {
            thread.on_event(token as usize, flags, &mut buffer);
        }
        thread.send_pings();
        thread.sweep();
        counters.store(&thread.counts);
        if let Some((reason, _)) = thread.reasons.first_key_value() {
            counters.note_failure(reason);
        }
        if shared.stop.load(Ordering::Acquire) {
            return Ok(thread.finish());
        }
    }
}

/// Sleeps until the clock reaches a multiple of `interval_ns`, without waiting for any socket.
fn sleep_to_multiple(now_ns: u64, interval_ns: u64) {
    std::thread::sleep(Duration::from_nanos(interval_ns - now_ns % interval_ns));
}

struct Thread<'a> {
    plan: &'a Plan,
    reactor: Reactor,
    /// `None` while one of its scans is being processed.
    scanner: Option<Box<Scanner>>,
    threads: usize,
    /// Numbers of this thread's clients in the swarm: client `i` of the thread has number `numbers.start + i`.
    numbers: Range<usize>,
    clients: Vec<Client>,
    /// The first client that has not connected yet.
    next: usize,
    /// Clients to reconnect, and when.
    retries: VecDeque<(u32, u64)>,
    opening: usize,
    /// Buffers of incomplete messages; freed ones keep their memory for reuse.
    carries: Vec<Vec<u8>>,
    carries_free: Vec<u16>,
    scratch: Vec<u8>,
    /// TLS session of each client; empty without TLS.
    sessions: Vec<Option<Box<ClientConnection>>>,
    /// Decrypted bytes received by TLS, and encrypted records to send.
    plain: Vec<u8>,
    records: Vec<u8>,
    needed: u8,
    start_ns: u64,
    now_ns: u64,
    swept_ns: u64,
    /// Pings sent so far, which also determines whom to ping next.
    ping_cursor: u64,
    counts: Counts,
    ledger: OrderChecker,
    reasons: BTreeMap<String, u64>,
    departures: Option<Arc<Departures>>,
    latencies: Option<Histogram<u64>>,
}

impl Thread<'_> {
    /// Connects as many clients as the rate and the window allow now.
    fn dial(&mut self) -> Result<(), Error> {
        // Few per turn: connecting must not delay clients that are already connected.
        const SLICE: usize = 64;
        let window = (self.plan.opening_max / self.threads).max(1);
        for _ in 0..SLICE {
            if self.opening >= window {
                break;
            }
            let now_ns = self.plan.clock.now_ns();
            let index = match self.retries.front() {
                Some(&(index, at_ns)) if at_ns <= now_ns => {
                    self.retries.pop_front();
                    index as usize
                }
                _ if self.next < self.clients.len() && self.next_dial_ns() <= now_ns => {
                    self.next += 1;
                    self.next - 1
                }
                _ => break,
            };
            self.connect(index)?;
        }
        Ok(())
    }

    /// Returns when the next client not yet dialled is due.
    fn next_dial_ns(&self) -> u64 {
        let Some(rate) = self.plan.connects_per_second else { return 0 };
        let position = (self.next * self.threads) as u64;
        self.start_ns + position * 1_000_000_000 / u64::from(rate.max(1))
    }

    fn connect(&mut self, index: usize) -> Result<(), Error> {
        let socket = socket(self.plan.server)
            .context("cannot open another socket; `dunlin check` says which limit is too low")?;
        if let Some(source) = self.plan.source(self.numbers.start + index) {
            dunlin_load::system::bind_source(socket.as_fd(), source)
                .context(format!("cannot connect from {source}; use --sources none"))?;
        }
        if let Some(config) = &self.plan.tls {
            let name = ServerName::from(self.plan.server.ip());
            let session = ClientConnection::new(Arc::clone(config), name);
            let session =
                session.map_err(|error| Error::new(format!("cannot begin TLS: {error}")))?;
            self.sessions[index] = Some(Box::new(session));
        }
        let client = &mut self.clients[index];
        client.state = State::Connecting;
        client.heard_s = second(self.now_ns);
        client.answered = 0;
        self.opening += 1;
        let refused = match rustix::net::connect(&socket, &self.plan.server) {
            Ok(()) | Err(Errno::INPROGRESS) => None,
            Err(error) => Some(error),
        };
        self.reactor.watch(&socket, index as u64, STREAM).context("cannot watch another socket")?;
        client.socket = Some(socket);
        if let Some(error) = refused {
            self.lose(index, &format!("connect: {error}"));
        }
        Ok(())
    }

    /// Returns how long the thread may wait for events.
    fn timeout_ns(&self) -> u64 {
        const IDLE_NS: u64 = 250_000_000;
        let mut wait_ns = IDLE_NS;
        let now_ns = self.plan.clock.now_ns();
        let window = (self.plan.opening_max / self.threads).max(1);
        if self.opening < window {
            if self.next < self.clients.len() {
                wait_ns = wait_ns.min(self.next_dial_ns().saturating_sub(now_ns));
            }
            if let Some(&(_, at_ns)) = self.retries.front() {
                wait_ns = wait_ns.min(at_ns.saturating_sub(now_ns));
            }
        }
        if let Ping::SendEvery(interval) = self.plan.ping {
            let due_ns = self.ping_due_ns(interval, self.ping_cursor);
            wait_ns = wait_ns.min(due_ns.saturating_sub(now_ns).max(1_000_000));
        }
        // Rounded up to whole milliseconds: epoll_wait has no finer unit, and rounding down would spin.
        wait_ns.next_multiple_of(1_000_000)
    }

    fn on_event(&mut self, index: usize, flags: Flags, buffer: &mut [u8]) {
        let Some(client) = self.clients.get_mut(index) else { return };
        let Some(socket) = &client.socket else { return };
        if client.state == State::Connecting {
            if flags.intersects(Flags::ERR | Flags::HUP) {
                let error = match rustix::net::sockopt::socket_error(socket) {
                    Ok(Err(error)) | Err(error) => io::Error::from(error).to_string(),
                    Ok(Ok(())) => "closed".into(),
                };
                return self.lose(index, &format!("connect: {error}"));
            }
            if !flags.contains(Flags::OUT) {
                return;
            }
            client.state =
                if self.plan.protocol.opens_with_http() { State::Opening } else { State::Greeting };
            let mut opening = std::mem::take(&mut self.scratch);
            opening.clear();
            self.plan.protocol.opening(self.numbers.start + index, &mut opening);
            self.send(index, &opening);
            self.scratch = opening;
        }
        if flags.intersects(Flags::IN | ENDS) {
            self.receive(index, buffer, flags.intersects(ENDS));
        }
    }

    fn receive(&mut self, index: usize, buffer: &mut [u8], to_the_end: bool) {
        while let Some(socket) = &self.clients[index].socket {
            match rustix::io::read(socket, &mut *buffer) {
                Ok(0) => return self.lose(index, "closed by the server"),
                Ok(length) => {
                    if self.sessions.is_empty() {
                        self.on_bytes(index, &buffer[..length]);
                    } else {
                        self.on_records(index, &buffer[..length]);
                    }
                    // Edge-triggered: a short read has emptied the socket, and later data is a new edge. This does not
                    // hold for the end of the stream, whose edge may have come with this event.
                    if length < buffer.len() && !to_the_end {
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(error) => {
                    return self.lose(index, &format!("receive: {}", io::Error::from(error)));
                }
            }
        }
    }

    /// Decrypts the TLS records received.
    fn on_records(&mut self, index: usize, mut records: &[u8]) {
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        while let Some(session) = self.sessions[index].as_mut().filter(|_| !records.is_empty()) {
            let opened = session.read_tls(&mut records).and_then(|_| {
                let state = session.process_new_packets().map_err(io::Error::other)?;
                let at = plain.len();
                plain.resize(at + state.plaintext_bytes_to_read(), 0);
                session.reader().read_exact(&mut plain[at..])
            });
            if let Err(error) = opened {
                self.lose(index, &format!("TLS: {error}"));
            }
        }
        self.send_records(index);
        if !plain.is_empty() {
            self.on_bytes(index, &plain);
        }
        self.plain = plain;
    }

    /// Sends the pending TLS records.
    fn send_records(&mut self, index: usize) {
        let Some(Some(session)) = self.sessions.get_mut(index) else { return };
        let mut records = std::mem::take(&mut self.records);
        records.clear();
        // Writing to memory does not fail.
        while session.wants_write() && session.write_tls(&mut records).is_ok() {}
        if !records.is_empty() {
            self.send_bytes(index, &records);
        }
        self.records = records;
    }

    fn on_bytes(&mut self, index: usize, bytes: &[u8]) {
        self.counts.received_bytes += bytes.len() as u64;
        let client = &mut self.clients[index];
        client.heard_s = second(self.now_ns);
        if client.carry == 0 {
            let consumed = self.take(index, bytes);
            if consumed < bytes.len() && self.clients[index].socket.is_some() {
                let carry = self.new_carry();
                self.carries[usize::from(carry) - 1].extend_from_slice(&bytes[consumed..]);
                self.clients[index].carry = carry;
            }
            return;
        }
        let carry = client.carry;
        let mut cut = std::mem::take(&mut self.carries[usize::from(carry) - 1]);
        cut.extend_from_slice(bytes);
        let consumed = self.take(index, &cut);
        cut.drain(..consumed);
        let done = cut.is_empty() || self.clients[index].socket.is_none();
        if done {
            cut.clear();
            self.clients[index].carry = 0;
            self.carries_free.push(carry);
        }
        self.carries[usize::from(carry) - 1] = cut;
    }

    /// Returns the number, from 1, of an empty buffer for a cut message. There are never more buffers than clients,
    /// at most `CLIENTS_PER_THREAD_MAX`.
    fn new_carry(&mut self) -> u16 {
        self.carries_free.pop().unwrap_or_else(|| {
            self.carries.push(Vec::new());
            self.carries.len() as u16
        })
    }

    /// Processes the complete messages in `bytes` and returns their length.
    fn take(&mut self, index: usize, bytes: &[u8]) -> usize {
        let mut at = 0;
        if self.clients[index].state == State::Opening {
            let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else {
                if bytes.len() > HEAD_BYTES_MAX {
                    self.lose(index, "a response head without end");
                }
                return 0;
            };
            at = end + 4;
            if let Err(reason) = self.check_head(&bytes[..at]) {
                // 503 and other 5xx may be temporary.
                if bytes.starts_with(b"HTTP/1.1 5") {
                    self.lose(index, &reason);
                } else {
                    self.refuse(index, &reason);
                }
                return at;
            }
            self.clients[index].state = State::Greeting;
            let mut greeting = std::mem::take(&mut self.scratch);
            greeting.clear();
            self.plan.protocol.greeting(self.numbers.start + index, &mut greeting);
            if !greeting.is_empty() {
                self.send(index, &greeting);
            }
            self.scratch = greeting;
            self.become_ready(index);
        }
        if at == bytes.len() || self.clients[index].socket.is_none() {
            return at;
        }
        // The scan stays in the scanner for the next client; its results are applied here.
        let Some(mut scanner) = self.scanner.take() else { return at };
        let scan = scanner.scan(&bytes[at..]);
        self.carry_out(index, scan);
        let consumed = scan.consumed;
        self.scanner = Some(scanner);
        at + consumed
    }

    fn check_head(&self, head: &[u8]) -> Result<(), String> {
        let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
        if !head.starts_with(self.plan.protocol.opening_status()) {
            return Err(format!("answered {}", String::from_utf8_lossy(line)));
        }
        // The floor answers without this header; a server that sends it must send the right value.
        const NAME: &str = "sec-websocket-accept:";
        let text = String::from_utf8_lossy(head);
        let accept = text.split("\r\n").find(|line| {
            line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME))
        });
        match accept {
            Some(line) if line[NAME.len()..].trim() != WEBSOCKET_ACCEPT => {
                Err("a wrong Sec-WebSocket-Accept".into())
            }
            _ => Ok(()),
        }
    }

    fn carry_out(&mut self, index: usize, scan: &Scan) {
        let counts = &mut self.counts;
        let client = &mut self.clients[index];
        if !scan.publications.is_empty() {
            counts.publications += scan.publications.len() as u64;
            counts.publication_bytes += scan.publication_bytes;
            counts.numbered += match scan.run {
                Some(_) => scan.publications.len() as u64,
                None => scan.publications.iter().filter(|of| of.sequence != 0).count() as u64,
            };
            let at_once = scan.run.is_some_and(|(first, last)| {
                self.ledger.take_run(&mut client.expected, first, last)
            });
            if !at_once {
                for &publication in &scan.publications {
                    self.ledger.take(index as u32, &mut client.expected, publication);
                }
            }
            let now_ns = self.plan.clock.now_ns();
            counts.last_publication_ns = now_ns;
            if let (Some(departures), Some(latencies)) = (&self.departures, &mut self.latencies) {
                for publication in &scan.publications {
                    if let Some(left_ns) = departures.get(publication.sequence) {
                        latencies.saturating_record(now_ns.saturating_sub(left_ns));
                    }
                }
            }
        }
        counts.others += u64::from(scan.others);
        counts.pongs += u64::from(scan.pongs);
        if scan.answered != 0 {
            client.answered |= scan.answered;
            self.become_ready(index);
        }
        if scan.pings > 0 {
            self.answer_pings(index, scan.pings);
        }
        for payload in &scan.ping_payloads {
            let mut pong = Vec::with_capacity(payload.len() + 14);
            websocket_frame(0xa, payload, &mut pong);
            self.note_pings(index, 1);
            self.send(index, &pong);
        }
        if let Some(reason) = &scan.refusal {
            self.refuse(index, reason);
        }
    }

    fn answer_pings(&mut self, index: usize, pings: u32) {
        // `{}` masked, built in advance: a million clients that are pinged every 25 s send 40,000 pongs a second.
        const CENTRIFUGE_PONG: [u8; 8] =
            [0x81, 0x82, 0x37, 0xfa, 0x21, 0x3d, b'{' ^ 0x37, b'}' ^ 0xfa];
        /// A masked frame with an empty Protobuf command, prefixed with its length.
        const PROTOBUF_PONG: [u8; 7] = [0x82, 0x81, 0x37, 0xfa, 0x21, 0x3d, 0x37];
        self.note_pings(index, pings);
        for _ in 0..pings {
            match self.plan.protocol.name {
                ProtocolName::Centrifuge => self.send(index, &CENTRIFUGE_PONG),
                ProtocolName::CentrifugeProtobuf => self.send(index, &PROTOBUF_PONG),
                ProtocolName::Nats => self.send(index, b"PONG\r\n"),
                _ => {}
            }
        }
    }

    fn note_pings(&mut self, index: usize, pings: u32) {
        self.counts.pings += u64::from(pings);
        let client = &mut self.clients[index];
        client.pings = client.pings.saturating_add(pings.min(u32::from(u16::MAX)) as u16);
    }

    fn become_ready(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.state == State::Greeting && client.answered & self.needed == self.needed {
            client.state = State::Ready;
            self.opening -= 1;
            self.counts.ready += 1;
        }
    }

    /// Sends bytes. Clients send little and rarely: if the socket does not accept it at once, the server is not
    /// reading.
    fn send(&mut self, index: usize, bytes: &[u8]) {
        if let Some(Some(session)) = self.sessions.get_mut(index) {
            // The session buffers it until the handshake is complete.
            let _ = session.writer().write_all(bytes);
            return self.send_records(index);
        }
        self.send_bytes(index, bytes);
    }

    fn send_bytes(&mut self, index: usize, bytes: &[u8]) {
        let Some(socket) = &self.clients[index].socket else { return };
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == bytes.len() => {}
            Ok(_) | Err(Errno::AGAIN) => self.lose(index, "the server does not read"),
            Err(error) => self.lose(index, &format!("send: {}", io::Error::from(error))),
        }
    }

    /// Closes a client. One that was not ready yet is retried a few times.
    fn lose(&mut self, index: usize, reason: &str) {
        self.end(index, reason, ATTEMPTS_MAX);
    }

    /// Closes a client that the server rejected. It is not retried, because the server would reject it again.
    fn refuse(&mut self, index: usize, reason: &str) {
        self.end(index, reason, 1);
    }

    fn end(&mut self, index: usize, reason: &str, attempts_max: u8) {
        let client = &mut self.clients[index];
        if client.socket.take().is_none() {
            return;
        }
        if let Some(session) = self.sessions.get_mut(index) {
            *session = None;
        }
        if client.carry != 0 && !self.carries[usize::from(client.carry) - 1].is_empty() {
            self.carries[usize::from(client.carry) - 1].clear();
            self.carries_free.push(client.carry);
            client.carry = 0;
        }
        *self.reasons.entry(reason.to_owned()).or_default() += 1;
        if !client.is_opening() {
            client.state = State::Gone;
            self.counts.closed += 1;
            return;
        }
        self.opening -= 1;
        client.attempts += 1;
        if client.attempts >= attempts_max {
            client.state = State::Gone;
            self.counts.failed += 1;
        } else {
            client.state = State::Waiting;
            self.counts.retried += 1;
            self.retries.push_back((index as u32, self.now_ns + RETRY_AFTER_NS));
        }
    }

    /// Returns when ping `cursor` of this thread is due: pings are spread evenly over the interval.
    fn ping_due_ns(&self, interval: Duration, cursor: u64) -> u64 {
        let every_ns = interval.as_nanos() as u64 / self.clients.len().max(1) as u64;
        self.start_ns + (cursor + 1) * every_ns
    }

    fn send_pings(&mut self) {
        let Ping::SendEvery(interval) = self.plan.ping else { return };
        // At most one round of pings, so that a delayed thread does not ping a client twice.
        for _ in 0..self.clients.len() {
            if self.ping_due_ns(interval, self.ping_cursor) > self.now_ns {
                break;
            }
            let index = (self.ping_cursor % self.clients.len() as u64) as usize;
            self.ping_cursor += 1;
            if self.clients[index].state == State::Ready {
                let mut ping = Vec::with_capacity(16);
                websocket_frame(0x9, b"bench", &mut ping);
                self.send(index, &ping);
                self.counts.pings_sent += 1;
            }
        }
    }

    /// Finds clients whose opening timed out or that have been silent for too long.
    fn sweep(&mut self) {
        if self.now_ns - self.swept_ns < SWEEP_EVERY_NS {
            return;
        }
        self.swept_ns = self.now_ns;
        let now_s = second(self.now_ns);
        let silence_max_s = match self.plan.ping {
            Ping::Answer => None,
            Ping::ExpectEvery(interval) | Ping::SendEvery(interval) => {
                Some((interval.as_secs_f64() * 1.5).ceil() as u32 + 1)
            }
        };
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            let silence_s = now_s.saturating_sub(client.heard_s);
            if client.is_opening() && silence_s > OPENING_TIMEOUT_S {
                self.lose(index, "no answer to the opening");
            } else if client.state == State::Ready
                && silence_max_s.is_some_and(|max| silence_s > max)
            {
                client.silent = true;
            }
        }
    }

    fn finish(mut self) -> Outcome {
        let mut outcome = Outcome {
            faults: self.ledger.faults,
            reasons: std::mem::take(&mut self.reasons),
            expecting: HashMap::new(),
            pings_min: None,
            silent: 0,
            latencies: self.latencies.take(),
        };
        let abrupt = self.plan.connections > GENTLE_CLOSES_MAX;
        for client in &mut self.clients {
            if client.state == State::Ready {
                *outcome.expecting.entry(client.expected.sequence).or_default() += 1;
                let pings = u64::from(client.pings);
                outcome.pings_min = Some(outcome.pings_min.map_or(pings, |min| min.min(pings)));
                outcome.silent += u64::from(client.silent);
            }
            if let (Some(socket), true) = (&client.socket, abrupt) {
                // If the option cannot be set, the socket closes normally, which only takes the kernel longer.
                let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
            }
            client.socket = None;
        }
        outcome
    }
}

/// The results of one thread.
#[derive(Debug)]
pub(crate) struct Outcome {
    faults: Faults,
    reasons: BTreeMap<String, u64>,
    /// Ready clients by the sequence they expect next.
    expecting: HashMap<u32, u64>,
    pings_min: Option<u64>,
    silent: u64,
    latencies: Option<Histogram<u64>>,
}

impl Outcome {
    pub(crate) fn add_to(self, tally: &mut Tally, last_sequence: u32) {
        tally.faults.add(self.faults);
        for (reason, count) in self.reasons {
            *tally.reasons.entry(reason).or_default() += count;
        }
        tally.complete += self.expecting.get(&(last_sequence + 1)).copied().unwrap_or(0);
        tally.silent += self.silent;
        if let Some(pings) = self.pings_min {
            tally.pings_min = tally.pings_min.min(pings);
        }
        if let Some(latencies) = self.latencies {
            match &mut tally.latencies {
                // The bounds are the same constants, so the sum cannot fail.
                Some(sum) => sum.add(latencies).unwrap_or_default(),
                none => *none = Some(latencies),
            }
        }
    }
}

fn second(now_ns: u64) -> u32 {
    (now_ns / 1_000_000_000) as u32
}
