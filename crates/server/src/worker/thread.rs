//! Starts and watches worker threads, and restarts one that panics as a new incarnation.
//!
//! A worker that panics closes its own connections only: its descriptor table ends with the thread, and its clients reconnect.
//! Its endpoint on the bus and its listener stay, and serve the next incarnation.

use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dunlin_net::{Descriptors, Exit, WorkerConfig, spawn_workers};

use super::Worker;
use crate::error::ServeError;
use crate::message::bus::Endpoint;
use crate::message::worker::WorkerMessage;
use crate::metrics::Metric;
use crate::state::ServerState;

/// How often the control thread checks whether a worker has ended.
const WATCH: Duration = Duration::from_millis(50);
/// A worker that panics this often is not restarted, and the process ends.
const LIVES_MAX: u32 = 50;

/// Where worker threads run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) own_descriptor_tables: bool,
    pub(crate) pinned: bool,
}

/// What outlives an incarnation of a worker.
struct WorkerSlot {
    endpoint: Endpoint<WorkerMessage>,
    incarnations: u32,
}

/// All worker threads.
pub(crate) struct Workers {
    threads: dunlin_net::Workers<std::io::Result<()>>,
    state: Arc<ServerState>,
}

impl Workers {
    /// Starts one thread an endpoint. `doorbells` are those of other threads that workers send to: they have
    /// to be in a worker's own descriptor table.
    pub(crate) fn start(
        state: &Arc<ServerState>,
        endpoints: Vec<Endpoint<WorkerMessage>>,
        doorbells: &[BorrowedFd<'_>],
        listeners: Vec<TcpListener>,
        placement: Placement,
    ) -> Result<Self, ServeError> {
        let shared: Vec<RawFd> = listeners
            .iter()
            .map(|listener| listener.as_fd().as_raw_fd())
            .chain(endpoints.iter().map(|endpoint| endpoint.doorbell().as_raw_fd()))
            .chain(doorbells.iter().map(AsRawFd::as_raw_fd))
            .chain(state.program.get().into_iter().flat_map(|program| {
                program.handle.doorbells().map(|doorbell| doorbell.as_raw_fd())
            }))
            .collect();
        let config = WorkerConfig {
            descriptors: if placement.own_descriptor_tables {
                Descriptors::Own(shared)
            } else {
                Descriptors::Shared
            },
            pin: placement.pinned,
            name: "dunlin-".to_owned(),
        };
        let count = endpoints.len();
        let slots: Vec<Mutex<WorkerSlot>> = endpoints
            .into_iter()
            .map(|endpoint| Mutex::new(WorkerSlot { endpoint, incarnations: 0 }))
            .collect();
        let shared = Arc::clone(state);
        let threads = spawn_workers(count, &config, move |index| {
            // A worker that panicked held this lock; its endpoint is made for being taken over.
            let mut slot = slots[index].lock().unwrap_or_else(PoisonError::into_inner);
            let incarnation = slot.incarnations;
            slot.incarnations += 1;
            Worker::run(index, incarnation, &shared, &mut slot.endpoint, &listeners[index])
        })
        .map_err(|source| ServeError::Worker { worker: 0, source })?;
        Ok(Self { threads, state: Arc::clone(state) })
    }

    /// Returns once every worker accepts connections, or with the error of the first that cannot start.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), ServeError> {
        while self.state.workers_ready() < self.threads.len() {
            self.look_after()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Returns only when a worker is lost for good.
    pub(crate) async fn failed(&mut self) -> ServeError {
        loop {
            if let Err(error) = self.look_after() {
                return error;
            }
            tokio::time::sleep(WATCH).await;
        }
    }

    /// Restarts workers that have ended.
    pub(crate) fn look_after(&mut self) -> Result<(), ServeError> {
        while let Some((worker, exit)) = self.threads.try_wait() {
            match exit {
                Exit::Panicked(message) => {
                    let counters = &self.state.counters[worker];
                    // The thread has ended, so this one may write its counters.
                    self.state.worker_gone(worker);
                    counters.count(Metric::Restarts);
                    tracing::error!(worker, message, "a worker panicked; its clients reconnect");
                    if counters.get(Metric::Restarts) >= u64::from(LIVES_MAX) {
                        return Err(ServeError::WorkerLost { worker });
                    }
                    self.threads
                        .start(worker)
                        .map_err(|source| ServeError::Worker { worker, source })?;
                }
                Exit::Failed(source) | Exit::Returned(Err(source)) => {
                    return Err(ServeError::Worker { worker, source });
                }
                Exit::Returned(Ok(())) => {}
            }
        }
        Ok(())
    }

    /// Waits for the threads to end, at most for `bound`; the end of the process ends the others.
    pub(crate) fn join(&mut self, bound: Duration) {
        let deadline = Instant::now() + bound;
        while !self.threads.all_ended() && Instant::now() < deadline {
            while self.threads.try_wait().is_some() {}
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
