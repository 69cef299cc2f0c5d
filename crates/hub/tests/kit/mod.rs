//! Several hubs wired together in virtual time, and clients that read what they are sent.

#![allow(dead_code, unreachable_pub)]

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;

use dunlin_bus::{Endpoint, MeshConfig, mesh};
use dunlin_hub::{
    ChannelOptions, ChannelRef, Encode, EncodingId, Event, Flush, Hub, HubConfig, HubMessage,
    NewPublication, NewSession, Now, Outgoing, SessionId, SubscribeOptions, Subscribed,
    UserDirectory,
};

/// Encodes pushes as lines. Encoding 1 has no join and leave.
pub struct Lines;

impl Encode for Lines {
    fn encode(&mut self, encoding: EncodingId, outgoing: &Outgoing<'_>, out: &mut Vec<u8>) {
        let line = match outgoing {
            Outgoing::Publication { channel, publication } => {
                let data = String::from_utf8_lossy(publication.data());
                format!("pub {channel} {} {data}", publication.offset())
            }
            Outgoing::Delta { channel, publication, patch: None } => {
                let data = String::from_utf8_lossy(publication.data());
                format!("whole {channel} {} {data}", publication.offset())
            }
            Outgoing::Delta { channel, publication, patch: Some(patch) } => {
                let data = String::from_utf8_lossy(patch.bytes);
                format!("delta {channel} {} {data}", publication.offset())
            }
            Outgoing::Join { .. } | Outgoing::Leave { .. } if encoding.0 == 1 => return,
            Outgoing::Join { channel, info, .. } => format!("join {channel} {}", info.user),
            Outgoing::Leave { channel, info, .. } => format!("leave {channel} {}", info.user),
            Outgoing::Unsubscribe { channel, code, .. } => format!("unsub {channel} {code}"),
            Outgoing::Subscribe { channel, position, .. } => {
                format!("sub {channel} {} {}", position.offset, position.epoch)
            }
            Outgoing::Missed { channel, count } => format!("missed {channel} {count}"),
            Outgoing::Disconnect { code, .. } => format!("bye {code}"),
            Outgoing::Message { data, .. } => format!("msg {}", String::from_utf8_lossy(data)),
            other => format!("{other:?}"),
        };
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
    }

    fn is_of_device(&self, conn_info: &[u8], device: &str) -> bool {
        conn_info == device.as_bytes()
    }

    /// Both of them, where they begin alike.
    fn encode_delta(&mut self, source: &[u8], target: &[u8], out: &mut Vec<u8>) {
        if source.first() == target.first() {
            out.extend_from_slice(&source[..2.min(source.len())]);
            out.push(b'>');
            out.extend_from_slice(&target[target.len().saturating_sub(2)..]);
        }
    }
}

/// Workers and the rings between them.
pub struct World {
    pub now: Now,
    pub hubs: Vec<Hub>,
    pub incarnations: Vec<u32>,
    /// First in, first out; by sender and receiver.
    pub rings: BTreeMap<(u8, u8), VecDeque<HubMessage>>,
    /// Messages a ring takes.
    pub ring_slots: usize,
    /// Real rings in place of those, if there are any, and who sleeps.
    pub bus: Vec<Endpoint<HubMessage>>,
    pub asleep: Vec<bool>,
    pub config: HubConfig,
    pub encoder: fn() -> Box<dyn Encode>,
    pub events: Vec<(u8, Event)>,
    /// Sent and not yet read.
    pub sent: BTreeMap<SessionId, String>,
}

impl World {
    pub fn new(workers: u8) -> Self {
        Self::with_config(HubConfig { workers, ..HubConfig::default() })
    }

    pub fn with_encoder(workers: u8, encoder: fn() -> Box<dyn Encode>) -> Self {
        let mut world = Self::new(workers);
        world.encoder = encoder;
        world.hubs = (0..workers).map(|worker| world.birth(worker)).collect();
        world
    }

    pub fn with_config(mut config: HubConfig) -> Self {
        let workers = config.workers;
        config.users.get_or_insert_with(|| Arc::new(UserDirectory::new(workers)));
        let mut world = Self {
            now: Now { ms: 1_000_000, unix_ms: 1_700_000_000_000 },
            hubs: Vec::new(),
            incarnations: vec![0; usize::from(workers)],
            rings: BTreeMap::new(),
            ring_slots: usize::MAX,
            bus: Vec::new(),
            asleep: Vec::new(),
            config,
            encoder: || Box::new(Lines),
            events: Vec::new(),
            sent: BTreeMap::new(),
        };
        for worker in 0..workers {
            let hub = world.birth(worker);
            world.hubs.push(hub);
        }
        world
    }

    fn birth(&self, worker: u8) -> Hub {
        let incarnation = self.incarnations[usize::from(worker)];
        let config = HubConfig {
            worker,
            incarnation,
            boot: incarnation as u8,
            hash_seed: 5,
            seed: u64::from(worker) << 32 | u64::from(incarnation) << 8 | 7,
            ..self.config.clone()
        };
        Hub::new(config, (self.encoder)())
    }

    pub fn hub(&mut self, worker: u8) -> &mut Hub {
        &mut self.hubs[usize::from(worker)]
    }

    /// The worker dies with all it knew; what it sent before is still in the rings.
    pub fn restart(&mut self, worker: u8) {
        self.incarnations[usize::from(worker)] += 1;
        self.hubs[usize::from(worker)] = self.birth(worker);
        self.collect(worker);
    }

    /// Takes the events of a worker, and its messages as far as the rings take them.
    pub fn collect(&mut self, worker: u8) {
        let hub = &mut self.hubs[usize::from(worker)];
        while let Some(event) = hub.poll_event() {
            self.events.push((worker, event));
        }
        self.transmit(worker);
    }

    pub fn transmit(&mut self, worker: u8) {
        if !self.bus.is_empty() {
            return self.transmit_by_bus(worker);
        }
        let hub = &mut self.hubs[usize::from(worker)];
        while let Some((to, message)) = hub.poll_transmit() {
            assert_ne!(to, worker, "nobody sends to itself through a ring");
            let ring = self.rings.entry((worker, to)).or_default();
            if ring.len() < self.ring_slots {
                ring.push_back(message);
            } else {
                hub.requeue(to, message);
            }
        }
    }

    /// Has the workers talk over the bus they have in a process, with rings of so many slots.
    pub fn take_the_bus(&mut self, ring_slots: usize) {
        let config = MeshConfig { ring_slots, ring_slots_initial: 1, burst: 2 };
        self.bus = mesh(self.hubs.len(), &config).expect("descriptors for a few doorbells");
        self.asleep = vec![false; self.hubs.len()];
    }

    fn transmit_by_bus(&mut self, worker: u8) {
        let endpoint = &mut self.bus[usize::from(worker)];
        let hub = &mut self.hubs[usize::from(worker)];
        if std::mem::take(&mut self.asleep[usize::from(worker)]) {
            endpoint.wake();
        }
        while let Some((to, message)) = hub.poll_transmit() {
            if let Err(refused) = endpoint.send(usize::from(to), message) {
                hub.requeue(to, refused.into_value());
            }
        }
        endpoint.flush();
    }

    fn deliver_by_bus(&mut self, to: u8) -> bool {
        let endpoint = &mut self.bus[usize::from(to)];
        // Everybody who sends flushes before anybody else has his turn.
        let rung = !self.asleep[usize::from(to)] || format!("{endpoint:?}").contains("Notified");
        if std::mem::take(&mut self.asleep[usize::from(to)]) {
            endpoint.wake();
        }
        let Some((from, message)) = endpoint.recv() else { return false };
        assert!(rung, "a message came for worker {to}, who slept and was not woken");
        // It may have made room that others wait for.
        endpoint.flush();
        self.hubs[usize::from(to)].handle_message(self.now, from as u8, message);
        true
    }

    /// A worker would sleep, if nothing is there for it.
    pub fn doze(&mut self, worker: u8) {
        if let Some(endpoint) = self.bus.get_mut(usize::from(worker))
            && !self.asleep[usize::from(worker)]
        {
            self.asleep[usize::from(worker)] = endpoint.prepare_sleep();
        }
    }

    /// Delivers one message of a ring, of the bus from the next sender; false when it is empty. Leaves the events to
    /// be taken.
    pub fn deliver(&mut self, from: u8, to: u8) -> bool {
        if !self.bus.is_empty() {
            return self.deliver_by_bus(to);
        }
        let Some(message) = self.rings.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return false;
        };
        self.hubs[usize::from(to)].handle_message(self.now, from, message);
        true
    }

    /// Delivers until nothing moves.
    pub fn settle(&mut self) {
        loop {
            let mut moved = false;
            for worker in 0..self.hubs.len() as u8 {
                let (now, hub) = (self.now, self.hub(worker));
                if hub.has_walks() {
                    hub.continue_walks(now);
                    moved = true;
                }
                self.collect(worker);
            }
            let mut edges: Vec<(u8, u8)> = self.rings.keys().copied().collect();
            if !self.bus.is_empty() {
                edges = (0..self.hubs.len() as u8).map(|to| (to, to)).collect();
            }
            for (from, to) in edges {
                while self.deliver(from, to) {
                    moved = true;
                    self.collect(to);
                }
            }
            if !moved {
                return;
            }
        }
    }

    pub fn pass(&mut self, ms: u64) {
        self.now.ms += ms;
        self.now.unix_ms += ms;
        for worker in 0..self.hubs.len() as u8 {
            let now = self.now;
            self.hub(worker).handle_timeout(now);
            self.collect(worker);
        }
    }

    pub fn take_events(&mut self) -> Vec<(u8, Event)> {
        std::mem::take(&mut self.events)
    }

    /// The channel's name with this prefix that is at home on `worker`.
    pub fn channel_at(&self, worker: u8, prefix: &str) -> String {
        (0..)
            .map(|n| format!("{prefix}{n}"))
            .find(|name| self.home_of(name) == worker)
            .expect("every worker is home to some channel")
    }

    /// Where a channel is at home, found out by asking a throw-away hub whom it would ask.
    pub fn home_of(&self, channel: &str) -> u8 {
        let mut probe = self.birth(0);
        probe.handle_history_remove(self.now, 0, ChannelRef::new(channel, &Arc::default()));
        loop {
            match probe.poll_transmit() {
                Some((to, message)) if !format!("{message:?}").contains("Hello") => return to,
                Some(_) => {}
                None => return 0,
            }
        }
    }

    pub fn open(&mut self, worker: u8, user: &str) -> SessionId {
        self.open_with(worker, NewSession { user, ..NewSession::default() })
    }

    pub fn open_with(&mut self, worker: u8, new: NewSession<'_>) -> SessionId {
        let now = self.now;
        self.hub(worker).open_session(now, new).expect("there is room")
    }

    pub fn subscribe(
        &mut self,
        session: SessionId,
        channel: &str,
        options: &Arc<ChannelOptions>,
        subscribe: SubscribeOptions,
    ) -> Subscribed {
        let now = self.now;
        let worker = session.worker();
        self.hub(worker).handle_subscribe(
            now,
            77,
            session,
            ChannelRef::new(channel, options),
            subscribe,
        );
        self.settle();
        let at = self.events.iter().position(|(_, event)| {
            matches!(event, Event::Subscribed { token: 77, session: who, .. } if *who == session)
        });
        match self.events.remove(at.expect("an answer")) {
            (_, Event::Subscribed { result, .. }) => result.expect("subscribed"),
            _ => unreachable!("just matched"),
        }
    }

    pub fn publish(
        &mut self,
        worker: u8,
        channel: &str,
        options: &Arc<ChannelOptions>,
        data: &str,
    ) -> dunlin_hub::Published {
        self.publish_with(worker, channel, options, publish(data))
    }

    pub fn publish_with(
        &mut self,
        worker: u8,
        channel: &str,
        options: &Arc<ChannelOptions>,
        publish: NewPublication,
    ) -> dunlin_hub::Published {
        let now = self.now;
        self.hub(worker).handle_publish(now, 88, ChannelRef::new(channel, options), publish);
        self.settle();
        let published =
            self.events.iter().position(|(_, e)| matches!(e, Event::Published { token: 88, .. }));
        match self.events.remove(published.expect("an answer")) {
            (_, Event::Published { result, .. }) => result.expect("published"),
            _ => unreachable!("just matched"),
        }
    }

    /// A turn's flush of a worker: sends all that waits for its sessions, of broadcasts a quantum; what
    /// each was sent.
    pub fn flush(&mut self, worker: u8) -> Vec<(Flush, String)> {
        let now = self.now;
        let hub = self.hub(worker);
        hub.begin_flush(now);
        let mut sent = Vec::new();
        while let Some(flush) = hub.poll_flush() {
            let mut text = Vec::new();
            loop {
                let mut slices = [IoSlice::new(&[]); 3];
                let filled = hub.outbox(flush.session, &mut slices);
                if filled == 0 {
                    break;
                }
                let bytes: Vec<u8> =
                    slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
                hub.advance(flush.session, bytes.len());
                text.extend(bytes);
            }
            sent.push((flush, String::from_utf8(text).expect("text")));
        }
        sent
    }

    /// What one session has been sent since it was last asked for.
    pub fn read(&mut self, session: SessionId) -> String {
        loop {
            let sent = self.flush(session.worker());
            if sent.is_empty() {
                break;
            }
            for (flush, text) in sent {
                self.sent.entry(flush.session).or_default().push_str(&text);
            }
        }
        self.sent.remove(&session).unwrap_or_default()
    }
}

pub fn publish(data: &str) -> NewPublication {
    NewPublication { data: data.as_bytes().into(), ..NewPublication::default() }
}

/// Keeps the last 100 messages for five minutes.
pub fn with_history() -> Arc<ChannelOptions> {
    Arc::new(ChannelOptions {
        history_size: 100,
        history_ttl_ms: 300_000,
        force_recovery: true,
        ..ChannelOptions::default()
    })
}

pub fn plain() -> Arc<ChannelOptions> {
    Arc::new(ChannelOptions::default())
}

pub fn offsets(publications: &[dunlin_hub::Publication]) -> Vec<u64> {
    publications.iter().map(|publication| publication.offset()).collect()
}
