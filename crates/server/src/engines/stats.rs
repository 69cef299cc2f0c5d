//! Counters of engines by worker, and the states of their connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use dunlin_engine::{RefusalReason, ServerRole, ShardStatus, Stats};
use dunlin_metrics::{Collector, DescriptorEncoder, Family, Kind, LiveSeries, metrics};
use serde_json::{Value, json};

metrics! {
    /// A metric of each engine of `engines`.
    EngineMetric,
    /// The metrics of one engine, written by one worker.
    EngineCounters;
    Ready, Gauge, "engine_ready", "1 while all channels of the engine can be published to.";
    Connections, Gauge, "engine_connections", "Connections to servers of the engine that take requests.";
    Pending, Gauge, "engine_commands_pending", "Commands that servers of the engine have not answered, as of the last second.";
    Made, Counter, "engine_connections_made_total", "Connections to servers of the engine made, those made anew included.";
    Published, Counter, "engine_publications_total", "Publications that the engine has acknowledged.";
    PublishCommands, Counter, "engine_publish_commands_total", "Commands by which they were sent.";
    Refused, Counter, "engine_publications_refused_total", "Publications that were refused and not stored.";
    Uncertain, Counter, "engine_publications_uncertain_total", "Publications of which nobody knows whether they were stored.";
    Retried, Counter, "engine_commands_retried_total", "Commands sent once more, after a script was gone or a connection broke.";
    PutOff, Counter, "engine_operations_put_off_total", "Operations put off because keys of their channel were moving from one node of a cluster to another.";
    Asked, Counter, "engine_operations_asked_total", "Operations sent to the node of a cluster that imports a slot.";
    SlotsMoving, Gauge, "engine_slots_moving", "Slots of a cluster that move from one node to another, key by key.";
    ReplicaReads, Counter, "engine_replica_reads_total", "Pages of histories that replicas have answered.";
    ReplicaMisses, Counter, "engine_replica_misses_total", "Pages that a replica was asked for and that its primary has answered: the replica was behind, or out of reach.";
    Messages, Counter, "engine_messages_total", "Messages received by subscriptions.";
    Unreadable, Counter, "engine_messages_unreadable_total", "Messages that could not be read: of another version, or somebody else's.";
    Silences, Counter, "engine_connections_silent_total", "Connections given up because their messages to themselves did not come back.";
    Generations, Counter, "engine_generations_total", "Times that a server's data were found to be of another generation than before.";
    StreamsCut, Counter, "engine_streams_cut_total", "Streams of which publications were lost with a server; their subscribers were notified.";
}

/// The stats of one engine on one worker.
#[derive(Debug, Default)]
pub(crate) struct EngineStats {
    counters: EngineCounters,
    /// Updated once a second.
    shards: Mutex<Vec<Shard>>,
}

#[derive(Debug)]
struct Shard {
    status: ShardStatus,
    since_s: u64,
}

/// A sample of an engine's state.
#[derive(Debug)]
pub(crate) struct EngineSample {
    pub(crate) shards: Vec<ShardStatus>,
    pub(crate) stats: Stats,
    pub(crate) is_ready: bool,
    /// The number of connections made.
    pub(crate) made: u64,
    /// The number of commands without a response.
    pub(crate) outstanding: usize,
}

impl EngineStats {
    /// Publishes a sample. The worker calls this once a second.
    pub(crate) fn publish(&self, now_ms: u64, sample: EngineSample) {
        let EngineSample { shards, stats, is_ready, made, outstanding } = sample;
        let since = |status: &ShardStatus| now_ms.saturating_sub(status.since_ms) / 1000;
        let shards = shards.into_iter();
        let shards: Vec<Shard> =
            shards.map(|status| Shard { since_s: since(&status), status }).collect();
        let slots_moving = shards.iter().map(|shard| u64::from(shard.status.slots_moving)).sum();
        let ready = |shard: &&Shard| shard.status.partitions_ready > 0;
        for (metric, value) in [
            (EngineMetric::Ready, u64::from(is_ready)),
            (EngineMetric::Connections, shards.iter().filter(ready).count() as u64),
            (EngineMetric::Pending, outstanding as u64),
            (EngineMetric::Made, made),
            (EngineMetric::Published, stats.published),
            (EngineMetric::PublishCommands, stats.publish_commands),
            (EngineMetric::Refused, stats.refused),
            (EngineMetric::Uncertain, stats.uncertain),
            (EngineMetric::Retried, stats.retried),
            (EngineMetric::PutOff, stats.put_off),
            (EngineMetric::Asked, stats.asked),
            (EngineMetric::SlotsMoving, slots_moving),
            (EngineMetric::ReplicaReads, stats.replica_reads),
            (EngineMetric::ReplicaMisses, stats.replica_misses),
            (EngineMetric::Messages, stats.messages),
            (EngineMetric::Unreadable, stats.unreadable),
            (EngineMetric::Silences, stats.silences),
            (EngineMetric::Generations, stats.generations),
            (EngineMetric::StreamsCut, stats.streams_cut),
        ] {
            self.counters.set(metric, value);
        }
        let mut before = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        for Shard { status, .. } in &shards {
            let is_known = |of: &&Shard| of.status.shard == status.shard;
            log_change(before.iter().find(is_known).map(|of| &of.status), status);
        }
        *before = shards;
    }
}

/// Logs a connection whose state has changed since the last sample.
fn log_change(before: Option<&ShardStatus>, now: &ShardStatus) {
    let RefusalReason { name: state, fix } = now.condition();
    if before.map_or("ready", |before| before.condition().name) == state {
        return;
    }
    let (host, port, detail) = (&now.server.host, now.server.port, &now.detail);
    match fix {
        "" => tracing::info!(host, port, state, "a server of an engine"),
        fix => tracing::warn!(host, port, state, detail, fix, "a server of an engine"),
    }
}

/// The stats of all workers, by worker and engine.
#[derive(Debug, Default)]
pub(crate) struct EnginesStats(LiveSeries<(usize, Arc<str>), EngineStats>);

impl EnginesStats {
    /// Begins the stats of an engine on a worker, which holds them.
    pub(crate) fn begin(&self, worker: usize, name: &Arc<str>) -> Arc<EngineStats> {
        self.0.begin((worker, Arc::clone(name)))
    }

    /// Returns for each engine `ready`, or the condition that prevents it, for `/health`.
    pub(crate) fn health(&self) -> BTreeMap<Arc<str>, &'static str> {
        let all = self.0.live();
        let mut health = BTreeMap::new();
        for ((_, name), stats) in &all {
            let shards = stats.shards.lock().unwrap_or_else(PoisonError::into_inner);
            let is_ready = stats.counters.get(EngineMetric::Ready) == 1;
            let mut states = shards.iter().map(|shard| shard.status.state.name());
            let state = match is_ready {
                // A ready engine may still refuse publications, because it is out of memory for instance.
                true => shards
                    .iter()
                    .filter(|shard| shard.status.partitions_ready > 0)
                    .map(|shard| shard.status.condition().name)
                    .find(|name| *name != "ready")
                    .unwrap_or("ready"),
                false => states.find(|name| *name != "ready").unwrap_or("connecting"),
            };
            let said = health.entry(Arc::clone(name)).or_insert(state);
            if state != "ready" {
                *said = state;
            }
        }
        health
    }

    /// Returns the servers of each engine, each with its condition on some worker where it is not `ready`, else `ready`.
    fn shards(&self) -> BTreeMap<Arc<str>, BTreeMap<String, &'static str>> {
        let all = self.0.live();
        let mut engines: BTreeMap<Arc<str>, BTreeMap<String, &'static str>> = BTreeMap::new();
        for ((_, name), stats) in &all {
            let shards = stats.shards.lock().unwrap_or_else(PoisonError::into_inner);
            let known = engines.entry(Arc::clone(name)).or_default();
            for Shard { status, .. } in &*shards {
                let state = status.condition().name;
                let said = known.entry(place(status)).or_insert(state);
                if state != "ready" {
                    *said = state;
                }
            }
        }
        engines
    }

    /// Counts servers by state, for each engine with a server that is not `ready`. The result is public, so it has no addresses.
    pub(crate) fn shard_states(&self) -> BTreeMap<Arc<str>, BTreeMap<&'static str, usize>> {
        let engines = self.shards().into_iter().map(|(engine, shards)| {
            let mut states = BTreeMap::new();
            shards.into_values().for_each(|state| *states.entry(state).or_default() += 1);
            (engine, states)
        });
        engines.filter(|(_, states)| states.keys().any(|state| *state != "ready")).collect()
    }

    /// Returns the states of all connections of all workers.
    pub(crate) fn status(&self) -> Value {
        let all = self.0.live();
        let connections = all.iter().flat_map(|((worker, name), stats)| {
            let shards = stats.shards.lock().unwrap_or_else(PoisonError::into_inner);
            shards
                .iter()
                .map(|Shard { status, since_s }| {
                    json!({
                        "engine": name,
                        "worker": worker,
                        "server": place(status),
                        "role": match status.server.role {
                            ServerRole::Data => "data",
                            ServerRole::Sentinel => "sentinel",
                            ServerRole::Replica => "replica",
                        },
                        "state": match status.refusing {
                            Some(_) => status.state.name(),
                            None => status.condition().name,
                        },
                        "since_s": since_s,
                        "detail": status.detail,
                        "refusing": status.refusing.map(|refusal| refusal.name),
                        "fix": status.condition().fix,
                        "version": status.version,
                        "eviction": status.eviction,
                        "partitions": status.partitions,
                        "partitions_ready": status.partitions_ready,
                        "slots_moving": status.slots_moving,
                        "channels_put_off": status.channels_put_off,
                    })
                })
                .collect::<Vec<Value>>()
        });
        json!({ "connections": connections.collect::<Vec<Value>>() })
    }
}

impl Collector for EnginesStats {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let all = self.0.live();
        if all.is_empty() {
            return Ok(());
        }
        let labels = |(worker, name): &(usize, Arc<str>)| {
            [("worker", worker.to_string()), ("engine", name.to_string())]
        };
        let series = all.iter().map(|(of, stats)| (labels(of), &stats.counters));
        EngineCounters::encode(&mut encoder, series)?;
        let family = Family {
            name: "engine_shard_state",
            help: "1 for the state of each server of an engine; `ready` when nothing is wrong.",
            kind: Kind::Gauge,
        };
        let shards = self.shards();
        let samples = shards.iter().flat_map(|(engine, shards)| {
            shards.iter().map(move |(shard, state)| {
                let labels = [("engine", &**engine), ("shard", &**shard), ("state", *state)];
                (labels, 1)
            })
        });
        family.encode(&mut encoder, samples)
    }
}

/// Returns the host and port of a connection.
fn place(status: &ShardStatus) -> String {
    format!("{}:{}", status.server.host, status.server.port)
}
