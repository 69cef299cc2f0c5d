//! Workers, publishers and clients, and what happens to them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::IoSlice;
use std::num::NonZeroU32;
use std::sync::Arc;

use dunlin_hub::{
    ChannelOptions, ChannelRef, EncodingId, Epoch, Error, Event, HubConfig, NewSession,
    OverflowPolicy, SubscribeOptions,
};

use super::actions::RecordedEvents;
use super::client::{Client, State};
use crate::kit::{World, publish};

pub const WORKERS: u8 = 3;
pub const CLIENTS: usize = 8;
/// A channel without history, into which worker 0 alone publishes.
pub const LIVE: &str = "live";

/// Faults of a run.
#[derive(Clone, Copy, Debug)]
pub struct FaultProfile {
    pub restarts: bool,
    pub ring_slots: usize,
    pub transmit_bytes_max: usize,
    pub outbox_bytes_max: u32,
    pub pending_bytes_max: usize,
    pub blocking: bool,
    pub history_size: u32,
}

/// The source of choices: a seed, or bytes.
pub enum Rng {
    /// SplitMix64.
    Seeded(Seeded),
    /// Given bytes, then 0.
    Given(VecDeque<u8>),
}

impl Rng {
    pub fn roll(&mut self, sides: usize) -> usize {
        match self {
            Rng::Seeded(seeded) => seeded.roll(sides),
            Rng::Given(bytes) => usize::from(bytes.pop_front().unwrap_or(0)) % sides,
        }
    }
}

pub struct Seeded(pub u64);

impl Seeded {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % sides as u64) as usize
    }
}

pub struct Simulation {
    pub world: World,
    pub rng: Rng,
    pub faults: FaultProfile,
    pub clients: Vec<Client>,
    pub channels: Vec<(String, Arc<ChannelOptions>)>,
    /// Publications by position, as reported to their publishers.
    pub truth: HashMap<(String, Epoch, u64), String>,
    /// Publications received before their publisher had the position.
    pub claims: HashMap<(String, Epoch, u64), String>,
    /// Payloads of publishes under way.
    pub asked: HashMap<u64, (String, String)>,
    /// Tokens of publications into [`LIVE`], but of those that failed.
    pub live: BTreeSet<u64>,
    pub tokens: u64,
    /// No more faults: everything is delivered.
    pub resting: bool,
    /// Channel events recorded so far.
    pub channel_events: RecordedEvents,
    pub log: Vec<String>,
}

impl Simulation {
    pub fn new(seed: u64, faults: FaultProfile) -> Self {
        // No quantum, or so small a one that broadcasts take several turns.
        Self::begin(Rng::Seeded(Seeded(seed)), (seed % 3) as u32, faults)
    }

    pub fn begin(rng: Rng, broadcast_quantum: u32, faults: FaultProfile) -> Self {
        let config = HubConfig {
            workers: WORKERS,
            transmit_bytes_max: faults.transmit_bytes_max,
            pending_bytes_max: faults.pending_bytes_max,
            broadcast_quantum: NonZeroU32::new(broadcast_quantum),
            ..HubConfig::default()
        };
        let mut world = World::with_config(config);
        world.ring_slots = faults.ring_slots;
        let overflows =
            [OverflowPolicy::Disconnect, OverflowPolicy::DropOldest, OverflowPolicy::KeepLatest];
        let mut channels: Vec<_> = (0..6)
            .map(|n| {
                let options = ChannelOptions {
                    history_size: faults.history_size,
                    history_ttl_ms: 60_000,
                    force_recovery: true,
                    presence: n % 2 == 1,
                    join_leave: n % 3 == 1,
                    overflow: overflows[n % 3],
                    ..ChannelOptions::default()
                };
                (format!("c{n}"), Arc::new(options))
            })
            .collect();
        let live =
            ChannelOptions { overflow: OverflowPolicy::DropOldest, ..ChannelOptions::default() };
        channels.push((LIVE.to_owned(), Arc::new(live)));
        Self {
            world,
            rng,
            faults,
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            channels,
            truth: HashMap::new(),
            claims: HashMap::new(),
            asked: HashMap::new(),
            live: BTreeSet::new(),
            tokens: 1000,
            resting: false,
            channel_events: RecordedEvents::default(),
            log: Vec::new(),
        }
    }

    pub fn note(&mut self, line: String) {
        self.log.push(line);
        if self.log.len() > 60 {
            self.log.remove(0);
        }
    }

    pub fn step(&mut self) {
        let client = self.rng.roll(CLIENTS);
        let worker = self.rng.roll(usize::from(WORKERS)) as u8;
        match self.rng.roll(100) {
            0..40 => {
                let to = self.rng.roll(usize::from(WORKERS)) as u8;
                let many = 1 + self.rng.roll(4);
                for _ in 0..many {
                    self.world.deliver(worker, to);
                    // Now and then the events wait while more is delivered.
                    if self.rng.roll(3) > 0 {
                        self.collect(to);
                    }
                }
                self.collect(to);
            }
            40..58 => self.publish(worker),
            58..66 => self.connect(client),
            66..80 => self.toggle(client),
            80..83 => self.vanish(client),
            83..93 => self.flush(worker),
            93..96 if self.faults.blocking => self.unblock(client),
            96 => {
                let ms = [1, 50, 900, 6_000][self.rng.roll(4)];
                self.pass(ms);
            }
            97 if self.faults.restarts => self.restart(worker),
            _ => self.world.transmit(worker),
        }
    }

    pub fn pass(&mut self, ms: u64) {
        self.world.now.ms += ms;
        for worker in 0..WORKERS {
            let now = self.world.now;
            self.world.hub(worker).handle_timeout(now);
            self.collect(worker);
        }
    }

    pub fn publish(&mut self, worker: u8) {
        let burst = 1 + self.rng.roll(3) * self.rng.roll(6);
        for _ in 0..burst {
            let channel = self.rng.roll(self.channels.len());
            let (name, options) = self.channels[channel].clone();
            self.tokens += 1;
            let payload = format!("t{}{}", self.tokens, "x".repeat(self.rng.roll(60)));
            self.asked.insert(self.tokens, (name.clone(), payload.clone()));
            let key = ["a", "b", "c"][self.rng.roll(3)];
            let publish = dunlin_hub::NewPublication { key: Some(key.into()), ..publish(&payload) };
            let (now, token) = (self.world.now, self.tokens);
            let worker = if name == LIVE { 0 } else { worker };
            if name == LIVE {
                self.live.insert(token);
            }
            self.world.hub(worker).handle_publish(
                now,
                token,
                ChannelRef::new(&name, &options),
                publish,
            );
            self.collect(worker);
        }
    }

    pub fn connect(&mut self, at: usize) {
        if self.clients[at].session.is_some() {
            return;
        }
        let worker = self.rng.roll(usize::from(WORKERS)) as u8;
        let new = NewSession {
            tag: at as u64,
            encoding: EncodingId(self.rng.roll(3) as u8),
            user: ["", "ann", "bob"][at % 3],
            outbox_bytes_max: self.faults.outbox_bytes_max,
            held: self.rng.roll(2) == 0,
            ..NewSession::default()
        };
        let held = new.held;
        let session = self.world.open_with(worker, new);
        self.note(format!("client {at} connects as {session:?}"));
        let client = &mut self.clients[at];
        client.session = Some(session);
        client.blocked = false;
        client.ending = false;
        client.partial.clear();
        client.ungreeted = held;
        let wanted: Vec<String> = client.channels.keys().cloned().collect();
        for channel in wanted {
            if self.clients[at].session == Some(session) {
                self.subscribe(at, &channel);
            }
        }
        if held && self.clients[at].session == Some(session) {
            let hub = self.world.hub(worker);
            hub.release(session, |out| out.extend_from_slice(b"hello\n"));
        }
    }

    pub fn subscribe(&mut self, at: usize, channel: &str) {
        let Some(session) = self.clients[at].session.filter(|_| !self.clients[at].ending) else {
            return;
        };
        let state = self.clients[at].channels.entry(channel.to_owned()).or_insert(State::Off(None));
        let recover = state.resume();
        self.tokens += 1;
        let token = self.tokens;
        *state = State::Asked(recover, token);
        let options = &self.channels.iter().find(|(name, _)| name == channel).expect("ours").1;
        let options = Arc::clone(options);
        let subscribe =
            SubscribeOptions { recover, join_leave: at == 0, ..SubscribeOptions::default() };
        let now = self.world.now;
        self.note(format!("client {at} subscribes to {channel} from {recover:?}"));
        self.world.hub(session.worker()).handle_subscribe(
            now,
            token,
            session,
            ChannelRef::new(channel, &options),
            subscribe,
        );
        self.collect(session.worker());
        if self.resting {
            self.settle();
        }
    }

    pub fn toggle(&mut self, at: usize) {
        let channel = self.rng.roll(self.channels.len());
        let channel = self.channels[channel].0.clone();
        let Some(session) = self.clients[at].session.filter(|_| !self.clients[at].ending) else {
            return;
        };
        match self.clients[at].channels.get(&channel).cloned() {
            None | Some(State::Off(_)) => self.subscribe(at, &channel),
            Some(state) if self.rng.roll(3) == 0 => {
                self.note(format!("client {at} leaves {channel}"));
                // What is on its way to it will be ignored, and asked for again.
                self.clients[at].channels.insert(channel.clone(), State::Off(state.resume()));
                let now = self.world.now;
                let hub = self.world.hub(session.worker());
                hub.handle_unsubscribe(now, session, &channel, None);
                self.collect(session.worker());
            }
            Some(_) => {}
        }
    }

    /// The connection breaks; the server notices at once.
    pub fn vanish(&mut self, at: usize) {
        let Some(session) = self.clients[at].session.take() else { return };
        self.note(format!("client {at} vanishes"));
        self.clients[at].lose_connection();
        let now = self.world.now;
        self.world.hub(session.worker()).close_session(now, session);
        self.collect(session.worker());
    }

    pub fn restart(&mut self, worker: u8) {
        self.note(format!("worker {worker} restarts"));
        for client in &mut self.clients {
            if client.session.is_some_and(|session| session.worker() == worker) {
                client.session = None;
                client.lose_connection();
            }
        }
        // Rings are first in, first out across restarts. Some peers learn of it before
        // they read of it.
        self.world.restart(worker);
        let incarnation = self.world.incarnations[usize::from(worker)];
        for other in 0..WORKERS {
            if other != worker && self.rng.roll(2) == 0 {
                let now = self.world.now;
                self.world.hub(other).handle_worker_restarted(now, worker, incarnation);
                self.collect(other);
            }
        }
    }

    pub fn flush(&mut self, worker: u8) {
        loop {
            let now = self.world.now;
            self.world.hub(worker).begin_flush(now);
            while let Some(flush) = self.world.hub(worker).poll_flush() {
                let at = flush.tag as usize;
                let known = self.clients[at].session;
                assert_eq!(known, Some(flush.session), "a stale session is flushed");
                let stingy = self.faults.blocking && self.rng.roll(4) == 0;
                let limit = if stingy { self.rng.roll(200) } else { usize::MAX };
                self.write(at, limit);
            }
            if !self.resting || self.world.hub(worker).flush_due_ms().is_none() {
                return;
            }
        }
    }

    /// The socket takes up to `limit` bytes.
    pub fn write(&mut self, at: usize, limit: usize) {
        let Some(session) = self.clients[at].session else { return };
        let mut taken = Vec::new();
        loop {
            let hub = self.world.hub(session.worker());
            let mut slices = [IoSlice::new(&[]); 2];
            let filled = hub.outbox(session, &mut slices);
            let bytes: Vec<u8> =
                slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
            let now = bytes.len().min(limit - taken.len());
            if now == 0 {
                break;
            }
            hub.advance(session, now);
            taken.extend_from_slice(&bytes[..now]);
        }
        let hub = self.world.hub(session.worker());
        let left = hub.outbox_bytes(session) > 0;
        if left {
            hub.set_blocked(session, true);
            self.clients[at].blocked = true;
        }
        self.receive(at, &taken);
        if self.clients[at].ending && !left {
            self.vanish(at);
        }
    }

    pub fn unblock(&mut self, at: usize) {
        if let Some(session) = self.clients[at].session
            && std::mem::take(&mut self.clients[at].blocked)
        {
            self.world.hub(session.worker()).set_blocked(session, false);
        }
    }

    /// A subscription was given up before it was made: by the client, who has forgotten it, or by the server.
    fn cancelled(&mut self, token: u64) {
        let states = self.clients.iter_mut().flat_map(|client| client.channels.values_mut());
        for state in states {
            if let State::Asked(resume, asked) = state
                && *asked == token
            {
                *state = State::Off(*resume);
            }
        }
    }

    /// Takes a worker's events and messages; answers subscriptions on the wire.
    pub fn collect(&mut self, worker: u8) {
        loop {
            let event = self.world.hub(worker).poll_event();
            self.record_channel_events(worker);
            let Some(event) = event else { break };
            match event {
                Event::Subscribed { session, channel, result, token } => {
                    if matches!(result, Err(Error::AlreadySubscribed)) {
                        panic!("client {token} gets a subscription to {channel} twice");
                    }
                    let line = match result {
                        Ok(subscribed) => {
                            let position = subscribed.position;
                            let recovered = if subscribed.recovered {
                                let frames: Vec<String> = subscribed
                                    .publications
                                    .iter()
                                    .map(|publication| {
                                        let data = String::from_utf8_lossy(publication.data());
                                        format!("{}={data}", publication.offset())
                                    })
                                    .collect();
                                format!("yes,{}", frames.join(","))
                            } else {
                                "no".to_owned()
                            };
                            format!(
                                "ok {token} {channel} {} {} {recovered}\n",
                                position.offset, position.epoch
                            )
                        }
                        Err(Error::Cancelled) => {
                            self.cancelled(token);
                            continue;
                        }
                        Err(_) => format!("refused {token} {channel}\n"),
                    };
                    let hub = self.world.hub(worker);
                    hub.push(session, |out| out.extend_from_slice(line.as_bytes()));
                }
                Event::Published { token, result } => {
                    let (channel, payload) = self.asked.remove(&token).expect("asked once");
                    if channel == LIVE {
                        if result.is_err() {
                            self.live.remove(&token);
                        }
                    } else if let Ok(published) = result {
                        let position = published.position;
                        let place = (channel, position.epoch, position.offset);
                        self.claim(place.clone(), &payload);
                        let known = self.truth.insert(place.clone(), payload);
                        assert_eq!(known, None, "{place:?} given twice");
                    }
                }
                Event::Disconnect { session, tag, .. } => {
                    assert_eq!(self.clients[tag as usize].session, Some(session));
                    self.clients[tag as usize].ending = true;
                    self.clients[tag as usize].pause();
                }
                Event::Unsubscribed { code, .. } => assert_eq!(code, 2500),
                Event::Affected { .. } | Event::Presence { .. } => {}
                Event::History { result, .. } => self.history_read(result),
                other => panic!("{other:?}"),
            }
        }
        self.world.transmit(worker);
    }
}
