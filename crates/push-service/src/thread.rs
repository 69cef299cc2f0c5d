//! The push thread: its runtime, its endpoint on the bus, and the state shared by its tasks.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dunlin_cluster::message::ClusterMessage;
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
use crate::error::ServeError;
use crate::message::bus::{Addressed, Endpoint};
use crate::message::push::{
    PushAdmissions, PushMessage, PushOutput, PushReply, PushReplyBody, PushToWorker,
};
use crate::message::webhooks::WebhooksMessage;
use crate::state::ServerState;

/// Threads for blocking disk operations.
const DISK_THREADS: usize = 4;
/// Messages taken from the bus before other tasks of the runtime run.
const MESSAGES_PER_TURN: usize = 256;
/// Delay before a full ring is tried again.
const RETRY: Duration = Duration::from_millis(1);
/// The registry's file in the state directory.
const REGISTRY: &str = "devices.redb";
/// The file of the journal of durable pushes and outcomes, in the state directory.
const JOURNAL: &str = "pushes.redb";

/// The state that the tasks of the push thread share.
#[derive(Debug)]
pub(super) struct Shared {
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

/// The push thread, as seen by its owner.
pub(crate) struct PushThread {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<()>,
}

impl PushThread {
    /// Opens the registry and the journal, in `state_dir` if given, applies the credentials and starts the thread: no request
    /// is taken before they are in use. Adds to `report` a sentence about each damaged file that was set aside. Returns the
    /// errors of credentials that cannot be used any more, although they were valid when they were set; the others work.
    pub(crate) fn start(
        state: &Arc<ServerState>,
        endpoint: Endpoint<PushMessage>,
        state_dir: Option<&Path>,
        report: &mut Vec<String>,
    ) -> Result<(PushThread, ConfigErrors), ServeError> {
        let pushes = {
            let push = &state.settings.load().config.push;
            !(push.apns.is_empty() && push.fcm.is_empty() && push.vapid.is_empty())
        };
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
        let registry = Arc::new(registry.map_err(ServeError::Push)?);
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
        let journal = Arc::new(journal.map_err(ServeError::Push)?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(DISK_THREADS)
            .thread_name("dunlin-push-disk")
            .build()
            .map_err(|error| ServeError::Push(error.to_string()))?;
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
            recipient_limits: RecipientLimits::new(state),
            hook_events: HookEvents::new(state),
            admissions: Arc::clone(&state.push_admissions),
            workers: state.workers(),
            flows: Mutex::default(),
            outgoing,
            draining: AtomicBool::new(false),
            stopping: Notify::new(),
        });
        let unused = {
            let _runtime = runtime.enter();
            let unused =
                shared.senders.apply(&PushConfig::default(), &state.settings.load().config.push);
            tokio::spawn(durable::resume(Arc::clone(&shared)));
            unused
        };
        let of_thread = Arc::clone(&shared);
        let state = Arc::clone(state);
        let thread = std::thread::Builder::new()
            .name("dunlin-push".into())
            .spawn(move || {
                if let Err(error) = runtime.block_on(serve(&of_thread, &state, endpoint, incoming))
                {
                    tracing::error!(%error, "nothing is pushed any more");
                }
                // Does not wait for blocking tasks.
                runtime.shutdown_background();
            })
            .map_err(|error| ServeError::Push(error.to_string()))?;
        Ok((PushThread { shared, thread }, unused))
    }

    /// Returns a handle for other threads.
    pub(crate) fn handle(&self) -> PushHandle {
        PushHandle(Arc::clone(&self.shared))
    }

    /// Begins the shutdown: no further durable pushes begin, and readers that wait for entries of a feed get a response.
    pub(crate) fn drain(&self) {
        self.shared.draining.store(true, Relaxed);
        self.shared.writer.wake();
        self.shared.journal_writer.wake();
    }

    /// Waits for pushes in progress, within a bound, and ends the thread.
    pub(crate) fn stop(self, bound: Duration) {
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

/// Passes messages between the bus and the tasks.
async fn serve(
    shared: &Arc<Shared>,
    state: &ServerState,
    mut endpoint: Endpoint<PushMessage>,
    mut outgoing: mpsc::UnboundedReceiver<PushOutput>,
) -> io::Result<()> {
    let doorbell = endpoint.async_doorbell()?;
    let addressed = |output: PushOutput| -> (Addressed, bool) {
        let to = state.bus;
        match output {
            PushOutput::Worker(index, message) => (to.worker(index).seal(message), false),
            PushOutput::Cluster(query) => {
                (to.control().seal(ClusterMessage::OnlineQuery(query)), false)
            }
            PushOutput::Webhooks(event) => {
                (to.webhooks().seal(WebhooksMessage::Event(event)), true)
            }
        }
    };
    // With each message, whether it is an event.
    let mut waiting: VecDeque<(Addressed, bool)> = VecDeque::new();
    let mut generation = 0;
    loop {
        if generation != state.generation() {
            generation = state.generation();
            let slots = state.settings.load().config.limits.bus_slots;
            endpoint.set_ring_slots(slots as usize);
        }
        let mut taken = 0;
        while taken < MESSAGES_PER_TURN
            && let Some((from, message)) = endpoint.recv()
        {
            taken += 1;
            shared.handle(from, message);
        }
        while let Ok(message) = outgoing.try_recv() {
            waiting.push_back(addressed(message));
        }
        // A full ring of one worker briefly delays messages to the others, too; each worker empties its ring every turn.
        while let Some((message, is_event)) = waiting.pop_front() {
            if let Err(refused) = endpoint.send_addressed(message) {
                waiting.push_front((refused.into_value(), is_event));
                break;
            }
            if is_event {
                shared.hook_events.handle_sent();
            }
        }
        endpoint.flush();
        if !waiting.is_empty() {
            tokio::time::sleep(RETRY).await;
        } else if endpoint.prepare_sleep() {
            tokio::select! {
                rung = doorbell.rung() => rung?,
                Some(message) = outgoing.recv() => waiting.push_back(addressed(message)),
                () = shared.stopping.notified() => return Ok(()),
            }
            endpoint.wake();
        } else {
            tokio::task::yield_now().await;
        }
    }
}
