//! Clients that follow channels and move between the nodes: each reconnects to another node with its positions, and
//! recovers.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SendFlags;
use serde_json::{Value, json};

use super::ledger::{Arrival, Follower, Ledger};
use crate::protocol::{WEBSOCKET_KEY, websocket_frame};
use dunlin_load::reactor::{ENDS, Events, Flags, Reactor, STREAM, socket};
use dunlin_load::{Context, Error};
use dunlin_wire::backoff::Jitter;

/// Channels that a client follows.
pub(super) const CHANNELS: usize = 2;
const TURN: Duration = Duration::from_millis(20);
/// How often a client retries another node, or a subscription that was refused temporarily.
const RETRY: Duration = Duration::from_millis(200);
/// One absence in this many is long: up to this many times the average stay.
const LONG_ABSENCES: u64 = 4;
const LONG_ABSENCE: u64 = 4;
/// A connect without an answer for this long is retried at another node, because this one may be stopped.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A subscription without an answer for this long is retried on another connection.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(30);
/// Codes of the protocol that end a subscription or a connection for good: unsubscribe codes below the first,
/// disconnect codes in the range.
const UNSUBSCRIBED_FOR_GOOD: u64 = 2500;
const DISCONNECTED_FOR_GOOD: std::ops::Range<u64> = 3500..4000;
const TEMPORARY: u64 = 100;

/// The phase of the client threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Clients move between nodes.
    Move = 0,
    /// Clients do not move; they reconnect when disconnected.
    Stay = 1,
    /// The threads end and record what is missing.
    End = 2,
}

/// State shared by the threads.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) ledger: Ledger,
    pub(super) nodes: Vec<SocketAddr>,
    /// Time between two moves of a client, on average.
    pub(super) stay: Duration,
    clients: usize,
    phase: AtomicU8,
    pub(super) counts: Counts,
}

/// Events of all clients.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Connects that were answered.
    pub(super) connects: AtomicU64,
    /// Long-polls that were answered.
    pub(super) polls: AtomicU64,
    /// Moves on the client's own schedule, and connections that ended for other reasons.
    pub(super) moves: AtomicU64,
    pub(super) cut: AtomicU64,
    pub(super) recovered: AtomicU64,
    /// Recoveries that were answered with `recovered: false`.
    pub(super) notified: AtomicU64,
    /// Subscriptions that the server ended and that are to be renewed.
    pub(super) unsubscribed: AtomicU64,
    /// Commands that the server rejected temporarily.
    pub(super) refused: AtomicU64,
}

impl Shared {
    pub(super) fn new(
        ledger: Ledger,
        nodes: Vec<SocketAddr>,
        clients: usize,
        stay: Duration,
    ) -> Self {
        let (phase, counts) = (AtomicU8::new(Phase::Move as u8), Counts::default());
        Self { ledger, nodes, stay, clients, phase, counts }
    }

    /// Returns the channel at index `at` among those that a client follows.
    fn channel(&self, client: usize, at: usize) -> usize {
        (client * CHANNELS + at) % self.ledger.channels()
    }

    /// Returns the first channel that clients over plain HTTP follow. Its presence changes with each of their requests.
    pub(super) fn first_http_channel(&self) -> usize {
        self.ledger.channels() * 3 / 4
    }

    /// Returns the channel at index `at` among those that a client over plain HTTP follows.
    pub(super) fn http_channel(&self, client: usize, at: usize) -> usize {
        let first = self.first_http_channel();
        first + (client * CHANNELS + at) % (self.ledger.channels() - first)
    }

    /// Returns the number of clients with a WebSocket that follow a channel.
    pub(super) fn followers(&self, channel: usize) -> u64 {
        let all = (0..self.clients).flat_map(|client| (0..CHANNELS).map(move |at| (client, at)));
        all.filter(|&(client, at)| self.channel(client, at) == channel).count() as u64
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    pub(super) fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Acquire) == phase as u8
    }
}

/// Progress of the clients of a thread, updated every turn.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Subscriptions that are not in place.
    pub(super) missing: AtomicU64,
    /// Subscriptions that have not received the last acknowledged message, counted while clients do not move.
    pub(super) behind: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Away,
    Connecting,
    /// The request of the WebSocket handshake has been sent.
    Opening,
    Open,
}

/// A subscription.
#[derive(Debug, Clone, Copy)]
struct Slot {
    channel: usize,
    follower: Follower,
    live: bool,
    /// When the subscribe command is due, and when it was sent.
    due: Option<Instant>,
    asked: Option<Instant>,
    id: u64,
}

struct Client {
    number: usize,
    state: State,
    socket: Option<OwnedFd>,
    generation: u32,
    node: usize,
    input: Vec<u8>,
    slots: [Slot; CHANNELS],
    ids: u64,
    /// When the client moves or tries to connect.
    due: Instant,
}

/// Runs clients `numbers` until the phase is [`Phase::End`].
pub(super) fn run(
    shared: &Arc<Shared>,
    progress: &Progress,
    numbers: std::ops::Range<usize>,
    seed: u64,
) -> Result<(), Error> {
    let mut random = Jitter::new(seed ^ numbers.start as u64);
    let (reactor, mut events) = (Reactor::new()?, Events::with_capacity(1024));
    let now = Instant::now();
    let mut clients: Vec<Client> = numbers
        .map(|number| {
            let slot = |at: usize| Slot {
                channel: shared.channel(number, at),
                follower: Follower::default(),
                live: false,
                due: None,
                asked: None,
                id: 0,
            };
            Client {
                number,
                state: State::Away,
                socket: None,
                generation: 0,
                node: number % shared.nodes.len(),
                input: Vec::new(),
                slots: std::array::from_fn(slot),
                ids: 0,
                due: now + Duration::from_millis(random.below(1_000)),
            }
        })
        .collect();
    progress.missing.store((clients.len() * CHANNELS) as u64, Ordering::Release);
    let mut piece = vec![0; 64 << 10];
    while !shared.is(Phase::End) {
        reactor.wait(Some(TURN.as_nanos() as u64), &mut events)?;
        for (token, flags) in events.iter() {
            let client = &mut clients[token as u32 as usize];
            if client.generation == (token >> 32) as u32 {
                client.on_event(shared, flags, &mut piece);
            }
        }
        let (now, mut missing, mut behind) = (Instant::now(), 0, 0);
        let stays = shared.is(Phase::Stay);
        let turn = Turn { shared, reactor: &reactor, now, stays };
        for (index, client) in clients.iter_mut().enumerate() {
            client.on_time(&turn, index, &mut random)?;
            for slot in &client.slots {
                missing += u64::from(!slot.live);
                behind +=
                    u64::from(stays && slot.follower.last != shared.ledger.last(slot.channel));
            }
        }
        progress.missing.store(missing, Ordering::Release);
        progress.behind.store(behind, Ordering::Release);
    }
    for client in &clients {
        for slot in &client.slots {
            shared.ledger.ended(slot.channel, client.number, &slot.follower);
        }
    }
    Ok(())
}

/// State shared by all clients of a thread in one turn of its loop.
struct Turn<'a> {
    shared: &'a Shared,
    reactor: &'a Reactor,
    now: Instant,
    /// Whether clients stay at their nodes.
    stays: bool,
}

impl Client {
    /// Connects, moves, or subscribes when due.
    fn on_time(&mut self, turn: &Turn<'_>, index: usize, random: &mut Jitter) -> Result<(), Error> {
        let &Turn { shared, now, stays, .. } = turn;
        if self.state == State::Away && stays {
            self.due = self.due.min(now + RETRY);
        }
        if self.state == State::Away && self.due <= now {
            // Any node but the previous one, if there is another.
            let others = shared.nodes.len().saturating_sub(1).max(1) as u64;
            self.node = (self.node + 1 + random.below(others) as usize) % shared.nodes.len();
            return self.connect(turn, index, random);
        }
        let moves = self.state == State::Open && !stays
            || matches!(self.state, State::Connecting | State::Opening);
        if moves && self.due <= now {
            shared.counts.moves.fetch_add(1, Ordering::Relaxed);
            self.leave(now);
            if random.below(LONG_ABSENCES) == 0 {
                let stay_ms = shared.stay.as_millis() as u64;
                self.due = now + Duration::from_millis(random.below(LONG_ABSENCE * stay_ms + 1));
            }
            return Ok(());
        }
        if self.state == State::Open {
            let late = |asked: Instant| now.duration_since(asked) > SUBSCRIBE_TIMEOUT;
            if self.slots.iter().any(|slot| slot.asked.is_some_and(late)) {
                self.cut(shared);
            } else if self.slots.iter().any(|slot| slot.due.is_some_and(|due| due <= now)) {
                self.subscribe(shared, now);
            }
        }
        Ok(())
    }

    fn connect(&mut self, turn: &Turn<'_>, index: usize, random: &mut Jitter) -> Result<(), Error> {
        let &Turn { shared, reactor, now, .. } = turn;
        let address = shared.nodes[self.node];
        let socket = socket(address).context("cannot open another socket")?;
        self.generation = self.generation.wrapping_add(1);
        let mean_ms = shared.stay.as_millis() as u64;
        self.due = now + CONNECT_TIMEOUT;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {
                let token = u64::from(self.generation) << 32 | index as u64;
                reactor.watch(&socket, token, STREAM).context("cannot watch another socket")?;
                (self.state, self.socket) = (State::Connecting, Some(socket));
            }
            Err(_) => {
                self.due = now + RETRY + Duration::from_millis(random.below(mean_ms / 16 + 1));
            }
        }
        Ok(())
    }

    /// Leaves the node; the client soon connects to another.
    fn leave(&mut self, now: Instant) {
        (self.state, self.socket) = (State::Away, None);
        self.generation = self.generation.wrapping_add(1);
        self.input = Vec::new();
        self.due = now + RETRY;
        for slot in &mut self.slots {
            (slot.live, slot.due, slot.asked) = (false, None, None);
        }
    }

    /// Closes a connection that has ended or failed.
    fn cut(&mut self, shared: &Shared) {
        shared.counts.cut.fetch_add(1, Ordering::Relaxed);
        self.leave(Instant::now());
    }

    fn send(&mut self, shared: &Shared, bytes: &[u8]) {
        let Some(socket) = &self.socket else { return };
        // Commands are small: a socket that does not accept one belongs to a hanging node.
        if rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) != Ok(bytes.len()) {
            self.cut(shared);
        }
    }

    fn say(&mut self, shared: &Shared, commands: &str) {
        let mut frame = Vec::new();
        websocket_frame(0x1, commands.as_bytes(), &mut frame);
        self.send(shared, &frame);
    }

    /// Sends the subscribe commands that are due.
    fn subscribe(&mut self, shared: &Shared, now: Instant) {
        let mut commands = Vec::new();
        for slot in &mut self.slots {
            if slot.due.is_none_or(|due| due > now) {
                continue;
            }
            self.ids += 1;
            (slot.due, slot.asked, slot.id) = (None, Some(now), self.ids + 1);
            let mut subscribe = json!({"channel": format!("c{}", slot.channel)});
            if let Some(position) = slot.follower.position {
                subscribe["recover"] = true.into();
                subscribe["offset"] = position.offset.into();
                subscribe["epoch"] = shared.ledger.epoch(slot.channel, position).into();
            }
            commands.push(json!({"id": slot.id, "subscribe": subscribe}).to_string());
        }
        self.say(shared, &commands.join("\n"));
    }

    fn on_event(&mut self, shared: &Shared, flags: Flags, piece: &mut [u8]) {
        if self.state == State::Connecting {
            if flags.intersects(Flags::ERR | Flags::HUP) {
                return self.leave(Instant::now());
            }
            if !flags.contains(Flags::OUT) {
                return;
            }
            self.state = State::Opening;
            let opening = format!(
                "GET /connection/websocket HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Key: {WEBSOCKET_KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n",
                shared.nodes[self.node]
            );
            self.send(shared, opening.as_bytes());
        }
        if !flags.intersects(Flags::IN | ENDS) {
            return;
        }
        while let Some(socket) = &self.socket {
            match rustix::io::read(socket, &mut *piece) {
                Ok(0) => return self.cut(shared),
                Ok(length) => {
                    self.input.extend_from_slice(&piece[..length]);
                    self.on_input(shared);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => return self.cut(shared),
            }
        }
    }

    fn on_input(&mut self, shared: &Shared) {
        let mut input = std::mem::take(&mut self.input);
        let mut taken = 0;
        if self.state == State::Opening {
            let Some(end) = memchr::memmem::find(&input, b"\r\n\r\n") else {
                self.input = input;
                return;
            };
            taken = end + 4;
            if !input.starts_with(b"HTTP/1.1 101") {
                return self.cut(shared);
            }
            self.state = State::Open;
            self.say(shared, "{\"id\":1,\"connect\":{}}");
            self.ids = 1;
        }
        while self.state == State::Open
            && let Some((opcode, payload, length)) = frame(&input[taken..])
        {
            match opcode {
                0x1 => {
                    for line in payload.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
                    {
                        self.on_document(shared, line);
                    }
                }
                0x8 => {
                    let code =
                        payload.get(..2).map_or(0, |code| u16::from_be_bytes([code[0], code[1]]));
                    return self.disconnected(shared, code.into());
                }
                _ => {}
            }
            taken += length;
        }
        if self.state != State::Away {
            input.drain(..taken);
            self.input = input;
        }
    }

    fn disconnected(&mut self, shared: &Shared, code: u64) {
        if DISCONNECTED_FOR_GOOD.contains(&code) {
            let what = format!("client {}: code {code}", self.number);
            shared.ledger.wrong("a disconnect for good", what);
        }
        self.cut(shared);
    }

    fn on_document(&mut self, shared: &Shared, text: &[u8]) {
        if text == b"{}" {
            return self.say(shared, "{}");
        }
        let wrong = |what: &str| {
            let text = String::from_utf8_lossy(text);
            shared.ledger.wrong("an answer of another kind", format!("{what}: {text}"));
        };
        let Ok(document) = serde_json::from_slice::<Value>(text) else { return wrong("no JSON") };
        let push = &document["push"];
        if let Some(id) = document["id"].as_u64() {
            self.on_reply(shared, id, &document);
        } else if let Some(code) = push["disconnect"]["code"].as_u64() {
            self.disconnected(shared, code);
        } else if let Some(publication) = push.get("pub") {
            let (number, channel) = (self.number, &push["channel"]);
            let Some(slot) = self.slots.iter_mut().find(|slot| is_channel(channel, slot.channel))
            else {
                return wrong("a channel that it does not follow");
            };
            let Some((offset, message)) = read(publication) else { return wrong("no message") };
            let arrival = Arrival { offset, number: message, crosses: false };
            shared.ledger.published(slot.channel, number, &mut slot.follower, arrival);
        } else if let Some(code) = push["unsubscribe"]["code"].as_u64() {
            let channel = &push["channel"];
            shared.counts.unsubscribed.fetch_add(1, Ordering::Relaxed);
            if code < UNSUBSCRIBED_FOR_GOOD {
                wrong("unsubscribed for good");
            }
            let slots = self.slots.iter_mut();
            for slot in slots.filter(|slot| is_channel(channel, slot.channel)) {
                (slot.live, slot.due) = (false, Some(Instant::now()));
            }
        }
    }

    fn on_reply(&mut self, shared: &Shared, id: u64, document: &Value) {
        let now = Instant::now();
        let error = document["error"]["code"].as_u64();
        if id == 1 {
            if error.is_some() {
                return self.cut(shared);
            }
            shared.counts.connects.fetch_add(1, Ordering::Relaxed);
            let mean_ms = shared.stay.as_millis() as u64;
            // Seeded by client number and generation, so that no two clients move in step.
            let mut random = Jitter::new((self.number as u64) << 32 | u64::from(self.generation));
            self.due = now + Duration::from_millis(mean_ms / 4 + random.below(mean_ms * 3 / 2 + 1));
            self.slots.iter_mut().for_each(|slot| slot.due = Some(now));
            return self.subscribe(shared, now);
        }
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) else { return };
        slot.asked = None;
        if let Some(code) = error {
            shared.counts.refused.fetch_add(1, Ordering::Relaxed);
            if code != TEMPORARY {
                shared.ledger.wrong("a subscription that was refused", document.to_string());
            }
            slot.due = Some(now + RETRY);
            return;
        }
        let result = &document["subscribe"];
        let recovered = result["recovered"] == true;
        let publications: Option<Vec<(u64, u32)>> =
            result["publications"].as_array().into_iter().flatten().map(read).collect();
        let (Some(publications), Some(epoch)) = (publications, result["epoch"].as_str()) else {
            return shared.ledger.wrong("an answer of another kind", document.to_string());
        };
        let offset = result["offset"].as_u64().unwrap_or(0);
        if slot.follower.position.is_some() {
            let count = if recovered { &shared.counts.recovered } else { &shared.counts.notified };
            count.fetch_add(1, Ordering::Relaxed);
        }
        slot.live = true;
        let (number, follower) = (self.number, &mut slot.follower);
        let recovered = recovered.then_some(&publications[..]);
        shared.ledger.subscribed(slot.channel, number, follower, (epoch, offset), recovered);
    }
}

/// Returns whether `name` is the name of this channel.
fn is_channel(name: &Value, channel: usize) -> bool {
    let name = name.as_str().and_then(|name| name.strip_prefix('c'));
    name.and_then(|number| number.parse().ok()) == Some(channel)
}

/// Returns offset and number of a publication.
pub(super) fn read(publication: &Value) -> Option<(u64, u32)> {
    let number = publication["data"]["n"].as_u64()?.try_into().ok()?;
    Some((publication["offset"].as_u64()?, number))
}

/// Parses the first frame from a server: opcode, payload, and its length (RFC 6455 §5.2).
fn frame(bytes: &[u8]) -> Option<(u8, &[u8], usize)> {
    let (&head, &length) = (bytes.first()?, bytes.get(1)?);
    let (start, length) = match length & 0x7f {
        126 => (4, u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?) as usize),
        127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize),
        length => (2, length as usize),
    };
    Some((head & 0xf, bytes.get(start..start + length)?, start + length))
}
