//! The connections of a sender: how many there are, and when they are opened and closed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dunlin_wire::backoff::Backoff;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, warn};

use super::connection::{ConnectionEnd, PushConnection};
use super::job::Job;
use super::metrics::{ConnectionState, ConnectionStats, SenderStats};
use super::queue::Queue;
use super::scale::{Scale, View};
use super::{Connections, SenderConfig};
use crate::connect::{Connect, ConnectError, ConnectFault};
use crate::outcome::{NotSent, Outcome};
use crate::request::ConnectionGroup;
use crate::service::{CredentialError, Service};

/// Interval at which the pool checks its connections while there are requests.
const TICK: Duration = Duration::from_millis(50);
const CONNECT_WITHIN: Duration = Duration::from_secs(15);
/// Minimum time between two attempts: a service may treat a burst of connections as an attack.
const PACE: Duration = Duration::from_millis(50);
/// Maximum number of main connections that are being opened at the same time.
const CONNECTING_MAX: usize = 4;
/// Delay after a failure, doubled with each further one.
const BACKOFF: Backoff = Backoff { min_ms: 100, max_ms: 30_000 };
/// Time without requests after which the connection for suspects is closed.
const SUSPECT_IDLE: Duration = Duration::from_secs(300);

/// State shared by the sender, its pool and its connections.
#[derive(Debug)]
pub(super) struct Shared<S> {
    pub(super) service: S,
    pub(super) config: SenderConfig,
    queue: Mutex<Queue>,
    pub(super) room: Arc<Semaphore>,
    pub(super) stats: SenderStats,
    pub(super) links: Mutex<Vec<Arc<ConnectionStats>>>,
    connect_error: Mutex<Option<ConnectError>>,
    /// Why the last connection failed that had received a response.
    pub(super) lost_error: Mutex<Option<String>>,
    /// The pool sleeps until a request is queued.
    idle: AtomicBool,
    pub(super) notify: Notify,
    pub(super) closing: AtomicBool,
    prepare_wanted: AtomicBool,
    pub(super) senders: AtomicU32,
}

impl<S: Service> Shared<S> {
    pub(super) fn new(service: S, config: SenderConfig) -> Shared<S> {
        Shared {
            service,
            room: Arc::new(Semaphore::new(config.queue_bytes_max)),
            config,
            queue: Mutex::default(),
            stats: SenderStats::default(),
            links: Mutex::default(),
            connect_error: Mutex::default(),
            lost_error: Mutex::default(),
            idle: AtomicBool::new(false),
            notify: Notify::new(),
            closing: AtomicBool::new(false),
            prepare_wanted: AtomicBool::new(false),
            senders: AtomicU32::new(1),
        }
    }

    /// Locks the queue. A panic of another task does not make it inconsistent, so poisoning is ignored.
    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the pool after a change that it must handle.
    pub(super) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Wakes the pool for a new request, if it sleeps until one arrives.
    #[inline]
    pub(super) fn wake_idle(&self) {
        if self.idle.load(Relaxed) {
            self.wake();
        }
    }

    pub(super) fn ask_to_prepare(&self) {
        self.prepare_wanted.store(true, Relaxed);
        self.wake();
    }

    pub(super) fn finish(&self, job: Box<Job>, outcome: Outcome) {
        let counter = match &outcome {
            Outcome::Accepted(_) => &self.stats.accepted,
            Outcome::Rejected(_) => &self.stats.rejected,
            Outcome::NotSent(_) => &self.stats.not_sent,
            Outcome::Uncertain(_) => &self.stats.uncertain,
        };
        counter.fetch_add(1, Relaxed);
        job.finish(outcome);
    }

    pub(super) fn finish_not_sent(&self, job: Box<Job>, why: NotSent) {
        let outcome = job.not_sent(why);
        self.finish(job, outcome);
    }

    /// Returns the reason for jobs that miss their deadlines in the queue.
    pub(super) fn lateness(&self) -> NotSent {
        let obstacle = self.obstacle(Duration::ZERO);
        obstacle.map_or(NotSent::Deadline, |error| NotSent::Connect(error.why))
    }

    /// Returns why there is no connection: the error of the last attempt, or what the first one has been waiting for,
    /// for at least `grace`; or else what keeps the service from using one.
    pub(super) fn obstacle(&self, grace: Duration) -> Option<ConnectError> {
        let error = self.connect_error().clone();
        let waited_for = || {
            let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            if links.iter().any(|link| link.state() != ConnectionState::Connecting) {
                return None;
            }
            links.iter().find_map(|link| link.stage.error(grace))
        };
        error.or_else(waited_for).or_else(|| self.service.obstacle())
    }

    fn connect_error(&self) -> MutexGuard<'_, Option<ConnectError>> {
        self.connect_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name of the sender in log lines.
    pub(super) fn name(&self) -> &str {
        match &*self.config.name {
            "" => self.service.authority(),
            name => name,
        }
    }
}

/// The task that opens and closes connections.
pub(super) struct Pool<S> {
    shared: Arc<Shared<S>>,
    dial: Arc<dyn Connect>,
    links: Vec<PoolEntry>,
    tasks: JoinSet<(u64, ConnectionEnd)>,
    /// Number of main connections that are wanted.
    wanted: usize,
    scale: Scale,
    next_id: u64,
    next_open_at: Instant,
    failures: u32,
    suspect_used_at: Instant,
    preparing: Arc<AtomicBool>,
}

struct PoolEntry {
    stats: Arc<ConnectionStats>,
    group: ConnectionGroup,
    begun_at: Instant,
}

impl<S: Service> Pool<S> {
    pub(super) fn new(shared: Arc<Shared<S>>, dial: Arc<dyn Connect>) -> Pool<S> {
        let now = Instant::now();
        Pool {
            wanted: match shared.config.connections {
                Connections::Auto { .. } => 1,
                Connections::Fixed(count) => count,
            },
            shared,
            dial,
            links: Vec::new(),
            tasks: JoinSet::new(),
            scale: Scale::new(now),
            next_id: 0,
            next_open_at: now,
            failures: 0,
            suspect_used_at: now,
            preparing: Arc::default(),
        }
    }

    /// Runs until the sender is closed; then ends all remaining requests.
    pub(super) async fn run(mut self) {
        while !self.shared.closing.load(Relaxed) {
            let now = Instant::now();
            self.handle_time(now);
            let wake_at = self.wake_at(now);
            let idle = wake_at.is_none_or(|at| at > now + TICK);
            self.shared.idle.store(idle, Relaxed);
            // A request queued before the flag was set is seen here; one queued later wakes us.
            let wake_at = if self.shared.queue().is_empty() { wake_at } else { Some(now + TICK) };
            let timer = async {
                match wake_at {
                    Some(wake_at) => sleep_until(wake_at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = timer => {}
                () = self.shared.notify.notified() => {}
                Some(ended) = self.tasks.join_next() => self.handle_ended(ended.ok()),
            }
            while let Some(ended) = self.tasks.try_join_next() {
                self.handle_ended(ended.ok());
            }
            self.sort_out();
        }
        self.close().await;
    }

    fn wake_at(&self, now: Instant) -> Option<Instant> {
        let busy = self.shared.room.available_permits() < self.shared.config.queue_bytes_max;
        let missing = self.open_or_opening(ConnectionGroup::Main) < self.wanted && self.wants_any();
        let open = self.links.len() > 1 || self.scale.is_busy();
        let tick = (busy || missing || open).then_some(now + TICK);
        let queued =
            self.shared.queue().next_time().map(|at| at.max(now + Duration::from_millis(1)));
        [tick, queued].into_iter().flatten().min()
    }

    /// Returns whether to open connections at all: an unused sender opens none, unless the number is fixed.
    fn wants_any(&self) -> bool {
        matches!(self.shared.config.connections, Connections::Fixed(_))
            || self.next_id > 0
            || !self.shared.queue().is_empty()
    }

    fn handle_time(&mut self, now: Instant) {
        let why = self.shared.lateness();
        self.shared.queue().handle_time(now, &why);
        self.prepare();

        let (suspects, mains) = {
            let queue = self.shared.queue();
            (queue.waiting(ConnectionGroup::Suspect), queue.waiting(ConnectionGroup::Main))
        };
        if let Connections::Auto { max } = self.shared.config.connections {
            let links: Vec<Arc<ConnectionStats>> = self.mains().cloned().collect();
            let view = View {
                links: &links,
                opening: self.count(ConnectionGroup::Main, ConnectionState::Connecting),
                wanted: self.wanted,
                max,
                waiting: mains,
                saturated: self.shared.room.available_permits()
                    < self.shared.config.queue_bytes_max / 4,
                submitted: self.shared.stats.submitted.load(Relaxed),
                answered: self.shared.stats.answered.load(Relaxed),
            };
            let wanted = self.scale.handle_tick(&view, now);
            if wanted != self.wanted {
                debug!(sender = self.shared.name(), from = self.wanted, to = wanted, "connections");
            }
            let open = self.open_or_opening(ConnectionGroup::Main);
            for _ in wanted..open {
                // Close the youngest: older ones have proved useful.
                if let Some(link) = self.mains().max_by_key(|link| link.id) {
                    link.retire();
                }
            }
            self.wanted = wanted;
        }
        if suspects > 0 {
            self.suspect_used_at = now;
        } else if now > self.suspect_used_at + SUSPECT_IDLE {
            self.links.iter().filter(|held| held.group == ConnectionGroup::Suspect).for_each(
                |held| {
                    held.stats.retire();
                },
            );
        }
        if suspects > 0 && self.open_or_opening(ConnectionGroup::Suspect) == 0 {
            self.open(ConnectionGroup::Suspect, now);
        }
        if self.open_or_opening(ConnectionGroup::Main) < self.wanted && self.wants_any() {
            self.open(ConnectionGroup::Main, now);
        }
    }

    /// Returns the main connections that accept requests.
    fn mains(&self) -> impl Iterator<Item = &Arc<ConnectionStats>> {
        self.links
            .iter()
            .filter(|held| held.group == ConnectionGroup::Main && !held.stats.is_retired())
            .filter(|held| held.stats.state() == ConnectionState::Open)
            .map(|held| &held.stats)
    }

    fn count(&self, group: ConnectionGroup, state: ConnectionState) -> usize {
        let of = |held: &&PoolEntry| {
            held.group == group && held.stats.state() == state && !held.stats.is_retired()
        };
        self.links.iter().filter(of).count()
    }

    fn open_or_opening(&self, group: ConnectionGroup) -> usize {
        self.count(group, ConnectionState::Open) + self.count(group, ConnectionState::Connecting)
    }

    fn open(&mut self, group: ConnectionGroup, now: Instant) {
        let opening = self.count(ConnectionGroup::Main, ConnectionState::Connecting);
        if now < self.next_open_at || opening >= CONNECTING_MAX {
            return;
        }
        self.next_open_at = now + PACE;
        let id = self.next_id;
        self.next_id += 1;
        let stats = Arc::new(ConnectionStats::new(id));
        self.links.push(PoolEntry { stats: stats.clone(), group, begun_at: now });
        let (shared, dial, stage) = (self.shared.clone(), self.dial.clone(), stats.stage.clone());
        self.tasks.spawn(async move {
            let io = match timeout(CONNECT_WITHIN, dial.connect(stage.clone())).await {
                Ok(Ok(io)) => io,
                Ok(Err(error)) => return (id, ConnectionEnd::Unopened(error)),
                Err(_) => {
                    let why = format!("no connection within {} s", CONNECT_WITHIN.as_secs());
                    let error = stage.error(Duration::ZERO);
                    return (id, ConnectionEnd::Unopened(error.unwrap_or_else(|| why.into())));
                }
            };
            shared.stats.opened.fetch_add(1, Relaxed);
            let silent = format!(
                "{} takes connections and sends no HTTP/2 settings; is it a push service?",
                shared.service.authority()
            );
            stage.wait(ConnectFault::Http2, silent);
            (id, PushConnection::new(shared, stats, group, io).run().await)
        });
        self.sort_out();
    }

    fn handle_ended(&mut self, ended: Option<(u64, ConnectionEnd)>) {
        // The jobs of a task that panicked were dropped, which reported their outcomes.
        let Some((id, end)) = ended else { return };
        let Some(index) = self.links.iter().position(|held| held.stats.id == id) else { return };
        let held = self.links.swap_remove(index);
        let useless = held.stats.answered.load(Relaxed) == 0;
        let name = self.shared.name();
        let end = match end {
            ConnectionEnd::Dry => {
                self.scale.handle_dry();
                ConnectionEnd::Lost("the peer does not return its window".to_owned())
            }
            end => end,
        };
        let error = match (end, held.stats.go_away()) {
            (ConnectionEnd::Unopened(error) | ConnectionEnd::Refused(error), _) => error,
            (ConnectionEnd::Lost(why), _) if useless => ConnectError::new(ConnectFault::Http2, why),
            // Without a delay a peer that ends every connection would be contacted twenty times a second.
            (ConnectionEnd::Done, Some(said))
                if useless && held.begun_at.elapsed().as_millis() < u128::from(BACKOFF.max_ms) =>
            {
                let why =
                    format!("the peer ends connections before it has answered anything: {said}");
                ConnectError::new(ConnectFault::Http2, why)
            }
            (ConnectionEnd::Done | ConnectionEnd::Dry, _) => {
                self.failures = 0;
                return;
            }
            (ConnectionEnd::Lost(why), _) => {
                self.failures = 0;
                debug!(sender = name, %why, "a connection was lost");
                self.shared.stats.lost.fetch_add(1, Relaxed);
                let mut last =
                    self.shared.lost_error.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some(why);
                return;
            }
        };
        self.failures = self.failures.saturating_add(1);
        let wait = Duration::from_millis(BACKOFF.delay_ms(self.failures));
        self.shared.stats.failed.fetch_add(1, Relaxed);
        warn!(sender = name, fault = error.fault.as_str(), why = %error, retry_in = ?wait, "no connection");
        *self.shared.connect_error() = Some(error);
        self.next_open_at = Instant::now() + wait;
    }

    /// Updates the list of connections in the metrics, and clears a connect error that no longer applies.
    fn sort_out(&mut self) {
        let mut links = self.shared.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.clear();
        links.extend(self.links.iter().map(|held| held.stats.clone()));
        drop(links);
        if self.links.iter().any(|held| held.stats.state() == ConnectionState::Open) {
            *self.shared.connect_error() = None;
        }
        // A connection that opens but gets no response does not reset the back-off.
        if self.links.iter().any(|held| held.stats.answered.load(Relaxed) > 0) {
            self.failures = 0;
        }
    }

    /// Asks the service to prepare its credential, if a connection needs it.
    fn prepare(&self) {
        if !self.shared.prepare_wanted.load(Relaxed) || self.preparing.swap(true, Relaxed) {
            return;
        }
        let (shared, preparing) = (self.shared.clone(), self.preparing.clone());
        tokio::spawn(async move {
            let result = shared.service.prepare().await;
            shared.prepare_wanted.store(false, Relaxed);
            preparing.store(false, Relaxed);
            match result {
                Ok(()) => shared.queue().handle_time(Instant::now(), &NotSent::Deadline),
                Err(CredentialError::Stale) => {}
                Err(CredentialError::Invalid(why)) => {
                    shared.queue().fail(&NotSent::Credential(why));
                }
            }
            shared.wake();
        });
    }

    async fn close(mut self) {
        self.shared.queue().close(&NotSent::Closed);
        self.shared.room.close();
        for held in &self.links {
            held.stats.retire();
        }
        let drained = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(self.shared.config.drain, drained).await.is_err() {
            // Aborted tasks drop their jobs, which reports their outcomes.
            self.tasks.shutdown().await;
        }
        // Ends jobs that connections returned when they ended.
        self.shared.queue().close(&NotSent::Closed);
        self.links = Vec::new();
        self.sort_out();
    }
}

/// Numbers of responses and submissions over the last seconds.
#[derive(Debug, Default)]
pub(super) struct Rates(VecDeque<(Instant, u64, u64)>);

impl Rates {
    const KEPT: Duration = Duration::from_secs(5);

    pub(super) fn record(&mut self, now: Instant, answered: u64, submitted: u64) {
        self.0.push_back((now, answered, submitted));
        while self.0.front().is_some_and(|(at, ..)| *at + Self::KEPT < now) {
            self.0.pop_front();
        }
    }

    /// Returns responses and submissions per second since `since`; `None` if there is no sample that old.
    pub(super) fn since(&self, since: Instant) -> Option<(f64, f64)> {
        let (now, answered, submitted) = *self.0.back()?;
        let (then, answered_then, submitted_then) =
            *self.0.iter().rev().find(|(at, ..)| *at <= since)?;
        let seconds = (now - then).as_secs_f64();
        (seconds > 0.0).then(|| {
            let answered = (answered - answered_then) as f64 / seconds;
            (answered, (submitted - submitted_then) as f64 / seconds)
        })
    }
}
