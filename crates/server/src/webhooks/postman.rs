//! The webhooks thread: carries requests of the [`Dispatcher`] to backends, by the pipelining client of `pipeline`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dunlin_bus::Endpoint;
use dunlin_config as config;
use dunlin_hub::Now;
use dunlin_net::{
    CloseReason, ConnId, Context, EventLoop, Handler, LoopConfig, Sleep, TimerId, Tls,
};
use dunlin_pipeline::{
    Caller, Client, ClientConfig, Depth, HostConfig, HostId, Outcome, RequestId, Requests,
};
use hashbrown::HashMap;

use super::dispatcher::{Attempt, Dispatcher};
use super::happening::Happening;
use super::request::with_request;
use super::spelling::Speller;
use super::verdict::Verdict;
use crate::bus_message::BusMessage;
use crate::state::ServerState;

/// How long the last events may take to reach their backends when the process ends.
pub(crate) const FINISH: Duration = Duration::from_secs(5);

/// Parcels taken from the bus before backends get their turn.
const MESSAGES_PER_TURN: usize = 4_096;
/// Times in a turn that new requests follow from what became of others, until everybody else gets their turn.
const ROUNDS_A_TURN: usize = 16;
/// The doorbell among the loop's foreign descriptors.
const DOORBELL: u64 = 0;
/// Timers by what they carry; the client's have bits above.
const ALARM: u64 = 1;
const FINISHED: u64 = 2;
/// Times the thread begins anew after a panic.
const LIVES_MAX: u32 = 50;
/// Connections to backends; more wait for each other.
const CONNECTIONS_MAX: usize = 65_536;

/// The webhooks thread, from outside. It ends when it is sent [`BusMessage::Stop`] and has sent what it had.
pub(crate) struct WebhooksThread {
    thread: std::thread::JoinHandle<()>,
}

impl WebhooksThread {
    pub(crate) fn start(
        state: Arc<ServerState>,
        mut endpoint: Endpoint<BusMessage>,
    ) -> io::Result<WebhooksThread> {
        let builder = std::thread::Builder::new().name("dunlin-webhooks".into());
        let thread = builder.spawn(move || {
            for life in 0..LIVES_MAX {
                // The endpoint is made for being taken over, and nothing else outlives a life.
                let outcome = catch_unwind(AssertUnwindSafe(|| run(&state, &mut endpoint)));
                match outcome {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => {
                        return tracing::error!(%error, "webhooks are not sent any more");
                    }
                    Err(_) => {
                        tracing::error!(
                            life,
                            "the webhooks thread panicked; the events that waited are lost"
                        );
                        state.webhooks.restart();
                    }
                }
            }
            tracing::error!(
                "the webhooks thread panicked again and again; nothing is sent any more"
            );
        })?;
        Ok(WebhooksThread { thread })
    }

    /// Waits for the thread to end, within a bound.
    pub(crate) fn join(self, bound: Duration) {
        let deadline = Instant::now() + bound;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn run(state: &Arc<ServerState>, endpoint: &mut Endpoint<BusMessage>) -> io::Result<()> {
    let config = LoopConfig { connections_max: CONNECTIONS_MAX, ..LoopConfig::default() };
    let mut event_loop = EventLoop::new(config)?;
    let cx = event_loop.context();
    cx.register_fd(endpoint.doorbell(), DOORBELL)?;
    let settings = state.settings.load_full();
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
    // The process's own name, without what a UUID has of hyphens and of version.
    let run: String = state.uid.chars().filter(|c| *c != '-').take(12).collect();
    let speller = Speller::new(&run, settings.node_name());
    let board = Arc::clone(&state.webhooks);
    let mut postman = Postman {
        dispatcher: Dispatcher::new(board, speller, u64::from_ne_bytes(seed)),
        state: Arc::clone(state),
        endpoint,
        client: Client::new(ClientConfig::default(), Verdicts::default()),
        hosts: HashMap::new(),
        generation: 0,
        alarm: None,
        restless: false,
        leaving: false,
    };
    postman.endpoint.wake();
    postman.adopt_newest();
    event_loop.run(&mut postman)
}

struct Postman<'e> {
    state: Arc<ServerState>,
    endpoint: &'e mut Endpoint<BusMessage>,
    dispatcher: Dispatcher,
    client: Client<Verdicts>,
    /// By the numbers of the dispatcher. One that cannot be asked says why.
    hosts: HashMap<u64, Result<HostId, Arc<str>>>,
    /// Of the settings it runs.
    generation: u64,
    /// When the loop is woken for the dispatcher, and by which timer.
    alarm: Option<(u64, TimerId)>,
    /// There is more to be done before it may sleep.
    restless: bool,
    /// It ends when there is nothing more to be sent.
    leaving: bool,
}

/// What became of requests, until the turn looks.
#[derive(Default)]
struct Verdicts {
    ended: Vec<(u64, Verdict)>,
    now_s: u64,
}

impl Caller for Verdicts {
    type Data = ();

    fn on_outcome(
        &mut self,
        _: &mut Context<()>,
        _: &mut Requests<'_>,
        _: RequestId,
        tag: u64,
        outcome: &Outcome<'_>,
    ) {
        self.ended.push((tag, Verdict::of(outcome, self.now_s)));
    }
}

impl Postman<'_> {
    /// Switches to the newest settings, if it does not run them.
    fn adopt_newest(&mut self) {
        let generation = self.state.generation();
        if generation != self.generation {
            self.generation = generation;
            let settings = self.state.settings.load();
            self.endpoint.set_ring_slots(settings.config.limits.bus_slots as usize);
            self.dispatcher.handle_settings(&settings.config.webhooks);
        }
    }

    fn take_parcels(&mut self, cx: &mut Context<()>, now: Now) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some((from, message)) = self.endpoint.recv() else { return };
            // A worker that tells of something for a new hook has switched to settings with it, and they were
            // published before that.
            self.adopt_newest();
            match message {
                BusMessage::HookEvent(happening) => self.take(now, from, &happening),
                BusMessage::Stop => {
                    self.leaving = true;
                    cx.run_after(FINISH.as_millis() as u64, FINISHED);
                }
                // Of all else, that something came is all that it says.
                _ => {}
            }
        }
        self.restless = true;
    }

    fn take(&mut self, now: Now, from: usize, happening: &Happening) {
        if let Some(transit) = self.state.webhooks.transit(from) {
            transit.taken(happening.what.cost());
        }
        self.dispatcher.handle_happening(now, happening);
    }

    /// Sends what is to be sent, and what follows from that at once.
    fn send(&mut self, cx: &mut Context<()>, now: Now) {
        for _ in 0..ROUNDS_A_TURN {
            self.client.on_tick(cx);
            let ended = std::mem::take(&mut self.client.caller().ended);
            for (tag, verdict) in &ended {
                self.dispatcher.handle_verdict(now, *tag, verdict);
            }
            let mut sent = 0;
            while let Some(attempt) = self.dispatcher.poll_attempt(now) {
                self.send_attempt(&attempt);
                sent += 1;
            }
            while let Some(endpoint) = self.dispatcher.poll_gone() {
                if let Some(Ok(host)) = self.hosts.remove(&endpoint) {
                    self.client.requests().remove(host);
                    sent += 1;
                }
            }
            if sent == 0 && self.client.caller().ended.is_empty() {
                return;
            }
        }
        self.restless = true;
    }

    fn send_attempt(&mut self, attempt: &Attempt) {
        let client = &mut self.client;
        let host = self.hosts.entry(attempt.endpoint).or_insert_with(|| {
            let config = host_config(&attempt.upstream)?;
            let scheme = if attempt.upstream.tls { "https" } else { "http" };
            let url = format!("{scheme}://{}", attempt.member.address);
            client.requests().host(&url, config).map_err(|error| error.to_string().into())
        });
        let refused = match host {
            Ok(host) => {
                let mut requests = client.requests();
                let prepared = with_request(attempt, |request| requests.prepare(*host, request));
                requests.send(*host, &prepared, attempt.tag).err().map(|why| why.to_string().into())
            }
            Err(why) => Some(Arc::clone(why)),
        };
        if let Some(why) = refused {
            client.caller().ended.push((attempt.tag, Verdict::Unreachable(why)));
        }
    }

    /// Sees to it that the loop wakes when the dispatcher wants to be called.
    fn arm(&mut self, cx: &mut Context<()>) {
        let due_ms = self.dispatcher.poll_timeout();
        if due_ms == self.alarm.map(|(at_ms, _)| at_ms) {
            return;
        }
        if let Some((_, timer)) = self.alarm.take() {
            cx.cancel(timer);
        }
        self.alarm = due_ms
            .map(|at_ms| (at_ms, cx.run_after(at_ms.saturating_sub(cx.now_ms()).max(1), ALARM)));
    }

    /// The process ends: says what has not been sent.
    fn finish(&self, cx: &mut Context<()>) {
        let lost = self.dispatcher.len();
        if lost > 0 {
            tracing::warn!(
                lost,
                "the process ends, and webhook events wait that no backend has taken within {} s",
                FINISH.as_secs()
            );
        }
        cx.stop();
    }
}

/// How to ask the members of an upstream; why they cannot be asked.
fn host_config(upstream: &config::Upstream) -> Result<HostConfig, Arc<str>> {
    let tls = match &upstream.ca {
        Some(ca) if upstream.tls => match Tls::with_roots(ca.as_bytes()) {
            Ok(tls) => Some(tls),
            Err(error) => return Err(format!("`ca` cannot be read: {error}").into()),
        },
        _ => None,
    };
    Ok(HostConfig {
        connections: upstream.connections_per_member_max,
        // A backend that is behind a proxy, or slow, answers one at a time best; what is many is in one request.
        depth: Depth::Fixed(1),
        answer_timeout_ms: upstream.timeout_ms,
        // Lanes are few, and each has one request.
        queue_timeout_ms: 0,
        queue_max: usize::MAX,
        queue_bytes_max: usize::MAX,
        connect_timeout_ms: upstream.connect_timeout_ms,
        // Another member is asked instead.
        connect_attempts: 1,
        // A connection that was closed while it was idle is no failure.
        replays_max: 1,
        tls,
        ..HostConfig::default()
    })
}

impl Handler for Postman<'_> {
    type Data = ();

    fn on_connect(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.client.on_connect(cx, conn);
    }

    fn on_connect_failed(&mut self, cx: &mut Context<()>, conn: ConnId, (): (), error: &io::Error) {
        self.client.on_connect_failed(cx, conn, (), error);
    }

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        self.client.on_data(cx, conn, bytes);
    }

    fn on_eof(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.client.on_eof(cx, conn);
    }

    fn on_close(&mut self, cx: &mut Context<()>, conn: ConnId, (): (), reason: CloseReason) {
        self.client.on_close(cx, conn, (), reason);
    }

    fn on_writable(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.client.on_writable(cx, conn);
    }

    fn on_deadline(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.client.on_deadline(cx, conn);
    }

    fn on_fd(&mut self, cx: &mut Context<()>, token: u64) {
        if token != DOORBELL {
            self.client.on_fd(cx, token);
        }
    }

    fn on_timer(&mut self, cx: &mut Context<()>, timer: TimerId, data: u64) {
        match data {
            ALARM => self.alarm = None,
            FINISHED => self.finish(cx),
            _ => self.client.on_timer(cx, timer, data),
        }
    }

    fn on_tick(&mut self, cx: &mut Context<()>) {
        self.restless = false;
        self.adopt_newest();
        let unix_ms = unix_ms();
        let now = Now { ms: cx.now_ms(), unix_ms };
        self.client.caller().now_s = unix_ms / 1000;
        self.take_parcels(cx, now);
        self.dispatcher.handle_timeout(now);
        self.send(cx, now);
        self.arm(cx);
        if self.leaving && self.dispatcher.len() == 0 && !self.restless {
            self.finish(cx);
        }
        self.endpoint.flush();
    }

    fn on_sleep(&mut self, _: &mut Context<()>) -> Sleep {
        if self.restless || !self.endpoint.prepare_sleep() { Sleep::Poll } else { Sleep::Block }
    }

    fn on_wake(&mut self, _: &mut Context<()>) {
        self.endpoint.wake();
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
