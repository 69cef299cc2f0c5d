//! One connection: socket, simulated path, TLS, HTTP/2 and provider API in one task.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_wire::http2::ErrorCode;
use rustls::ServerConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{broadcast, watch};

use crate::alarm::Alarm;
use crate::apns::{Behaviour, Certificate, Effect, Order, Reply, ReplyMode, Service, Shared};
use crate::certificate::ClientCertificate;
use crate::flood::Flood;
use crate::http2::{self, Limits};
use crate::line::Line;
use crate::transport::Transport;

/// Pending output in bytes above which the connection is not read.
const OUTPUT_BYTES_MAX: usize = 8 << 20;
/// Bytes in flight in one direction of the path above which the connection is not read.
const LINE_BYTES_MAX: usize = 256 << 20;
/// Delayed answers above which the connection is not read.
const DELAYED_MAX: usize = 1_000_000;
/// Consecutive reads before the task yields.
const READS_MAX: usize = 4;
/// An answer may leave this much early.
const TICK: Duration = Duration::from_micros(50);
/// Time for the peer to receive the last bytes and close.
const LINGER: Duration = Duration::from_millis(500);
/// Bytes of a flood that are generated ahead of the peer's reads.
const FLOOD_BYTES_AHEAD: usize = 1 << 20;
/// Maximum header list size that Apple announces, in bytes.
const HEADER_LIST_BYTES_MAX: u32 = 8_000;
/// More than any payload may have, so that an oversized one is recognised.
const BODY_BYTES_MAX: usize = 16 << 10;

pub(crate) struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
    buffer: Rc<RefCell<Vec<u8>>>,
    up: Line,
    down: Line,
    transport: Transport,
    http: http2::Connection,
    number: u32,
    /// `None` until the handshake is complete and the client's certificate is known.
    service: Option<Service>,
    behaviour: Arc<Behaviour>,
    behaviours: watch::Receiver<Arc<Behaviour>>,
    orders: broadcast::Receiver<Order>,
    delayed: DelayedReplies,
    /// Output for the socket; the first `sent` bytes are written.
    out: Vec<u8>,
    sent: usize,
    plain: Vec<u8>,
    stalled_until: Option<Instant>,
    alarm: Alarm,
    flood: Option<Flood>,
    peer_ended: bool,
    ending: Ending,
}

struct Delayed {
    stream: u32,
    mode: ReplyMode,
    reply: Reply,
    effect: Option<Effect>,
}

/// Answers that are sent later.
#[derive(Default)]
struct DelayedReplies {
    /// Due time, sequence number (so that equal times keep their order) and slot.
    due: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    slots: Vec<Option<Delayed>>,
    free: Vec<usize>,
    number: u64,
}

impl DelayedReplies {
    fn push(&mut self, due: Instant, delayed: Delayed) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(delayed);
        self.number += 1;
        self.due.push(Reverse((due, self.number, slot)));
    }

    fn pop(&mut self, now: Instant) -> Option<Delayed> {
        // Answers due within a tick leave together: a timer and a write for each would distort measurements.
        let &Reverse((due, _, slot)) = self.due.peek()?;
        if due > now + TICK {
            return None;
        }
        self.due.pop();
        self.free.push(slot);
        self.slots[slot].take()
    }

    fn next_due(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((due, ..))| *due)
    }

    fn len(&self) -> usize {
        self.due.len()
    }

    fn is_empty(&self) -> bool {
        self.due.is_empty()
    }
}

/// Whether and when the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Open,
    /// Ends when all streams have been answered.
    Drained,
    /// Ends when the output has been written.
    Flushed,
    /// Ends now, with a TCP reset.
    Aborted,
}

impl Connection {
    pub(crate) fn open(
        stream: TcpStream,
        number: u32,
        tls: Option<&Arc<ServerConfig>>,
        shared: Arc<Shared>,
        buffer: Rc<RefCell<Vec<u8>>>,
        seed: u64,
    ) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        let mut behaviours = shared.behaviour.subscribe();
        let behaviour = Arc::clone(&behaviours.borrow_and_update());
        let now = Instant::now();
        let (mut up, mut down) = (Line::new(now, seed), Line::new(now, !seed));
        let way = Duration::from_millis(behaviour.rtt_ms) / 2;
        up.set(way, behaviour.loss);
        down.set(way, behaviour.loss);
        // On a real path SYN and SYN-ACK take a round trip before the first byte is sent.
        up.hold_until(now + way * 3);
        let limits = Limits {
            streams_max: behaviour.streams_first,
            connection_window: behaviour.connection_window,
            stream_window: behaviour.stream_window,
            window_return: behaviour.window_return,
            header_list_bytes_max: HEADER_LIST_BYTES_MAX,
            body_bytes_max: BODY_BYTES_MAX,
        };
        Ok(Connection {
            stream,
            buffer,
            up,
            down,
            transport: Transport::new(tls).map_err(io::Error::other)?,
            http: http2::Connection::new(limits),
            number,
            service: None,
            behaviour,
            behaviours,
            orders: shared.orders.subscribe(),
            delayed: DelayedReplies::default(),
            out: Vec::new(),
            sent: 0,
            plain: Vec::new(),
            stalled_until: None,
            alarm: Alarm::default(),
            flood: None,
            peer_ended: false,
            ending: Ending::Open,
            shared,
        })
    }

    /// Serves the connection until either side closes it.
    pub(crate) async fn run(mut self) {
        loop {
            self.turn(Instant::now());
            match self.write() {
                Ok(()) if !self.is_over() => {}
                Ok(()) => break,
                Err(_) => return,
            }
            self.wait().await;
        }
        if self.ending == Ending::Aborted {
            let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
            return;
        }
        self.linger().await;
    }

    /// Waits until there is something to do, and reads what was received.
    async fn wait(&mut self) {
        let reading = !self.peer_ended
            && self.stalled_until.is_none()
            && self.out.len() - self.sent < OUTPUT_BYTES_MAX
            && self.up.bytes() < LINE_BYTES_MAX
            && self.down.bytes() < LINE_BYTES_MAX
            && self.delayed.len() < DELAYED_MAX;
        let writing = self.sent < self.out.len();
        let dues = [
            self.up.next_due(),
            self.down.next_due(),
            self.delayed.next_due(),
            self.stalled_until,
            (self.floods() && !writing).then(Instant::now),
        ];
        let due = dues.into_iter().flatten().min();
        tokio::select! {
            ready = self.stream.readable(), if reading => {
                if ready.is_ok() { self.read() } else { self.peer_ended = true }
            }
            _ = self.stream.writable(), if writing => {}
            () = self.alarm.wait(due) => {}
            changed = self.behaviours.changed() => {
                if changed.is_ok() { self.adopt_behaviour() } else { self.ending = Ending::Flushed }
            }
            order = self.orders.recv() => {
                if let Ok(order) = order { self.obey(order) }
            }
        }
    }

    fn read(&mut self) {
        let buffer = Rc::clone(&self.buffer);
        let mut buffer = buffer.borrow_mut();
        let now = Instant::now();
        for _ in 0..READS_MAX {
            match self.stream.try_read(&mut buffer[..]) {
                Ok(0) => {
                    self.peer_ended = true;
                    return;
                }
                Ok(length) if self.up.is_through(now) => {
                    self.deliver(&buffer[..length]);
                    if length < buffer.len() {
                        return;
                    }
                }
                Ok(length) => self.up.push(now, buffer[..length].to_vec()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.peer_ended = true;
                    self.ending = Ending::Flushed;
                    return;
                }
            }
        }
    }

    /// Delivers bytes that have passed the path, sends answers that are due, and transmits the resulting output.
    fn turn(&mut self, now: Instant) {
        if self.stalled_until.is_some_and(|until| until <= now) {
            self.stalled_until = None;
        }
        if self.stalled_until.is_none() {
            while let Some(bytes) = self.up.pop(now) {
                self.deliver(&bytes);
            }
        }
        while let Some(delayed) = self.delayed.pop(now) {
            self.answer(&delayed);
        }
        self.extend_flood(now);
        self.transmit(now);
        while let Some(bytes) = self.down.pop(now) {
            self.out.extend_from_slice(&bytes);
        }
    }

    /// Moves the output of HTTP/2 through TLS onto the path.
    fn transmit(&mut self, now: Instant) {
        self.plain.append(self.http.output());
        if self.down.is_through(now) {
            self.transport.send(&mut self.plain, &mut self.out);
        } else {
            let mut bytes = Vec::new();
            self.transport.send(&mut self.plain, &mut bytes);
            if !bytes.is_empty() {
                self.down.push(now, bytes);
            }
        }
    }

    /// Handles bytes that have reached the server.
    fn deliver(&mut self, bytes: &[u8]) {
        if self.ending == Ending::Flushed {
            return;
        }
        let mut failed = false;
        let http = &mut self.http;
        let mut scratch = [0; 16 << 10];
        let received = self.transport.receive(bytes, &mut scratch, |plain| {
            failed |= http.handle_bytes(plain).is_err();
        });
        if let Err(fault) = received {
            tracing::debug!(connection = self.number, error = %fault.0, "TLS failed");
            self.ending = Ending::Flushed;
            return;
        }
        match self.transport.speaks_http2() {
            Some(true) => self.serve_requests(),
            Some(false) => {
                tracing::debug!(connection = self.number, "the client does not offer ALPN h2");
                self.ending = Ending::Flushed;
            }
            None => {}
        }
        if failed {
            self.ending = Ending::Flushed;
        }
    }

    fn serve_requests(&mut self) {
        let shared = Arc::clone(&self.shared);
        let now = shared.now();
        if self.service.is_none() {
            let now_s = (now.unix_ms / 1_000).saturating_add_signed(self.behaviour.clock_ahead_s);
            let certificate = self.transport.client_certificate().map(ClientCertificate::read);
            let certificate = certificate.map(|certificate| Certificate {
                expired: certificate.expires_s.is_some_and(|end| end < now_s),
                topic: certificate.user_id,
            });
            let behaviour = Arc::clone(&self.behaviour);
            let service = Service::new(Arc::clone(&shared), behaviour, self.number, certificate);
            self.http.set_streams_max(service.streams_max());
            self.service = Some(service);
        }
        let Some(request) = self.http.poll_request() else { return };
        let mut next = Some(request);
        let mut world = shared.world();
        while let Some(request) = next {
            let Some(service) = &mut self.service else { return };
            let step = service.handle(&request, &mut world, now);
            let stream = request.stream;
            self.http.recycle(request);
            let delayed =
                Delayed { stream, mode: step.mode, reply: step.reply, effect: step.effect };
            if step.after.is_zero() {
                self.answer(&delayed);
            } else {
                self.delay(delayed, step.after);
            }
            next = self.http.poll_request();
        }
    }

    /// Delays an answer together with its effect on the connection; only GOAWAY takes effect at once.
    fn delay(&mut self, mut delayed: Delayed, after: Duration) {
        if let Some(effect @ Effect::GoAway { .. }) = delayed.effect {
            self.affect(effect);
            delayed.effect = None;
        }
        self.delayed.push(Instant::now() + after, delayed);
    }

    fn answer(&mut self, delayed: &Delayed) {
        let Delayed { stream, mode, reply, effect } = delayed;
        let mut fields: Vec<(&[u8], &[u8])> = vec![(reply.id_name.as_bytes(), &reply.apns_id)];
        if let Some(channel) = &reply.channel {
            fields.push((b"apns-channel-id", channel.as_bytes()));
        }
        if let Some(unique_id) = &reply.unique_id {
            fields.push((b"apns-unique-id", unique_id));
        }
        if let Some(date) = &reply.date {
            fields.push((b"date", date.as_bytes()));
        }
        match *mode {
            ReplyMode::Send => {
                if !reply.body.is_empty() {
                    fields.push((b"content-type", b"application/json"));
                }
                self.http.respond(*stream, reply.status, &fields, reply.body.as_bytes());
            }
            ReplyMode::Half => self.http.respond_half(*stream, reply.status, &fields),
            ReplyMode::Reset(code) => self.http.reset(*stream, ErrorCode(code)),
            ReplyMode::Lose | ReplyMode::Ignore => {}
        }
        if let Some(effect) = effect {
            self.affect(*effect);
        }
    }

    fn affect(&mut self, effect: Effect) {
        match effect {
            Effect::StreamsMax(streams_max) => self.http.set_streams_max(streams_max),
            Effect::GoAway { last, close } => self.go_away(last, 0, close),
        }
    }

    fn go_away(&mut self, last: u32, code: u32, close: bool) {
        self.http.go_away(last, ErrorCode(code));
        self.ending = if close { Ending::Flushed } else { Ending::Drained };
    }

    fn adopt_behaviour(&mut self) {
        self.behaviour = Arc::clone(&self.behaviours.borrow_and_update());
        let way = Duration::from_millis(self.behaviour.rtt_ms) / 2;
        self.up.set(way, self.behaviour.loss);
        self.down.set(way, self.behaviour.loss);
        self.http.set_window_return(self.behaviour.window_return);
        if let Some(service) = &mut self.service {
            service.set_behaviour(Arc::clone(&self.behaviour));
            self.http.set_streams_max(service.streams_max());
        }
    }

    fn obey(&mut self, order: Order) {
        let last_stream = self.http.last_stream();
        match order {
            Order::GoAway { last, code, close } => {
                self.shared.world().counts.goaways += 1;
                self.go_away(last.unwrap_or(last_stream), code, close);
            }
            Order::Close => self.ending = Ending::Flushed,
            Order::Abort => self.ending = Ending::Aborted,
            Order::Stall { ms } => {
                self.stalled_until = Some(Instant::now() + Duration::from_millis(ms));
            }
            Order::Garbage => self.http.output().extend_from_slice(&[0xff; 4_096]),
            Order::EndlessHeaders
            | Order::FloodSettings { .. }
            | Order::FloodPing { .. }
            | Order::FloodReset { .. }
            | Order::FloodWindowUpdate { .. }
            | Order::FloodData { .. }
            | Order::FloodContinuation { .. }
            | Order::FloodGoAway { .. }
            | Order::FloodUnknown { .. } => self.flood = Flood::ordered(order),
        }
    }

    /// Continues a flood until enough output is pending or the flood ends.
    fn extend_flood(&mut self, now: Instant) {
        if self.peer_ended {
            self.flood = None;
        }
        while self.floods()
            && let Some(flood) = &mut self.flood
        {
            if !flood.extend(&mut self.http) {
                self.flood = None;
            }
            self.transmit(now);
        }
    }

    /// Returns whether a flood is running and there is room for more output.
    fn floods(&self) -> bool {
        let ahead = (self.out.len() - self.sent).max(self.down.bytes());
        self.flood.is_some() && ahead < FLOOD_BYTES_AHEAD
    }

    fn write(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            match self.stream.try_write(&self.out[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    fn is_over(&self) -> bool {
        let flushed = self.sent == self.out.len() && self.down.bytes() == 0;
        match self.ending {
            Ending::Aborted => true,
            Ending::Flushed => flushed,
            Ending::Drained => {
                // `plain` may still wait for the end of the handshake; GOAWAY must be sent before the connection ends.
                let drained = self.plain.is_empty()
                    && self.http.open_streams() == 0
                    && self.delayed.is_empty();
                flushed && (drained || self.peer_ended)
            }
            Ending::Open => {
                self.peer_ended && flushed && self.up.bytes() == 0 && self.delayed.is_empty()
            }
        }
    }

    /// Shuts down our side and waits for the peer's, so that a reset does not discard our last bytes.
    async fn linger(mut self) {
        let mut last = Vec::new();
        self.transport.close(&mut last);
        let goodbye = async {
            self.stream.write_all(&last).await?;
            self.stream.shutdown().await?;
            loop {
                self.stream.readable().await?;
                match self.stream.try_read(&mut [0; 4_096]) {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        };
        let _ = tokio::time::timeout(LINGER, goodbye).await;
    }
}
