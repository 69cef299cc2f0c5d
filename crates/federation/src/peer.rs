//! One peer: its link, the streams in both directions, and when to dial.

use std::collections::VecDeque;
use std::sync::Arc;

use dunlin_wire::backoff::{Backoff, Jitter};

use crate::frame::{Close, CloseCode, FRAME_BYTES_MAX, Frame, FrameReader, Resume};
use crate::handshake::Side;
use crate::inbound::{Inbound, Received};
use crate::message::Message;
use crate::outbound::{Full, Outbound};
use crate::reason::Reason;

/// Between two attempts to dial.
const DIAL: Backoff = Backoff { min_ms: 500, max_ms: 60_000 };
/// A link that has held for so long has shown that dialing succeeds.
const STEADY_MS: u64 = 10_000;
/// Without a byte from the peer for so long it is asked whether it works.
const PING_MS: u64 = 10_000;
/// And after so long the link is given up.
const SILENCE_MS: u64 = 30_000;
/// Two links that come about within this time were dialed at once. One that comes later has a dialer that has lost the other.
const AT_ONCE_MS: u64 = 1_000;
/// The shortest time between two looks for messages that have expired.
const EXPIRE_MS: u64 = 1_000;

/// Identifies a link, for the caller that has its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId(pub u64);

/// How a peer is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// There is an address to dial.
    pub dials: bool,
    /// Most bytes in the queue; a further message is refused.
    pub queue_bytes_max: usize,
    /// Milliseconds after which a message that was not delivered fails.
    pub expiry_ms: u64,
    /// The bytes a second that the peer may send; 0: as many as are taken.
    pub bytes_per_second: u64,
}

impl Default for PeerConfig {
    fn default() -> PeerConfig {
        PeerConfig {
            dials: true,
            queue_bytes_max: 64 << 20,
            expiry_ms: 86_400_000,
            bytes_per_second: 0,
        }
    }
}

/// A link whose handshake is complete.
#[derive(Debug)]
pub struct NewLink {
    /// The caller's id of it.
    pub id: LinkId,
    /// Which side this is.
    pub side: Side,
    /// When it was dialed or accepted.
    pub begun_ms: u64,
    /// What has arrived behind the handshake.
    pub reader: FrameReader,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Connect to the peer. [`Peer::handle_link`] or [`Peer::handle_dial_failed`] follows.
    Dial,
    /// Close this link's connection when what [`Peer::poll_last_words`] returns is written.
    Close(LinkId),
    /// A link is up.
    Up,
    /// There is no link any more, and why.
    Down(Box<str>),
    /// Give a message to its recipient's home; [`Peer::handle_taken`] follows.
    Deliver {
        /// The stream that it came by.
        stream: u64,
        /// Its number there: with the peer's name and the stream, its idempotency key.
        seq: u64,
        /// The message.
        message: Message,
    },
    /// A message was delivered, or has failed.
    Settled {
        /// Its number.
        seq: u64,
        /// The result.
        result: Result<(), Reason>,
    },
    /// All of the peer's stream up to a number is taken: store that, then call [`Peer::handle_taken_stored`].
    Taken {
        /// The stream.
        stream: u64,
        /// The number.
        taken: u64,
    },
}

/// What a peer has at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerStats {
    /// There is a link, and this side has dialed it.
    pub link: Option<bool>,
    /// Messages in the queue.
    pub queued: usize,
    /// Their bytes.
    pub queued_bytes: usize,
    /// When the oldest of them was queued.
    pub oldest_ms: Option<u64>,
    /// Messages from the peer that their recipients' homes have not taken.
    pub pending: usize,
    /// Attempts to dial since a link was steady.
    pub attempts: u32,
    /// When the next one is.
    pub next_attempt_ms: Option<u64>,
}

#[derive(Debug)]
struct Link {
    id: LinkId,
    side: Side,
    up_ms: u64,
    heard_ms: u64,
    pinged: bool,
    reader: FrameReader,
    /// The peer's resume has arrived.
    is_resumed: bool,
    acked: u64,
    failures: Vec<(u64, u8)>,
    pongs: u32,
    wants_ping: bool,
    wants_resume: bool,
}

/// The state of dialing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dial {
    /// At this time.
    At(u64),
    UnderWay,
}

/// A peer with its link and both streams.
///
/// A turn of the caller: `handle_*` with what has happened, then [`Peer::poll_event`] until there is none, then
/// [`Peer::poll_transmit`] while the link's connection takes bytes. [`Peer::handle_timeout`] is due at [`Peer::poll_timeout`].
#[derive(Debug)]
pub struct Peer {
    name: Arc<str>,
    /// This server's domain comes before the peer's in the alphabet.
    is_first: bool,
    config: PeerConfig,
    outbound: Outbound,
    inbound: Inbound,
    /// What was reported as taken, and what of that is stored.
    taken_reported: u64,
    taken_stored: u64,
    link: Option<Link>,
    /// Frames for links that end.
    last_words: Vec<(LinkId, Vec<u8>)>,
    dial: Dial,
    attempts: u32,
    jitter: Jitter,
    expire_checked_ms: u64,
    /// The peer's rate: bytes that may be granted, and since when more of them come.
    rate_bytes: u64,
    rate_ms: u64,
    events: VecDeque<Event>,
}

impl Peer {
    /// Creates a peer of the domain `own` without a link. `stream` identifies the messages to it: another id means other messages
    /// under the same numbers.
    pub fn new(own: &str, name: &str, config: PeerConfig, (stream, seed): (u64, u64)) -> Peer {
        Peer {
            name: name.into(),
            is_first: own < name,
            config,
            outbound: Outbound::new(stream),
            inbound: Inbound::default(),
            taken_reported: 0,
            taken_stored: 0,
            link: None,
            last_words: Vec::new(),
            dial: Dial::At(0),
            attempts: 0,
            jitter: Jitter::new(seed),
            expire_checked_ms: 0,
            rate_bytes: 0,
            rate_ms: 0,
            events: VecDeque::new(),
        }
    }

    /// What was stored before a restart: the number of the first message that is in the queue, or would be, and how far the peer's
    /// stream was taken. Comes before everything else.
    pub fn restore(&mut self, base: u64, (stream, taken): (u64, u64)) {
        self.outbound.restore(base);
        self.inbound.restore(stream, taken);
        (self.taken_reported, self.taken_stored) = (taken, taken);
    }

    /// A message that was stored before a restart, and may have been sent.
    pub fn restore_message(&mut self, seq: u64, body: Box<[u8]>, expires_ms: u64) {
        let bytes_max = self.config.queue_bytes_max;
        // What was accepted is never refused afterwards.
        let _ = self.outbound.push(seq, body, (expires_ms, bytes_max, true));
    }

    /// Returns its domain.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Applies other settings.
    pub fn set_config(&mut self, config: PeerConfig) {
        self.config = config;
    }

    /// Returns the number of the next message.
    pub fn next_seq(&self) -> u64 {
        self.outbound.next_seq()
    }

    /// Returns the number of the first message that is not settled.
    pub fn base(&self) -> u64 {
        self.outbound.base()
    }

    /// Returns the id of the stream to the peer.
    pub fn stream(&self) -> u64 {
        self.outbound.stream
    }

    /// Whether there is a link on which streams have resumed.
    pub fn is_up(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_resumed)
    }

    /// Whether a message of so many bytes has room.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.outbound.bytes() + bytes < self.config.queue_bytes_max
    }

    /// Queues an encoded [`Message`]. It is sent once it is [stored](Peer::handle_stored), and [settled](Event::Settled) once.
    ///
    /// # Errors
    /// The queue is full.
    pub fn push(&mut self, now_ms: u64, seq: u64, body: Box<[u8]>) -> Result<(), Full> {
        let expires_ms = now_ms.saturating_add(self.config.expiry_ms);
        self.outbound.push(seq, body, (expires_ms, self.config.queue_bytes_max, false))
    }

    /// All messages up to this number are stored.
    pub fn handle_stored(&mut self, seq: u64) {
        self.outbound.handle_stored(seq);
    }

    /// A message cannot be stored.
    pub fn handle_not_stored(&mut self, seq: u64) {
        self.outbound.fail(seq, Reason::NotStored);
    }

    /// What was [`Event::Taken`] is stored, and may be acknowledged.
    pub fn handle_taken_stored(&mut self, stream: u64, taken: u64) {
        if stream == self.inbound.stream {
            self.taken_stored = self.taken_stored.max(taken);
        }
    }

    /// The home of a message's recipient has taken it, or has refused it.
    pub fn handle_taken(&mut self, stream: u64, seq: u64, result: Result<(), Reason>) {
        if self.inbound.handle_taken(stream, seq, result)
            && let (Err(reason), Some(link)) = (result, &mut self.link)
        {
            link.failures.push((seq, reason.code()));
        }
        self.report_taken();
    }

    fn report_taken(&mut self) {
        let (stream, taken) = (self.inbound.stream, self.inbound.taken);
        if taken > self.taken_reported {
            self.taken_reported = taken;
            self.events.push_back(Event::Taken { stream, taken });
        }
    }

    /// A handshake is complete. Of two links one is kept: see the crate's page.
    pub fn handle_link(&mut self, now_ms: u64, new: NewLink) {
        let NewLink { id, side, begun_ms, reader } = new;
        if side == Side::Dialer {
            self.dial = Dial::At(u64::MAX);
        }
        if let Some(link) = &self.link {
            let at_once = link.side != side && begun_ms.saturating_sub(link.up_ms) < AT_ONCE_MS;
            // Both sides know who has dialed which, and that one of them comes first in the alphabet.
            if at_once && !self.keeps(side) {
                return self.say_last(id, CloseCode::Replaced, "another link is kept");
            }
            self.close(now_ms, CloseCode::Replaced, "a newer link has replaced it");
        }
        self.link = Some(Link {
            id,
            side,
            up_ms: now_ms,
            heard_ms: now_ms,
            pinged: false,
            reader,
            is_resumed: false,
            acked: 0,
            failures: Vec::new(),
            pongs: 0,
            wants_ping: false,
            wants_resume: true,
        });
        self.handle_data(now_ms, id, &[]);
    }

    /// Of two links at once, that of the dialer which comes first is kept.
    fn keeps(&self, side: Side) -> bool {
        (side == Side::Dialer) == self.is_first
    }

    /// What has arrived on a link.
    pub fn handle_data(&mut self, now_ms: u64, id: LinkId, bytes: &[u8]) {
        let Some(link) = self.link.as_mut().filter(|link| link.id == id) else { return };
        if !bytes.is_empty() {
            (link.heard_ms, link.pinged) = (now_ms, false);
        }
        let mut reader = std::mem::take(&mut link.reader);
        reader.push(bytes);
        let ended = loop {
            match reader.next(FRAME_BYTES_MAX) {
                Ok(None) => break None,
                Ok(Some(Frame::Close(Close { code, text }))) => {
                    break Some((code, format!("the peer has closed the link: {text}"), false));
                }
                Ok(Some(frame)) => {
                    if let Err(error) = self.handle_frame(&frame) {
                        break Some((CloseCode::Protocol, format!("the peer {error}"), true));
                    }
                }
                Err(error) => {
                    break Some((CloseCode::Protocol, format!("the peer has sent {error}"), true));
                }
            }
        };
        self.report_taken();
        if let Some((code, why, is_ours)) = ended {
            match is_ours {
                true => self.close(now_ms, code, &why),
                false => {
                    self.events.push_back(Event::Close(id));
                    self.lose_link(now_ms, &why);
                }
            }
        } else if let Some(link) = &mut self.link {
            reader.trim();
            link.reader = reader;
        }
    }

    fn handle_frame(&mut self, frame: &Frame<'_>) -> Result<(), &'static str> {
        let Some(link) = &mut self.link else { return Ok(()) };
        match frame {
            Frame::Resume(resume) if !link.is_resumed => {
                link.is_resumed = true;
                return self.handle_resume(resume);
            }
            Frame::Ping => link.pongs += 1,
            Frame::Pong => {}
            _ if !link.is_resumed => return Err("does not begin with where its stream continues"),
            Frame::Fragment(fragment) => {
                if let Received::Message(seq, body) = self.inbound.handle_fragment(fragment)? {
                    self.deliver(seq, &body);
                }
            }
            Frame::Skip { seq } => self.inbound.handle_skip(*seq)?,
            Frame::Ack { taken } => self.outbound.handle_ack(*taken)?,
            Frame::Failed { seq, reason } => {
                self.outbound.handle_failed(*seq, Reason::from_code(*reason));
            }
            Frame::Credit { granted } => self.outbound.handle_credit(*granted),
            Frame::Hello(_) | Frame::Auth { .. } | Frame::Resume(_) | Frame::Close(_) => {
                return Err("sends a frame that does not belong there");
            }
        }
        Ok(())
    }

    fn handle_resume(&mut self, resume: &Resume) -> Result<(), &'static str> {
        if resume.stream == 0 || resume.base == 0 {
            return Err("has a stream without a number");
        }
        if resume.stream != self.inbound.stream {
            (self.taken_reported, self.taken_stored) = (0, 0);
            if let Some(link) = &mut self.link {
                link.acked = 0;
            }
        }
        self.inbound.begin_link(resume.stream, resume.base);
        for (seq, reason) in &resume.failures {
            self.outbound.handle_failed(*seq, Reason::from_code(*reason));
        }
        let taken = if resume.known == self.outbound.stream { resume.taken } else { 0 };
        self.outbound.begin_link(taken, resume.credit)?;
        self.events.push_back(Event::Up);
        Ok(())
    }

    fn deliver(&mut self, seq: u64, body: &[u8]) {
        let stream = self.inbound.stream;
        match Message::decode(body) {
            Ok(message) => self.events.push_back(Event::Deliver { stream, seq, message }),
            Err(_) => self.handle_taken(stream, seq, Err(Reason::Refused)),
        }
    }

    /// The connection of a link has ended.
    pub fn handle_closed(&mut self, now_ms: u64, id: LinkId, why: &str) {
        if self.link.as_ref().is_some_and(|link| link.id == id) {
            self.lose_link(now_ms, why);
        }
    }

    /// The peer could not be dialed, or the handshake has failed.
    pub fn handle_dial_failed(&mut self, now_ms: u64) {
        if self.dial == Dial::UnderWay {
            self.dial_later(now_ms);
        }
    }

    /// The peer has shown that it is there, or an operator wants it: it is dialed now, unless that is under way. The count of attempts
    /// stays.
    pub fn dial_now(&mut self, now_ms: u64) {
        if self.link.is_none() && self.dial != Dial::UnderWay {
            self.dial = Dial::At(now_ms);
        }
    }

    fn dial_later(&mut self, now_ms: u64) {
        self.attempts = self.attempts.saturating_add(1);
        self.dial = Dial::At(now_ms + DIAL.jittered_ms(self.attempts, &mut self.jitter));
    }

    /// Ends the link, if there is one, and says why to the peer.
    pub fn close(&mut self, now_ms: u64, code: CloseCode, why: &str) {
        if let Some(link) = &self.link {
            let id = link.id;
            self.say_last(id, code, why);
            self.lose_link(now_ms, why);
        }
    }

    /// Fails all messages in the queue: the peer is not one any more.
    pub fn fail_all(&mut self, reason: Reason) {
        self.outbound.fail_all(reason);
    }

    fn say_last(&mut self, id: LinkId, code: CloseCode, text: &str) {
        let mut frame = Vec::new();
        Frame::Close(Close { code, text }).encode(&mut frame);
        self.last_words.push((id, frame));
        self.events.push_back(Event::Close(id));
    }

    fn lose_link(&mut self, now_ms: u64, why: &str) {
        let Some(link) = self.link.take() else { return };
        self.outbound.end_link();
        if now_ms.saturating_sub(link.up_ms) >= STEADY_MS {
            self.attempts = 0;
        }
        if self.dial != Dial::UnderWay {
            self.dial_later(now_ms);
        }
        self.events.push_back(Event::Down(why.into()));
    }

    /// Returns what is to be written to a link that ends.
    pub fn poll_last_words(&mut self, id: LinkId) -> Option<Vec<u8>> {
        let at = self.last_words.iter().position(|(of, _)| *of == id)?;
        Some(self.last_words.swap_remove(at).1)
    }

    /// Handles what time brings.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        if self.outbound.oldest_expires_ms().is_some_and(|at| at <= now_ms)
            && now_ms >= self.expire_checked_ms.saturating_add(EXPIRE_MS)
        {
            self.expire_checked_ms = now_ms;
            self.outbound.expire(now_ms, self.link.is_some());
        }
        match &mut self.link {
            Some(link) => {
                let silent_ms = now_ms.saturating_sub(link.heard_ms);
                if silent_ms >= SILENCE_MS {
                    let why = format!("nothing was received for {} s", SILENCE_MS / 1_000);
                    self.close(now_ms, CloseCode::Silent, &why);
                } else if silent_ms >= PING_MS && !link.pinged {
                    (link.pinged, link.wants_ping) = (true, true);
                }
            }
            None => {
                if self.config.dials
                    && let Dial::At(at) = self.dial
                    && at <= now_ms
                {
                    self.dial = Dial::UnderWay;
                    self.events.push_back(Event::Dial);
                }
            }
        }
    }

    /// Returns when [`Peer::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        let expires = self.outbound.oldest_expires_ms();
        let expires = expires.map(|at| at.max(self.expire_checked_ms.saturating_add(EXPIRE_MS)));
        let link = match (&self.link, self.dial) {
            (Some(link), _) if link.pinged => Some(link.heard_ms + SILENCE_MS),
            (Some(link), _) => Some(link.heard_ms + PING_MS),
            (None, Dial::At(at)) if self.config.dials && at < u64::MAX => Some(at),
            (None, _) => None,
        };
        [expires, link].into_iter().flatten().min()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some((seq, result)) = self.outbound.poll_settled() {
            return Some(Event::Settled { seq, result });
        }
        self.events.pop_front()
    }

    /// Appends what is to be sent on the link, up to about `bytes_max` bytes; control frames first. Returns the link.
    pub fn poll_transmit(
        &mut self,
        now_ms: u64,
        out: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Option<LinkId> {
        let rate_bytes = self.rate(now_ms);
        let link = self.link.as_mut()?;
        if std::mem::take(&mut link.wants_resume) {
            link.acked = self.taken_stored;
            Frame::Resume(Resume {
                stream: self.outbound.stream,
                base: self.outbound.base(),
                known: self.inbound.stream,
                taken: self.taken_stored,
                credit: self.inbound.open_window(),
                failures: self.inbound.failures(),
            })
            .encode(out);
        }
        for _ in 0..std::mem::take(&mut link.pongs).min(16) {
            Frame::Pong.encode(out);
        }
        if std::mem::take(&mut link.wants_ping) {
            Frame::Ping.encode(out);
        }
        if !link.is_resumed {
            return Some(link.id);
        }
        for (seq, reason) in link.failures.drain(..) {
            Frame::Failed { seq, reason }.encode(out);
        }
        if self.taken_stored > link.acked {
            link.acked = self.taken_stored;
            Frame::Ack { taken: self.taken_stored }.encode(out);
        }
        let before = self.inbound.granted();
        if let Some(granted) = self.inbound.poll_credit(rate_bytes) {
            self.rate_bytes = self.rate_bytes.saturating_sub(granted - before);
            Frame::Credit { granted }.encode(out);
        }
        self.outbound.poll_transmit(out, bytes_max);
        Some(link.id)
    }

    /// Returns the bytes that the peer's rate leaves to be granted now.
    fn rate(&mut self, now_ms: u64) -> u64 {
        let per_second = self.config.bytes_per_second;
        if per_second == 0 {
            return u64::MAX;
        }
        let passed_ms = now_ms.saturating_sub(std::mem::replace(&mut self.rate_ms, now_ms));
        let more = per_second.saturating_mul(passed_ms) / 1_000;
        self.rate_bytes = self.rate_bytes.saturating_add(more).min(per_second);
        self.rate_bytes
    }

    /// Whether [`Peer::poll_transmit`] has messages to send.
    pub fn is_ready(&self) -> bool {
        self.is_up() && self.outbound.is_ready()
    }

    /// Returns what it has at the moment.
    pub fn stats(&self) -> PeerStats {
        let (pending, _) = self.inbound.pending();
        let oldest = self.outbound.oldest_expires_ms();
        let next_attempt_ms = match self.dial {
            Dial::At(at) if self.link.is_none() && self.config.dials && at < u64::MAX => Some(at),
            _ => None,
        };
        PeerStats {
            link: self.link.as_ref().filter(|of| of.is_resumed).map(|of| of.side == Side::Dialer),
            queued: self.outbound.len(),
            queued_bytes: self.outbound.bytes(),
            oldest_ms: oldest.map(|at| at.saturating_sub(self.config.expiry_ms)),
            pending,
            attempts: self.attempts,
            next_attempt_ms,
        }
    }
}
