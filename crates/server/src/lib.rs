//! The push server: wires event loop, hub, protocols, bus and configuration together.
//!
//! The way of a publication down: `worker` takes `POST /api/publish` from `net`, [`api`] reads it, the
//! worker's hub sends it over the bus to the channel's home worker, which numbers it and sends one `Arc` to
//! each worker with subscribers; their hubs put it into outboxes, and `worker` writes these to the sockets
//! at the end of the turn. The way up is the same in reverse. `control` is the thread beside them: signals,
//! shutdown, workers that begin anew. `admin` is another: the admin port, and the settings all run by; `push` a
//! third: notifications for who is not connected; `webhooks` the last: what backends are told.

#![forbid(unsafe_code)]

mod admin;
mod admission;
pub mod api;
pub mod auth;
mod bus_message;
mod control;
mod crash;
mod error;
mod fanout_scheduler;
mod judge;
mod jwt_hmac;
mod loop_stats;
pub mod metrics;
mod origin;
mod page;
mod push;
mod push_message;
mod reservations;
mod session_token;
mod settings;
mod state;
#[cfg(test)]
mod tests;
mod trace_parent;
mod webhooks;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dunlin_bus::{MeshConfig, mesh};
use dunlin_config::store::{Directory, InitialConfig, Source, Store};
use dunlin_config::{Config, ConfigErrors, Log, PushConfig, Webhooks};

use crate::admin::AdminParams;
use crate::control::{Control, listen};
use crate::push::PushThread;
use crate::reservations::{Reservations, Served};
use crate::settings::Settings;
use crate::state::ServerState;
use crate::worker::thread::{Placement, Workers};

pub use crate::error::ServeError;
pub use crate::judge::judge;

/// Most workers of one process: bus endpoints are left for the control thread, the admin thread, the push thread and the
/// webhooks thread.
pub const WORKERS_MAX: usize = dunlin_bus::ENDPOINTS_MAX - 4;

/// What to serve.
pub struct Serve {
    /// The configuration of the file, flags of the command line included. What is wrong with it is no matter if
    /// there is a good one in `state_dir`.
    pub config: Result<Config, ConfigErrors>,
    /// What to call where it comes from: the file's name, or `development`.
    pub source: String,
    /// Where revisions are kept, so that they outlive the process; `None` keeps them in memory.
    pub state_dir: Option<PathBuf>,
    /// Told `log` at the start and whenever it has changed: how to log is the program's business.
    pub on_log: Box<dyn Fn(&Log) + Send>,
}

/// What a started server tells whoever started it.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The bound address of the client port; differs from the configured one when its port was 0.
    pub client_addr: SocketAddr,
    /// The bound address of the admin port.
    pub admin_addr: SocketAddr,
    /// Threads that serve connections.
    pub workers: usize,
    /// What runs, where it was found, and what was wrong with it: sentences for a person.
    pub recovery: Vec<String>,
}

/// Serves until SIGTERM or SIGINT, then drains and returns.
///
/// `on_ready` is called once, when connections are accepted.
///
/// # Errors
/// What kept the server from starting, or a worker that could not be kept alive.
pub fn serve(what: Serve, on_ready: Box<dyn FnOnce(&Ready)>) -> Result<(), ServeError> {
    raise_descriptor_limit();
    let Serve { config, source, state_dir, on_log } = what;
    let (store, mut recovery) = recover(config, source, state_dir.as_deref())?;
    let snapshot = Arc::clone(store.head());
    let config = &snapshot.config;
    on_log(&config.log);
    let server = config.server.clone();
    let workers = worker_count(server.workers);
    let backlog = i32::try_from(server.backlog).unwrap_or(i32::MAX);
    let listeners =
        listen(server.client_addr, workers, backlog).map_err(|source| ServeError::Listen {
            key: "server.client_addr (--client)",
            address: server.client_addr,
            source,
        })?;
    let admin =
        std::net::TcpListener::bind(server.admin_addr).map_err(|source| ServeError::Listen {
            key: "server.admin_addr (--admin)",
            address: server.admin_addr,
            source,
        })?;
    let client_addr = listeners[0].local_addr().map_err(ServeError::Control)?;
    let admin_addr = admin.local_addr().map_err(ServeError::Control)?;
    let mut reservations = Reservations::new(Served::of(config));
    reservations
        .reserve_listeners(&Config::default(), config)
        .map_err(|fault| ServeError::Reserve(Box::new(fault)))?;

    let ring = MeshConfig { ring_slots: config.limits.bus_slots as usize, ..MeshConfig::default() };
    let mut endpoints = mesh(workers + 4, &ring).map_err(ServeError::Bus)?;
    let webhooks = endpoints.pop().expect("a mesh of at least five endpoints");
    let push_endpoint = endpoints.pop().expect("a mesh of at least five endpoints");
    let admin_endpoint = endpoints.pop().expect("a mesh of at least five endpoints");
    let endpoint = endpoints.pop().expect("a mesh of at least five endpoints");

    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(ServeError::Random)?;
    let (hash_secret, uid) = secret.split_at(16);
    let state = Arc::new(ServerState::new(
        Settings::new(snapshot),
        workers,
        hash_secret.try_into().expect("16 of 32 bytes"),
        uuid(uid.try_into().expect("16 of 32 bytes")),
    ));
    // The state is new, and nobody else sets this.
    let _ = state.monitor.set(endpoint.monitor());
    let placement = Placement {
        own_descriptor_tables: server.own_descriptor_tables,
        pinned: server.pin_workers,
    };
    let clones = || listeners.iter().map(std::net::TcpListener::try_clone).collect();
    let (handles, boot): (io::Result<Vec<_>>, io::Result<Vec<_>>) = (clones(), clones());
    let doorbells = [
        endpoint.doorbell(),
        admin_endpoint.doorbell(),
        push_endpoint.doorbell(),
        webhooks.doorbell(),
    ];
    let handles = handles.map_err(ServeError::Control)?;
    let workers = Workers::start(&state, endpoints, &doorbells, handles, placement)?;
    let pushes = PushThread::start(&state, push_endpoint, state_dir.as_deref())?;
    for fault in
        pushes.handle().apply(&PushConfig::default(), &state.settings.load().config.push).iter()
    {
        // Good when it was set; what else there is to push with goes on.
        tracing::error!("{fault}");
        recovery.push(format!("not used: {fault}"));
    }
    let mut unused = ConfigErrors::default();
    judge::webhooks(&Webhooks::default(), &state.settings.load().config.webhooks, &mut unused);
    recovery.extend(unused.iter().map(|fault| format!("not used: {fault}")));
    let admin = AdminParams {
        state: Arc::clone(&state),
        push: Some(pushes.handle()),
        endpoint: admin_endpoint,
        store,
        reservations,
        listener: admin,
        boot: boot.map_err(ServeError::Control)?,
        on_log,
    };
    let control = Control {
        state,
        endpoint,
        workers,
        listeners,
        admin,
        pushes,
        webhooks,
        client_addr,
        admin_addr,
        recovery,
    };
    control.run(on_ready)
}

/// Opens the store: the newest valid of its log, its snapshot and the file.
fn recover(
    config: Result<Config, ConfigErrors>,
    source: String,
    state_dir: Option<&Path>,
) -> Result<(Store, Vec<String>), ServeError> {
    let disk = match state_dir {
        Some(path) => {
            let directory = Directory::open(path)
                .map_err(|source| ServeError::State { path: path.to_path_buf(), source })?;
            Some(crash::directory(directory))
        }
        None => None,
    };
    let start = InitialConfig { config, name: source };
    let unix_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64);
    let (store, recovery) = Store::open(disk, start, unix_ms)
        .map_err(|error| ServeError::Recover(error.to_string()))?;
    let mut told = Vec::new();
    if let Some(path) = state_dir {
        let from = match recovery.from {
            Source::Log => "its log",
            Source::Snapshot => "its snapshot",
            Source::File => "what it was started with",
        };
        let (revision, path) = (recovery.revision, path.display());
        told.push(format!("configuration revision {revision} in {path}, from {from}"));
    }
    for warning in &recovery.warnings {
        tracing::warn!("{warning}");
        told.push(warning.to_string());
    }
    Ok((store, told))
}

/// `server.workers`, where 0 means one a core.
fn worker_count(configured: u8) -> usize {
    match configured {
        0 => std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX),
        n => usize::from(n).min(WORKERS_MAX),
    }
}

/// Raises the soft descriptor limit to the hard one; every worker's own table is bounded by it.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the descriptor limit stays at {:?}", limit.current);
    }
}

/// A random UUID (RFC 9562 version 4) from 16 random bytes.
fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].map(hex).join("-")
}
