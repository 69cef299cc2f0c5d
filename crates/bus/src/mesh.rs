//! A mesh of endpoints.

use std::{io, sync::OnceLock};

use crate::{
    endpoint::Endpoint,
    port::{EndpointState, Port},
    ring::{Consumer, Producer, Ring},
    stats::{EdgeStats, StatsSource},
    sync::Arc,
};

/// Maximum number of endpoints: a session id has 7 bits for its worker.
pub const ENDPOINTS_MAX: usize = 128;

/// Limits of a mesh.
#[derive(Debug, Clone)]
pub struct MeshConfig {
    /// Maximum number of messages on an edge, at least 1. [`Endpoint::set_ring_slots`] changes it.
    pub ring_slots: usize,
    /// Number of messages that an edge has memory for on first use; doubles as needed up to
    /// `ring_slots`. An unused edge costs 16 bytes.
    pub ring_slots_initial: usize,
    /// Maximum number of messages received from one sender before the next one's turn, at least 1.
    pub burst: usize,
}

impl Default for MeshConfig {
    fn default() -> MeshConfig {
        MeshConfig { ring_slots: 1024, ring_slots_initial: 32, burst: 64 }
    }
}

/// Creates a mesh. Index *i* of the result is endpoint *i*.
///
/// Opens one eventfd per endpoint. A thread that takes its own descriptor table
/// (`unshare(CLONE_FILES)`) must do so afterwards, and can then still use its endpoint.
///
/// # Errors
/// `InvalidInput` unless `endpoints` is in `1..=`[`ENDPOINTS_MAX`]; otherwise an error of
/// `eventfd(2)`, most likely `EMFILE`.
pub fn mesh<T: Send>(endpoints: usize, config: &MeshConfig) -> io::Result<Vec<Endpoint<T>>> {
    if !(1..=ENDPOINTS_MAX).contains(&endpoints) {
        let message = format!("a mesh has 1 to {ENDPOINTS_MAX} endpoints, not {endpoints}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let ports = (0..endpoints).map(|_| Port::new(endpoints)).collect::<io::Result<_>>()?;
    let shared = Arc::new(MeshState {
        ports,
        edges: (0..endpoints * endpoints).map(|_| OnceLock::new()).collect(),
        slots_initial: config.ring_slots_initial,
    });
    Ok((0..endpoints).map(|index| Endpoint::new(Arc::clone(&shared), index, config)).collect())
}

/// Shared by all endpoints of a mesh.
pub(crate) struct MeshState<T> {
    pub(crate) ports: Box<[Port]>,
    /// The edge from *i* to *j* at `i * endpoints + j`; set by *i* for the first message.
    edges: Box<[OnceLock<Arc<Ring<T>>>]>,
    /// [`MeshConfig::ring_slots_initial`].
    slots_initial: usize,
}

impl<T> MeshState<T> {
    /// Returns the sending end, for endpoint `from`, which calls this once.
    #[cold]
    pub(crate) fn open_edge(&self, from: usize, to: usize, slots_max: usize) -> Producer<T> {
        let ring = Arc::new(Ring::new(self.slots_initial.min(slots_max)));
        let unused = self.edges[from * self.ports.len() + to].set(Arc::clone(&ring)).is_ok();
        assert!(unused, "an edge is opened once, by the one endpoint that sends on it");
        // SAFETY: the ring is new, and the assertion above prevents a second producer.
        unsafe { Producer::new(ring, slots_max) }
    }

    /// Returns the receiving end, for endpoint `to`, which calls this until it succeeds and never
    /// again. `None` while nothing was sent.
    #[cold]
    pub(crate) fn join_edge(&self, from: usize, to: usize) -> Option<Consumer<T>> {
        let ring = self.edges[from * self.ports.len() + to].get()?;
        // SAFETY: there is one endpoint `to`, and it keeps the consumer until it is dropped.
        Some(unsafe { Consumer::new(Arc::clone(ring)) })
    }
}

impl<T> StatsSource for MeshState<T>
where
    T: Send,
{
    fn endpoints(&self) -> usize {
        self.ports.len()
    }

    fn state(&self, endpoint: usize) -> EndpointState {
        self.ports[endpoint].state()
    }

    fn edge(&self, from: usize, to: usize) -> Option<EdgeStats> {
        self.edge_stats(from, to)
    }
}

impl<T> MeshState<T> {
    pub(crate) fn edge_stats(&self, from: usize, to: usize) -> Option<EdgeStats> {
        let ring = self.edges.get(from * self.ports.len() + to)?.get()?;
        let (sent, received) = ring.positions();
        let counters = &ring.counters;
        Some(EdgeStats {
            from,
            to,
            sent,
            received,
            depth: sent - received,
            refused: counters.refused.get(),
            wakes_sent: counters.wakes_sent.get(),
            wakes_suppressed: counters.wakes_suppressed.get(),
            wakes_failed: counters.wakes_failed.get(),
            slots: counters.slots.get(),
        })
    }
}
