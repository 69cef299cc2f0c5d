//! The push server: connects event loop, hub, protocols, bus and configuration.
//!
//! The path of a publication: `worker` receives `POST /api/publish` from `net`, and `api` parses it. The
//! worker's hub sends it over the bus to the channel's home worker, which numbers it and sends one `Arc` to
//! each worker with subscribers. Their hubs put it into outboxes, and `worker` writes these to the sockets at
//! the end of the turn. Publications of clients take the same path.
//!
//! Other threads: `control` handles signals, shutdown and restarts of workers; `admin` serves the admin port
//! and applies settings; `push` sends notifications to users who are offline; `webhooks` sends events to
//! backends.

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod admin;
#[cfg(test)]
mod authority_tests;
mod clock;
mod control;
mod crash;
mod engines;
mod error;
#[cfg(feature = "otlp")]
mod exporter;
mod federation;
mod log;
mod message;
mod metrics;
mod program;
mod programs;
mod push;
mod request;
mod server;
mod state;
mod telemetry;
#[cfg(test)]
mod tests;
mod tls;
mod validation;
mod webhooks;
mod worker;

/// The fuzz targets of `fuzz/`, by the name of their corpus.
#[cfg(feature = "fuzz")]
pub const FUZZ_TARGETS: &[(&str, fn(&[u8]))] = worker::fuzz_targets::TARGETS;

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dunlin_bus::Monitor;
use dunlin_config::store::{Directory, InitialConfig, RecoverySource, Store};
use dunlin_config::{ConfigErrors, Log, Snapshot};

use crate::admin::reservations::{Reservations, ServedAddrs};
use crate::admin::{AdminParams, OperatorAccess};
use crate::auth::revocation::RevocationLog;
use crate::clock::unix_ms;
use crate::control::Control;
use crate::engines::disk::DiskLogs;
use crate::federation::FederationThread;
use crate::message::bus::{Bus, OTHER_THREADS};
use crate::program::Program;
use crate::state::ServerState;
use crate::state::settings::Settings;
use crate::worker::listeners::listen;
use crate::worker::thread::{Placement, Workers};

use dunlin_access::{limits, namespace, tenants};
use dunlin_api::{proxy, pusher, server_api as api};

pub use dunlin_access::auth;
pub use dunlin_config::Config;
pub use dunlin_hub::SessionId;
pub use dunlin_protocol::Codec;
pub use dunlin_protocol::centrifuge::ErrorCode;
pub use serde_json::json;

pub use crate::auth::OptionsOverride;
pub use crate::control::Ready;
pub use crate::error::ServeError;
pub use crate::program::{
    Authorizer, CallError, Client, Connect, Decision, DecisionSender, Handle, HttpRequest,
    HttpResponse, Publish, Refresh, Reply, Responder, Rpc, SubRefresh, Subscribe,
};
pub use crate::proxy::{
    ConnectResult, DecisionResult, Denial, PublishResult, RefreshResult, RpcResult, SubscribeResult,
};
pub use crate::server::Server;
pub use crate::state::memory::{Memory, MemoryBounds, MemoryLimit};
pub use crate::validation::{Reload, ValidConfig, errors_of};

/// Most workers of one process: bus endpoints are left for the control thread, the admin thread, the push thread and the
/// webhooks thread.
pub const WORKERS_MAX: usize = dunlin_bus::ENDPOINTS_MAX - OTHER_THREADS;

/// What to serve.
pub struct ServeOptions {
    /// The configuration of the file, with command-line flags applied. Its errors are ignored if
    /// `state_dir` has a valid configuration.
    pub config: Result<ValidConfig, ConfigErrors>,
    /// The name of the configuration's source: the file's name, or `development`.
    pub source: String,
    /// The directory where revisions are stored, so that they survive a restart; `None` keeps them in memory.
    pub state_dir: Option<PathBuf>,
    /// Reads and validates the configuration anew, for SIGHUP; the error says which line is wrong. `None`: there is no file.
    pub reload: Option<Reload>,
    /// Called with the `log` settings at the start and after each change; the program decides how to log.
    pub on_log: Box<dyn Fn(&Log) + Send>,
}

/// Serves until SIGTERM or SIGINT, then drains and returns.
///
/// `on_ready` is called once, when connections are accepted.
///
/// # Errors
/// Returns an error if the server cannot start, or a worker cannot be kept alive.
pub fn serve(what: ServeOptions, on_ready: Box<dyn FnOnce(&Ready)>) -> Result<(), ServeError> {
    serve_program(what, None, on_ready)
}

/// Implements [`serve`], with the extensions of a program that embeds the server.
fn serve_program(
    what: ServeOptions,
    program: Option<Program>,
    on_ready: Box<dyn FnOnce(&Ready)>,
) -> Result<(), ServeError> {
    raise_descriptor_limit();
    let ServeOptions { config, source, state_dir, reload, on_log } = what;
    let (store, mut recovery) = recover(config, source, state_dir.as_deref())?;
    let (operator, socket) = open_operator(state_dir.as_deref(), &mut recovery)?;
    let snapshot = Arc::clone(store.head());
    let config = &snapshot.config;
    on_log(&config.log);
    let workers = worker_count(config.server.workers);
    let (listeners, admin_listener) = listeners(&config.server, workers)?;
    let client_addr = listeners[0].local_addr().map_err(ServeError::Control)?;
    let admin_addr = admin_listener.local_addr().map_err(ServeError::Control)?;
    let mut reservations = Reservations::new(ServedAddrs::of(config), socket.is_some());
    reservations
        .reserve_listeners(&Config::default(), config)
        .map_err(|error| ServeError::Reserve(Box::new(error)))?;
    let placement = Placement {
        // Descriptors that wake the program's own threads, such as those of a runtime, are not in a worker's private table.
        own_descriptor_tables: config.server.own_descriptor_tables && program.is_none(),
        pinned: config.server.pin_workers,
    };
    let bus = Bus::open(workers, config.limits.bus_slots as usize).map_err(ServeError::Bus)?;
    let Bus { workers: endpoints, control: endpoint, .. } = bus;
    let doorbells = [
        endpoint.doorbell(),
        bus.admin.doorbell(),
        bus.push.doorbell(),
        bus.webhooks.doorbell(),
        bus.federation.doorbell(),
    ];
    let state = Arc::new(new_state(snapshot, workers, endpoint.monitor())?);
    check_listener_tls(&state.settings.load())?;
    if let Some(program) = program {
        program.handle.open(workers).map_err(ServeError::Control)?;
        // The state is new; this is the only writer.
        let _ = state.program.set(program);
    }
    let bells = endpoints.iter().map(|endpoint| endpoint.doorbell().try_clone_to_owned());
    let bells = bells.collect::<io::Result<Vec<_>>>().map_err(ServeError::Bus)?;
    let settings = state.settings.load();
    let disks = DiskLogs::open(&settings.config, state_dir.as_deref(), &bells, &mut recovery)?;
    // The state is new; this is the only writer.
    let _ = state.disks.set(disks);
    drop(settings);
    let revocation_log = open_revocations(state_dir.as_deref(), &state, &mut recovery)?;
    let boot = clone_all(&listeners)?;
    let workers = Workers::start(&state, endpoints, &doorbells, clone_all(&listeners)?, placement)?;
    let (pushes, unused) = push::start(&state, bus.push, state_dir.as_deref(), &mut recovery)?;
    recovery.extend(report_unused(unused, &state.settings.load().config));
    let federation = FederationThread::start(
        Arc::clone(&state),
        bus.federation,
        state_dir.as_deref(),
        &mut recovery,
    )?;
    let admin = AdminParams {
        state: Arc::clone(&state),
        push: Some(pushes.handle()),
        endpoint: bus.admin,
        store,
        reservations,
        listener: admin_listener,
        operator,
        revocation_log,
        socket,
        boot,
        reload,
        on_log,
        counters: Arc::default(),
    };
    let shared = Arc::clone(&state);
    let control = Control {
        state,
        endpoint,
        workers,
        listeners,
        admin,
        pushes,
        webhooks: bus.webhooks,
        federation,
        client_addr,
        admin_addr,
        recovery,
    };
    let ended = control.run(on_ready);
    if let Some(disks) = shared.disks.get() {
        disks.close();
    }
    ended
}

/// Checks that the addresses of `server` do not have to listen in plain text because their TLS cannot be built.
fn check_listener_tls(settings: &Settings) -> Result<(), ServeError> {
    let server = &settings.config.server;
    for (key, address, ingress) in [
        ("server.client_addr", server.client_addr, &server.client_ingress),
        ("server.admin_addr", server.admin_addr, &server.admin_ingress),
    ] {
        let built = settings.tls.server(ingress);
        built.map_err(|source| ServeError::Tls { key, address, source })?;
    }
    Ok(())
}

/// Opens the operator's access and Unix socket if there is a state directory.
fn open_operator(
    state_dir: Option<&Path>,
    report: &mut Vec<String>,
) -> Result<(Option<OperatorAccess>, Option<UnixListener>), ServeError> {
    let Some(path) = state_dir else { return Ok((None, None)) };
    let opened = admin::operator::open(path)
        .map_err(|source| ServeError::State { path: path.to_path_buf(), source })?;
    report.extend(opened.report);
    Ok((Some(opened.access), opened.socket))
}

/// Opens the stored revocations if there is a state directory.
fn open_revocations(
    state_dir: Option<&Path>,
    state: &ServerState,
    report: &mut Vec<String>,
) -> Result<Option<RevocationLog>, ServeError> {
    let Some(path) = state_dir else { return Ok(None) };
    let max = state.settings.load().config.client.token.revocations_max as usize;
    let opened = RevocationLog::open(path, &state.revocations, unix_ms(), max, report);
    opened.map(Some).map_err(|source| ServeError::State { path: path.to_path_buf(), source })
}

fn clone_all(listeners: &[TcpListener]) -> Result<Vec<TcpListener>, ServeError> {
    let clones: io::Result<_> = listeners.iter().map(TcpListener::try_clone).collect();
    clones.map_err(ServeError::Control)
}

/// Opens the workers' listeners on `server.client_addr`, and the one on `server.admin_addr`.
fn listeners(
    server: &dunlin_config::Server,
    workers: usize,
) -> Result<(Vec<TcpListener>, TcpListener), ServeError> {
    let failed = |key, address| move |source| ServeError::Listen { key, address, source };
    let (clients, admin) = (server.client_addr, server.admin_addr);
    let backlog = i32::try_from(server.backlog).unwrap_or(i32::MAX);
    let listeners = listen(clients, workers, backlog)
        .map_err(failed("server.client_addr (--client)", clients))?;
    let admin = TcpListener::bind(admin).map_err(failed("server.admin_addr (--admin)", admin))?;
    Ok((listeners, admin))
}

/// Creates the state that all threads share, with new random secrets.
fn new_state(
    snapshot: Arc<Snapshot>,
    workers: usize,
    monitor: Monitor,
) -> Result<ServerState, ServeError> {
    let (mut secret, mut uid) = ([0; 16], [0; 16]);
    getrandom::fill(&mut secret).map_err(ServeError::Random)?;
    getrandom::fill(&mut uid).map_err(ServeError::Random)?;
    let state = ServerState::new(Settings::new(snapshot), workers, secret, uuid(uid));
    // The state is new; this is the only writer.
    let _ = state.monitor.set(monitor);
    Ok(state)
}

/// Returns what the report says about what cannot be used any more, although it was valid when it was set: push
/// credentials, certificates, roots. The rest works.
fn report_unused(mut unused: ConfigErrors, config: &Config) -> Vec<String> {
    let mut outside = ConfigErrors::default();
    validation::outside(&Config::default(), config, &mut outside);
    unused.add_further(&outside);
    unused.iter().for_each(|error| tracing::error!("closed: {error}"));
    unused.iter().map(|error| format!("not used: {error}")).collect()
}

/// Opens the store with the newest valid configuration of its log, its snapshot and the file.
fn recover(
    config: Result<ValidConfig, ConfigErrors>,
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
    let config = config.map(ValidConfig::into_inner);
    let start = InitialConfig { config, name: source, judge: validation::settings };
    let (store, recovery) = Store::open(disk, start, unix_ms())
        .map_err(|error| ServeError::Recover(error.to_string()))?;
    let mut report = Vec::new();
    if let Some(path) = state_dir {
        let from = match recovery.from {
            RecoverySource::Log => "its log",
            RecoverySource::Snapshot => "its snapshot",
            RecoverySource::File => "what it was started with",
        };
        let (revision, path) = (recovery.revision, path.display());
        report.push(format!("configuration revision {revision} in {path}, from {from}"));
    }
    for warning in &recovery.warnings {
        tracing::warn!("{warning}");
        report.push(warning.to_string());
    }
    Ok((store, report))
}

/// Returns the number of workers of `server.workers`; 0 means one for each core.
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
