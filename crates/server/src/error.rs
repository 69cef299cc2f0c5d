//! Errors of the server.

use std::io;
use std::net::SocketAddr;

/// Why [`serve`](crate::serve) failed. The text names the fix; the error of the kernel is the
/// [source](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The server could not listen on an address.
    #[error("{}", listen_error(key, address, source))]
    Listen {
        /// The setting with the address.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The TLS of a listener could not be built, and in plain text it must not listen.
    #[error("cannot listen on {address}: the TLS of {key} cannot be built")]
    Tls {
        /// The setting with the address.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// What is wrong with it.
        source: io::Error,
    },
    /// A listener of `listeners` could not be opened.
    #[error("{0}")]
    Reserve(Box<dunlin_config::ConfigError>),
    /// The state directory could not be opened.
    #[error(
        "cannot keep state in {}; name a directory that this user may write to and no other \
         Dunlin uses (--state DIR)",
        path.display()
    )]
    State {
        /// The directory.
        path: std::path::PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The log of an engine on a disk could not be opened.
    #[error("cannot open engines.{engine}: {reason}")]
    Disk {
        /// The name of the engine.
        engine: std::sync::Arc<str>,
        /// Why, and what to do.
        reason: String,
    },
    /// What is stored of messages to peers could not be opened.
    #[error("cannot open what is stored of federation.peers: {0}")]
    Federation(String),
    /// No configuration could be recovered.
    #[error("{0}")]
    Recover(String),
    /// The push thread could not start, for example because of the device registry in the state directory.
    #[error("cannot set up the push thread: {0}")]
    Push(String),
    /// The admin thread panicked.
    #[error("the admin thread panicked; the log has the reason, please report it")]
    AdminLost,
    /// The mesh between the workers could not be created.
    #[error(
        "cannot open the bus between workers; lower server.workers or raise the descriptor limit (`ulimit -n`)"
    )]
    Bus(#[source] io::Error),
    /// A worker thread could not start.
    #[error(
        "cannot start worker {worker}; lower server.workers, or set server.own_descriptor_tables = \
         false if the kernel refuses them"
    )]
    Worker {
        /// The worker.
        worker: usize,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A worker panicked too often to be restarted.
    #[error(
        "worker {worker} panicked again and again; the log has the reasons, please report them"
    )]
    WorkerLost {
        /// The worker.
        worker: usize,
    },
    /// The control thread could not start.
    #[error("cannot set up the control thread")]
    Control(#[source] io::Error),
    /// No random bytes were available for secrets.
    #[error("the kernel gave no random bytes")]
    Random(#[source] getrandom::Error),
}

fn listen_error(key: &str, address: &SocketAddr, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => format!(
            "{address} is in use by another process; set {key} to another address, or end the process that \
             `ss -ltnp 'sport = :{}'` shows",
            address.port()
        ),
        _ => {
            format!("cannot listen on {address}; set {key} to an address of this machine")
        }
    }
}
