//! The push thread: its runtime, its seat on the bus, and what everything in it shares.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dunlin_bus::Endpoint;
use dunlin_push::registry::{Registry, Writer};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use super::flow::Flow;
use super::online::Asks;
use super::senders::Senders;
use super::verdicts::Verdicts;
use super::{Admissions, Pushes, Said, Saying, call};
use crate::error::ServeError;
use crate::node::Node;
use crate::parcel::Parcel;

/// Threads that wait for the disk.
const DISK_THREADS: usize = 4;
/// Parcels taken from the bus before the others of the runtime get their turn.
const PARCELS_A_TURN: usize = 256;
/// How soon a full ring is tried again.
const RETRY: Duration = Duration::from_millis(1);
/// The registry's file in the state directory.
const REGISTRY: &str = "devices.redb";

/// What the tasks of the push thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) runtime: Handle,
    pub(super) senders: Senders,
    pub(super) registry: Arc<Registry>,
    /// Whatever changes the registry goes through it.
    pub(super) writer: Writer,
    pub(super) verdicts: Verdicts,
    pub(super) asks: Asks,
    pub(super) admissions: Arc<Admissions>,
    pub(super) workers: usize,
    /// Answers under way that clients read at their own pace, by their calls.
    flows: Mutex<HashMap<u64, Arc<Flow>>>,
    /// To the bus. What is in it is bounded by flows and admissions.
    outgoing: mpsc::UnboundedSender<(usize, Parcel)>,
    /// Nobody is to be kept waiting for what may come.
    draining: AtomicBool,
    stopping: Notify,
}

/// The push thread, from outside.
pub(crate) struct PushThread {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<()>,
}

impl PushThread {
    /// Opens the registry, in `state` if there is one, and starts the thread.
    pub(crate) fn start(
        node: &Arc<Node>,
        endpoint: Endpoint<Parcel>,
        state: Option<&Path>,
    ) -> Result<PushThread, ServeError> {
        let registry = match state {
            Some(state) => Registry::open(&state.join(REGISTRY)),
            None => Registry::in_memory(),
        };
        let registry = Arc::new(registry.map_err(|error| ServeError::Push(error.to_string()))?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(DISK_THREADS)
            .thread_name("dunlin-push-disk")
            .build()
            .map_err(|error| ServeError::Push(error.to_string()))?;
        let (outgoing, incoming) = mpsc::unbounded_channel();
        let writer = {
            let _runtime = runtime.enter();
            Writer::start(Arc::clone(&registry))
        };
        let shared = Arc::new(Shared {
            runtime: runtime.handle().clone(),
            senders: Senders::default(),
            registry,
            verdicts: Verdicts::new(writer.clone()),
            writer,
            asks: Asks::default(),
            admissions: Arc::default(),
            workers: node.workers(),
            flows: Mutex::default(),
            outgoing,
            draining: AtomicBool::new(false),
            stopping: Notify::new(),
        });
        let of_thread = Arc::clone(&shared);
        let node = Arc::clone(node);
        let thread = std::thread::Builder::new()
            .name("dunlin-push".into())
            .spawn(move || {
                if let Err(error) = runtime.block_on(serve(&of_thread, &node, endpoint, incoming)) {
                    tracing::error!(%error, "nothing is pushed any more");
                }
                // Who waits for the disk is not waited for.
                runtime.shutdown_background();
            })
            .map_err(|error| ServeError::Push(error.to_string()))?;
        Ok(PushThread { shared, thread })
    }

    /// How everybody else reaches it.
    pub(crate) fn pushes(&self) -> Pushes {
        Pushes(Arc::clone(&self.shared))
    }

    /// The process is going down: pushes end, and who follows the feed is answered.
    pub(crate) fn drain(&self) {
        self.shared.draining.store(true, Relaxed);
        self.shared.writer.wake();
    }

    /// Has what is under way end, within a bound, and ends the thread.
    pub(crate) fn stop(self, bound: Duration) {
        let deadline = Instant::now() + bound;
        self.shared.senders.close();
        while self.shared.calls() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.shared.stopping.notify_one();
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Shared {
    /// Calls under way.
    pub(super) fn calls(&self) -> usize {
        self.admissions.calls.load(Relaxed)
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Has the bus carry a parcel.
    pub(super) fn send(&self, worker: usize, parcel: Parcel) {
        // The thread has ended: nobody is there to be told.
        let _ = self.outgoing.send((worker, parcel));
    }

    /// Has a worker say something to a client.
    pub(super) fn say(&self, worker: usize, call: u64, conn: dunlin_net::ConnId, what: Saying) {
        self.send(worker, Parcel::Pushed(Box::new(Said { call, conn, what })));
    }

    /// Begins to follow how a client reads.
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

    fn handle(self: &Arc<Self>, from: usize, parcel: Parcel) {
        match parcel {
            Parcel::Push(ask) => {
                let flow = self.open_flow(ask.call);
                tokio::spawn(call::run(Arc::clone(self), from, *ask, flow));
            }
            Parcel::PushRead { call, bytes } => {
                if let Some(flow) = self.flow(call) {
                    flow.handle_read(bytes);
                }
            }
            Parcel::PushGone { call } => {
                if let Some(flow) = self.flow(call) {
                    flow.handle_gone();
                }
            }
            Parcel::TheseAreOnline { ask, online } => self.asks.handle(ask, &online),
            // Nobody sends this thread anything else.
            _ => {}
        }
    }
}

/// Carries parcels between the bus and the tasks.
async fn serve(
    shared: &Arc<Shared>,
    node: &Node,
    mut endpoint: Endpoint<Parcel>,
    mut outgoing: mpsc::UnboundedReceiver<(usize, Parcel)>,
) -> io::Result<()> {
    let doorbell = endpoint.async_doorbell()?;
    let mut waiting: VecDeque<(usize, Parcel)> = VecDeque::new();
    let mut generation = 0;
    loop {
        if generation != node.generation() {
            generation = node.generation();
            let slots = node.settings.load().config.limits.bus_slots;
            endpoint.set_ring_slots(slots as usize);
        }
        let mut taken = 0;
        while taken < PARCELS_A_TURN
            && let Some((from, parcel)) = endpoint.recv()
        {
            taken += 1;
            shared.handle(from, parcel);
        }
        while let Ok(parcel) = outgoing.try_recv() {
            waiting.push_back(parcel);
        }
        // A full ring of one worker keeps the others' parcels waiting for a moment, too: it is taken from every turn.
        while let Some((to, parcel)) = waiting.pop_front() {
            if let Err(refused) = endpoint.send(to, parcel) {
                waiting.push_front((to, refused.into_value()));
                break;
            }
        }
        endpoint.flush();
        if !waiting.is_empty() {
            tokio::time::sleep(RETRY).await;
        } else if endpoint.prepare_sleep() {
            tokio::select! {
                rung = doorbell.rung() => rung?,
                Some(parcel) = outgoing.recv() => waiting.push_back(parcel),
                () = shared.stopping.notified() => return Ok(()),
            }
            endpoint.wake();
        } else {
            tokio::task::yield_now().await;
        }
    }
}
