//! Counters of a mesh.

use std::{fmt, sync::Arc};

use crate::port::EndpointState;

/// Counters of the edge from one endpoint to another, since the mesh was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeStats {
    /// The sending endpoint.
    pub from: usize,
    /// The receiving endpoint.
    pub to: usize,
    /// Messages accepted by the edge.
    pub sent: u64,
    /// Messages received from it.
    pub received: u64,
    /// Messages on it: `sent - received`.
    pub depth: u64,
    /// Messages rejected because it was full.
    pub refused: u64,
    /// Flushes that rang the receiver's doorbell.
    pub wakes_sent: u64,
    /// Flushes that did not ring because the receiver was awake or already rung.
    pub wakes_suppressed: u64,
    /// Failed writes to a doorbell. The next flush tries again.
    pub wakes_failed: u64,
    /// Messages it has memory for; grows up to the limit and shrinks when trimmed.
    pub slots: u64,
}

/// Reads the counters of a mesh from any thread, without disturbing its threads.
///
/// Values are read one after the other, not at one instant.
#[derive(Clone)]
pub struct Monitor(Arc<dyn StatsSource>);

impl Monitor {
    #[cfg(not(loom))]
    pub(crate) fn new(source: Arc<dyn StatsSource>) -> Monitor {
        Monitor(source)
    }

    /// Returns how many endpoints the mesh has.
    pub fn endpoints(&self) -> usize {
        self.0.endpoints()
    }

    /// Returns whether an endpoint runs, sleeps or is closed.
    ///
    /// # Panics
    /// If the mesh has no such endpoint.
    pub fn state(&self, endpoint: usize) -> EndpointState {
        self.0.state(endpoint)
    }

    /// Returns the counters of one edge; `None` if it was never used.
    pub fn edge(&self, from: usize, to: usize) -> Option<EdgeStats> {
        let endpoints = self.endpoints();
        if from >= endpoints || to >= endpoints { None } else { self.0.edge(from, to) }
    }

    /// Returns the counters of every edge that was ever used.
    pub fn edges(&self) -> impl Iterator<Item = EdgeStats> + '_ {
        let endpoints = self.endpoints();
        (0..endpoints)
            .flat_map(move |from| (0..endpoints).filter_map(move |to| self.edge(from, to)))
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("endpoints", &self.endpoints()).finish_non_exhaustive()
    }
}

/// A mesh without the type of its messages.
pub(crate) trait StatsSource: Send + Sync {
    fn endpoints(&self) -> usize;
    fn state(&self, endpoint: usize) -> EndpointState;
    fn edge(&self, from: usize, to: usize) -> Option<EdgeStats>;
}
