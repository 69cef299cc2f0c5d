//! The push thread: its runtime, and the state shared by its tasks.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dunlin_config::{ConfigErrors, PushConfig};
use dunlin_push::journal::{Journal, JournalError, JournalWriter};
use dunlin_push::registry::{Registry, RegistryError, Writer};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use super::durable_window::DurableWindow;
use super::flow::Flow;
use super::hook_events::HookEvents;
use super::online::OnlineQueries;
use super::recipient_limits::RecipientLimits;
use super::repeats::Repeats;
use super::senders::Senders;
use super::token_feedback::TokenFeedback;
use super::{PushHandle, call, durable, files};
use crate::local_node::PushNode;
use crate::message::{
    PushAdmissions, PushMessage, PushOutput, PushReply, PushReplyBody, PushToWorker,
};

/// Threads for blocking disk operations.
const DISK_THREADS: usize = 4;
/// The registry's file in the state directory.
const REGISTRY: &str = "devices.redb";
/// The file of the journal of durable pushes and outcomes, in the state directory.
const JOURNAL: &str = "pushes.redb";

/// The state that the tasks of the push thread share.
pub(super) struct Shared {
    pub(super) node: Arc<dyn PushNode>,
    pub(super) runtime: Handle,
    pub(super) senders: Senders,
    pub(super) registry: Arc<Registry>,
    /// All changes of the registry go through it.
    pub(super) writer: Writer,
    pub(super) token_feedback: TokenFeedback,
    pub(super) online_queries: OnlineQueries,
    pub(super) journal: Arc<Journal>,
    /// All changes of the journal go through it.
    pub(super) journal_writer: JournalWriter,
    /// Whether there is a state directory.
    pub(super) is_durable: bool,
    pub(super) durable_window: DurableWindow,
    /// Durable batches that are being sent.
    durable_batches: AtomicUsize,
    pub(super) repeats: Repeats,
    pub(super) recipient_limits: RecipientLimits,
    pub(super) hook_events: HookEvents,
    pub(super) admissions: Arc<PushAdmissions>,
    pub(super) workers: usize,
    /// Flow control of the streamed responses in progress, by call.
    flows: Mutex<HashMap<u64, Arc<Flow>>>,
    /// Messages to the bus. Flows and admissions bound their number.
    outgoing: mpsc::UnboundedSender<PushOutput>,
    /// Whether the process is shutting down; readers of a feed then do not wait for new entries.
    draining: AtomicBool,
    stopping: Notify,
}

/// Why the thread could not start, for example because of the registry in the state directory.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(String);

/// The push thread, as seen by its owner.
pub struct PushThread {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<()>,
}

impl PushThread {
    /// Opens the registry and the journal, in `state_dir` if given, applies the credentials and starts the thread: no request
    /// is taken before they are in use. Adds to `report` a sentence about each damaged file that was set aside. Returns the
    /// errors of credentials that cannot be used any more, although they were valid when they were set; the others work.
    ///
    /// On the thread, `serve` passes messages between the service and the other threads until [`PushInbox::stopped`].
    ///
    /// # Errors
    /// A file of the state directory cannot be opened, or the thread not be made.
    pub fn start<F: Future<Output = io::Result<()>>>(
        node: Arc<dyn PushNode>,
        state_dir: Option<&Path>,
        report: &mut Vec<String>,
        serve: impl FnOnce(PushInbox, PushOutbox) -> F + Send + 'static,
    ) -> Result<(PushThread, ConfigErrors), StartError> {
        let snapshot = node.snapshot();
        let push = &snapshot.config.push;
        let pushes = !(push.apns.is_empty() && push.fcm.is_empty() && push.vapid.is_empty());
        let registry = match state_dir {
            Some(state_dir) => files::open(
                &state_dir.join(REGISTRY),
                pushes,
                report,
                Registry::open,
                RegistryError::is_damage,
            ),
            None => Registry::in_memory().map_err(|error| error.to_string()),
        };
        let registry = Arc::new(registry.map_err(StartError)?);
        let journal = match state_dir {
            Some(state_dir) => files::open(
                &state_dir.join(JOURNAL),
                pushes,
                report,
                Journal::open,
                JournalError::is_damage,
            ),
            None => Journal::in_memory().map_err(|error| error.to_string()),
        };
        let journal = Arc::new(journal.map_err(StartError)?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(DISK_THREADS)
            .thread_name("dunlin-push-disk")
            .build()
            .map_err(|error| StartError(error.to_string()))?;
        let (outgoing, incoming) = mpsc::unbounded_channel();
        let (writer, journal_writer) = {
            let _runtime = runtime.enter();
            (Writer::start(Arc::clone(&registry)), JournalWriter::start(Arc::clone(&journal)))
        };
        let shared = Arc::new(Shared {
            runtime: runtime.handle().clone(),
            senders: Senders::default(),
            registry,
            token_feedback: TokenFeedback::new(writer.clone()),
            writer,
            online_queries: OnlineQueries::default(),
            journal,
            journal_writer,
            is_durable: state_dir.is_some(),
            durable_window: DurableWindow::new(),
            durable_batches: AtomicUsize::new(0),
            repeats: Repeats::default(),
            recipient_limits: RecipientLimits::new(Arc::clone(&node)),
            hook_events: HookEvents::default(),
            admissions: Arc::clone(node.push_admissions()),
            workers: node.workers(),
            node,
            flows: Mutex::default(),
            outgoing,
            draining: AtomicBool::new(false),
            stopping: Notify::new(),
        });
        let unused = {
            let _runtime = runtime.enter();
            let unused = shared.senders.apply(&PushConfig::default(), push);
            tokio::spawn(durable::resume(Arc::clone(&shared)));
            unused
        };
        let (inbox, outbox) = (PushInbox(Arc::clone(&shared)), PushOutbox(incoming));
        let thread = std::thread::Builder::new()
            .name("dunlin-push".into())
            .spawn(move || {
                if let Err(error) = runtime.block_on(serve(inbox, outbox)) {
                    tracing::error!(%error, "nothing is pushed any more");
                }
                // Does not wait for blocking tasks.
                runtime.shutdown_background();
            })
            .map_err(|error| StartError(error.to_string()))?;
        Ok((PushThread { shared, thread }, unused))
    }

    /// Returns a handle for other threads.
    pub fn handle(&self) -> PushHandle {
        PushHandle(Arc::clone(&self.shared))
    }

    /// Begins the shutdown: no further durable pushes begin, and readers that wait for entries of a feed get a response.
    pub fn drain(&self) {
        self.shared.draining.store(true, Relaxed);
        self.shared.writer.wake();
        self.shared.journal_writer.wake();
    }

    /// Waits for pushes in progress, within a bound, and ends the thread.
    pub fn stop(self, bound: Duration) {
        let deadline = Instant::now() + bound;
        self.shared.draining.store(true, Relaxed);
        self.shared.durable_window.close();
        self.shared.senders.close();
        let under_way = || self.shared.calls() + self.shared.durable_batches.load(Relaxed);
        while under_way() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.shared.stopping.notify_one();
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Counts a durable batch for as long as it is being sent.
pub(super) struct DurableGuard<'s>(&'s AtomicUsize);

impl Drop for DurableGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Shared {
    pub(super) fn count_durable(&self) -> DurableGuard<'_> {
        self.durable_batches.fetch_add(1, Relaxed);
        DurableGuard(&self.durable_batches)
    }

    /// Handles that the outcomes of `pushes` durable pushes are in the journal.
    pub(super) fn leave_durable_window(&self, pushes: usize) {
        let metrics = self.senders.all().into_iter().flat_map(|credential| credential.metrics());
        self.durable_window.leave(pushes, metrics.map(|(_, metrics)| metrics.queued).sum());
    }

    /// Returns the number of calls in progress.
    pub(super) fn calls(&self) -> usize {
        self.admissions.calls()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Sends a message over the bus.
    pub(super) fn send(&self, message: PushOutput) {
        // Fails only after the thread has ended.
        let _ = self.outgoing.send(message);
    }

    /// Makes a worker send a client a piece of its response.
    pub(super) fn reply(
        &self,
        worker: usize,
        call: u64,
        conn: dunlin_net::ConnId,
        body: PushReplyBody,
    ) {
        let reply = PushToWorker::Reply(Box::new(PushReply { call, conn, body }));
        self.send(PushOutput::Worker(worker, reply));
    }

    /// Creates the flow control of a call's response.
    pub(super) fn open_flow(&self, call: u64) -> Arc<Flow> {
        let flow = Arc::new(Flow::new());
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        flows.insert(call, Arc::clone(&flow));
        flow
    }

    pub(super) fn close_flow(&self, call: u64) {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
    }

    fn flow(&self, call: u64) -> Option<Arc<Flow>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).get(&call).cloned()
    }

    fn handle(self: &Arc<Self>, from: usize, message: PushMessage) {
        match message {
            PushMessage::Request(request) => {
                let flow = self.open_flow(request.call);
                tokio::spawn(call::run(Arc::clone(self), from, *request, flow));
            }
            PushMessage::ReplyRead { call, bytes } => {
                if let Some(flow) = self.flow(call) {
                    flow.handle_read(bytes);
                }
            }
            PushMessage::CallerGone { call } => {
                if let Some(flow) = self.flow(call) {
                    flow.handle_gone();
                }
            }
            PushMessage::OnlineReply(reply) => self.online_queries.handle(&reply),
        }
    }
}

/// Where the service takes messages from other threads.
pub struct PushInbox(Arc<Shared>);

impl PushInbox {
    /// Handles a message of the worker `from`.
    pub fn handle(&self, from: usize, message: PushMessage) {
        self.0.handle(from, message);
    }

    /// Handles that an event of [`PushOutput::Webhooks`] was sent over the bus.
    pub fn handle_event_sent(&self) {
        self.0.hook_events.handle_sent();
    }

    /// Returns once the thread is to end.
    pub async fn stopped(&self) {
        self.0.stopping.notified().await;
    }
}

/// What the service has for other threads. Flows and admissions bound it.
pub struct PushOutbox(mpsc::UnboundedReceiver<PushOutput>);

impl PushOutbox {
    /// Returns the next message.
    pub async fn recv(&mut self) -> Option<PushOutput> {
        self.0.recv().await
    }

    /// Returns the next message, if there is one.
    pub fn try_recv(&mut self) -> Option<PushOutput> {
        self.0.try_recv().ok()
    }
}
