//! The logs of engines on a disk: opened when the server starts, shared by all workers, closed at its end.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use dunlin_config::{Config, Engine, EngineKind, EngineWhenFull};
use dunlin_engine::disk::{DiskEngine, DiskLog, DiskPort};
use dunlin_log::{Directory, Limits, Log, LogConfig, Threads, WhenFull, boot_id};

use crate::error::ServeError;
use crate::namespace::durability;

/// The logs by the name of their engine.
#[derive(Default)]
pub(crate) struct DiskLogs(BTreeMap<Arc<str>, OpenLog>);

struct OpenLog {
    config: Arc<Engine>,
    path: PathBuf,
    shared: DiskLog,
    /// One for each worker.
    ports: Vec<Arc<DiskPort>>,
    /// Until it is closed.
    threads: Mutex<Option<Threads>>,
}

impl DiskLogs {
    /// Opens the log of each engine on a disk. `doorbells` are those of the workers.
    ///
    /// # Errors
    /// A log cannot be opened; the text names the fix.
    pub(crate) fn open(
        config: &Config,
        state_dir: Option<&Path>,
        doorbells: &[OwnedFd],
        report: &mut Vec<String>,
    ) -> Result<DiskLogs, ServeError> {
        let mut logs = BTreeMap::new();
        let all = config.engines.iter_shared();
        for (name, engine) in all.filter(|(_, engine)| engine.kind == EngineKind::Disk) {
            let log = OpenLog::open(name, engine, state_dir, doorbells, report)?;
            logs.insert(Arc::clone(name), log);
        }
        if history_place(config) == "memory" {
            report.push(IN_MEMORY.to_owned());
        }
        Ok(DiskLogs(logs))
    }

    /// Returns the part of a worker of the engine with this name. If its log was not opened as the settings are now, it refuses
    /// everything until the server is restarted.
    pub(crate) fn engine(&self, name: &str, config: &Engine, worker: usize) -> DiskEngine {
        let open = self.0.get(name).filter(|log| log.config.is_same_place(config));
        match open.and_then(|log| Some((log, log.ports.get(worker)?))) {
            Some((log, port)) => {
                let place = log.path.display().to_string();
                DiskEngine::new(Some(log.shared.clone()), Arc::clone(port), place)
            }
            None => {
                let place = config.directory.as_deref().unwrap_or("history").to_owned();
                DiskEngine::new(None, Arc::new(DiskPort::new(|| {})), place)
            }
        }
    }

    /// Writes and syncs everything, and closes the logs.
    pub(crate) fn close(&self) {
        for (name, log) in &self.0 {
            let threads = log.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(Err(error)) = threads.map(Threads::close) {
                tracing::error!(%name, %error, "the log of an engine could not be closed");
            }
        }
    }
}

/// What the start says if no engine keeps histories.
const IN_MEMORY: &str = "histories live in memory alone and end with the process; to keep them, name an engine of type \"disk\"";

/// Where histories live: `none` are kept, `memory` has all of them, or `engines` have some.
pub(crate) fn history_place(config: &Config) -> &'static str {
    let namespaces = config.channel.namespaces.iter().map(|(_, rules)| rules);
    let mut kept = namespaces
        .chain(std::iter::once(&config.channel.without_namespace))
        .filter(|rules| rules.history_size > 0 && rules.history_ttl_ms > 0)
        .peekable();
    if kept.peek().is_none() {
        return "none";
    }
    if kept.all(|rules| rules.engine.is_none()) { "memory" } else { "engines" }
}

impl OpenLog {
    fn open(
        name: &Arc<str>,
        engine: &Arc<Engine>,
        state_dir: Option<&Path>,
        doorbells: &[OwnedFd],
        report: &mut Vec<String>,
    ) -> Result<OpenLog, ServeError> {
        let failed = |reason: String| ServeError::Disk { engine: Arc::clone(name), reason };
        let path = match (&engine.directory, state_dir) {
            (Some(directory), _) => PathBuf::from(&**directory),
            (None, Some(state)) => state.join("history").join(&**name),
            (None, None) => {
                let fix = "it has no directory; start with --state DIR, or set `directory` of it";
                return Err(failed(fix.to_owned()));
            }
        };
        let in_directory = |error: String| failed(format!("{}: {error}", path.display()));
        let disk = Directory::open(&path).map_err(|error| {
            in_directory(format!("{error}; name one that this user may write to"))
        })?;
        let limits = Limits {
            segment_bytes: engine.segment_bytes_max,
            bytes_max: engine.bytes_max,
            sync_interval_ms: engine.sync_interval_ms,
            when_full: match engine.when_full {
                EngineWhenFull::Refuse => WhenFull::Refuse,
                EngineWhenFull::DropOldest => WhenFull::DropOldest,
            },
            ..Limits::default()
        };
        let config = LogConfig { limits, owner: String::new(), boot: boot_id() };
        let (log, recovery) =
            Log::open(Arc::new(disk), &config).map_err(|error| in_directory(error.to_string()))?;
        for damage in &recovery.damaged {
            tracing::error!(%name, "{damage}");
        }
        for warning in &recovery.warnings {
            tracing::warn!(%name, warning, "in the directory of an engine");
        }
        report.push(format!("{} streams in {} ({name})", recovery.streams, path.display(),));
        let log = Arc::new(log);
        let ports = doorbells.iter().map(port).collect::<io::Result<Vec<_>>>();
        let ports = ports.map_err(|error| in_directory(error.to_string()))?;
        for port in &ports {
            let port = Arc::clone(port);
            log.add_waker(Arc::new(move || port.wake()));
        }
        let threads =
            Threads::start(Arc::clone(&log)).map_err(|error| in_directory(error.to_string()))?;
        let reads = threads.reads().ok_or_else(|| in_directory("it has no thread".to_owned()))?;
        let durability = durability(engine.durability);
        Ok(OpenLog {
            config: Arc::clone(engine),
            path,
            shared: DiskLog { log, reads, durability },
            ports,
            threads: Mutex::new(Some(threads)),
        })
    }
}

/// A port that wakes a worker as a message on the bus would.
fn port(doorbell: &OwnedFd) -> io::Result<Arc<DiskPort>> {
    let doorbell = doorbell.as_fd().try_clone_to_owned()?;
    Ok(Arc::new(DiskPort::new(move || {
        // This fails only if the counter is full; the worker is then awake.
        let _ = rustix::io::write(&doorbell, &1u64.to_ne_bytes());
    })))
}
