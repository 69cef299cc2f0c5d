//! The results of earlier runs, as `scripts/bench/run` keeps them.

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::pushes::{PushFindings, PushTable};
use crate::{bus, config, connections, fanout, latency, webhooks};
use dunlin_load::comparison::{Distance, Generators, Ledgers, Memory, Omission, Stalled};
use dunlin_load::output::Measured;
use dunlin_load::{Context, Error};

/// How `dunlin apns bench` calls the server that it brings itself.
pub(super) const SIMULATOR: &str = "simulator";

/// Every result the page has a place for; what has not been run is missing.
#[derive(Debug)]
pub(super) struct Results {
    pub(super) idle: Option<Measured<connections::Findings>>,
    pub(super) one: Option<Measured<fanout::Findings>>,
    /// With every message in a write of its own.
    pub(super) apart: Option<Measured<fanout::Findings>>,
    pub(super) burst: Option<Measured<fanout::Findings>>,
    /// Peers too slow to take part in every round of the burst.
    pub(super) burst_slow: Option<Measured<fanout::Findings>>,
    pub(super) latencies: Vec<Measured<latency::Findings>>,
    /// Beside broadcasts to a crowd, by the crowd's size.
    pub(super) pacing: Vec<Measured<latency::Findings>>,
    pub(super) bus: Option<Measured<bus::Findings>>,
    /// By rising number of connections.
    pub(super) scale: Vec<Measured<connections::Findings>>,
    pub(super) million: Option<Measured<connections::Findings>>,
    pub(super) http: Http,
    pub(super) config: Option<Measured<config::Findings>>,
    /// Clients that count their messages while the configuration changes.
    pub(super) config_count: Option<Measured<config::Counted>>,
    pub(super) webhooks: Option<Measured<webhooks::Findings>>,
    pub(super) instructions: Option<Measured<Instructions>>,
    /// Of `dunlin apns bench`, the simulator first.
    pub(super) apns: Vec<Measured<PushFindings>>,
}

/// The results of `dunlin bench contest`.
#[derive(Debug)]
pub(super) struct Http {
    pub(super) generators: Option<Measured<Generators>>,
    pub(super) distance: Option<Measured<Distance>>,
    pub(super) ledgers: Option<Measured<Ledgers>>,
    pub(super) omission: Option<Measured<Omission>>,
    pub(super) memory: Option<Measured<Memory>>,
    pub(super) stalled: Option<Measured<Stalled>>,
}

/// What `cargo bench -p dunlin-bench --bench instructions` counts.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Instructions {
    pub(super) kernels: Vec<Kernel>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) instructions: f64,
}

impl Results {
    pub(super) fn read(directory: &Path) -> Result<Self, Error> {
        let mut scale: Vec<Measured<connections::Findings>> = read_all(directory, "scale-")?;
        scale.sort_by_key(|findings| findings.connections);
        // The million is the last step of the same growth, only held for longer.
        scale.extend(read(&directory.join("million.json"))?);
        let mut latencies: Vec<Measured<latency::Findings>> = read_all(directory, "latency-")?;
        latencies.sort_by_key(|findings| (findings.subscribers, findings.rate));
        let mut pacing: Vec<Measured<latency::Findings>> = read_all(directory, "pacing-")?;
        let size =
            |of: &Measured<latency::Findings>| of.crowd.as_ref().map_or(0, |crowd| crowd.clients);
        pacing.sort_by_key(|findings| (size(findings), findings.label.clone()));
        Ok(Self {
            idle: read(&directory.join("idle.json"))?,
            one: read(&directory.join("fanout.json"))?,
            apart: read(&directory.join("fanout-apart.json"))?,
            burst: read(&directory.join("burst.json"))?,
            burst_slow: read(&directory.join("burst-slow.json"))?,
            latencies,
            pacing,
            bus: read(&directory.join("bus.json"))?,
            scale,
            million: read(&directory.join("million.json"))?,
            http: Http {
                generators: read(&directory.join("http-generators.json"))?,
                distance: read(&directory.join("http-distance.json"))?,
                ledgers: read(&directory.join("http-ledgers.json"))?,
                omission: read(&directory.join("http-omission.json"))?,
                memory: read(&directory.join("http-memory.json"))?,
                stalled: read(&directory.join("http-stalled.json"))?,
            },
            config: read(&directory.join("config.json"))?,
            config_count: read(&directory.join("config-count.json"))?,
            webhooks: read(&directory.join("webhooks.json"))?,
            instructions: read(&directory.join("instructions.json"))?,
            apns: {
                let mut all: Vec<Measured<PushFindings>> = read_all(directory, "apns-")?;
                all.sort_by_key(|of| place(of));
                all
            },
        })
    }
}

/// Where pushes stand on the page: the simulator first, tables in their order.
fn place(findings: &PushFindings) -> (bool, String, Option<PushTable>) {
    let first = findings.tables.first().map(|table| table.table);
    (findings.server != SIMULATOR, findings.server.clone(), first)
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(path).context(format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).map(Some).map_err(|error| {
        Error::new(format!("{}: {error}; run that benchmark again", path.display()))
    })
}

fn read_all<T: DeserializeOwned>(directory: &Path, prefix: &str) -> Result<Vec<T>, Error> {
    let mut all = Vec::new();
    let entries =
        fs::read_dir(directory).context(format!("cannot read {}", directory.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) && name.ends_with(".json") {
            all.extend(read(&entry.path())?);
        }
    }
    Ok(all)
}
