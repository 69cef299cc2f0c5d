//! The collector of what workers, and the admin thread, have counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use dunlin_metrics::{Collector, DescriptorEncoder, Family, Kind, Registry, Snapshot};
use dunlin_push_service::PushHandle;

use crate::metrics::labelled::LabelledCounters;
use crate::metrics::namespaces::NamespaceGauges;
use crate::metrics::process::{BuildInfo, ProcessMetrics};
use crate::metrics::{ConfigCounters, Counters};
use crate::state::ServerState;

/// Returns all metrics of the server.
pub(crate) fn registry(
    state: &Arc<ServerState>,
    config: &Arc<ConfigCounters>,
    push: Option<&PushHandle>,
) -> Registry {
    let mut all = Registry::default();
    all.register_collector(Box::new(ProcessMetrics::new(state.uptime_s())));
    let registry = all.sub_registry_with_prefix("dunlin");
    registry.register_collector(Box::new(BuildInfo));
    registry.register_collector(Box::new(WorkerMetrics(Arc::clone(state))));
    registry.register_collector(Box::new(Arc::clone(config)));
    registry.register_collector(Box::new(Arc::clone(&state.effects)));
    registry.register_collector(Box::new(Arc::clone(&state.webhooks.stats)));
    registry.register_collector(Box::new(Arc::clone(&state.upstreams.stats)));
    registry.register_collector(Box::new(Arc::clone(&state.key_counters)));
    registry.register_collector(Box::new(Arc::clone(&state.proxies)));
    registry.register_collector(Box::new(Arc::clone(&state.programs)));
    registry.register_collector(Box::new(Arc::clone(&state.engines)));
    registry.register_collector(Box::new(Arc::clone(&state.federation)));
    registry.register_collector(Box::new(Arc::clone(&state.cluster)));
    registry.register_collector(Box::new(Arc::clone(&state.telemetry)));
    if let Some(push) = push {
        registry.register_collector(Box::new(push.clone()));
    }
    all
}

/// Encodes a series of each worker for what has no other label, and the sum of all workers for what has.
struct WorkerMetrics(Arc<ServerState>);

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
        LabelledCounters::encode(&mut encoder, self.0.labelled.iter())?;
        NamespaceGauges::encode(&mut encoder, self.0.namespaces.iter())?;
        let mut sessions = BTreeMap::<_, u64>::new();
        for (of, count) in self.0.transports.iter().flat_map(|worker| worker.by_protocol()) {
            *sessions.entry(of).or_default() += count;
        }
        let family = Family {
            name: "sessions",
            help: "Sessions of connected clients, by transport and format.",
            kind: Kind::Gauge,
        };
        let sessions = sessions.into_iter().map(|((transport, protocol), count)| {
            ([("transport", transport), ("protocol", protocol)], count)
        });
        family.encode(&mut encoder, sessions)?;
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
            loops.clone().map(|(worker, of)| (labels(worker), of.hop_times.snapshot())),
        )?;
        Snapshot::encode(
            &mut encoder,
            (
                "delivery_duration_seconds",
                "From the time of a publication to the end of the turn that wrote it to clients, for each client; to the millisecond, and by the clocks of two nodes if it came from another one.",
            ),
            20..35,
            loops.map(|(worker, of)| (labels(worker), of.delivery_times.snapshot())),
        )
    }
}
