//! The loop: listener, dialing, handshakes, and what passes between links and workers.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_bus::SendError;
use dunlin_federation::{
    CloseCode, EXPORTER_LABEL, FrameReader, Handshake, HandshakeError, Identity, LinkId,
    NONCE_BYTES, NewLink, PeerKeys, Progress, Reason, Side,
};
use dunlin_net::{
    CloseReason, ConnId, ConnectConfig, Context, EventLoop, Handler, Interest, Limits,
    ListenConfig, ListenerId, LoopConfig, Sleep, Tcp, TimerId,
};
use hashbrown::HashMap;

use super::peers::{Now, Outputs, RunningPeer, Wish};
use super::queue::Queue;
use super::tls::LinkTls;
use crate::clock::unix_ms;
use crate::error::ServeError;
use crate::message::bus::{Addressed, Endpoint};
use crate::message::federation::{FederationMessage, FederationToWorker, SendAnswer};
use crate::message::worker::WorkerMessage;
use crate::state::ServerState;
use crate::state::federation::PeerMetric;
use crate::state::settings::Settings;

/// Messages taken from the bus before links get their turn.
const MESSAGES_PER_TURN: usize = 4_096;
/// Bytes that wait in a link's connection before its machine is asked for more.
const OUTPUT_BYTES: usize = 256 << 10;
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// The most connections whose peer is not known yet; the oldest give way.
const HANDSHAKES_MAX: usize = 256;
const HANDSHAKE_MS: u64 = 10_000;
/// The doorbell among the loop's foreign descriptors.
const DOORBELL: u64 = 0;
const CONNECTIONS_MAX: usize = 65_536;

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Timer {
    Due = 1,
    Second,
}

/// A handle of the thread.
pub(crate) struct FederationThread {
    thread: std::thread::JoinHandle<()>,
}

impl FederationThread {
    /// Starts the thread. With a state directory, messages to peers survive the process.
    ///
    /// # Errors
    /// What is stored cannot be opened.
    pub(crate) fn start(
        state: Arc<ServerState>,
        mut endpoint: Endpoint<FederationMessage>,
        state_dir: Option<&Path>,
        report: &mut Vec<String>,
    ) -> Result<FederationThread, ServeError> {
        let enabled = state.settings.load().config.federation.enabled;
        let directory = state_dir.filter(|path| enabled || path.join("federation").exists());
        let queue = match directory {
            Some(path) => {
                let bell = endpoint.doorbell().try_clone_to_owned().map_err(ServeError::Bus)?;
                let wake = Arc::new(move || {
                    // This fails only if the counter is full; the thread is then awake.
                    let _ = rustix::io::write(bell.as_fd(), &1u64.to_ne_bytes());
                });
                Some(Queue::open(path, wake, report).map_err(ServeError::Federation)?)
            }
            None => None,
        };
        if enabled && queue.is_none() {
            let sentence = "messages to peers are in memory; start with --state DIR to keep them";
            report.push(sentence.to_owned());
        }
        let builder = std::thread::Builder::new().name("dunlin-federation".into());
        let thread = builder.spawn(move || {
            if let Err(error) = run(state, &mut endpoint, queue) {
                tracing::error!(%error, "links to peers have ended; restart the server");
            }
        });
        Ok(FederationThread { thread: thread.map_err(ServeError::Control)? })
    }

    /// Waits for the thread to end, within a bound.
    pub(crate) fn join(self, bound: Duration) {
        let deadline = Instant::now() + bound;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn run(
    state: Arc<ServerState>,
    endpoint: &mut Endpoint<FederationMessage>,
    queue: Option<Queue>,
) -> io::Result<()> {
    let config = LoopConfig {
        connections_max: CONNECTIONS_MAX,
        unauthenticated_max: Some(HANDSHAKES_MAX),
        ..LoopConfig::default()
    };
    let mut event_loop = EventLoop::new(config)?;
    let cx = event_loop.context();
    cx.register_fd(endpoint.doorbell(), DOORBELL, Interest::READABLE)?;
    cx.run_every(1_000, Timer::Second as u64);
    let mut links = Links {
        state,
        endpoint,
        queue,
        settings: None,
        generation: 0,
        identity: None,
        tls: LinkTls::new()?,
        listener: None,
        problem: None,
        peers: BTreeMap::new(),
        conns: HashMap::new(),
        outputs: Outputs::new(),
        waiting: VecDeque::new(),
        timer: None,
        busy: false,
        stopping: false,
    };
    links.endpoint.wake();
    event_loop.run(&mut links)?;
    if let Some(queue) = links.queue.take() {
        queue.close();
    }
    Ok(())
}

/// What a connection is at the moment.
enum Conn {
    /// It is being dialed.
    Dialing(Arc<str>, u64),
    Shaking(Box<Handshake>, u64),
    Linked(Arc<str>),
    /// It closes when its output is written.
    Closing,
}

/// All links.
struct Links<'e> {
    state: Arc<ServerState>,
    endpoint: &'e mut Endpoint<FederationMessage>,
    queue: Option<Queue>,
    settings: Option<Arc<Settings>>,
    generation: u64,
    identity: Option<Identity>,
    tls: LinkTls,
    listener: Option<(SocketAddr, ListenerId)>,
    /// Why there is no listener, or a peer is missing.
    problem: Option<String>,
    peers: BTreeMap<Arc<str>, RunningPeer>,
    conns: HashMap<ConnId, Conn>,
    outputs: Outputs,
    /// Messages that a worker's full ring did not take.
    waiting: VecDeque<Addressed>,
    timer: Option<(u64, TimerId)>,
    busy: bool,
    stopping: bool,
}

impl Links<'_> {
    fn now(cx: &Context<()>) -> Now {
        Now { ms: cx.now_ms(), unix_ms: unix_ms() }
    }

    /// Switches to the newest settings, if it does not run them.
    fn adopt_newest(&mut self, cx: &mut Context<()>) {
        let generation = self.state.generation();
        if generation == self.generation || self.stopping {
            return;
        }
        self.generation = generation;
        let settings = self.state.settings.load_full();
        self.endpoint.set_ring_slots(settings.config.limits.bus_slots as usize);
        let federation = &settings.config.federation;
        let before = self.settings.replace(Arc::clone(&settings));
        if before.is_some_and(|before| before.config.federation == *federation) {
            return;
        }
        let key = federation.key.as_ref().filter(|_| federation.enabled);
        // It is validated.
        let identity = key.and_then(|key| Identity::new(&federation.domain, key.reveal()).ok());
        let is_same = match (&self.identity, &identity) {
            (Some(old), Some(new)) => {
                old.name() == new.name() && old.public_key() == new.public_key()
            }
            (None, None) => true,
            _ => false,
        };
        let now = Links::now(cx);
        if !is_same {
            for peer in self.peers.values_mut() {
                peer.machine.close(
                    now.ms,
                    CloseCode::GoingAway,
                    "this server has another identity",
                );
            }
        }
        let renamed = match (&self.identity, &identity) {
            (Some(old), Some(new)) => old.name() != new.name(),
            _ => false,
        };
        self.identity = identity;
        self.listen(cx);
        let wanted = |name: &str| {
            federation.peers.get_shared(name).filter(|_| federation.enabled).map(Arc::clone)
        };
        let gone: Vec<Arc<str>> = self
            .peers
            .keys()
            .filter(|name| renamed || wanted(name).is_none())
            .map(Arc::clone)
            .collect();
        for name in gone {
            let Some(mut peer) = self.peers.remove(&name) else { continue };
            peer.machine.close(now.ms, CloseCode::GoingAway, "the peer was removed");
            peer.give_up(self.queue.as_ref(), now);
            self.settle_peer(cx, &name, &mut peer);
        }
        for (name, config) in federation.peers.iter_shared().filter(|_| federation.enabled) {
            if let Some(peer) = self.peers.get_mut(name) {
                peer.apply((now, self.queue.as_ref()), federation, config);
                continue;
            }
            let random = [cx.random_u64(), cx.random_u64(), cx.random_u64()];
            let counters = self.state.federation.counters.begin(Arc::clone(name));
            let settings = (federation, config);
            let queue = self.queue.as_ref();
            match RunningPeer::new(name, settings, queue, counters, (now, random)) {
                Ok(peer) => drop(self.peers.insert(Arc::clone(name), peer)),
                Err(error) => {
                    tracing::error!(peer = %name, error, "what is stored of a peer cannot be read");
                    self.problem = Some(format!("{name}: {error}"));
                }
            }
        }
    }

    /// Opens the listener of the settings, or closes it.
    fn listen(&mut self, cx: &mut Context<()>) {
        let federation = self.settings.as_ref().map(|settings| &settings.config.federation);
        let wanted = federation.filter(|of| of.enabled).and_then(|of| of.listen);
        if self.listener.map(|(address, _)| address) == wanted {
            return;
        }
        if let Some((_, id)) = self.listener.take() {
            cx.close_listener(id);
        }
        let Some(address) = wanted else { return };
        let limits = Limits { output_bytes_max: OUTPUT_BYTES_MAX, ..Limits::default() };
        let tls = Some(self.tls.server.clone());
        let listen = ListenConfig { tls, limits, ..ListenConfig::tcp() };
        match cx.listen(address, &listen) {
            Ok(id) => (self.listener, self.problem) = (Some((address, id)), None),
            Err(error) => {
                let problem = format!("federation.listen: cannot listen on {address}: {error}");
                if self.problem.as_ref() != Some(&problem) {
                    tracing::error!("{problem}; it is tried again every second");
                }
                self.problem = Some(problem);
            }
        }
    }

    fn take_messages(&mut self, cx: &mut Context<()>) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some((from, message)) = self.endpoint.recv() else { return };
            // A worker that knows of a peer runs settings with it, which were published before.
            self.adopt_newest(cx);
            let now = Links::now(cx);
            match message {
                FederationMessage::Send { token, peer, message } => {
                    let Some(settings) = &self.settings else { continue };
                    let federation = &settings.config.federation;
                    let times = (now, federation.expiry_ms, federation.answer_timeout_ms);
                    let queue = self.queue.as_ref();
                    let running =
                        self.peers.get_mut(&peer).filter(|of| !of.config.blocked && !self.stopping);
                    match running {
                        Some(running) => {
                            let outputs = &mut self.outputs;
                            running.send(times, queue, (from, token), &message, outputs);
                        }
                        None => {
                            let answer = SendAnswer::Failed(Reason::NoPeer);
                            let answer = FederationToWorker::Answer { token, answer };
                            self.outputs.push_back((from, answer));
                        }
                    }
                }
                FederationMessage::Taken(id, result) => {
                    if let Some(peer) = self.peers.get_mut(&id.peer) {
                        peer.handle_taken(&id, result);
                    }
                }
                FederationMessage::Retry(peer) => {
                    if let Some(peer) = self.peers.get_mut(&peer) {
                        peer.machine.dial_now(now.ms);
                    }
                }
                // It has woken the thread.
                FederationMessage::AdoptSettings => {}
                FederationMessage::Stop => {
                    self.stopping = true;
                    for peer in self.peers.values_mut() {
                        peer.machine.close(now.ms, CloseCode::GoingAway, "the server stops");
                    }
                }
            }
        }
        self.busy = true;
    }

    /// Lets every peer's machine work, and writes to its link.
    fn run_peers(&mut self, cx: &mut Context<()>) {
        let mut peers = std::mem::take(&mut self.peers);
        for (name, peer) in &mut peers {
            if let Some(queue) = &self.queue {
                peer.handle_written(queue);
            }
            if !peer.config.blocked && !self.stopping {
                peer.machine.handle_timeout(cx.now_ms());
            }
            self.settle_peer(cx, name, peer);
            self.transmit(cx, peer);
        }
        self.peers = peers;
    }

    fn settle_peer(&mut self, cx: &mut Context<()>, name: &Arc<str>, peer: &mut RunningPeer) {
        let now = Links::now(cx);
        let workers = self.state.workers();
        while let Some(wish) = peer.poll(now, self.queue.as_ref(), workers, &mut self.outputs) {
            match wish {
                Wish::Dial => self.dial(cx, name, peer),
                Wish::Close(id) => {
                    let conn = ConnId::from_u64(id.0);
                    if let Some(words) = peer.machine.poll_last_words(id) {
                        let _ = cx.write(conn, &words);
                    }
                    // One that has ended already has no entry.
                    if let Some(of) = self.conns.get_mut(&conn) {
                        *of = Conn::Closing;
                    }
                    cx.close(conn);
                }
                Wish::Up => tracing::info!(peer = %name, "a link to a peer is up"),
                Wish::Down(why) => {
                    tracing::info!(peer = %name, reason = %why, "there is no link to a peer");
                }
            }
        }
    }

    fn dial(&mut self, cx: &mut Context<()>, name: &Arc<str>, peer: &mut RunningPeer) {
        let limits = Limits { output_bytes_max: OUTPUT_BYTES_MAX, ..Limits::default() };
        let tls = Some(self.tls.client.clone());
        let connect = ConnectConfig { tls, limits, ..ConnectConfig::default() };
        let begun_ms = cx.now_ms();
        let conn = match peer.config.address.rsplit_once(':') {
            Some((host, port)) => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let port = port.parse().unwrap_or_default();
                cx.connect_name(host, port, &connect)
            }
            None => Err(io::ErrorKind::InvalidInput.into()),
        };
        match conn {
            Ok(conn) => drop(self.conns.insert(conn, Conn::Dialing(Arc::clone(name), begun_ms))),
            Err(error) => dial_failed(peer, begun_ms, &error.to_string()),
        }
    }

    fn transmit(&mut self, cx: &mut Context<()>, peer: &mut RunningPeer) {
        let mut out = Vec::new();
        loop {
            out.clear();
            let Some(id) = peer.machine.poll_transmit(cx.now_ms(), &mut out, OUTPUT_BYTES) else {
                return;
            };
            if out.is_empty() {
                return;
            }
            let conn = ConnId::from_u64(id.0);
            // A connection that has ended is reported as closed.
            let _ = cx.write(conn, &out);
            if cx.output_bytes(conn) > OUTPUT_BYTES && cx.want_writable(conn) {
                return;
            }
        }
    }

    fn begin_handshake(
        &mut self,
        cx: &mut Context<()>,
        conn: ConnId,
        dialed: Option<&Arc<str>>,
        begun_ms: u64,
    ) {
        let mut nonce = [0; NONCE_BYTES];
        let exporter = cx.export_keying_material(conn, EXPORTER_LABEL);
        let (Ok(exporter), Ok(()), Some(identity)) =
            (exporter, getrandom::fill(&mut nonce), &self.identity)
        else {
            return cx.close(conn);
        };
        let mut out = Vec::new();
        let handshake = match dialed {
            Some(peer) => Handshake::dial(identity, peer, exporter, nonce, &mut out),
            None => Handshake::listen(exporter, nonce),
        };
        let _ = cx.write(conn, &out);
        cx.set_deadline(conn, Some(cx.now_ms() + HANDSHAKE_MS));
        self.conns.insert(conn, Conn::Shaking(Box::new(handshake), begun_ms));
    }

    fn shake(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        let Some(Conn::Shaking(handshake, begun_ms)) = self.conns.get_mut(&conn) else { return };
        let begun_ms = *begun_ms;
        let Some(identity) = &self.identity else { return cx.close(conn) };
        let peers = &self.peers;
        let keys = |name: &str| -> Option<PeerKeys> {
            let (name, peer) = peers.get_key_value(name)?;
            (!peer.config.blocked).then(|| (Arc::clone(name), Arc::clone(&peer.keys)))
        };
        let mut out = Vec::new();
        let progress = handshake.handle_data(identity, bytes, &keys, &mut out);
        if let Err(error) = &progress {
            error.encode_close(identity.name(), &mut out);
        }
        let _ = cx.write(conn, &out);
        let side = handshake.side();
        match progress {
            Ok(Progress::Incomplete) => {}
            Ok(Progress::Done(name, reader)) => {
                cx.set_deadline(conn, None);
                cx.mark_authenticated(conn);
                self.linked(cx, conn, &name, (side, begun_ms, reader));
            }
            Err(error) => self.refused(cx, conn, &error),
        }
    }

    fn linked(
        &mut self,
        cx: &mut Context<()>,
        conn: ConnId,
        name: &Arc<str>,
        (side, begun_ms, reader): (Side, u64, FrameReader),
    ) {
        let Some(peer) = self.peers.get_mut(name) else { return cx.close(conn) };
        self.conns.insert(conn, Conn::Linked(Arc::clone(name)));
        let id = LinkId(conn.to_u64());
        peer.machine.handle_link(cx.now_ms(), NewLink { id, side, begun_ms, reader });
    }

    /// A handshake has failed: the log says why, and an inbound one makes a peer that is there be dialed.
    fn refused(&mut self, cx: &mut Context<()>, conn: ConnId, error: &HandshakeError) {
        let address = cx.peer_addr(conn).map(|of| of.to_string()).unwrap_or_default();
        if let Some(Conn::Shaking(handshake, _)) = self.conns.insert(conn, Conn::Closing) {
            let name = handshake.peer().cloned();
            tracing::warn!(peer = name.as_deref(), %address, %error, "a link was refused");
            let peer = name.and_then(|name| self.peers.get_mut(&name));
            if let (Some(peer), Side::Dialer) = (peer, handshake.side()) {
                dial_failed(peer, cx.now_ms(), &error.to_string());
            }
        }
        cx.close(conn);
    }

    fn ended(&mut self, cx: &mut Context<()>, conn: ConnId, why: &str) {
        let now_ms = cx.now_ms();
        match self.conns.remove(&conn) {
            Some(Conn::Linked(name)) => {
                if let Some(peer) = self.peers.get_mut(&name) {
                    peer.machine.handle_closed(now_ms, LinkId(conn.to_u64()), why);
                }
            }
            Some(Conn::Dialing(name, _)) => {
                if let Some(peer) = self.peers.get_mut(&name) {
                    dial_failed(peer, now_ms, why);
                }
            }
            Some(Conn::Shaking(handshake, _)) if handshake.side() == Side::Dialer => {
                if let Some(peer) = handshake.peer().and_then(|name| self.peers.get_mut(name)) {
                    dial_failed(peer, now_ms, why);
                }
            }
            _ => {}
        }
    }

    /// Sends workers what is for them. A full ring keeps the rest, in order.
    fn send_outputs(&mut self) {
        let to = self.state.bus;
        for (worker, message) in self.outputs.drain(..) {
            let message = WorkerMessage::Federation(Box::new(message));
            self.waiting.push_back(to.worker(worker % self.state.workers()).seal(message));
        }
        while let Some(message) = self.waiting.pop_front() {
            // A message that a worker never gets is given again.
            if let Err(error @ SendError::Full { .. }) = self.endpoint.send_addressed(message) {
                self.waiting.push_front(error.into_value());
                self.busy = true;
                break;
            }
        }
        self.endpoint.flush();
    }

    fn answer_calls(&mut self, cx: &Context<()>) -> Option<u64> {
        let now_ms = cx.now_ms();
        let due =
            self.peers.values_mut().filter_map(|of| of.answer_calls(now_ms, &mut self.outputs));
        due.min()
    }

    fn arm_timer(&mut self, cx: &mut Context<()>, due_ms: Option<u64>) {
        let peers = self.peers.values().filter(|peer| !peer.config.blocked);
        let due_ms = peers.filter_map(|peer| peer.machine.poll_timeout()).chain(due_ms).min();
        let due_ms = due_ms.filter(|_| !self.stopping);
        if due_ms == self.timer.map(|(at_ms, _)| at_ms) {
            return;
        }
        if let Some((_, timer)) = self.timer.take() {
            cx.cancel(timer);
        }
        self.timer = due_ms.map(|at_ms| {
            (at_ms, cx.run_after(at_ms.saturating_sub(cx.now_ms()).max(1), Timer::Due as u64))
        });
    }

    fn second(&mut self, cx: &mut Context<()>) {
        self.listen(cx);
        let (now, workers) = (Links::now(cx), self.state.workers());
        let outputs = &mut self.outputs;
        let shown = self.peers.iter_mut();
        let shown = shown.map(|(name, of)| (Arc::clone(name), of.second(now, workers, outputs)));
        let shown = shown.collect();
        let identity = self.identity.as_ref();
        let identity = identity.map(|of| (Arc::clone(of.name()), of.public_key().to_string()));
        let failure = self.queue.as_ref().and_then(Queue::failure).map(|why| why.to_string());
        let problem = self.problem.clone().or(failure);
        self.state.federation.publish(identity.unwrap_or_default(), problem, shown);
    }
}

fn dial_failed(peer: &mut RunningPeer, now_ms: u64, why: &str) {
    peer.counters.count(PeerMetric::LinkErrors);
    peer.last_error = why.into();
    peer.machine.handle_dial_failed(now_ms);
}

impl Handler for Links<'_> {
    type Data = ();
    type Protocols = Tcp;

    fn on_open(&mut self, cx: &mut Context<()>, conn: ConnId) {
        let begun_ms = cx.now_ms();
        self.begin_handshake(cx, conn, None, begun_ms);
    }

    fn on_connect(&mut self, cx: &mut Context<()>, conn: ConnId) {
        if let Some(Conn::Dialing(name, begun_ms)) = self.conns.remove(&conn) {
            self.begin_handshake(cx, conn, Some(&name), begun_ms);
        }
    }

    fn on_connect_failed(&mut self, cx: &mut Context<()>, conn: ConnId, (): (), error: &io::Error) {
        self.ended(cx, conn, &error.to_string());
    }

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        match self.conns.get(&conn) {
            Some(Conn::Linked(name)) => {
                if let Some(peer) = self.peers.get_mut(name) {
                    let id = LinkId(conn.to_u64());
                    peer.machine.handle_data(cx.now_ms(), id, bytes);
                }
            }
            Some(Conn::Shaking(..)) => self.shake(cx, conn, bytes),
            _ => {}
        }
    }

    fn on_eof(&mut self, cx: &mut Context<()>, conn: ConnId) {
        cx.close(conn);
    }

    fn on_close(&mut self, cx: &mut Context<()>, conn: ConnId, (): (), _: CloseReason) {
        self.ended(cx, conn, "the connection has ended");
    }

    fn on_deadline(&mut self, cx: &mut Context<()>, conn: ConnId) {
        cx.abort(conn);
    }

    fn on_timer(&mut self, cx: &mut Context<()>, _: TimerId, data: u64) {
        match data {
            _ if data == Timer::Second as u64 => self.second(cx),
            _ => self.timer = None,
        }
    }

    fn on_tick(&mut self, cx: &mut Context<()>) {
        self.busy = false;
        self.adopt_newest(cx);
        self.take_messages(cx);
        self.run_peers(cx);
        let due_ms = self.answer_calls(cx);
        self.send_outputs();
        self.arm_timer(cx, due_ms);
        if self.stopping {
            cx.stop();
        }
    }

    fn on_sleep(&mut self, _: &mut Context<()>) -> Sleep {
        if self.busy || !self.endpoint.prepare_sleep() { Sleep::Poll } else { Sleep::Block }
    }

    fn on_wake(&mut self, _: &mut Context<()>) {
        self.endpoint.wake();
    }
}
