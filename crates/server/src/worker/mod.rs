//! A worker: one thread, one event loop, one hub.
//!
//! In a turn of the loop the methods of [`Handler`] here handle events: they route them to the modules below, which pass requests
//! to the hub. Then [`Worker::turn`] handles messages of other workers, sends those of the hub to them, and writes the outboxes.
//!
//! The state that a worker keeps between events is in its [`parts`], each with a narrow interface and tested without a worker.
//! The other modules execute what the parts and the hub decide, in the order in which a client meets them:
//!
//! - [`accept`] and [`listeners`] admit connections; [`routes`] and [`stream`] open transports; [`connect`] authenticates.
//! - [`command`] executes commands that [`permission`] or a token ([`subscription`]) allows, and [`backlog`] delays them by
//!   budgets.
//! - [`poll`] answers long-polls, [`api`] and [`api_turns`] the server API, [`push`] requests to the push thread, [`pusher`] and
//!   [`pusher_api`] the Pusher protocol.
//! - [`proxy`], [`proxy_channels`] and [`proxy_renewals`] ask backends over the connections of [`backends`]; [`program`] asks the
//!   embedding program; [`engines`] drives engines.
//! - [`completion`] handles events of the hub, [`flush`] writes outboxes, [`fanout`] paces broadcasts, [`deadlines`] detects dead
//!   clients.
//! - [`gauges`] publishes gauges, [`users`] counts connections of users, [`adoption`] adopts settings, [`webhooks`] emits
//!   events, [`drain`] disconnects clients at shutdown.

mod accept;
mod adoption;
mod api;
mod api_turns;
mod api_users;
mod backends;
mod backlog;
mod buffers;
mod bus;
mod cluster;
mod command;
mod command_timer;
mod completion;
mod connect;
mod connections;
mod deadlines;
mod drain;
mod engines;
mod fanout;
mod flush;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz_targets;
mod gauges;
mod key_wait;
mod link;
pub(crate) mod listeners;
mod nats;
mod parts;
mod permission;
mod poll;
mod program;
mod proxy;
mod proxy_channels;
mod proxy_renewals;
mod push;
mod pusher;
mod pusher_api;
#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
#[allow(unreachable_pub, reason = "the tests of other crates are crates of their own")]
mod replay;
mod reply;
mod revocation;
mod routes;
mod server_side;
mod stream;
mod subscription;
mod tenants;
pub(crate) mod thread;
mod timer;
mod users;
mod webhooks;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

use dunlin_bus::{Endpoint, SendError};
use dunlin_hub::{Hub, HubConfig, MemberListError, Now};
use dunlin_net::{
    Admit, CloseReason, ConnId, Context, EventLoop, Handler, Http, HttpHandler, Interest,
    ListenerId, LoopConfig, Ready, Sleep, TimerId, WebSocket, WebSocketHandler, http, websocket,
};
use dunlin_protocol::FrameEncoder;
use dunlin_protocol::centrifuge::Reply;
use dunlin_wire::backoff::Jitter;

use self::adoption::hub_config;
use self::backends::Backends;
use self::engines::Engines;
use self::link::{Link, Role};
use self::listeners::Listeners;
use self::parts::{
    AcceptLimits, AdoptedSettings, AffectedCounter, ApiCalls, Backlogs, Budgets, BufferGate,
    CapabilityTable, Clock, Connects, Drain, FanoutGate, ForwardedTable, Grants, Heartbeat,
    LargeAnswers, PeerAddresses, Pending, PendingRequests, Polls, ProxyCalls, PushCalls,
    PusherSessions, Sweeps, WebhookEmitter,
};
use self::program::{INBOX, ProgramLink};
use self::timer::Timer;
use crate::clock::unix_ms;
use crate::message::bus::BusMessage;
use crate::metrics::Metric;
use crate::state::{Lifecycle, ServerState};

/// The spare buffers, of at most 32 KiB each, that a worker keeps after a flood of incomplete messages.
const SPARE_BUFFERS_MAX: usize = 64;
/// The most messages received from the bus before sockets get their turn.
const MESSAGES_PER_TURN: usize = 1024;
/// The doorbell's token among the loop's foreign descriptors.
const DOORBELL: u64 = 0;
/// Seconds between two attempts to release memory of the bus.
const TRIM_S: u64 = 10;

/// One worker: the hub, its endpoint on the bus, and its [`parts`].
pub(crate) struct Worker<'w> {
    index: usize,
    state: Arc<ServerState>,
    settings: AdoptedSettings,
    endpoint: &'w mut Endpoint<BusMessage>,
    hub: Hub,
    /// Encodes replies; the hub has its own encoder for pushes.
    encoder: FrameEncoder,
    clock: Clock,
    jitter: Jitter,
    listeners: Listeners<'w>,
    accept_limits: AcceptLimits,
    peers: PeerAddresses,
    buffers: BufferGate,
    heartbeat: Heartbeat,
    /// Grants of subscriptions that do not follow from rules.
    grants: Grants,
    capabilities: CapabilityTable,
    budgets: Budgets,
    backlogs: Backlogs,
    pending: PendingRequests,
    large_answers: LargeAnswers,
    connects: Connects,
    polls: Polls,
    api_calls: ApiCalls,
    push_calls: PushCalls,
    /// Sessions that speak the Pusher protocol.
    pusher: PusherSessions,
    /// The client of the proxies' backends, once there are any.
    backends: Option<Box<Backends>>,
    engines: Engines,
    /// The connection to the embedding program, if there is one.
    program: Option<Box<ProgramLink>>,
    proxy_calls: ProxyCalls,
    forwarded: ForwardedTable,
    emitter: WebhookEmitter,
    gate: FanoutGate,
    affected: AffectedCounter,
    sweeps: Sweeps,
    drain: Option<Drain>,
}

impl<'w> Worker<'w> {
    /// Runs the worker until it is stopped.
    pub(crate) fn run(
        index: usize,
        incarnation: u32,
        state: &Arc<ServerState>,
        endpoint: &'w mut Endpoint<BusMessage>,
        boot: &'w TcpListener,
    ) -> io::Result<()> {
        state.rollout.wake(index, 0);
        state.loop_stats[index].wakes();
        // The bound on connections is `limits.connections_max`, which may change: see `admit`.
        let config = LoopConfig { spare_buffers_max: SPARE_BUFFERS_MAX, ..LoopConfig::default() };
        let mut event_loop = EventLoop::new(config)?;
        let mut worker = Worker::new(index, incarnation, state, endpoint, boot)?;
        worker.begin_program(event_loop.context(), incarnation)?;
        worker.start(event_loop.context())?;
        event_loop.run(&mut worker)
    }

    fn new(
        index: usize,
        incarnation: u32,
        state: &Arc<ServerState>,
        endpoint: &'w mut Endpoint<BusMessage>,
        boot: &'w TcpListener,
    ) -> io::Result<Self> {
        let generation = state.generation();
        let settings = state.newest_for(index);
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
        let seed = u64::from_ne_bytes(seed);
        let mut clock = Clock::default();
        clock.sync(0, unix_ms());
        let hub_config =
            HubConfig { incarnation, seed, ..hub_config(index, incarnation, state, &settings) };
        let deflater = stream::broadcast_deflater();
        let codec = state.program.get().and_then(|program| program.codec());
        let encoder = |deflater| FrameEncoder::new(deflater).with_codec(codec.clone());
        let connections_max = accept::connections_max(
            settings.config.server.own_descriptor_tables && state.program.get().is_none(),
            state.workers(),
        );
        Ok(Self {
            index,
            hub: Hub::new(hub_config, Box::new(encoder(Some(deflater)))),
            encoder: encoder(None),
            clock,
            jitter: Jitter::new(seed),
            listeners: Listeners::new(boot),
            accept_limits: AcceptLimits::new(
                &settings.config.limits,
                state.workers(),
                connections_max,
                seed,
            ),
            peers: PeerAddresses::default(),
            buffers: BufferGate::default(),
            heartbeat: Heartbeat::default(),
            grants: Grants::default(),
            capabilities: CapabilityTable::default(),
            budgets: Budgets::default(),
            backlogs: Backlogs::default(),
            pending: PendingRequests::default(),
            large_answers: LargeAnswers::default(),
            connects: Connects::default(),
            polls: Polls::default(),
            api_calls: ApiCalls::default(),
            push_calls: PushCalls::default(),
            pusher: PusherSessions::new(seed),
            backends: None,
            engines: Engines::default(),
            program: None,
            proxy_calls: ProxyCalls::new(incarnation),
            forwarded: ForwardedTable::default(),
            emitter: WebhookEmitter::default(),
            gate: FanoutGate::default(),
            affected: AffectedCounter::default(),
            sweeps: Sweeps::default(),
            drain: None,
            state: Arc::clone(state),
            settings: AdoptedSettings::new(generation, settings),
            endpoint,
        })
    }

    /// Opens the listeners, and marks this worker as ready.
    fn start(&mut self, cx: &mut Context<Link>) -> io::Result<()> {
        let (index, state) = (self.index, Arc::clone(&self.state));
        if let Some(table) = &self.settings.user_connections {
            // It has no sessions yet.
            table.set_counted(index);
        }
        cx.register_fd(self.endpoint.doorbell(), DOORBELL, Interest::READABLE)?;
        cx.run_every(1000, Timer::Second as u64);
        cx.set_coalesce_ms(u64::from(self.settings.config.server.coalesce_ms));
        self.bound_unauthenticated(cx);
        self.bound_buffers(cx);
        if state.lifecycle() == Lifecycle::Draining {
            state.worker_drained(index);
        } else {
            self.listeners.open_all(cx, &state, &self.settings)?;
        }
        self.apply_pacing(None);
        self.apply_hooks();
        self.apply_proxies();
        if !(self.settings.config.engines.is_empty() && self.settings.engines.is_empty()) {
            self.apply_engines(cx);
        }
        self.apply_cluster();
        // An earlier incarnation may have set another bound.
        self.endpoint.set_ring_slots(self.settings.config.limits.bus_slots as usize);
        state.loop_stats[index].adopted(self.settings.revision);
        if state.rollout.adopted(index, self.settings.generation()) {
            // The admin thread has asked the incarnation before this one.
            self.confirm_adoption();
        }
        state.worker_ready(index);
        Ok(())
    }

    /// Does the work at the end of each turn, after the sockets' events.
    fn turn(&mut self, cx: &mut Context<Link>) {
        self.make_large_answers(cx);
        self.receive_from_engines(cx);
        for _ in 0..MESSAGES_PER_TURN {
            let Some((from, message)) = self.endpoint.recv() else { break };
            self.receive(cx, from, message);
            if self.hub.wants_flush() {
                self.flush_outboxes(cx);
            }
        }
        self.charge_answers(cx);
        self.run_backlogs(cx);
        let now = self.now(cx);
        if self.hub.poll_timeout().is_some_and(|at| at <= now.ms) {
            self.hub.handle_timeout(now);
        }
        self.drain_events(cx);
        self.hub.begin_flush(now);
        self.poll_fanout_slot();
        self.flush_outboxes(cx);
        if self.gate.is_granted() && !self.broadcasts_are_due() {
            self.poll_fanout_slot();
        }
        self.publish_pressure();
        // A write may have ended sessions, which concerns other workers.
        self.drain_events(cx);
        self.send_to_engines(cx);
        self.request_member_lists(cx);
        self.transmit();
        let retry_ms = [self.hub.poll_timeout(), self.engines.poll_timeout()];
        let (flush_ms, retry_ms) = (self.hub.flush_due_ms(), retry_ms.into_iter().flatten().min());
        if let Some(delay_ms) = self.gate.arm_timer(self.clock.now().ms, flush_ms, retry_ms) {
            cx.run_after(delay_ms, Timer::Fanout as u64);
        }
    }

    /// Sends the hub's messages to other workers, and wakes those that sleep.
    fn transmit(&mut self) {
        self.report_members();
        self.report_occupancy();
        while let Some((to, message)) = self.hub.poll_transmit() {
            let refused = self.endpoint.send(usize::from(to), BusMessage::Hub(message)).err();
            if let Some(BusMessage::Hub(message)) = refused.map(SendError::into_value) {
                self.hub.requeue(to, message);
            }
        }
        let woken = self.endpoint.flush();
        self.state.counters[self.index].add(Metric::BusWakes, woken as u64);
    }

    /// Returns a token for a request of `pending` to the hub. `None`: too many requests are pending, and the requester is
    /// answered.
    fn token(&mut self, cx: &mut Context<Link>, pending: Pending) -> Option<u64> {
        let timeout_ms = self.settings.config.limits.bus_request_timeout_ms;
        match self.pending.insert(cx.now_ms(), timeout_ms, pending) {
            Ok(token) => Some(token),
            Err(pending) => {
                self.fail(cx, &pending, dunlin_hub::Error::Overloaded);
                None
            }
        }
    }

    /// Updates the clock and the gauges, and expires requests; called once a second.
    fn second(&mut self, cx: &mut Context<Link>) {
        self.clock.sync(cx.now_ms(), unix_ms());
        for pending in self.pending.expire(cx.now_ms()) {
            self.fail(cx, &pending, dunlin_hub::Error::Timeout);
        }
        self.end_revoked_tokens(cx);
        self.expire_decisions(cx);
        self.look_at_members();
        self.expire_counts(cx);
        self.publish_gauges(cx);
        self.publish_tenant_figures();
        self.sweeps.handle_second();
        self.look_at_buffers(cx);
        self.budgets.sweep(cx.now_ms());
        self.state.budgets.sweep(self.index, self.state.workers(), self.state.uptime_ms());
        self.transmit_to_push();
        if (cx.now_ms() / 1000).is_multiple_of(TRIM_S) {
            // A burst makes rings grow; quiet rings release their memory here.
            self.endpoint.trim();
        }
        if self.state.workers() > 1 {
            let next = (self.index + 1) % self.state.workers();
            // A ring that is full has no room to measure.
            let _ = self.endpoint.send(next, BusMessage::LatencyProbe(Instant::now()));
        }
    }

    /// Answers a request that did not reach the hub, or that the hub did not answer.
    fn fail(&mut self, cx: &mut Context<Link>, pending: &Pending, error: dunlin_hub::Error) {
        match *pending {
            Pending::Command { session, id } | Pending::ChargedCommand { session, id, .. } => {
                self.count(Metric::CommandErrors);
                self.reply(session, id, &Reply::Error(&error.into()));
            }
            Pending::Pusher { session } => self.pusher_failed(session, error),
            Pending::PusherSignIn { session, .. } => self.sign_in_failed(cx, session),
            Pending::MemberList(ref request) => {
                self.member_list_read(cx, request, Err(MemberListError::Unavailable));
            }
            // The callers of `token` handle these, because they hold the needed state.
            Pending::Connect { .. } | Pending::Poll { .. } => {}
            Pending::Api(place) => self.api_answered(cx, place, Err(error.into())),
        }
    }

    fn now(&mut self, cx: &Context<Link>) -> Now {
        self.clock.set(cx.now_ms())
    }

    fn count(&self, metric: Metric) {
        self.state.counters[self.index].count(metric);
    }
}

impl Handler for Worker<'_> {
    type Data = Link;
    type Protocols = (Http, WebSocket);

    fn on_accept(
        &mut self,
        cx: &mut Context<Link>,
        listener: ListenerId,
        peer: Option<SocketAddr>,
        link: &mut Link,
    ) -> Admit {
        self.handle_accept(cx, listener, peer, link)
    }

    fn on_accept_failed(&mut self, cx: &mut Context<Link>, _: ListenerId, error: &io::Error) {
        if self.state.lifecycle() == Lifecycle::Draining {
            // The control thread has shut the listeners down, and its message is still on the bus.
            return;
        }
        self.count(Metric::RefusedDescriptors);
        if let Some(before) = self.accept_limits.handle_failure(cx.now_ms()) {
            let worker = self.index;
            tracing::warn!(worker, before, %error, "accepting pauses; see `dunlin check`");
        }
    }

    fn on_open(&mut self, _: &mut Context<Link>, _: ConnId) {
        self.count(Metric::Accepted);
    }

    fn on_open_failed(&mut self, _: &mut Context<Link>, link: Link, _: &io::Error) {
        self.release_peer(link.peer);
    }

    fn on_writable(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        match cx.data(conn).map(|link| link.role) {
            Some(Role::Backend) => self.with_backends(|client| client.on_writable(cx, conn)),
            Some(Role::Engine) => self.engine_writable(cx, conn),
            _ => self.writable(cx, conn),
        }
    }

    fn on_connect(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        if !self.engine_connected(cx, conn) {
            self.backend_connected(cx, conn);
        }
    }

    fn on_connect_failed(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        link: Link,
        error: &io::Error,
    ) {
        if !self.engine_connect_failed(cx, conn, error) {
            self.with_backends(|client| client.on_connect_failed(cx, conn, link, error));
        }
    }

    fn on_secure(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        self.engine_secure(cx, conn);
    }

    fn on_tls_failed(&mut self, cx: &mut Context<Link>, conn: ConnId, error: &io::Error) {
        self.engine_tls_failed(cx, conn, error);
    }

    fn on_data(&mut self, cx: &mut Context<Link>, conn: ConnId, bytes: &[u8]) {
        if cx.data(conn).is_some_and(|link| link.role == Role::Engine) {
            return self.engine_data(cx, conn, bytes);
        }
        self.with_backends(|client| client.on_data(cx, conn, bytes));
    }

    fn on_eof(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        if cx.data(conn).is_some_and(|link| link.role == Role::Engine) {
            return cx.close(conn);
        }
        self.with_backends(|client| client.on_eof(cx, conn));
    }

    fn on_close(&mut self, cx: &mut Context<Link>, conn: ConnId, link: Link, reason: CloseReason) {
        if link.role == Role::Backend {
            return self.backend_closed(cx, conn, link, reason);
        }
        if link.role == Role::Engine {
            return self.engine_closed(cx, conn);
        }
        self.count(Metric::Closed);
        self.backlogs.remove(conn);
        self.proxied_closed(cx, conn);
        if link.role == Role::Push {
            self.push_closed(conn);
        }
        if reason == CloseReason::TimedOut {
            self.count(Metric::DeadlinesMissed);
        }
        self.release_peer(link.peer);
        if let Some(session) = link.session() {
            self.heartbeat.release(link.params());
            self.session_closed(cx, session);
        }
    }

    fn on_deadline(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        self.handle_deadline(cx, conn);
    }

    fn on_timer(&mut self, cx: &mut Context<Link>, timer: TimerId, data: u64) {
        match Timer::from_u64(data) {
            Some(Timer::Backends) => {
                self.engine_timer(cx, timer);
                self.with_backends(|client| client.on_timer(cx, timer, data));
            }
            Some(Timer::Second) => self.second(cx),
            Some(Timer::Drain) => self.drain_step(cx),
            Some(Timer::Accept) => self.accept_again(cx),
            Some(Timer::Handshake) => self.shake_hands_again(cx),
            Some(Timer::Fanout) => self.gate.handle_timer(),
            Some(Timer::Calls) => self.api_calls.handle_timer(),
            Some(Timer::Backlog) => self.backlogs.handle_timer(cx.now_ms()),
            None => debug_assert!(false, "a timer without a name"),
        }
    }

    fn on_fd(&mut self, cx: &mut Context<Link>, token: u64, _: Ready) {
        if token == INBOX {
            self.receive_letters(cx);
        }
    }

    fn on_tick(&mut self, cx: &mut Context<Link>) {
        // What this turn has done was done under the snapshot it began with.
        self.adopt_newest(cx);
        self.continue_withdrawal(cx);
        self.continue_tenant_sweep(cx);
        self.continue_counting_users();
        self.continue_walks(cx);
        self.expire_subscriptions(cx);
        self.handle_answers(cx);
        self.turn(cx);
        self.send_to_backends(cx);
        self.enforce_buffer_limits(cx);
        self.count_affected(cx);
        self.state.loop_stats[self.index].turn_ends();
    }

    fn on_sleep(&mut self, _: &mut Context<Link>) -> Sleep {
        if !self.gate.is_waiting() && self.broadcasts_are_due() {
            if self.state.fanout_scheduler.is_limited() {
                // Workers that something has woken meanwhile go first.
                std::thread::yield_now();
            }
            return Sleep::Poll;
        }
        let waits = self.sweeps.is_due()
            || self.hub.has_walks()
            || self.backlogs.is_ready(self.clock.now().ms)
            || self.api_calls.is_ready()
            || !self.large_answers.is_idle()
            || self.subscriptions_have_expired()
            || self.has_answers()
            || self.has_engine_events();
        if !self.affected.is_idle() || waits {
            return Sleep::Poll;
        }
        if !self.endpoint.prepare_sleep() {
            return Sleep::Poll;
        }
        // Rule 7 of the data plane: from here until `on_wake` this worker acts on no snapshot at all.
        if self.state.rollout.try_sleep(self.index, self.settings.generation()).is_err() {
            self.endpoint.wake();
            return Sleep::Poll;
        }
        self.state.loop_stats[self.index].sleeps();
        Sleep::Block
    }

    fn on_wake(&mut self, cx: &mut Context<Link>) {
        self.endpoint.wake();
        self.state.rollout.wake(self.index, self.settings.generation());
        self.state.loop_stats[self.index].wakes();
        self.adopt_newest(cx);
    }
}

impl HttpHandler for Worker<'_> {
    fn on_request_head(
        &mut self,
        cx: &mut Context<Link>,
        id: http::RequestId,
        head: &http::RequestHead<'_>,
    ) -> Option<u64> {
        self.takes_body(cx, id.conn(), head)
    }

    fn on_request(
        &mut self,
        cx: &mut Context<Link>,
        id: http::RequestId,
        request: &http::Request<'_>,
    ) {
        let conn = id.conn();
        self.count(Metric::HttpRequests);
        if let Err(answer) = self.attribute(cx, conn, request) {
            self.answer(cx, conn, &answer);
            return cx.close(conn);
        }
        self.route(cx, conn, request);
    }

    fn on_http_error(&mut self, cx: &mut Context<Link>, conn: ConnId, error: http::Error) {
        self.http_error(cx, conn, error);
    }
}

impl WebSocketHandler for Worker<'_> {
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

    fn on_pong(&mut self, cx: &mut Context<Link>, conn: ConnId, _: &[u8]) {
        self.websocket_pong(cx, conn);
    }

    fn on_close_frame(&mut self, cx: &mut Context<Link>, conn: ConnId, code: u16, _: &str) {
        self.websocket_closed(cx, conn, code);
    }

    fn on_websocket_error(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        error: &websocket::ProtocolError,
    ) {
        self.websocket_error(cx, conn, error);
    }
}

impl Drop for Worker<'_> {
    /// Also when a panic ends it: its connections are closed with its descriptor table, nobody else could give their
    /// places back.
    fn drop(&mut self) {
        self.gate.report_behind(&self.state.pressure, self.index, [].into_iter());
        if let Some(table) = &self.settings.user_connections {
            table.forget(self.index);
        }
        for (address, authenticated) in self.peers.release_all() {
            self.state.admissions.release(address, authenticated);
        }
    }
}
