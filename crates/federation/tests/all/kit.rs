//! Two servers in virtual time, with what survives each of them, and a connection between them that can be cut anywhere.

use std::collections::{BTreeMap, HashMap, HashSet};

use dunlin_federation::{
    Event, FrameReader, LinkId, Message, NewLink, Peer, PeerConfig, Reason, Side,
};

/// Numbers that look random.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

/// What is left of a server that was killed.
#[derive(Default)]
pub struct Disk {
    queue: BTreeMap<u64, (Box<[u8]>, u64)>,
    base: u64,
    taken: (u64, u64),
    /// The idempotency keys of what the users' channels have.
    pub home: HashSet<(u64, u64)>,
}

pub struct Server {
    pub peer: Peer,
    name: &'static str,
    other: &'static str,
    config: PeerConfig,
    stream: u64,
    disk: Disk,
    /// Messages that their homes take at a time.
    given: Vec<(u64, u64, u64, Message)>,
    /// The texts that arrived in users' channels.
    pub arrived: Vec<String>,
    /// Results by number. A number whose sender was killed before the result is settled by the next run.
    pub settled: HashMap<u64, Vec<Result<(), Reason>>>,
    pub accepted: Vec<(u64, String)>,
    pub home_delay_ms: u64,
    pub refuses: Option<&'static str>,
    pub wants_dial: bool,
}

impl Server {
    pub fn new(name: &'static str, other: &'static str, config: PeerConfig, stream: u64) -> Server {
        let disk = Disk { base: 1, ..Disk::default() };
        Server {
            peer: Peer::new(name, other, config, (stream, stream)),
            name,
            other,
            config,
            stream,
            disk,
            given: Vec::new(),
            arrived: Vec::new(),
            settled: HashMap::new(),
            accepted: Vec::new(),
            home_delay_ms: 5,
            refuses: None,
            wants_dial: false,
        }
    }

    /// Kills the server and starts it anew with what its disk has.
    pub fn restart(&mut self, now_ms: u64) {
        self.given.clear();
        self.wants_dial = false;
        self.peer = Peer::new(self.name, self.other, self.config, (self.stream, now_ms));
        self.peer.restore(self.disk.base, self.disk.taken);
        for (seq, (body, expires_ms)) in &self.disk.queue {
            self.peer.restore_message(*seq, body.clone(), *expires_ms);
        }
    }

    pub fn send(&mut self, now_ms: u64, text: String, bytes: usize) -> bool {
        let mut data = text.clone().into_bytes();
        data.resize(data.len().max(bytes), b' ');
        let message =
            Message { to: "bob".into(), from: "alice".into(), data, ..Message::default() };
        let (seq, body) = (self.peer.next_seq(), message.encode());
        if self.peer.push(now_ms, seq, body.clone()).is_err() {
            return false;
        }
        self.disk.queue.insert(seq, (body, now_ms + self.config.expiry_ms));
        self.peer.handle_stored(seq);
        self.accepted.push((seq, text));
        true
    }

    /// Does everything that is due, but for sending.
    pub fn work(&mut self, now_ms: u64) -> Vec<LinkId> {
        let mut closed = Vec::new();
        self.peer.handle_timeout(now_ms);
        let (due, later) = self.given.drain(..).partition(|(at, ..)| *at <= now_ms);
        self.given = later;
        let due: Vec<(u64, u64, u64, Message)> = due;
        for (_, stream, seq, message) in due {
            let text = String::from_utf8(message.data).unwrap().trim().to_owned();
            let result = match self.refuses {
                Some(part) if text.contains(part) => Err(Reason::Unreachable),
                _ => {
                    if self.disk.home.insert((stream, seq)) {
                        self.arrived.push(text);
                    }
                    Ok(())
                }
            };
            self.peer.handle_taken(stream, seq, result);
        }
        while let Some(event) = self.peer.poll_event() {
            match event {
                Event::Dial => self.wants_dial = true,
                Event::Close(id) => closed.push(id),
                Event::Up | Event::Down(_) => {}
                Event::Deliver { stream, seq, message } => {
                    self.given.push((now_ms + self.home_delay_ms, stream, seq, message));
                }
                Event::Settled { seq, result } => {
                    self.settled.entry(seq).or_default().push(result);
                    self.disk.queue.remove(&seq);
                    let next = self.peer.next_seq();
                    self.disk.base = self.disk.queue.keys().next().copied().unwrap_or(next);
                }
                Event::Taken { stream, taken } => {
                    self.disk.taken = (stream, taken);
                    self.peer.handle_taken_stored(stream, taken);
                }
            }
        }
        closed
    }
}

/// Bytes on their way in one direction, each piece with its time of arrival.
#[derive(Default)]
struct Pipe {
    pieces: std::collections::VecDeque<(u64, Vec<u8>)>,
}

struct Connection {
    id: LinkId,
    /// Which of the two has dialed.
    dialer: usize,
    pipes: [Pipe; 2],
    /// By receiver: it has closed its end.
    closed: [bool; 2],
}

pub struct World {
    pub now_ms: u64,
    pub servers: [Server; 2],
    connections: Vec<Connection>,
    links: u64,
    pub rng: Rng,
    pub is_reachable: bool,
    pub delay_ms: u64,
}

impl World {
    pub fn new(seed: u64, config: PeerConfig) -> World {
        World {
            now_ms: 1_000,
            servers: [
                Server::new("a.example", "b.example", config, 11),
                Server::new("b.example", "a.example", config, 22),
            ],
            connections: Vec::new(),
            links: 0,
            rng: Rng(seed),
            is_reachable: true,
            delay_ms: 3,
        }
    }

    /// Ends every connection. Of what is on its way a part arrives, up to the middle of a frame.
    pub fn cut(&mut self) {
        let connections = std::mem::take(&mut self.connections);
        for mut connection in connections {
            for to in 0..2 {
                let pieces = std::mem::take(&mut connection.pipes[to].pieces);
                let bytes: Vec<u8> = pieces.into_iter().flat_map(|(_, bytes)| bytes).collect();
                let arrives = self.rng.below(bytes.len() as u64 + 1) as usize;
                let peer = &mut self.servers[to].peer;
                peer.handle_data(self.now_ms, connection.id, &bytes[..arrives]);
                peer.handle_closed(self.now_ms, connection.id, "cut");
            }
        }
    }

    pub fn kill(&mut self, at: usize) {
        let now_ms = self.now_ms;
        for connection in std::mem::take(&mut self.connections) {
            self.servers[1 - at].peer.handle_closed(now_ms, connection.id, "reset");
        }
        self.servers[at].restart(now_ms);
    }

    pub fn step(&mut self) {
        self.now_ms += 1;
        let now_ms = self.now_ms;
        for at in 0..2 {
            for id in self.servers[at].work(now_ms) {
                self.close(at, id);
            }
            if std::mem::take(&mut self.servers[at].wants_dial) {
                self.dial(at);
            }
        }
        for connection in &mut self.connections {
            for to in 0..2 {
                let pipe = &mut connection.pipes[to];
                while pipe.pieces.front().is_some_and(|(at, _)| *at <= now_ms) {
                    let Some((_, bytes)) = pipe.pieces.pop_front() else { break };
                    if !connection.closed[to] {
                        self.servers[to].peer.handle_data(now_ms, connection.id, &bytes);
                    }
                }
            }
        }
        for at in 0..2 {
            for id in self.servers[at].work(now_ms) {
                self.close(at, id);
            }
            let mut out = Vec::new();
            let Some(id) = self.servers[at].peer.poll_transmit(now_ms, &mut out, 64 << 10) else {
                continue;
            };
            if !out.is_empty() {
                self.write(1 - at, id, out);
            }
        }
        let over: Vec<LinkId> = self
            .connections
            .iter()
            .filter(|of| of.closed.contains(&true) && of.pipes.iter().all(|p| p.pieces.is_empty()))
            .map(|of| of.id)
            .collect();
        for id in over {
            self.connections.retain(|of| of.id != id);
            for server in &mut self.servers {
                server.peer.handle_closed(now_ms, id, "closed");
            }
        }
    }

    fn dial(&mut self, at: usize) {
        let now_ms = self.now_ms;
        if !self.is_reachable {
            return self.servers[at].peer.handle_dial_failed(now_ms);
        }
        self.links += 1;
        let id = LinkId(self.links);
        self.connections.push(Connection {
            id,
            dialer: at,
            pipes: Default::default(),
            closed: [false; 2],
        });
        for (side, whose) in [(Side::Listener, 1 - at), (Side::Dialer, at)] {
            let reader = FrameReader::default();
            let link = NewLink { id, side, begun_ms: now_ms, reader };
            self.servers[whose].peer.handle_link(now_ms, link);
        }
    }

    fn write(&mut self, to: usize, id: LinkId, bytes: Vec<u8>) {
        let at_ms = self.now_ms + self.delay_ms;
        if let Some(of) = self.connections.iter_mut().find(|of| of.id == id) {
            of.pipes[to].pieces.push_back((at_ms, bytes));
        }
    }

    fn close(&mut self, at: usize, id: LinkId) {
        if let Some(words) = self.servers[at].peer.poll_last_words(id) {
            self.write(1 - at, id, words);
        }
        if let Some(of) = self.connections.iter_mut().find(|of| of.id == id) {
            of.closed[at] = true;
        }
    }

    pub fn run(&mut self, ms: u64) {
        (0..ms).for_each(|_| self.step());
    }

    pub fn dialers(&self) -> Vec<usize> {
        self.connections.iter().map(|of| of.dialer).collect()
    }
}
