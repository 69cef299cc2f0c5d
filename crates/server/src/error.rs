//! Why the server could not start or go on.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Why [`serve`](crate::serve) returned. The text names the fix.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// An address could not be listened on.
    Listen {
        /// The setting that names the address.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// A listener of `listeners` could not be had.
    Reserve(Box<dunlin_config::ConfigError>),
    /// The state directory could not be opened.
    State {
        /// The directory.
        path: std::path::PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// No configuration could be recovered.
    Recover(String),
    /// The push thread could not start; what is wrong, the device registry in the state directory perhaps.
    Push(String),
    /// The admin thread panicked.
    AdminLost,
    /// The mesh between the workers could not be made.
    Bus(io::Error),
    /// A worker thread could not start.
    Worker {
        /// Which.
        worker: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// A worker panicked too often to be started again.
    WorkerLost {
        /// Which.
        worker: usize,
    },
    /// The control thread could not set itself up.
    Control(io::Error),
    /// No randomness for secrets.
    Random(getrandom::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Listen { key, address, source }
                if source.kind() == io::ErrorKind::AddrInUse =>
            {
                write!(
                    f,
                    "{address} is in use by another process; set {key} to another address, or end \
                     the process that `ss -ltnp 'sport = :{}'` shows",
                    address.port()
                )
            }
            ServeError::Listen { key, address, source } => {
                write!(
                    f,
                    "cannot listen on {address}: {source}; set {key} to an address of this machine"
                )
            }
            ServeError::Reserve(fault) => write!(f, "{fault}"),
            ServeError::State { path, source } => write!(
                f,
                "cannot keep state in {}: {source}; name a directory that this user may write to \
                 and no other Dunlin uses (--state DIR)",
                path.display()
            ),
            ServeError::Recover(why) => write!(f, "{why}"),
            ServeError::Push(why) => write!(f, "cannot set up the push thread: {why}"),
            ServeError::AdminLost => {
                f.write_str("the admin thread panicked; the log has the reason, please report it")
            }
            ServeError::Bus(source) => write!(
                f,
                "cannot open the bus between workers: {source}; lower server.workers or raise the \
                 descriptor limit (`ulimit -n`)"
            ),
            ServeError::Worker { worker, source } => write!(
                f,
                "cannot start worker {worker}: {source}; lower server.workers, or set \
                 server.own_descriptor_tables = false if the kernel refuses them"
            ),
            ServeError::WorkerLost { worker } => write!(
                f,
                "worker {worker} panicked again and again; the log has the reasons, please report them"
            ),
            ServeError::Control(source) => write!(f, "cannot set up the control thread: {source}"),
            ServeError::Random(source) => write!(f, "the kernel gave no random bytes: {source}"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ServeError::Listen { source, .. }
            | ServeError::Bus(source)
            | ServeError::Worker { source, .. }
            | ServeError::State { source, .. }
            | ServeError::Control(source) => Some(source),
            ServeError::Random(source) => Some(source),
            ServeError::WorkerLost { .. }
            | ServeError::Reserve(_)
            | ServeError::Recover(_)
            | ServeError::Push(_)
            | ServeError::AdminLost => None,
        }
    }
}
