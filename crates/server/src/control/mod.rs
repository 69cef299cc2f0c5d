//! The control thread: starts the workers, the admin thread and the webhooks thread, and shuts the process down in order.

mod bus;
mod key_fetcher;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use dunlin_cluster::{ClusterHandle, outbox};
use dunlin_push_service::PushThread;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::Instant;

#[cfg(feature = "otlp")]
use crate::admin::worker_metrics::registry;
use crate::admin::{AdminParams, AdminThread};
use crate::error::ServeError;
#[cfg(feature = "otlp")]
use crate::exporter::TelemetryThread;
use crate::federation::FederationThread;
use crate::log::{self, Entry, Kind};
use crate::message::bus::Endpoint;
use crate::message::control::ControlMessage;
use crate::message::federation::FederationMessage;
use crate::message::webhooks::WebhooksMessage;
use crate::message::worker::WorkerMessage;
use crate::state::memory::{self, Memory, MemoryBounds};
use crate::state::{Lifecycle, ServerState};
use crate::webhooks::{FINISH_TIMEOUT, WebhooksThread};
use crate::worker::thread::Workers;

/// What a started server reports to its caller.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The bound address of the client port; differs from the configured one when its port was 0.
    pub client_addr: SocketAddr,
    /// The bound address of the admin port.
    pub admin_addr: SocketAddr,
    /// Threads that serve connections.
    pub workers: usize,
    /// Readable sentences: which configuration runs, its source, and the errors found there.
    pub recovery: Vec<String>,
    /// A readable sentence: the bounds in bytes, and the memory that this process may use. Empty if the kernel does not
    /// tell.
    pub memory: String,
}

/// How often the control thread checks whether the last client has disconnected.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// How often the control thread checks whether the admin thread has ended.
const ADMIN_WATCH: Duration = Duration::from_millis(200);
/// How long workers may take to leave their loops after the drain is over.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The parameters of the control thread.
pub(crate) struct Control {
    pub(crate) state: Arc<ServerState>,
    pub(crate) endpoint: Endpoint<ControlMessage>,
    pub(crate) workers: Workers,
    /// The control thread's own handles of the workers' listeners.
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) admin: AdminParams,
    pub(crate) pushes: PushThread,
    /// The webhooks thread's endpoint on the bus.
    pub(crate) webhooks: Endpoint<WebhooksMessage>,
    pub(crate) federation: FederationThread,
    pub(crate) client_addr: SocketAddr,
    pub(crate) admin_addr: SocketAddr,
    pub(crate) recovery: Vec<String>,
}

/// Returns a sentence about the bounds in bytes. Warns if they permit more than there is.
fn memory_report(bounds: &MemoryBounds) -> String {
    let Some(memory) = Memory::read() else { return String::new() };
    let (sentence, too_much) = memory::report(bounds, &memory);
    tracing::info!("memory: {sentence}");
    if let Some(too_much) = too_much {
        tracing::warn!("{too_much}");
    }
    sentence
}

impl Control {
    /// Runs until the shutdown after SIGTERM or SIGINT is complete.
    pub(crate) fn run(self, on_ready: Box<dyn FnOnce(&Ready)>) -> Result<(), ServeError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ServeError::Control)?;
        let Control { state, endpoint, workers, listeners, admin, pushes, webhooks, .. } = self;
        let federation = self.federation;
        #[cfg(feature = "otlp")]
        let telemetry = {
            let registry = registry(&state, &admin.counters, admin.push.as_ref());
            TelemetryThread::start(&state, registry).map_err(ServeError::Control)?
        };
        let webhooks =
            WebhooksThread::start(Arc::clone(&state), webhooks).map_err(ServeError::Control)?;
        let mut running = ServingState { state, endpoint, workers, listeners };
        let (outbox, mut outputs) = outbox();
        let mut cluster = ClusterHandle::new(Arc::<ServerState>::clone(&running.state), outbox);
        let drains = Notify::new();
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Control)?;
            let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Control)?;
            let mut hang_up = signal(SignalKind::hangup()).map_err(ServeError::Control)?;
            running.workers.wait_until_ready()?;
            running.state.set_lifecycle(Lifecycle::Serving);
            let admin = AdminThread::start(admin).map_err(ServeError::Control)?;
            log::write(
                Kind::Serving,
                &Entry {
                    listener: &self.client_addr.to_string(),
                    revision: Some(running.state.settings.load().revision),
                    ..Entry::default()
                },
            );
            on_ready(&Ready {
                client_addr: self.client_addr,
                admin_addr: self.admin_addr,
                workers: running.state.workers(),
                recovery: self.recovery,
                memory: memory_report(&running.state.settings.load().memory),
            });
            {
                let ServingState { state, endpoint, workers, listeners } = &mut running;
                let for_workers = bus::run(state, endpoint, &mut outputs, &mut cluster, &drains);
                let mut for_workers = std::pin::pin!(for_workers);
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    error = workers.failed() => return Err(error),
                    () = ended(&admin) => return Err(ServeError::AdminLost),
                    () = &mut for_workers => {}
                    // It never ends.
                    () = reload(&mut hang_up, &admin) => {}
                }
                pushes.drain();
                let drained = drain(state, listeners, &drains, &mut terminate, &mut interrupt);
                tokio::select! {
                    () = drained => {}
                    () = for_workers => {}
                }
            }
            cluster.leave(STOP_TIMEOUT).await;
            admin.stop(STOP_TIMEOUT);
            Ok(())
        })?;
        pushes.stop(STOP_TIMEOUT);
        // While workers can still take what has arrived.
        let to = running.state.bus.federation();
        if running.endpoint.send(to, FederationMessage::Stop).is_ok() {
            running.endpoint.flush();
            federation.join(STOP_TIMEOUT);
        }
        running.stop_workers();
        running.workers.join(STOP_TIMEOUT);
        // No worker emits events any more.
        let to = running.state.bus.webhooks();
        if running.endpoint.send(to, WebhooksMessage::Stop).is_ok() {
            running.endpoint.flush();
            webhooks.join(FINISH_TIMEOUT + STOP_TIMEOUT);
        }
        #[cfg(feature = "otlp")]
        telemetry.stop(STOP_TIMEOUT);
        log::write(Kind::Stopped, &Entry::default());
        Ok(())
    }
}

/// Has the admin thread read its files anew at each SIGHUP.
async fn reload(hang_up: &mut tokio::signal::unix::Signal, admin: &AdminThread) {
    while hang_up.recv().await.is_some() {
        admin.reload();
    }
    std::future::pending::<()>().await;
}

/// Returns when the admin thread has ended. It only ends by a panic, after which settings can neither be changed nor read.
async fn ended(admin: &AdminThread) {
    while !admin.has_ended() {
        tokio::time::sleep(ADMIN_WATCH).await;
    }
}

/// The state of the control thread while clients are served.
struct ServingState {
    state: Arc<ServerState>,
    endpoint: Endpoint<ControlMessage>,
    workers: Workers,
    listeners: Vec<TcpListener>,
}

impl ServingState {
    /// Makes every worker leave its loop. Retries within [`STOP_TIMEOUT`] while a worker's ring is full.
    fn stop_workers(&mut self) {
        let deadline = Instant::now() + STOP_TIMEOUT;
        for worker in 0..self.state.workers() {
            while let Err(error) =
                self.endpoint.send(self.state.bus.worker(worker), WorkerMessage::Stop)
                && error.is_full()
                && Instant::now() < deadline
            {
                self.endpoint.flush();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.endpoint.flush();
    }
}

/// Stops accepting, makes workers ask clients to reconnect, and waits for them to leave within the configured bound. A
/// second signal ends the wait.
async fn drain(
    state: &ServerState,
    listeners: &[TcpListener],
    drains: &Notify,
    terminate: &mut tokio::signal::unix::Signal,
    interrupt: &mut tokio::signal::unix::Signal,
) {
    let bound = state.settings.load().config.shutdown.drain_timeout_ms;
    state.set_lifecycle(Lifecycle::Draining);
    tracing::info!(
        connections = state.admissions.total(),
        bound_ms = bound,
        "draining: clients are asked to reconnect"
    );
    for listener in listeners {
        // Each worker's descriptor table holds a duplicate of every listener, so closing ours would
        // close nothing: the socket itself has to stop listening.
        if let Err(error) = rustix::net::shutdown(listener.as_fd(), rustix::net::Shutdown::Both) {
            tracing::debug!(%error, "a listener was not listening any more");
        }
    }
    drains.notify_one();
    let deadline = Instant::now() + Duration::from_millis(bound);
    while state.workers_left() > 0 && Instant::now() < deadline {
        tokio::select! {
            () = tokio::time::sleep(DRAIN_POLL) => {}
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    let left = state.admissions.total();
    if left > 0 {
        tracing::warn!(connections = left, "drain time is over, closing what is left");
    }
}
