//! A worker: one thread, one event loop, one hub.
//!
//! In a turn of the loop the methods of [`Handler`] here route events to the machine that they are for, and `Worker::turn` does what
//! ends a turn: it takes messages of other threads, sends those of the hub, and has the outboxes written. A machine owns its
//! [`parts`], each with a narrow interface and tested without a worker; it is called with a [`Turn`](turn::Turn), or with the
//! [`Core`] that the machines share, and reaches no other machine:
//!
//! - [`Front`]: [`accept`], [`listeners`] and [`buffers`] admit connections and bound what is buffered for them.
//! - [`Clients`]: [`stream`] opens transports and [`connect`] authenticates. [`command`] executes commands that [`permission`] or a
//!   token ([`subscription`]) allows, and [`backlog`] delays them by budgets. [`poll`] answers long-polls, [`pusher`] speaks the
//!   Pusher protocol, [`completion`] handles events of the hub, [`flush`] writes outboxes, [`deadlines`] detects dead clients. What a
//!   backend or the program has decided is executed by [`proxy`], [`proxy_channels`] and [`proxy_renewals`].
//! - [`sessions`], which clients own, have what each session may and until when; so do [`deciders`], who ask backends over the
//!   connections of [`backends`], and the embedding program ([`program`]).
//! - [`Api`]: [`api`], [`api_turns`], [`api_users`], [`connections`] and [`pusher_api`] execute calls of the server API. Of clients it
//!   knows that the hub's events are theirs.
//! - [`federation`] sends clients' and backends' messages to peers, and publishes what comes from them.
//! - [`PushLink`] passes calls to the push thread, [`Engines`] drives engines, [`Fanout`] paces broadcasts.
//!
//! [`turn`] has the core; [`reply`] and [`webhooks`] are among what it does for all. [`routes`] finds who serves a request, [`bus`] who
//! takes a message; [`adoption`] adopts settings, [`gauges`] publishes gauges, [`drain`] disconnects clients at shutdown.

mod accept;
mod acks;
mod adoption;
mod api;
mod api_turns;
mod api_users;
mod backends;
mod backlog;
mod buffers;
mod bus;
mod channels;
mod clients;
mod cluster;
mod command;
mod command_timer;
mod completion;
mod connect;
mod connections;
mod dead_letters;
mod deadlines;
mod deciders;
mod drain;
mod engines;
mod explain;
mod fanout;
mod federation;
mod flush;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz_targets;
mod gauges;
mod key_wait;
mod link;
pub(crate) mod listeners;
mod logged;
mod nats;
mod parts;
mod permission;
mod poll;
mod program;
mod program_conns;
mod programs;
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
mod sessions;
mod stream;
mod subscription;
mod tenants;
pub(crate) mod thread;
mod timer;
mod turn;
mod users;
mod webhooks;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

use dunlin_hub::{Hub, HubConfig};
use dunlin_net::{
    Admit, CloseReason, ConnId, Context, EventLoop, Handler, Http, HttpHandler, Interest,
    ListenerId, LoopConfig, Ready, Sleep, TimerId, WebSocket, WebSocketHandler, http, websocket,
};
use dunlin_protocol::{Encoding, FrameEncoder};
use dunlin_wire::backoff::Jitter;

use self::accept::Front;
use self::adoption::hub_config;
use self::api::Api;
use self::clients::Clients;
use self::engines::{EVENTS_PER_TURN, Engines};
use self::fanout::Fanout;
use self::link::{Link, Role};
use self::listeners::Listeners;
use self::logged::Requests;
use self::parts::{
    AcceptLimits, AdoptedSettings, AffectedCounter, Budgets, Clock, Drain, PeerAddresses,
    PendingRequests, WebhookEmitter,
};
use self::program::INBOX;
use self::push::PushLink;
use self::timer::Timer;
use self::turn::Core;
use crate::clock::unix_ms;
use crate::message::bus::Endpoint;
use crate::message::worker::WorkerMessage;
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

/// One worker: its [`Core`], and the machines that work with it. The worker routes between them.
pub(crate) struct Worker<'w> {
    core: Core<'w>,
    front: Front<'w>,
    clients: Clients,
    api: Api,
    push: PushLink,
    engines: Engines,
    fanout: Fanout,
    affected: AffectedCounter,
    drain: Option<Drain>,
}

impl<'w> Worker<'w> {
    /// Runs the worker until it is stopped.
    pub(crate) fn run(
        index: usize,
        incarnation: u32,
        state: &Arc<ServerState>,
        endpoint: &'w mut Endpoint<WorkerMessage>,
        boot: &'w TcpListener,
    ) -> io::Result<()> {
        state.rollout.wake(index, 0);
        state.loop_stats[index].wakes();
        // The bound on connections is `limits.connections_max`, which may change: see `admit`.
        let config = LoopConfig { spare_buffers_max: SPARE_BUFFERS_MAX, ..LoopConfig::default() };
        let mut event_loop = EventLoop::new(config)?;
        let mut worker = Worker::new(index, incarnation, state, endpoint, boot)?;
        let turn = &mut worker.core.turn(event_loop.context());
        worker.clients.deciders.begin_program(turn, incarnation)?;
        worker.clients.sessions.has_authorizer = worker.clients.deciders.has_authorizer();
        worker.start(event_loop.context())?;
        event_loop.run(&mut worker)
    }

    fn new(
        index: usize,
        incarnation: u32,
        state: &Arc<ServerState>,
        endpoint: &'w mut Endpoint<WorkerMessage>,
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
        let accept_limits =
            AcceptLimits::new(&settings.config.limits, state.workers(), connections_max, seed);
        let core = Core {
            index,
            hub: Hub::new(hub_config, Box::new(encoder(Some(deflater)))),
            encoder: encoder(None),
            clock,
            jitter: Jitter::new(seed),
            peers: PeerAddresses::default(),
            budgets: Budgets::default(),
            pending: PendingRequests::default(),
            api_answers: VecDeque::new(),
            program_answers: VecDeque::new(),
            requests: Requests::default(),
            emitter: WebhookEmitter::default(),
            members_lost: false,
            state: Arc::clone(state),
            settings: AdoptedSettings::new(generation, settings),
            endpoint,
        };
        Ok(Self {
            core,
            front: Front::new(Listeners::new(boot), accept_limits),
            clients: Clients::new(incarnation, seed),
            api: Api::default(),
            push: PushLink::default(),
            engines: Engines::default(),
            fanout: Fanout::default(),
            affected: AffectedCounter::default(),
            drain: None,
        })
    }

    /// Opens the listeners, and marks this worker as ready.
    fn start(&mut self, cx: &mut Context<Link>) -> io::Result<()> {
        let (index, state) = (self.core.index, Arc::clone(&self.core.state));
        if let Some(table) = &self.core.settings.user_connections {
            // It has no sessions yet.
            table.set_counted(index);
        }
        cx.register_fd(self.core.endpoint.doorbell(), DOORBELL, Interest::READABLE)?;
        cx.run_every(1000, Timer::Second as u64);
        cx.set_coalesce_ms(u64::from(self.core.settings.config.server.coalesce_ms));
        self.front.bound_unauthenticated(&mut self.core.turn(cx));
        self.front.bound_buffers(&mut self.core.turn(cx));
        if state.lifecycle() == Lifecycle::Draining {
            state.worker_drained(index);
        } else {
            self.front.listeners.open_all(cx, &state, &self.core.settings)?;
        }
        self.fanout.apply_pacing(&mut self.core, None);
        self.core.apply_hooks();
        self.clients.deciders.programs.apply(&self.core);
        self.clients.apply_proxies(&self.core);
        if !(self.core.settings.config.engines.is_empty() && self.core.settings.engines.is_empty())
        {
            self.engines.apply_engines(&mut self.core.turn(cx));
            self.settle(cx);
        }
        self.core.apply_cluster();
        // An earlier incarnation may have set another bound.
        self.core.endpoint.set_ring_slots(self.core.settings.config.limits.bus_slots as usize);
        state.loop_stats[index].adopted(self.core.settings.revision);
        if state.rollout.adopted(index, self.core.settings.generation()) {
            // The admin thread has asked the incarnation before this one.
            self.confirm_adoption();
        }
        state.worker_ready(index);
        Ok(())
    }

    /// Does the work at the end of each turn, after the sockets' events.
    fn turn(&mut self, cx: &mut Context<Link>) {
        self.clients.make_large_answers(&mut self.core.turn(cx));
        for _ in 0..EVENTS_PER_TURN {
            if !self.engines.receive_from_engines(&mut self.core.turn(cx)) {
                break;
            }
            self.settle(cx);
            if self.core.hub.wants_flush() {
                self.clients.flush_outboxes(&mut self.core.turn(cx));
            }
        }
        for _ in 0..MESSAGES_PER_TURN {
            let Some((from, message)) = self.core.endpoint.recv() else { break };
            self.receive(cx, from, message);
            if self.core.hub.wants_flush() {
                self.clients.flush_outboxes(&mut self.core.turn(cx));
            }
        }
        let turn = &mut self.core.turn(cx);
        turn.charge_answers();
        self.clients.run_backlogs(turn);
        self.api.run_calls(turn, &mut self.clients);
        turn.core.budgets.begin_turn();
        self.clients.arm_backlog_timer(turn);
        let now = turn.now();
        if turn.core.hub.poll_timeout().is_some_and(|at| at <= now.ms) {
            turn.core.hub.handle_timeout(now);
        }
        self.api.settle(turn, &mut self.clients);
        self.run_program_conns(cx);
        let turn = &mut self.core.turn(cx);
        turn.core.hub.begin_flush(now);
        self.fanout.poll_fanout_slot(turn.core);
        self.clients.flush_outboxes(turn);
        if self.fanout.gate.is_granted() && !turn.core.broadcasts_are_due() {
            self.fanout.poll_fanout_slot(turn.core);
        }
        turn.core.record_deliveries();
        self.fanout.publish_pressure(turn.core);
        // A write may have ended sessions, which concerns other workers.
        self.api.settle(turn, &mut self.clients);
        self.engines.send_to_engines(turn);
        self.clients.request_member_lists(turn);
        turn.core.transmit();
        let retry_ms = [turn.core.hub.poll_timeout(), self.engines.poll_timeout()];
        let retry_ms = retry_ms.into_iter().flatten().min();
        let (now_ms, flush_ms) = (turn.core.clock.now().ms, turn.core.hub.flush_due_ms());
        if let Some(delay_ms) = self.fanout.gate.arm_timer(now_ms, flush_ms, retry_ms) {
            turn.cx.run_after(delay_ms, Timer::Fanout as u64);
        }
    }

    /// Lets the hub work, and passes its events to clients and to calls.
    fn settle(&mut self, cx: &mut Context<Link>) {
        self.api.settle(&mut self.core.turn(cx), &mut self.clients);
    }

    /// Updates the clock and the gauges, and expires requests; called once a second.
    fn second(&mut self, cx: &mut Context<Link>) {
        let turn = &mut self.core.turn(cx);
        turn.core.clock.sync(turn.cx.now_ms(), unix_ms());
        for pending in turn.core.pending.expire(turn.cx.now_ms()) {
            self.clients.fail(turn, &pending, dunlin_hub::Error::Timeout);
        }
        self.clients.end_revoked_tokens(turn);
        self.clients.expire_decisions(turn);
        turn.core.look_at_members();
        self.clients.expire_counts(turn);
        self.publish_gauges(cx);
        let turn = &mut self.core.turn(cx);
        self.clients.publish_tenant_figures(turn.core);
        self.clients.sweeps.handle_second();
        self.front.look_at_buffers(turn);
        self.push.transmit_to_push(turn.core);
        let now_ms = turn.cx.now_ms();
        let Core { budgets, state, endpoint, index, .. } = turn.core;
        budgets.sweep(now_ms);
        state.budgets.sweep(*index, state.workers(), state.uptime_ms());
        if (now_ms / 1000).is_multiple_of(TRIM_S) {
            // A burst makes rings grow; quiet rings release their memory here.
            endpoint.trim();
        }
        if state.workers() > 1 {
            let next = state.bus.worker((*index + 1) % state.workers());
            // A ring that is full has no room to measure.
            let _ = endpoint.send(next, WorkerMessage::LatencyProbe(Instant::now()));
        }
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
        self.front.handle_accept(&mut self.core.turn(cx), listener, peer, link)
    }

    fn on_accept_failed(&mut self, cx: &mut Context<Link>, _: ListenerId, error: &io::Error) {
        self.core.count(Metric::RefusedDescriptors);
        if let Some(before) = self.front.accept_limits.handle_failure(cx.now_ms()) {
            let worker = self.core.index;
            tracing::warn!(worker, before, %error, "accepting pauses; see `dunlin check`");
        }
    }

    fn on_open(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        self.core.count(Metric::Accepted);
        if is_of_program(cx, conn) {
            self.clients.open_program_conn(&mut self.core.turn(cx), conn);
        }
    }

    fn on_open_failed(&mut self, _: &mut Context<Link>, link: Link, error: &io::Error) {
        self.core.handshake_failed(link, error);
        self.core.release_peer(link.peer);
    }

    fn on_writable(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        match cx.data(conn).map(|link| link.role) {
            Some(Role::Backend) => {
                self.clients.deciders.with_backends(|client| client.on_writable(cx, conn));
            }
            Some(Role::Engine) => self.engines.engine_writable(&mut self.core.turn(cx), conn),
            Some(Role::Push) => self.push.push_writable(&mut self.core.turn(cx), conn),
            _ => self.clients.writable(&mut self.core.turn(cx), conn),
        }
    }

    fn on_connect(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        if !self.engines.engine_connected(&mut self.core.turn(cx), conn) {
            self.clients.deciders.backend_connected(&mut self.core.turn(cx), conn);
        }
    }

    fn on_connect_failed(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        link: Link,
        error: &io::Error,
    ) {
        if !self.engines.engine_connect_failed(&mut self.core.turn(cx), conn, error) {
            self.clients
                .deciders
                .with_backends(|client| client.on_connect_failed(cx, conn, link, error));
        }
    }

    fn on_secure(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        self.engines.engine_secure(&mut self.core.turn(cx), conn);
    }

    fn on_tls_failed(&mut self, cx: &mut Context<Link>, conn: ConnId, error: &io::Error) {
        self.engines.engine_tls_failed(&mut self.core.turn(cx), conn, error);
    }

    fn on_data(&mut self, cx: &mut Context<Link>, conn: ConnId, bytes: &[u8]) {
        if cx.data(conn).is_some_and(|link| link.role == Role::Engine) {
            return self.engines.engine_data(&mut self.core.turn(cx), conn, bytes);
        }
        if is_of_program(cx, conn) {
            return self.clients.program_data(&mut self.core.turn(cx), conn, Some(bytes));
        }
        self.clients.deciders.with_backends(|client| client.on_data(cx, conn, bytes));
    }

    fn on_eof(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        if cx.data(conn).is_some_and(|link| link.role == Role::Engine) {
            return cx.close(conn);
        }
        if is_of_program(cx, conn) {
            return self.clients.program_data(&mut self.core.turn(cx), conn, None);
        }
        self.clients.deciders.with_backends(|client| client.on_eof(cx, conn));
    }

    fn on_close(&mut self, cx: &mut Context<Link>, conn: ConnId, link: Link, reason: CloseReason) {
        if link.role == Role::Backend {
            return self.clients.deciders.backend_closed(
                &mut self.core.turn(cx),
                conn,
                link,
                reason,
            );
        }
        if link.role == Role::Engine {
            return self.engines.engine_closed(&mut self.core.turn(cx), conn);
        }
        self.core.connection_closed(link, reason);
        self.core.requests.forget(conn);
        self.clients.backlogs.remove(conn);
        self.clients.sessions.forwarded.forget(conn);
        self.clients.deciders.proxied_closed(&mut self.core.turn(cx), conn);
        if link.role == Role::Push {
            self.push.push_closed(&mut self.core, conn);
        }
        if reason == CloseReason::TimedOut {
            self.core.count(Metric::DeadlinesMissed);
        }
        self.core.release_peer(link.peer);
        if let Some(session) = link.session() {
            self.clients.sessions.heartbeat.release(link.params());
            self.clients.session_closed(&mut self.core.turn(cx), session);
        }
        self.clients.program_conn_closed(&mut self.core.turn(cx), conn);
    }

    fn on_deadline(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        self.clients.handle_deadline(&mut self.core.turn(cx), conn);
    }

    fn on_timer(&mut self, cx: &mut Context<Link>, timer: TimerId, data: u64) {
        match Timer::from_u64(data) {
            Some(Timer::Backends) => {
                self.engines.engine_timer(&mut self.core.turn(cx), timer);
                self.clients.deciders.with_backends(|client| client.on_timer(cx, timer, data));
            }
            Some(Timer::Second) => self.second(cx),
            Some(Timer::Drain) => self.drain_step(cx),
            Some(Timer::Accept) => self.front.accept_again(&mut self.core.turn(cx)),
            Some(Timer::Handshake) => self.front.shake_hands_again(&mut self.core.turn(cx)),
            Some(Timer::Fanout) => self.fanout.gate.handle_timer(),
            Some(Timer::Calls) => self.api.api_calls.handle_timer(),
            Some(Timer::Programs) => self.clients.program_conns.handle_timer(cx.now_ms()),
            Some(Timer::Backlog) => self.clients.backlogs.handle_timer(cx.now_ms()),
            None => debug_assert!(false, "a timer without a name"),
        }
    }

    fn on_fd(&mut self, cx: &mut Context<Link>, token: u64, _: Ready) {
        if token == INBOX {
            self.receive_from_program(cx);
        }
    }

    fn on_tick(&mut self, cx: &mut Context<Link>) {
        // What this turn has done was done under the snapshot it began with.
        self.adopt_newest(cx);
        self.clients.continue_withdrawal(&mut self.core.turn(cx));
        self.clients.continue_tenant_sweep(&mut self.core.turn(cx));
        self.clients.continue_counting_users(&mut self.core);
        self.clients.continue_walks(&mut self.core.turn(cx));
        self.clients.expire_subscriptions(&mut self.core.turn(cx));
        self.clients.handle_answers(&mut self.core.turn(cx));
        self.clients.run_programs(&mut self.core.turn(cx));
        self.run_program_conns(cx);
        self.turn(cx);
        self.clients.deciders.send_to_backends(&mut self.core.turn(cx));
        self.front.enforce_buffer_limits(&mut self.core.turn(cx));
        self.count_affected(cx);
        self.core.state.loop_stats[self.core.index].turn_ends();
    }

    fn on_sleep(&mut self, cx: &mut Context<Link>) -> Sleep {
        if !self.fanout.gate.is_waiting() && self.core.broadcasts_are_due() {
            if self.core.state.fanout_scheduler.is_limited() {
                // Workers that something has woken meanwhile go first.
                std::thread::yield_now();
            }
            return Sleep::Poll;
        }
        let waits = self.clients.sweeps.is_due()
            || self.core.hub.has_walks()
            || self.clients.backlogs.is_ready(self.core.clock.now().ms)
            || self.api.api_calls.is_ready()
            || !self.core.api_answers.is_empty()
            || !self.clients.large_answers.is_idle()
            || self.clients.sessions.subscriptions_have_expired(&self.core)
            || self.clients.deciders.has_answers()
            || self.clients.deciders.programs.is_waiting()
            || self.clients.has_program_work(&self.core.turn(cx))
            || self.engines.has_engine_events();
        if !self.affected.is_idle() || waits {
            return Sleep::Poll;
        }
        if !self.core.endpoint.prepare_sleep() {
            return Sleep::Poll;
        }
        // Rule 7 of the data plane: from here until `on_wake` this worker acts on no snapshot at all.
        if self
            .core
            .state
            .rollout
            .try_sleep(self.core.index, self.core.settings.generation())
            .is_err()
        {
            self.core.endpoint.wake();
            return Sleep::Poll;
        }
        self.core.state.loop_stats[self.core.index].sleeps();
        Sleep::Block
    }

    fn on_wake(&mut self, cx: &mut Context<Link>) {
        self.core.endpoint.wake();
        self.core.state.rollout.wake(self.core.index, self.core.settings.generation());
        self.core.state.loop_stats[self.core.index].wakes();
        self.adopt_newest(cx);
    }
}

/// Whether a program speaks the protocol of a connection.
fn is_of_program(cx: &mut Context<Link>, conn: ConnId) -> bool {
    cx.data(conn).is_some_and(|link| link.role == Role::Client(Encoding::Program))
}

impl HttpHandler for Worker<'_> {
    fn on_request_head(
        &mut self,
        cx: &mut Context<Link>,
        id: http::RequestId,
        head: &http::RequestHead<'_>,
    ) -> Option<u64> {
        self.core.turn(cx).note_request(id.conn(), head);
        self.takes_body(cx, id.conn(), head)
    }

    fn on_request(
        &mut self,
        cx: &mut Context<Link>,
        id: http::RequestId,
        request: &http::Request<'_>,
    ) {
        let conn = id.conn();
        self.core.count(Metric::HttpRequests);
        self.core.turn(cx).note_request(conn, request);
        if let Err(answer) = self.front.attribute(&mut self.core.turn(cx), conn, request) {
            self.core.turn(cx).answer(conn, &answer);
            return cx.close(conn);
        }
        self.route(cx, conn, request);
    }

    fn on_http_error(&mut self, cx: &mut Context<Link>, conn: ConnId, error: http::Error) {
        self.core.turn(cx).http_error(conn, error);
    }
}

impl WebSocketHandler for Worker<'_> {
    fn on_message(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        message: websocket::Message<'_>,
    ) {
        self.clients.websocket_message(&mut self.core.turn(cx), conn, &message);
    }

    fn on_ping(&mut self, cx: &mut Context<Link>, conn: ConnId, payload: &[u8]) {
        self.clients.websocket_ping(&mut self.core.turn(cx), conn, payload);
    }

    fn on_pong(&mut self, cx: &mut Context<Link>, conn: ConnId, _: &[u8]) {
        self.clients.websocket_pong(&mut self.core.turn(cx), conn);
    }

    fn on_close_frame(&mut self, cx: &mut Context<Link>, conn: ConnId, code: u16, _: &str) {
        self.clients.websocket_closed(&mut self.core.turn(cx), conn, code);
    }

    fn on_websocket_error(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        error: &websocket::ProtocolError,
    ) {
        self.clients.websocket_error(&mut self.core.turn(cx), conn, error);
    }
}

impl Drop for Worker<'_> {
    /// Also when a panic ends it: its connections are closed with its descriptor table, nobody else could give their
    /// places back.
    fn drop(&mut self) {
        self.fanout.gate.report_behind(&self.core.state.pressure, self.core.index, [].into_iter());
        if let Some(table) = &self.core.settings.user_connections {
            table.forget(self.core.index);
        }
        for (address, authenticated) in self.core.peers.release_all() {
            self.core.state.admissions.release(address, authenticated);
        }
    }
}
