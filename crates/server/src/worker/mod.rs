//! A worker: one thread, one event loop, one hub.
//!
//! A turn of the loop: events come in ([`Handler`]'s methods here, which route to the modules below and hand
//! what was asked to the hub), then [`Worker::turn`] takes in what other workers sent, sends what the hub has
//! for them, and writes the outboxes. The modules are in the order a client meets them:
//! [`routes`] and [`stream`] open transports, [`connect`] says whose they are, [`command`] carries out what
//! clients say as far as [`permission`] allows it, [`poll`] and [`api`] the
//! requests that are answered once, [`push`] those that the push thread answers, [`completion`] takes in what the hub
//! answers, [`flush`] writes, [`heartbeat`] notices who is gone, [`adopt`] switches to changed settings, [`telling`]
//! says what hooks want to hear, [`drain`] says goodbye.

mod addresses;
mod adopt;
mod affected;
mod api;
mod command;
mod completion;
mod connect;
mod drain;
mod flush;
mod heartbeat;
mod link;
mod pacing;
mod pending;
mod permission;
mod poll;
mod push;
mod reply;
mod routes;
mod session_params;
mod stream;
pub(crate) mod thread;
mod webhook_emitter;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use dunlin_bus::{Endpoint, RequestTable};
use dunlin_hub::{Hub, HubConfig, Now, SessionId};
use dunlin_net::{
    Admit, CloseReason, ConnId, Context, EventLoop, Handler, Interest, ListenConfig, ListenerId,
    LoopConfig, ProtocolError, Sleep, TimerId, http, websocket,
};
use dunlin_protocol::centrifuge::DisconnectCode;
use dunlin_protocol::{Encoding, FrameEncoder};
use hashbrown::HashMap;

use self::addresses::Addresses;
use self::adopt::Open;
use self::affected::Count;
use self::api::Call;
use self::connect::Connecting;
use self::drain::Drain;
use self::link::{Link, Role};
use self::pacing::Turn;
use self::pending::Pending;
use self::poll::Poll;
use self::push::PushCall;
use self::session_params::SessionParamsTable;
use self::webhook_emitter::WebhookEmitter;
use crate::admission::{Admission, TokenBucket};
use crate::bus_message::BusMessage;
use crate::fanout_scheduler::ASK_AGAIN_MS;
use crate::metrics::Metric;
use crate::settings::Settings;
use crate::state::{Lifecycle, ServerState};

/// Parcels taken from the bus before sockets get their turn.
const MESSAGES_PER_TURN: usize = 1024;
/// The doorbell among the loop's foreign descriptors.
const DOORBELL: u64 = 0;
/// Timers by what they carry.
const SECOND: u64 = 0;
const DRAIN_STEP: u64 = 1;
const PACING: u64 = 3;
/// Seconds between two looks for memory of the bus that can be given back.
const TRIM_S: u64 = 10;
/// What the hub wants sooner than this does not wait for the second's turn.
const RETRY_MS: u64 = 5;
/// Boots a session id can tell apart; a restart of a worker takes the next.
const BOOTS: u32 = dunlin_hub::BOOTS_MAX as u32;

type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// The state of one worker.
pub(crate) struct Worker<'w> {
    index: usize,
    state: Arc<ServerState>,
    /// The snapshot this worker runs.
    settings: Arc<Settings>,
    /// The publication it was part of.
    generation: u64,
    endpoint: &'w mut Endpoint<BusMessage>,
    hub: Hub,
    /// Spells replies; the hub has its own for pushes.
    encoder: FrameEncoder,
    /// Who waits for which answer of the hub.
    pending: RequestTable<Pending>,
    /// Connects whose server-side subscriptions are being made.
    connecting: FastMap<SessionId, Connecting>,
    polls: FastMap<SessionId, Poll>,
    /// Server API calls under way.
    calls: FastMap<u64, Call>,
    calls_begun: u64,
    /// Calls that the push thread has, by their connections.
    push_calls: FastMap<ConnId, PushCall>,
    /// For the push thread, once its ring has room.
    push_backlog: VecDeque<BusMessage>,
    /// When sessions whose token has an `exp` expire, Unix time in seconds.
    expiries: FastMap<SessionId, u64>,
    addresses: Addresses,
    accepts: TokenBucket,
    /// This worker's listener of those that the process began with.
    boot: &'w TcpListener,
    listeners: Vec<Open>,
    /// What the admin thread wants to have counted.
    counts: Vec<Count>,
    params: SessionParamsTable,
    webhook_emitter: WebhookEmitter,
    drain: Option<Drain>,
    /// Unix time at which the loop's clock was 0, in milliseconds; followed once a second.
    unix_origin_ms: u64,
    now_ms: u64,
    /// When the loop is woken for broadcasts that are held back.
    pacing_timer_ms: Option<u64>,
    /// What [`FanoutScheduler`](crate::fanout_scheduler::FanoutScheduler) said last.
    turn: Turn,
    /// Spreads what should not happen at once.
    jitter: u64,
}

impl<'w> Worker<'w> {
    /// Serves until told to stop.
    pub(crate) fn run(
        index: usize,
        incarnation: u32,
        state: &Arc<ServerState>,
        endpoint: &'w mut Endpoint<BusMessage>,
        boot: &'w TcpListener,
    ) -> io::Result<()> {
        state.rollout.wake(index, 0);
        state.loop_stats[index].wakes();
        let generation = state.generation();
        let settings = state.newest_for(index);
        let limits = &settings.config.limits;
        // The bound on connections is `limits.connections_max`, which may change: see `admit`.
        let mut event_loop = EventLoop::new(LoopConfig::default())?;
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
        let mut worker = Self {
            index,
            hub: Hub::new(
                hub_config(index, incarnation, state, &settings, u64::from_ne_bytes(seed)),
                Box::new(FrameEncoder::new(Some(stream::broadcast_deflater()))),
            ),
            encoder: FrameEncoder::new(None),
            pending: RequestTable::new(PENDING_MAX),
            connecting: FastMap::default(),
            polls: FastMap::default(),
            calls: FastMap::default(),
            calls_begun: 0,
            push_calls: FastMap::default(),
            push_backlog: VecDeque::new(),
            expiries: FastMap::default(),
            addresses: Addresses::default(),
            accepts: TokenBucket::new(0, share(limits.accepts_per_s_max, state.counters.len())),
            boot,
            listeners: Vec::new(),
            counts: Vec::new(),
            params: SessionParamsTable::default(),
            webhook_emitter: WebhookEmitter::default(),
            drain: None,
            generation,
            unix_origin_ms: unix_now_ms(),
            now_ms: 0,
            pacing_timer_ms: None,
            turn: Turn::Unasked,
            jitter: u64::from_ne_bytes(seed) | 1,
            state: Arc::clone(state),
            settings: Arc::clone(&settings),
            endpoint,
        };
        let cx = event_loop.context();
        cx.register_fd(worker.endpoint.doorbell(), DOORBELL, Interest::READABLE)?;
        cx.run_every(1000, SECOND);
        if state.lifecycle() == Lifecycle::Draining {
            state.worker_drained(index);
        } else {
            worker.open_listeners(cx)?;
        }
        worker.apply_pacing(None);
        worker.apply_hooks();
        // A former incarnation may have left it at another bound.
        worker.endpoint.set_ring_slots(settings.config.limits.bus_slots as usize);
        state.loop_stats[index].runs(settings.revision);
        if state.rollout.adopted(index, generation) {
            // The admin thread has asked the incarnation before this one.
            let _ = worker.endpoint.send(state.admin_endpoint(), BusMessage::SettingsAdopted);
        }
        state.worker_ready(index);
        event_loop.run(&mut worker)
    }

    /// What happens once a turn, after the sockets' events.
    fn turn(&mut self, cx: &mut Context<Link>) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some((from, message)) = self.endpoint.recv() else { break };
            self.receive(cx, from, message);
            if self.hub.wants_flush() {
                self.flush_outboxes(cx);
            }
        }
        let now = self.now(cx);
        if self.hub.poll_timeout().is_some_and(|at| at <= now.ms) {
            self.hub.handle_timeout(now);
        }
        self.drain_events(cx);
        self.hub.begin_flush(now);
        self.await_turn();
        self.flush_outboxes(cx);
        if self.turn == Turn::Had && !self.broadcasts_are_due() {
            self.await_turn();
        }
        // What was said to clients may have ended sessions, which other workers have to be told of.
        self.drain_events(cx);
        self.transmit();
        self.arm_pacing(cx);
    }

    /// Sees to it that the next turn comes when broadcasts held back by their rates may go on, and when a full
    /// ring is to be tried again. What only waits for its next quantum keeps the loop from sleeping.
    fn arm_pacing(&mut self, cx: &mut Context<Link>) {
        let retry = self.hub.poll_timeout().filter(|&at_ms| at_ms <= self.now_ms + RETRY_MS);
        let mut flush = self.hub.flush_due_ms();
        if self.turn == Turn::Awaited {
            flush = flush.map(|due_ms| due_ms.max(self.now_ms + ASK_AGAIN_MS));
        }
        let due = flush.into_iter().chain(retry).min();
        let Some(due_ms) = due else { return };
        if due_ms > self.now_ms && self.pacing_timer_ms.is_none_or(|armed_ms| due_ms < armed_ms) {
            self.pacing_timer_ms = Some(due_ms);
            cx.run_after(due_ms - self.now_ms, PACING);
        }
    }

    fn receive(&mut self, cx: &mut Context<Link>, from: usize, message: BusMessage) {
        match message {
            BusMessage::Hub(message) => {
                let now = self.now(cx);
                // Only workers send this, and there are at most 127 of them.
                self.hub.handle_message(now, from as u8, message);
                self.drain_events(cx);
            }
            BusMessage::Emulation { session, frame } => self.emulate(cx, session, &frame),
            BusMessage::LatencyProbe(sent) => {
                self.state.loop_stats[self.index]
                    .hop_times
                    .record(sent.elapsed().as_nanos() as u64);
            }
            // It has woken this worker, and the switch came with that.
            BusMessage::AdoptSettings => self.confirm_adoption(),
            // It has woken this worker, which asks at the end of each turn.
            BusMessage::FanoutGranted => {}
            BusMessage::BroadcastCommand { request_id, command } => {
                self.broadcast_command(request_id, &command);
            }
            BusMessage::CountAffected { request_id, scope } => {
                self.begin_count(cx, request_id, scope)
            }
            BusMessage::PushReply(reply) => self.push_replied(cx, *reply),
            BusMessage::OnlineQuery { request_id, users } => self.query_online(request_id, &users),
            // To other threads.
            BusMessage::SettingsAdopted
            | BusMessage::BroadcastReply { .. }
            | BusMessage::AffectedReply { .. }
            | BusMessage::PushRequest(_)
            | BusMessage::PushReplyRead { .. }
            | BusMessage::PushCallerGone { .. }
            | BusMessage::OnlineReply { .. }
            | BusMessage::HookEvent(_) => {}
            #[cfg(test)]
            BusMessage::Stall(time) => std::thread::sleep(time),
            BusMessage::Drain => self.begin_drain(cx),
            BusMessage::Stop => cx.stop(),
            #[cfg(test)]
            BusMessage::Panic => panic!("told to"),
        }
    }

    /// Gives the bus what the hub has for other workers, and rings for those who sleep.
    fn transmit(&mut self) {
        while let Some((to, message)) = self.hub.poll_transmit() {
            let refused = self.endpoint.send(usize::from(to), BusMessage::Hub(message)).err();
            if let Some(BusMessage::Hub(message)) = refused.map(dunlin_bus::SendError::into_value) {
                self.hub.requeue(to, message);
            }
        }
        let woken = self.endpoint.flush();
        self.state.counters[self.index].add(Metric::BusWakes, woken as u64);
    }

    /// A token for the hub behind which `pending` waits; `None`, and the asker told, when too many wait.
    fn token(&mut self, cx: &mut Context<Link>, pending: Pending) -> Option<u64> {
        // The hub answers every request, if need be with a time-out; this bound is a second line.
        let patience = 4 * self.settings.config.limits.bus_request_timeout_ms;
        match self.pending.insert(cx.now_ms() + patience, pending) {
            Ok(id) => Some(id.to_u64()),
            Err(full) => {
                self.refuse(cx, &full.0, dunlin_hub::Error::Overloaded);
                None
            }
        }
    }

    /// Once a second: the clock, the gauges, requests nobody answered.
    fn second(&mut self, cx: &mut Context<Link>) {
        self.unix_origin_ms = unix_now_ms().saturating_sub(cx.now_ms());
        let lost: Vec<Pending> =
            self.pending.expire(cx.now_ms()).map(|(_, pending)| pending).collect();
        for pending in lost {
            self.refuse(cx, &pending, dunlin_hub::Error::Timeout);
        }
        self.publish_gauges(cx);
        self.flush_push_backlog();
        if (cx.now_ms() / 1000).is_multiple_of(TRIM_S) {
            // A burst makes rings grow; what stayed quiet since gives the memory back.
            self.endpoint.trim();
        }
        if self.state.workers() > 1 {
            let next = (self.index + 1) % self.state.workers();
            // A ring that is full has no room to measure.
            let _ = self.endpoint.send(next, BusMessage::LatencyProbe(Instant::now()));
        }
    }

    fn publish_gauges(&mut self, cx: &mut Context<Link>) {
        self.state.publish_keys(self.index, self.params.keys());
        let hub = self.hub.stats();
        let net = cx.stats();
        let counters = &self.state.counters[self.index];
        counters.set(Metric::Connections, net.connections as u64);
        counters.set(Metric::Turns, net.turns);
        counters.set(Metric::Sessions, hub.sessions);
        counters.set(Metric::Subscriptions, hub.subscriptions);
        counters.set(Metric::Channels, hub.home_channels);
        counters.set(Metric::OutboxBytes, hub.pending_bytes);
        counters.set(Metric::HistoryBytes, hub.history_bytes);
        counters.set(Metric::MessagesIn, hub.publications);
        counters.set(Metric::MessagesOut, hub.deliveries);
        counters.set(Metric::MessagesDropped, hub.dropped);
        counters.set(Metric::SlowDisconnects, hub.slow_disconnects);
        counters.set(Metric::Gaps, hub.gaps);
        counters.set(Metric::Recovered, hub.recovered);
        counters.set(Metric::Unrecovered, hub.unrecovered);
        counters.set(Metric::BusRefused, hub.transmit_refused);
    }

    fn now(&mut self, cx: &Context<Link>) -> Now {
        self.now_ms = cx.now_ms();
        Now { ms: self.now_ms, unix_ms: self.unix_ms() }
    }

    /// Unix time, as fresh as the turn.
    fn unix_ms(&self) -> u64 {
        self.unix_origin_ms + self.now_ms
    }

    fn count(&self, metric: Metric) {
        self.state.counters[self.index].count(metric);
    }

    /// A number below `bound`, different each time (xorshift; nothing secret hangs on it).
    fn jitter(&mut self, bound: u64) -> u64 {
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        self.jitter % bound.max(1)
    }
}

impl Handler for Worker<'_> {
    type Data = Link;

    fn on_accept(&mut self, cx: &mut Context<Link>, _: ListenerId, _: Option<SocketAddr>) -> Admit {
        let rate = share(self.settings.config.limits.accepts_per_s_max, self.state.counters.len());
        let Some(wait_ms) = self.accepts.take(cx.now_ms(), rate) else { return Admit::Accept };
        // Who comes now waits in the backlogs until there is a token again.
        self.count(Metric::RefusedRate);
        let listeners: Vec<ListenerId> = cx.listeners().collect();
        listeners.into_iter().for_each(|listener| cx.pause_accept(listener));
        cx.run_after(wait_ms.max(ACCEPT_PAUSE_MS), ACCEPT_AGAIN);
        Admit::Pause
    }

    fn on_accept_failed(&mut self, _: &mut Context<Link>, _: ListenerId, error: &io::Error) {
        if self.state.lifecycle() == Lifecycle::Draining {
            // The control thread has ended the listening, and the word of it is still on the bus.
            return;
        }
        self.count(Metric::RefusedDescriptors);
        tracing::warn!(worker = self.index, %error, "accepting pauses; see `dunlin check`");
    }

    fn on_open(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        self.count(Metric::Accepted);
        self.admit(cx, conn);
    }

    fn on_request(&mut self, cx: &mut Context<Link>, conn: ConnId, request: &http::Request<'_>) {
        self.count(Metric::HttpRequests);
        self.route(cx, conn, request);
    }

    fn on_message(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        message: websocket::Message<'_>,
    ) {
        self.websocket_message(cx, conn, &message);
    }

    fn on_ping(&mut self, cx: &mut Context<Link>, conn: ConnId, payload: &[u8]) {
        self.websocket_ping(cx, conn, payload);
    }

    fn on_close_frame(&mut self, cx: &mut Context<Link>, conn: ConnId, code: u16, _: &str) {
        self.websocket_closed(cx, conn, code);
    }

    fn on_protocol_error(&mut self, cx: &mut Context<Link>, conn: ConnId, error: &ProtocolError) {
        self.protocol_error(cx, conn, error);
    }

    fn on_writable(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        self.writable(cx, conn);
    }

    fn on_close(&mut self, cx: &mut Context<Link>, conn: ConnId, link: Link, reason: CloseReason) {
        self.count(Metric::Closed);
        if link.role == Role::Push {
            self.push_gone(conn);
        }
        if reason == CloseReason::TimedOut {
            self.count(Metric::DeadlinesMissed);
        }
        if let Some(address) = self.addresses.release(link.address) {
            self.state.admissions.release(address);
        }
        if let Some(session) = link.session() {
            self.params.release(link.params());
            self.session_gone(cx, session);
        }
    }

    fn on_deadline(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        self.deadline_passed(cx, conn);
    }

    fn on_timer(&mut self, cx: &mut Context<Link>, _: TimerId, data: u64) {
        match data {
            SECOND => self.second(cx),
            DRAIN_STEP => self.drain_step(cx),
            // The turn this belongs to flushes.
            PACING => self.pacing_timer_ms = None,
            _ => self.accept_again(cx),
        }
    }

    fn on_tick(&mut self, cx: &mut Context<Link>) {
        // What this turn has done was done under the snapshot it began with.
        self.adopt_newest(cx);
        self.turn(cx);
        self.go_on_counting(cx);
        self.state.loop_stats[self.index].turn_ends();
    }

    fn on_sleep(&mut self, _: &mut Context<Link>) -> Sleep {
        if self.turn != Turn::Awaited && self.broadcasts_are_due() {
            if self.state.fanout_scheduler.are_limited() {
                // For those whom something has woken meanwhile.
                std::thread::yield_now();
            }
            return Sleep::Poll;
        }
        if !self.counts.is_empty() {
            return Sleep::Poll;
        }
        if !self.endpoint.prepare_sleep() {
            return Sleep::Poll;
        }
        // Rule 7 of the data plane: from here until `on_wake` this worker acts on no snapshot at all.
        if self.state.rollout.try_sleep(self.index, self.generation).is_err() {
            self.endpoint.wake();
            return Sleep::Poll;
        }
        self.state.loop_stats[self.index].sleeps();
        Sleep::Block
    }

    fn on_wake(&mut self, cx: &mut Context<Link>) {
        self.endpoint.wake();
        self.state.rollout.wake(self.index, self.generation);
        self.state.loop_stats[self.index].wakes();
        self.adopt_newest(cx);
    }
}

impl Drop for Worker<'_> {
    /// Also when a panic ends it: its connections are closed with its descriptor table, nobody else could give their
    /// places back.
    fn drop(&mut self) {
        for address in self.addresses.release_all() {
            self.state.admissions.release(address);
        }
    }
}

impl Worker<'_> {
    /// Accepts on every listener once there is a token for it.
    fn accept_again(&mut self, cx: &mut Context<Link>) {
        let rate = share(self.settings.config.limits.accepts_per_s_max, self.state.counters.len());
        if let Some(wait_ms) = self.accepts.wait_ms(cx.now_ms(), rate) {
            cx.run_after(wait_ms, ACCEPT_AGAIN);
            return;
        }
        let listeners: Vec<ListenerId> = cx.listeners().collect();
        listeners.into_iter().for_each(|listener| cx.resume_accept(listener));
    }

    /// Counts a connection just accepted against the limits, and closes it if one is passed.
    fn admit(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        let Some(peer) = cx.peer_addr(conn) else { return cx.abort(conn) };
        let limits = &self.settings.config.limits;
        let admission = self.state.admissions.admit(
            peer.ip(),
            u64::from(limits.connections_max),
            limits.connections_per_address_max,
        );
        match admission {
            Admission::Granted => {
                let address = self.addresses.intern(peer.ip());
                if let Some(link) = cx.data(conn) {
                    link.address = address;
                }
            }
            Admission::TotalReached => {
                self.count(Metric::RefusedTotal);
                cx.abort(conn);
            }
            Admission::AddressReached => {
                self.count(Metric::RefusedAddress);
                cx.abort(conn);
            }
        }
    }

    /// A connection with a session has ended.
    fn session_gone(&mut self, cx: &mut Context<Link>, session: SessionId) {
        self.connecting.remove(&session);
        self.expiries.remove(&session);
        self.poll_gone(session);
        let now = self.now(cx);
        let farewell = self.farewell(session);
        self.hub.close_session(now, session);
        self.drain_events(cx);
        if let Some(user) = farewell {
            let code = DisconnectCode::ConnectionClosed;
            self.emit_disconnect(session, user, u32::from(code.code()), code.text());
        }
    }

    /// Tells whoever waits behind this that nobody will answer, and why.
    fn refuse(&mut self, cx: &mut Context<Link>, pending: &Pending, error: dunlin_hub::Error) {
        match *pending {
            Pending::Command { session, id } => {
                self.count(Metric::CommandErrors);
                let reply = dunlin_protocol::centrifuge::Reply::Error(&error.into());
                self.reply(session, id, &reply);
            }
            // The callers of `token` see to these themselves, for they hold what it takes.
            Pending::Connect { .. } | Pending::Poll { .. } => {}
            Pending::Api { call, at, part } => self.api_answered(cx, call, at, part, Err(error)),
        }
    }
}

/// Requests of one worker under way at once.
const PENDING_MAX: usize = 1 << 20;
/// How long accepting rests at least when the accept rate is used up.
const ACCEPT_PAUSE_MS: u64 = 10;
const ACCEPT_AGAIN: u64 = 2;

/// A worker's share of a rate that holds for all of them together, at least 1; 0 stays "no limit".
fn share(total: u32, workers: usize) -> u64 {
    match total {
        0 => 0,
        total => u64::from(total).div_ceil(workers as u64),
    }
}

fn listen_config(settings: &Settings) -> ListenConfig {
    let limits = &settings.config.limits;
    let http = http::Limits {
        head_bytes_max: limits.head_bytes_max,
        headers_max: usize::from(limits.headers_max),
        body_bytes_max: limits.body_bytes_max as u64,
        ..http::Limits::default()
    };
    let mut config = ListenConfig::http();
    config.limits.http = http;
    config.limits.request_timeout_ms = limits.head_timeout_ms;
    config.limits.keep_alive_timeout_ms = limits.keep_alive_timeout_ms;
    config.reuse_port = true;
    config
}

fn hub_config(
    index: usize,
    incarnation: u32,
    state: &ServerState,
    settings: &Settings,
    seed: u64,
) -> HubConfig {
    let limits = &settings.config.limits;
    let workers = state.counters.len();
    let per_worker = |total: usize| total.div_ceil(workers);
    HubConfig {
        node: settings.config.server.node,
        boot: ((u32::from(state.secret[0]) + incarnation) % BOOTS) as u8,
        worker: index as u8,
        workers: workers as u8,
        incarnation,
        hash_seed: u64::from_ne_bytes(
            state.secret[8..].try_into().expect("eight of sixteen bytes"),
        ),
        seed,
        subscriptions_per_session_max: limits.subscriptions_per_client_max as u16,
        channels_max: limits.channels_max,
        channel_name_bytes_max: limits.channel_bytes_max as u16,
        request_timeout_ms: limits.bus_request_timeout_ms,
        transmit_bytes_max: limits.bus_backlog_bytes_max,
        pending_bytes_max: per_worker(limits.pending_bytes_max),
        history_bytes_max: per_worker(limits.history_bytes_max),
        idempotency_keys_max: per_worker(limits.idempotency_keys_max as usize),
        broadcast_quantum: limits.broadcast_quantum,
        ..HubConfig::default()
    }
}

fn unix_now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The encoding a connection speaks, if it is a client's.
fn encoding_of(link: &Link) -> Option<Encoding> {
    match link.role {
        Role::Client(encoding) => Some(encoding),
        Role::Http | Role::Poll | Role::Push => None,
    }
}
