//! The push server: wires event loop, hub, protocols, bus and configuration together.
//!
//! The way of a publication down: `worker` takes `POST /api/publish` from `net`, [`api`] reads it, the
//! worker's hub sends it over the bus to the channel's home worker, which numbers it and sends one `Arc` to
//! each worker with subscribers; their hubs put it into outboxes, and `worker` writes these to the sockets
//! at the end of the turn. The way up is the same in reverse. `control` is the thread beside them: admin
//! port, signals, shutdown.

#![forbid(unsafe_code)]

mod admin;
mod admission;
pub mod api;
pub mod auth;
mod control;
mod error;
pub mod metrics;
mod node;
mod origin;
mod page;
mod parcel;
mod session_token;
mod settings;
#[cfg(test)]
mod tests;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;

use dunlin_bus::{MeshConfig, mesh};
use dunlin_config::Config;

use crate::control::{Control, listen};
use crate::node::Node;
use crate::settings::Settings;
use crate::worker::thread::{Placement, Workers};

pub use crate::error::ServeError;

/// Most workers of one process: a bus endpoint is left for the control thread.
pub const WORKERS_MAX: usize = dunlin_bus::ENDPOINTS_MAX - 1;

/// What a started server tells whoever started it.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The bound address of the client port; differs from the configured one when its port was 0.
    pub client_addr: SocketAddr,
    /// The bound address of the admin port.
    pub admin_addr: SocketAddr,
    /// Threads that serve connections.
    pub workers: usize,
}

/// Serves until SIGTERM or SIGINT, then drains and returns.
///
/// `config` has to be valid ([`Config::validate`]). `on_ready` is called once, when connections are accepted.
///
/// # Errors
/// What kept the server from starting, or a worker that could not be kept alive.
pub fn serve(config: Config, on_ready: Box<dyn FnOnce(&Ready)>) -> Result<(), ServeError> {
    raise_descriptor_limit();
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

    let ring = MeshConfig { ring_slots: config.limits.bus_slots as usize, ..MeshConfig::default() };
    let mut endpoints = mesh(workers + 1, &ring).map_err(ServeError::Bus)?;
    let endpoint = endpoints.pop().expect("a mesh of at least two endpoints");

    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(ServeError::Random)?;
    let (hash_secret, uid) = secret.split_at(16);
    let node = Arc::new(Node::new(
        Settings::new(config),
        workers,
        hash_secret.try_into().expect("16 of 32 bytes"),
        uuid(uid.try_into().expect("16 of 32 bytes")),
    ));
    let placement = Placement {
        own_descriptor_tables: server.own_descriptor_tables,
        pinned: server.pin_workers,
    };
    let handles = listeners.iter().map(std::net::TcpListener::try_clone).collect::<Result<_, _>>();
    let workers =
        Workers::start(&node, endpoints, handles.map_err(ServeError::Control)?, placement)?;
    Control { node, endpoint, workers, listeners, admin, client_addr, admin_addr }.run(on_ready)
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
