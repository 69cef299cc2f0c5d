//! The collector of all workers' metrics.

use std::sync::Arc;

use dunlin_metrics::{Collector, DescriptorEncoder, Snapshot};

use crate::metrics::Counters;
use crate::state::ServerState;

/// Encodes one series per worker for each metric.
pub(super) struct WorkerMetrics(pub(super) Arc<ServerState>);

impl std::fmt::Debug for WorkerMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerMetrics").finish_non_exhaustive()
    }
}

impl Collector for WorkerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let labels = |worker: usize| [("worker", worker)];
        let counters = self.0.counters.iter().enumerate();
        Counters::encode(&mut encoder, counters.map(|(worker, of)| (labels(worker), of)))?;
        let loops = self.0.loop_stats.iter().enumerate();
        Snapshot::encode(
            &mut encoder,
            ("loop_turn_seconds", "Length of a turn of the event loop."),
            10..32,
            loops.clone().map(|(worker, of)| (labels(worker), of.turn_times.snapshot())),
        )?;
        Snapshot::encode(
            &mut encoder,
            ("bus_hop_seconds", "Time from another worker's send to this one's receive."),
            5..32,
            loops.map(|(worker, of)| (labels(worker), of.hop_times.snapshot())),
        )
    }
}
