//! Every offset counted: several workers, publishers, clients that come and go, rings that are
//! full, sockets that are slow, workers that die, in any order of events a seed can think of.
//!
//! A client checks for itself, by the rules it would follow on a wire: after a subscription at a
//! position every publication carries the next offset and the content that was published under
//! it, unless the server said that something is missing. In the end, when everything has come to
//! rest, whoever is subscribed must have been told of every publication up to the very last: what
//! it says, or that it is missing.

mod kit;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::IoSlice;
use std::sync::Arc;

use dunlin_hub::{
    ChannelOptions, Encoding, Epoch, Error, Event, HistoryFilter, HubConfig, NewSession, Overflow,
    SessionId, StreamPosition, Subscribe,
};
use kit::{World, publish};
use proptest::prelude::*;

const WORKERS: u8 = 3;
const CLIENTS: usize = 8;

/// What a run may do to the world.
#[derive(Clone, Copy, Debug)]
struct Weather {
    restarts: bool,
    ring_slots: usize,
    transmit_bytes_max: usize,
    outbox_bytes_max: u32,
    pending_bytes_max: usize,
    blocking: bool,
    history_size: u32,
}

/// SplitMix64: a run is its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % sides as u64) as usize
    }
}

#[derive(Default)]
struct Client {
    session: Option<SessionId>,
    /// Bytes of a line that has not ended.
    partial: Vec<u8>,
    channels: BTreeMap<String, State>,
    blocked: bool,
    /// The hub asked for an end: read the rest, then close.
    ending: bool,
    recovered: u64,
    gaps: u64,
    received: u64,
}

#[derive(Clone, Debug)]
enum State {
    /// Not subscribed; where to go on.
    Off(Option<StreamPosition>),
    /// By the subscription request with this token.
    Asked(Option<StreamPosition>, u64),
    On {
        last: StreamPosition,
        /// Publications the server said are missing and that have not shown as a jump yet.
        excused: u64,
    },
}

impl State {
    fn resume(&self) -> Option<StreamPosition> {
        match self {
            Self::Off(at) | Self::Asked(at, _) => *at,
            Self::On { last, .. } => Some(*last),
        }
    }
}

struct Play {
    world: World,
    dice: Dice,
    weather: Weather,
    clients: Vec<Client>,
    channels: Vec<(String, Arc<ChannelOptions>)>,
    /// What was published where, as the publishers were told.
    truth: HashMap<(String, Epoch, u64), String>,
    /// What was received before its publisher was told.
    claims: HashMap<(String, Epoch, u64), String>,
    /// Payloads of publishes under way.
    asked: HashMap<u64, (String, String)>,
    tokens: u64,
    /// All is being brought to rest.
    resting: bool,
    log: Vec<String>,
}

impl Play {
    fn new(seed: u64, weather: Weather) -> Self {
        let config = HubConfig {
            workers: WORKERS,
            transmit_bytes_max: weather.transmit_bytes_max,
            pending_bytes_max: weather.pending_bytes_max,
            ..HubConfig::default()
        };
        let mut world = World::with_config(config);
        world.ring_slots = weather.ring_slots;
        let overflows = [Overflow::Disconnect, Overflow::DropOldest, Overflow::KeepLatest];
        let channels = (0..6)
            .map(|n| {
                let options = ChannelOptions {
                    history_size: weather.history_size,
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
        Self {
            world,
            dice: Dice(seed),
            weather,
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            channels,
            truth: HashMap::new(),
            claims: HashMap::new(),
            asked: HashMap::new(),
            tokens: 1000,
            resting: false,
            log: Vec::new(),
        }
    }

    fn note(&mut self, line: String) {
        self.log.push(line);
        if self.log.len() > 60 {
            self.log.remove(0);
        }
    }

    fn step(&mut self) {
        let client = self.dice.roll(CLIENTS);
        let worker = self.dice.roll(usize::from(WORKERS)) as u8;
        match self.dice.roll(100) {
            0..40 => {
                let to = self.dice.roll(usize::from(WORKERS)) as u8;
                let many = 1 + self.dice.roll(4);
                for _ in 0..many {
                    self.world.deliver(worker, to);
                    // Now and then the events wait while more is delivered.
                    if self.dice.roll(3) > 0 {
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
            93..96 if self.weather.blocking => self.unblock(client),
            96 => {
                let ms = [1, 50, 900, 6_000][self.dice.roll(4)];
                self.pass(ms);
            }
            97 if self.weather.restarts => self.restart(worker),
            _ => self.world.transmit(worker),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.world.now.ms += ms;
        for worker in 0..WORKERS {
            let now = self.world.now;
            self.world.hub(worker).handle_timeout(now);
            self.collect(worker);
        }
    }

    fn publish(&mut self, worker: u8) {
        let burst = 1 + self.dice.roll(3) * self.dice.roll(6);
        for _ in 0..burst {
            let channel = self.dice.roll(self.channels.len());
            let (name, options) = self.channels[channel].clone();
            self.tokens += 1;
            let payload = format!("t{}{}", self.tokens, "x".repeat(self.dice.roll(60)));
            self.asked.insert(self.tokens, (name.clone(), payload.clone()));
            let key = ["a", "b", "c"][self.dice.roll(3)];
            let publish = dunlin_hub::Publish { key: Some(key.into()), ..publish(&payload) };
            let (now, token) = (self.world.now, self.tokens);
            self.world.hub(worker).handle_publish(now, token, &name, &options, publish);
            self.collect(worker);
        }
    }

    fn connect(&mut self, at: usize) {
        if self.clients[at].session.is_some() {
            return;
        }
        let worker = self.dice.roll(usize::from(WORKERS)) as u8;
        let new = NewSession {
            tag: at as u64,
            encoding: Encoding(self.dice.roll(3) as u8),
            user: ["", "ann", "bob"][at % 3],
            outbox_bytes_max: self.weather.outbox_bytes_max,
            ..NewSession::default()
        };
        let session = self.world.open_with(worker, new);
        self.note(format!("client {at} connects as {session:?}"));
        let client = &mut self.clients[at];
        client.session = Some(session);
        client.blocked = false;
        client.ending = false;
        client.partial.clear();
        let wanted: Vec<String> = client.channels.keys().cloned().collect();
        for channel in wanted {
            if self.clients[at].session == Some(session) {
                self.subscribe(at, &channel);
            }
        }
    }

    fn subscribe(&mut self, at: usize, channel: &str) {
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
        let subscribe = Subscribe { recover, join_leave: at == 0, ..Subscribe::default() };
        let now = self.world.now;
        self.note(format!("client {at} subscribes to {channel} from {recover:?}"));
        self.world
            .hub(session.worker())
            .handle_subscribe(now, token, session, channel, &options, subscribe);
        self.collect(session.worker());
        if self.resting {
            self.settle();
        }
    }

    fn toggle(&mut self, at: usize) {
        let channel = self.dice.roll(self.channels.len());
        let channel = self.channels[channel].0.clone();
        let Some(session) = self.clients[at].session.filter(|_| !self.clients[at].ending) else {
            return;
        };
        match self.clients[at].channels.get(&channel).cloned() {
            None | Some(State::Off(_)) => self.subscribe(at, &channel),
            Some(state) if self.dice.roll(3) == 0 => {
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
    fn vanish(&mut self, at: usize) {
        let Some(session) = self.clients[at].session.take() else { return };
        self.note(format!("client {at} vanishes"));
        self.clients[at].lose_connection();
        let now = self.world.now;
        self.world.hub(session.worker()).close_session(now, session);
        self.collect(session.worker());
    }

    fn restart(&mut self, worker: u8) {
        self.note(format!("worker {worker} restarts"));
        for client in &mut self.clients {
            if client.session.is_some_and(|session| session.worker() == worker) {
                client.session = None;
                client.lose_connection();
            }
        }
        // Rings are first in, first out whoever lives at their ends. Some peers are told before
        // they read of it.
        self.world.restart(worker);
        let life = self.world.lives[usize::from(worker)];
        for other in 0..WORKERS {
            if other != worker && self.dice.roll(2) == 0 {
                let now = self.world.now;
                self.world.hub(other).handle_worker_restarted(now, worker, life);
                self.collect(other);
            }
        }
    }

    fn flush(&mut self, worker: u8) {
        while let Some(flush) = self.world.hub(worker).poll_flush() {
            let at = flush.tag as usize;
            assert_eq!(self.clients[at].session, Some(flush.session), "a stale session is flushed");
            let stingy = self.weather.blocking && self.dice.roll(4) == 0;
            let limit = if stingy { self.dice.roll(200) } else { usize::MAX };
            self.write(at, limit);
        }
    }

    /// The socket takes up to `limit` bytes.
    fn write(&mut self, at: usize, limit: usize) {
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

    fn unblock(&mut self, at: usize) {
        if let Some(session) = self.clients[at].session
            && std::mem::take(&mut self.clients[at].blocked)
        {
            self.world.hub(session.worker()).set_blocked(session, false);
        }
    }

    fn receive(&mut self, at: usize, bytes: &[u8]) {
        self.clients[at].partial.extend_from_slice(bytes);
        let partial = std::mem::take(&mut self.clients[at].partial);
        let end = partial.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        self.clients[at].partial = partial[end..].to_vec();
        let text = String::from_utf8(partial[..end].to_vec()).expect("text");
        for line in text.lines() {
            self.note(format!("client {at} reads {line}"));
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["ok", token, channel, offset, epoch, recovered] => {
                    let token = token.parse().expect("a token");
                    let offset = offset.parse().expect("an offset");
                    let position = StreamPosition { offset, epoch: Epoch::parse(epoch) };
                    self.subscribed(at, token, channel, position, recovered);
                }
                ["refused", token, channel] => {
                    let state = self.clients[at].channels.get_mut(channel).expect("asked");
                    if let State::Asked(resume, asked) = state
                        && asked.to_string() == token
                    {
                        *state = State::Off(*resume);
                    }
                }
                ["pub", channel, offset, data] => {
                    self.publication(at, channel, offset.parse().expect("an offset"), data);
                }
                ["missed", channel, count] => {
                    if let Some(State::On { excused, .. }) =
                        self.clients[at].channels.get_mut(channel)
                    {
                        *excused += count.parse::<u64>().expect("a count");
                        self.clients[at].gaps += 1;
                    }
                }
                ["unsub", channel, "2500"] => {
                    let client = &mut self.clients[at];
                    let state = client.channels.get_mut(channel).expect("known");
                    if let State::On { last, .. } = state {
                        *state = State::Off(Some(*last));
                        client.gaps += 1;
                    }
                }
                ["bye", "3008"] => self.clients[at].ending = true,
                ["join" | "leave", ..] => assert_eq!(at, 0, "only client 0 asked for this"),
                _ => panic!("{line}"),
            }
        }
    }

    fn subscribed(
        &mut self,
        at: usize,
        token: u64,
        channel: &str,
        position: StreamPosition,
        recovered: &str,
    ) {
        let state = self.clients[at].channels.get_mut(channel).expect("asked");
        let State::Asked(resume, asked) = *state else { return };
        if asked != token {
            // It has left and come back meanwhile.
            return;
        }
        let mut publications = recovered.split(',').filter(|part| !part.is_empty()).peekable();
        let mut last = position;
        match recovered {
            "no" => self.clients[at].gaps += u64::from(resume.is_some()),
            _ => {
                last = resume.expect("asked to recover");
                assert_eq!(last.epoch, position.epoch);
                self.clients[at].recovered += 1;
                publications.next();
            }
        }
        let client = &mut self.clients[at];
        client.channels.insert(channel.to_owned(), State::On { last, excused: 0 });
        if recovered != "no" {
            for part in publications {
                let (offset, data) = part.split_once('=').expect("offset=data");
                self.publication(at, channel, offset.parse().expect("an offset"), data);
            }
            let State::On { last, .. } = &self.clients[at].channels[channel] else {
                panic!("just subscribed")
            };
            assert_eq!(*last, position, "recovered up to the position");
        }
    }

    fn publication(&mut self, at: usize, channel: &str, offset: u64, data: &str) {
        let Some(State::On { last, excused }) = self.clients[at].channels.get_mut(channel) else {
            // It has left; or was told that it is not subscribed any more.
            return;
        };
        assert!(offset > last.offset, "client {at}: {channel} {offset} after {}", last.offset);
        let skipped = offset - last.offset - 1;
        assert!(
            skipped <= *excused,
            "client {at}: {channel} jumps from {} to {offset}, excused {excused}",
            last.offset
        );
        *excused -= skipped;
        last.offset = offset;
        let place = (channel.to_owned(), last.epoch, offset);
        self.clients[at].received += 1;
        self.claim(place, data);
    }

    fn claim(&mut self, place: (String, Epoch, u64), data: &str) {
        if let Some(known) = self.truth.get(&place).or_else(|| self.claims.get(&place)) {
            assert_eq!(known, data, "{place:?}");
        } else {
            self.claims.insert(place, data.to_owned());
        }
    }

    /// Takes a worker's events and messages; answers subscriptions on the wire.
    fn collect(&mut self, worker: u8) {
        while let Some(event) = self.world.hub(worker).poll_event() {
            match event {
                Event::Subscribed { session, channel, result, token } => {
                    if matches!(result, Err(Error::AlreadySubscribed)) {
                        panic!("client {token} is told it is subscribed to {channel} twice");
                    }
                    let line = match result {
                        Ok(subscribed) => {
                            let position = subscribed.position;
                            let recovered = if subscribed.recovered {
                                let parts: Vec<String> = subscribed
                                    .publications
                                    .iter()
                                    .map(|publication| {
                                        let data = String::from_utf8_lossy(&publication.data);
                                        format!("{}={data}", publication.offset)
                                    })
                                    .collect();
                                format!("yes,{}", parts.join(","))
                            } else {
                                "no".to_owned()
                            };
                            format!(
                                "ok {token} {channel} {} {} {recovered}\n",
                                position.offset, position.epoch
                            )
                        }
                        // It was the client that gave it up.
                        Err(Error::Cancelled) => continue,
                        Err(_) => format!("refused {token} {channel}\n"),
                    };
                    let hub = self.world.hub(worker);
                    hub.push(session, |out| out.extend_from_slice(line.as_bytes()));
                }
                Event::Published { token, result } => {
                    let (channel, payload) = self.asked.remove(&token).expect("asked once");
                    if let Ok(published) = result {
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
                other => panic!("{other:?}"),
            }
        }
        self.world.transmit(worker);
    }

    /// Delivers what is on its way, to the workers and to the clients.
    fn settle(&mut self) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for worker in 0..WORKERS {
                self.collect(worker);
                for to in 0..WORKERS {
                    while self.world.deliver(worker, to) {
                        moved = true;
                        self.collect(to);
                        self.flush(to);
                    }
                }
                self.flush(worker);
            }
        }
    }

    /// Lets everything come to rest: rings drained, sockets read, everyone subscribed again.
    fn rest(&mut self) {
        self.weather.blocking = false;
        self.resting = true;
        for round in 0..30 {
            self.settle();
            for at in 0..CLIENTS {
                self.unblock(at);
            }
            for at in 0..CLIENTS {
                self.connect(at);
                let off: Vec<String> = self.clients[at]
                    .channels
                    .iter()
                    .filter(|(_, state)| matches!(state, State::Off(_)))
                    .map(|(channel, _)| channel.clone())
                    .collect();
                for channel in off {
                    self.subscribe(at, &channel);
                }
            }
            if round == 10 {
                // Whatever was lost with a dead worker times out.
                self.pass(10_000);
            }
        }
    }

    /// Everyone must have been told of everything.
    fn judge(&mut self) -> (u64, u64, u64) {
        let mut tops = HashMap::new();
        for (name, options) in self.channels.clone() {
            let now = self.world.now;
            let filter = HistoryFilter { limit: Some(0), ..HistoryFilter::default() };
            self.world.hub(0).handle_history(now, 1, &name, &options, filter);
            self.world.settle();
            let event = self.world.take_events().pop();
            let Some((0, Event::History { result: Ok(history), .. })) = event else {
                panic!("{event:?}");
            };
            tops.insert(name, history.position);
        }
        for (at, client) in self.clients.iter().enumerate() {
            for (channel, state) in &client.channels {
                let State::On { last, excused } = state else {
                    panic!("client {at} is not back in {channel}: {state:?}");
                };
                // The last of them may be among the missing.
                let told = StreamPosition { offset: last.offset + excused, ..*last };
                assert_eq!(told, tops[channel], "client {at} in {channel}");
            }
            let session = client.session.expect("connected");
            let hub = &self.world.hubs[usize::from(session.worker())];
            let known: BTreeSet<&str> = hub.subscriptions(session).collect();
            assert_eq!(known, client.channels.keys().map(String::as_str).collect());
        }
        let hubs = &self.world.hubs;
        let sum = |gauge: fn(dunlin_hub::Stats) -> u64| -> u64 {
            hubs.iter().map(|hub| gauge(hub.stats())).sum()
        };
        assert_eq!(sum(|stats| stats.pending_bytes), 0);
        assert_eq!(sum(|stats| stats.transmit_bytes), 0);
        assert_eq!(sum(|stats| stats.sessions), CLIENTS as u64);
        let subscriptions = self.clients.iter().map(|client| client.channels.len() as u64).sum();
        assert_eq!(sum(|stats| stats.subscriptions), subscriptions);
        self.judge_presence();
        self.clients.iter().fold((0, 0, 0), |(received, recovered, gaps), client| {
            (received + client.received, recovered + client.recovered, gaps + client.gaps)
        })
    }

    /// Exactly the subscribed are present.
    fn judge_presence(&mut self) {
        for (name, options) in self.channels.clone() {
            if !options.presence {
                continue;
            }
            let now = self.world.now;
            self.world.hub(1).handle_presence(now, 2, &name, &options);
            self.world.settle();
            let event = self.world.take_events().pop();
            let Some((1, Event::Presence { result: Ok(present), .. })) = event else {
                panic!("{event:?}");
            };
            let present: BTreeSet<SessionId> = present.iter().map(|info| info.client).collect();
            let subscribed = self
                .clients
                .iter()
                .filter(|client| client.channels.contains_key(&name))
                .filter_map(|client| client.session)
                .collect();
            assert_eq!(present, subscribed, "in {name}");
        }
    }
}

impl Client {
    /// Not subscribed to anything any more, as far as the server is concerned; what it reads from
    /// here on still counts.
    fn pause(&mut self) {
        for state in self.channels.values_mut() {
            if let State::Asked(resume, _) = state {
                *state = State::Off(*resume);
            }
        }
    }

    fn lose_connection(&mut self) {
        for state in self.channels.values_mut() {
            *state = State::Off(state.resume());
        }
        self.partial.clear();
        self.blocked = false;
        self.ending = false;
    }
}

fn run(seed: u64, steps: usize, weather: Weather) -> (u64, u64, u64) {
    let mut play = Play::new(seed, weather);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..steps {
            play.step();
        }
        play.rest();
        play.judge()
    }));
    outcome.unwrap_or_else(|panic| {
        eprintln!("seed {seed}, {weather:?}; the last lines:\n{}", play.log.join("\n"));
        std::panic::resume_unwind(panic)
    })
}

const FAIR: Weather = Weather {
    restarts: false,
    ring_slots: usize::MAX,
    transmit_bytes_max: usize::MAX,
    outbox_bytes_max: 1 << 20,
    pending_bytes_max: usize::MAX,
    blocking: false,
    history_size: 10_000,
};

#[test]
fn in_fair_weather_nothing_is_ever_missing() {
    for seed in 0..20 {
        let (received, recovered, gaps) = run(seed, 2_000, FAIR);
        assert_eq!(gaps, 0, "seed {seed}");
        assert!(received > 500 && recovered > 10, "seed {seed}: {received} {recovered}");
    }
}

#[test]
fn slow_sockets_and_full_rings_delay_but_lose_nothing() {
    let weather = Weather { blocking: true, ring_slots: 2, ..FAIR };
    for seed in 100..120 {
        let (received, _, gaps) = run(seed, 2_000, weather);
        assert_eq!(gaps, 0, "seed {seed}");
        assert!(received > 500);
    }
}

#[test]
fn with_bounded_queues_whatever_is_missing_is_marked() {
    let weather = Weather {
        blocking: true,
        ring_slots: 2,
        transmit_bytes_max: 600,
        outbox_bytes_max: 700,
        ..FAIR
    };
    let (mut received, mut gaps) = (0, 0);
    for seed in 200..230 {
        let seen = run(seed, 2_000, weather);
        received += seen.0;
        gaps += seen.2;
    }
    assert!(gaps > 100 && received > 10_000, "{gaps} {received}");
}

#[test]
fn a_worker_that_dies_takes_only_its_own_along() {
    let weather = Weather { restarts: true, ring_slots: 3, blocking: true, ..FAIR };
    let (mut received, mut gaps) = (0, 0);
    for seed in 300..330 {
        let seen = run(seed, 2_000, weather);
        received += seen.0;
        gaps += seen.2;
    }
    assert!(gaps > 100 && received > 10_000, "{gaps} {received}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_any_weather_the_truth_is_told(
        seed: u64,
        steps in 1usize..1_500,
        restarts: bool,
        blocking: bool,
        ring_slots in 1usize..5,
        transmit_bytes_max in 300usize..5_000,
        outbox_bytes_max in 100u32..5_000,
        pending_bytes_max in prop_oneof![Just(usize::MAX), 100_000usize..400_000],
        history_size in 1u32..50,
    ) {
        run(seed, steps, Weather {
            restarts, ring_slots, transmit_bytes_max, outbox_bytes_max, pending_bytes_max,
            blocking, history_size,
        });
    }
}
